"""The plan of an epoch as bytes, for the file that the ranks of a node share.

::

    0    magic     8 bytes    "jsplan", 0, version 1
    8    header    9 x <i8    rows, batches, lanes, lanes' batches, escapes, tokens, slots, identity bytes, reserved 0
    80   identity  utf-8, what the plan was made for
    ...  first     <i8 a batch       first row of the batch
         counts    <i4 a batch       rows of the batch
         shapes    <i4 a batch
         lanes     <i8 a lane + 1
         steps     <i2 a row         row minus the row before it in the batch, 0 for its first; -32768 is an escape
         escapes   <i8 each          the steps that do not fit, in order
    end  xxh3      8 bytes           of everything before

Two bytes a row: rows of a lane's batch are near each other. The tail's are not always, and escape.
"""

import numpy as np
import xxhash
from numpy.typing import NDArray

from janus_shards.batching.plan import MicroBatches
from janus_shards.errors import FormatError
from janus_shards.sample import RawBytes

_MAGIC = b"jsplan\x00\x01"
_HEADER = np.dtype("<i8")
_NUM_HEADER = 9
_ESCAPE = -(2**15)
_CHECKSUM_BYTES = 8


def encode_plan(plan: MicroBatches, *, identity: str) -> bytes:
    """The plan as bytes.

    Args:
        plan: Of one epoch.
        identity: What it was made for: data set, order hash and epoch.
    """
    counts = np.diff(plan.offsets)
    rows = plan.rows.astype(np.int64)
    steps = np.diff(rows, prepend=0)
    steps[plan.offsets[:-1]] = 0
    far = np.abs(steps) >= 2**15
    escapes = steps[far]
    steps[far] = _ESCAPE
    name = identity.encode()
    header = [len(rows), len(plan), len(plan.lanes), int(plan.lanes[-1]), len(escapes)]
    header += [plan.num_tokens, plan.num_slots, len(name), 0]
    columns = [
        (rows[plan.offsets[:-1]], "<i8"),
        (counts, "<i4"),
        (plan.shapes, "<i4"),
        (plan.lanes, "<i8"),
        (steps, "<i2"),
        (escapes, "<i8"),
    ]
    body = _MAGIC + np.array(header, _HEADER).tobytes() + name
    body += b"".join(values.astype(dtype).tobytes() for values, dtype in columns)
    return body + xxhash.xxh3_64_digest(body)


def decode_plan(data: RawBytes, *, identity: str, name: str) -> MicroBatches:
    """The opposite of ``encode_plan``.

    Args:
        data: The whole file.
        identity: What the plan should be made for.
        name: Of the file, for messages.

    Raises:
        FormatError: The bytes are damaged, or the plan was made for something else.
    """
    view = memoryview(data).cast("B")
    start = len(_MAGIC) + _NUM_HEADER * _HEADER.itemsize
    if len(view) < start + _CHECKSUM_BYTES or view[: len(_MAGIC)] != _MAGIC:
        raise _damaged(name, f"{len(view)} bytes without its magic")
    if view[-_CHECKSUM_BYTES:] != xxhash.xxh3_64_digest(view[:-_CHECKSUM_BYTES]):
        raise _damaged(name, "another checksum")
    header = np.frombuffer(view[len(_MAGIC) : start], _HEADER).tolist()
    num_rows, num_batches, num_borders, lane_batches, num_escapes, tokens, slots, name_bytes, _ = header
    wanted = [(name_bytes, "|u1"), (num_batches, "<i8"), (num_batches, "<i4"), (num_batches, "<i4")]
    wanted += [(num_borders, "<i8"), (num_rows, "<i2"), (num_escapes, "<i8")]
    stored = len(view) - start - _CHECKSUM_BYTES
    if min(header) < 0 or sum(count * np.dtype(dtype).itemsize for count, dtype in wanted) != stored:
        raise _damaged(name, "counts that do not fit its length")
    arrays = []
    for count, dtype in wanted:
        stop = start + count * np.dtype(dtype).itemsize
        arrays.append(np.frombuffer(view[start:stop], dtype))
        start = stop
    found, first, counts, shapes, lanes, steps, escapes = arrays
    if found.tobytes() != identity.encode():
        raise FormatError(
            f"{name}: expected the plan of {identity}, found that of {bytes(found)!r}", kind="other_plan", shard=name
        )
    offsets = np.append(0, np.cumsum(counts, dtype=np.int64))
    sound = num_borders > 0 and lanes[0] == 0 and lanes[-1] == lane_batches <= num_batches
    sound = sound and bool(np.all(counts > 0) and np.all(np.diff(lanes) >= 0) and offsets[-1] == num_rows)
    sound = sound and np.count_nonzero(steps == _ESCAPE) == num_escapes
    rows = _add_up(first, offsets, steps, escapes) if sound else first
    if not sound or not _is_permutation(rows, num_rows):
        raise _damaged(name, "batches that do not hold every row once")
    return MicroBatches(
        rows=rows.astype(np.int32 if num_rows < 2**31 else np.int64),
        offsets=offsets,
        lanes=lanes.astype(np.int64),
        shapes=shapes.astype(np.int32),
        num_tokens=tokens,
        num_slots=slots,
    )


def _add_up(
    first: NDArray[np.int64], offsets: NDArray[np.int64], steps: NDArray[np.int16], escapes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Rows from the first of each batch and the steps between them."""
    wide = steps.astype(np.int64)
    wide[steps == _ESCAPE] = escapes
    # The sum runs on over batches; what it had reached before each batch is taken off again.
    sums = np.cumsum(wide)
    rows: NDArray[np.int64] = sums + np.repeat(first - sums[offsets[:-1]], np.diff(offsets))
    return rows


def _is_permutation(rows: NDArray[np.int64], num_rows: int) -> bool:
    if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= num_rows):
        return False
    seen = np.zeros(num_rows, np.bool_)
    seen[rows] = True
    return bool(seen.all())


def _damaged(name: str, found: str) -> FormatError:
    return FormatError(f"{name}: expected the plan of an epoch, found {found}", kind="bad_plan", shard=name)
