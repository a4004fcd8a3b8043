"""From rows of many lengths to arrays of one shape: padding, masks, and what attention over packed rows needs.

Rows come *flat*: one array with the values of all rows, one row behind the other, and the length of each row.

::

    values, lengths       7 8 9 4 5 | 3 2
    pad, side "right"     7 8 9 | 4 5 0            side "left"    7 8 9 | 0 4 5
    mask                  1 1 1 | 1 1 0                           1 1 1 | 0 1 1

    pack, two bins of 6   7 8 9 4 5 0 | ...        segment ids    1 1 1 2 2 0 | ...
                                                   position ids   0 1 2 0 1 0 | ...        cu_seqlens   0 3 5 ...
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from janus_shards.errors import ConfigError

Side: TypeAlias = Literal["right", "left"]
_Value = TypeVar("_Value", bound=np.generic)


@dataclass(frozen=True, kw_only=True)
class PackedLayout:
    """Where the tokens of packed rows stand.

    Attributes:
        places: Place of each token in the flattened bins, int64, shape ``(num_tokens,)``.
        segment_ids: Row of its bin that each place belongs to, from 1; 0 where nothing stands; int32 ``[bins, width]``.
        position_ids: Place in its row, restarting with every row; 0 where nothing stands; int32 ``[bins, width]``.
        cu_seqlens: Starts of all rows in the tokens without padding, and their end; int32, ``(num_rows + 1,)``.
        max_seqlen: Length of the longest row.
    """

    places: NDArray[np.int64]
    segment_ids: NDArray[np.int32]
    position_ids: NDArray[np.int32]
    cu_seqlens: NDArray[np.int32]
    max_seqlen: int


def truncate(
    values: NDArray[_Value], lengths: NDArray[np.integer], *, max_lengths: NDArray[np.integer] | int
) -> tuple[NDArray[_Value], NDArray[np.int64], int]:
    """Cut rows behind their first ``max_lengths`` values: values, lengths, and how many rows were cut."""
    found: NDArray[np.int64] = lengths.astype(np.int64)
    kept: NDArray[np.int64] = np.minimum(found, max_lengths).astype(np.int64)
    num_cut = int(np.count_nonzero(kept < found))
    if not num_cut:
        return values, found, 0
    return values[_inside(found) < np.repeat(kept, found)], kept, num_cut


def pad(
    values: NDArray[_Value], lengths: NDArray[np.integer], *, width: int, fill: float = 0, side: Side = "right"
) -> NDArray[_Value]:
    """Rows of equal width.

    Args:
        values: Of all rows, shape ``(sum of lengths,)``.
        lengths: Of each row, at most ``width``, shape ``(num_rows,)``.
        width: Length to pad to.
        fill: Value of the padding, such as the pad id of a tokenizer or -100 for labels.
        side: Where the padding stands.

    Returns:
        Shape ``(num_rows, width)``, dtype of ``values``.

    Raises:
        ConfigError: A row is longer, or ``side`` is unknown.
    """
    out = np.full((len(lengths), width), fill, values.dtype)
    out.reshape(-1)[_padded_places(lengths.astype(np.int64), width, side)] = values
    return out


def mask(lengths: NDArray[np.integer], *, width: int, side: Side = "right") -> NDArray[np.bool_]:
    """True where a value stands, bool, shape ``(num_rows, width)``; see ``pad`` for the arguments."""
    _check_rows(lengths, width, side)
    place = np.arange(width)
    if side == "right":
        return place < lengths[:, None]
    return place >= width - lengths[:, None]


def pack(lengths: NDArray[np.integer], *, counts: NDArray[np.integer], width: int) -> PackedLayout:
    """Rows one behind the other in bins.

    Args:
        lengths: Of each row, bin after bin, shape ``(num_rows,)``.
        counts: Rows of each bin, shape ``(num_bins,)``.
        width: Length of a bin.

    Raises:
        ConfigError: The rows of a bin are longer than it.
    """
    sizes: NDArray[np.int64] = lengths.astype(np.int64)
    rows: NDArray[np.int64] = counts.astype(np.int64)
    ends = np.cumsum(sizes)
    bin_ends = np.append(0, ends)[np.cumsum(rows)]  # tokens up to the end of each bin
    bin_starts = np.append(0, bin_ends)[:-1]
    fullest = int((bin_ends - bin_starts).max(initial=0))
    if fullest > width:
        raise ConfigError(f"pack: the rows of a bin take {fullest} tokens, and it holds {width}")
    bins = np.repeat(np.arange(len(rows)), rows)  # of each row
    row_starts = ends - sizes
    places = np.repeat(bins * width - bin_starts[bins], sizes) + np.arange(int(sizes.sum()))
    segment_ids, position_ids = (np.zeros((len(rows), width), np.int32) for _ in range(2))
    segment_ids.reshape(-1)[places] = np.repeat(_inside(rows) + 1, sizes)
    position_ids.reshape(-1)[places] = _inside(sizes)
    return PackedLayout(
        places=places,
        segment_ids=segment_ids,
        position_ids=position_ids,
        cu_seqlens=np.append(row_starts, places.shape[0]).astype(np.int32),
        max_seqlen=int(sizes.max(initial=0)),
    )


def place_tokens(values: NDArray[_Value], layout: PackedLayout, *, fill: float = 0) -> NDArray[_Value]:
    """Values of packed rows in their bins, shape of ``layout.segment_ids``; see ``pad`` for ``fill``."""
    out = np.full(layout.segment_ids.shape, fill, values.dtype)
    out.reshape(-1)[layout.places] = values
    return out


def _padded_places(lengths: NDArray[np.int64], width: int, side: Side) -> NDArray[np.int64]:
    _check_rows(lengths, width, side)
    starts = np.arange(len(lengths)) * width
    if side == "left":
        starts += width - lengths
    return np.repeat(starts, lengths) + _inside(lengths)


def _inside(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, ... in each row, all rows one behind the other."""
    starts = np.cumsum(lengths) - lengths
    out: NDArray[np.int64] = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    return out


def _check_rows(lengths: NDArray[np.integer], width: int, side: Side) -> None:
    longest = int(lengths.max(initial=0))
    if longest > width:
        raise ConfigError(f"a row of {longest} values cannot be padded to {width}; truncate it first")
    if side not in ("right", "left"):
        raise ConfigError(f"padding side={side!r}: expected 'right' or 'left'")
