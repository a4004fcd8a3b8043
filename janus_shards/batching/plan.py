"""The plan of an epoch: lanes are planned one by one, then what was left open, once more, as the tail of the epoch.

A micro-batch is complete with its last row, and the micro-batches of a lane stand in the order of their last rows.

Source: docs/design/0002-batches-and-mixtures.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Rows by place in the planned sequence: int32 where it fits, else int64.
Places: TypeAlias = NDArray[np.signedinteger]


@dataclass(frozen=True, kw_only=True)
class Closed:
    """What became of some rows, by place among them.

    Attributes:
        rows: Rows of complete batches, one batch after another.
        counts: Rows of each batch, shape ``(num_batches,)``.
        left: Rows of batches that are still open, increasing.
    """

    rows: NDArray[np.int64]
    counts: NDArray[np.int64]
    left: NDArray[np.int64]


#: Puts rows of given sizes, in their order, into batches.
Close: TypeAlias = Callable[[NDArray[np.int32]], Closed]


@dataclass(frozen=True, kw_only=True)
class MicroBatches:
    """All micro-batches of an epoch. Each row of the planned sequence lies in exactly one.

    Attributes:
        rows: Rows of all batches, one batch after another, as places of the planned sequence: the lanes, one after
            another; shape ``(num_rows,)``.
        offsets: Batch b holds ``rows[offsets[b] .. offsets[b + 1] - 1]``; int64, shape ``(num_batches + 1,)``.
        lanes: Lane l made batches ``lanes[l] .. lanes[l + 1] - 1``; those from ``lanes[-1]`` on are the epoch's tail.
            int64, shape ``(num_lanes + 1,)``.
        shapes: What a batch is padded to: tokens; with buckets of aspect ratios the number of the bucket. int32, shape
            ``(num_batches,)``.
        num_tokens: Of all rows.
        num_slots: Of all batches, padding included.
    """

    rows: Places
    offsets: NDArray[np.int64]
    lanes: NDArray[np.int64]
    shapes: NDArray[np.int32]
    num_tokens: int
    num_slots: int

    def __len__(self) -> int:
        """Number of micro-batches."""
        return len(self.shapes)

    @property
    def waste(self) -> float:
        """Share of the slots that holds padding, 0 to 1; 1 - waste is the packing efficiency."""
        return 1 - self.num_tokens / self.num_slots if self.num_slots else 0.0

    @property
    def tail_share(self) -> float:
        """Share of the rows that lies in the epoch's tail, 0 to 1."""
        return 1 - int(self.offsets[self.lanes[-1]]) / len(self.rows) if len(self.rows) else 0.0


def plan_lanes(
    sizes: NDArray[np.int32],
    borders: NDArray[np.int64],
    *,
    close: Close,
    flush: Close,
    groups: NDArray[np.integer] | None = None,
) -> tuple[Places, NDArray[np.int64], NDArray[np.int64]]:
    """Put the rows of all lanes into batches.

    Args:
        sizes: Size of each row, lane after lane, shape ``(num_rows,)``.
        borders: Lane l holds rows ``borders[l] .. borders[l + 1] - 1``; shape ``(num_lanes + 1,)``.
        close: The rule.
        flush: Puts what is open at the very end into batches, in the order in which they are served; leaves nothing.
        groups: Group of each row: no batch holds rows of two. One group when not given.

    Returns:
        ``rows``, ``offsets`` and ``lanes`` of ``MicroBatches``.
    """
    dtype = np.int32 if len(sizes) < 2**31 else np.int64
    parts: list[Places] = []
    counts: list[NDArray[np.int64]] = []
    left: list[NDArray[np.int64]] = []

    def add(where: NDArray[np.int64], step: Close) -> NDArray[np.int64]:
        closed = _each_group(where, sizes, groups, step)
        if step is close:
            closed = _in_order(closed)
        parts.append(closed.rows.astype(dtype))
        counts.append(closed.counts)
        return closed.left

    bounds = borders.tolist()
    for start, stop in pairwise(bounds):
        left.append(add(np.arange(start, stop), close))
    lanes = np.append(0, np.cumsum([len(part) for part in counts]))
    last = add(np.concatenate([np.empty(0, np.int64), *left]), close)
    add(last, flush)
    offsets = np.append(0, np.cumsum(np.concatenate(counts)))
    return np.concatenate(parts), offsets.astype(np.int64), lanes.astype(np.int64)


def scattered(closed: Closed) -> Closed:
    """The same batches in an order that has nothing to do with their rows' lengths: that of their middle rows.

    What comes last may be dropped, and should not always be the longest rows, or always the shortest.
    """
    middles = closed.rows[np.cumsum(closed.counts) - (closed.counts + 1) // 2] if len(closed.counts) else closed.counts
    return _reordered(closed, np.argsort(middles, kind="stable"))


def longest_rows(sizes: NDArray[np.int32], rows: Places, offsets: NDArray[np.int64]) -> NDArray[np.int32]:
    """Size of the largest row of each batch, shape ``(num_batches,)``."""
    if len(offsets) == 1:
        return np.empty(0, np.int32)
    longest: NDArray[np.int32] = np.maximum.reduceat(sizes[rows], offsets[:-1])
    return longest


def _each_group(
    where: NDArray[np.int64], sizes: NDArray[np.int32], groups: NDArray[np.integer] | None, step: Close
) -> Closed:
    """``step`` on the rows ``where``, each group by itself; rows are those of the whole sequence."""
    if groups is None:
        return _moved(step(sizes[where]), where)
    mine = groups[where]
    found = [where[mine == group] for group in np.unique(mine)]
    done = [_moved(step(sizes[places]), places) for places in found]
    none = np.empty(0, np.int64)
    return Closed(
        rows=np.concatenate([none, *(closed.rows for closed in done)]),
        counts=np.concatenate([none, *(closed.counts for closed in done)]),
        left=np.sort(np.concatenate([none, *(closed.left for closed in done)])),
    )


def _moved(closed: Closed, where: NDArray[np.int64]) -> Closed:
    return Closed(rows=where[closed.rows], counts=closed.counts, left=where[closed.left])


def _in_order(closed: Closed) -> Closed:
    """The same batches in the order of their last rows."""
    if len(closed.counts) < 2:
        return closed
    starts = np.cumsum(closed.counts) - closed.counts
    return _reordered(closed, np.argsort(np.maximum.reduceat(closed.rows, starts), kind="stable"))


def _reordered(closed: Closed, order: NDArray[np.intp]) -> Closed:
    """The same batches in another order."""
    starts = np.cumsum(closed.counts) - closed.counts
    counts = closed.counts[order]
    # Where each row of the new sequence stood: its place in the batch, behind the old start of that batch.
    moved = np.repeat(starts[order] - (np.cumsum(counts) - counts), counts) + np.arange(len(closed.rows))
    return Closed(rows=closed.rows[moved], counts=counts, left=closed.left)
