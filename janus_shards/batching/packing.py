"""Rows of any length packed one behind the other into bins of ``max_tokens``.

::

    bin     | row 3 (5) | row 0 (2) | row 7 (4) |..|      segment ids    1 1 1 1 1 2 2 3 3 3 3 0
                                                          position ids   0 1 2 3 4 0 1 0 1 2 3 0

A row goes to the fullest open bin with room for it (best fit). Where there is none, a new bin is opened; if as many as
``open_bins`` are open, the fullest one is closed before. Bins stay open across windows, which is what makes few of them
enough: with 4, captions leave less than 0.1 % empty.

Source: bounded-space best fit, Csirik and Johnson, "Bounded Space On-Line Bin Packing: Best is Better than First",
Algorithmica 2001.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from janus_shards.batching.classes import BATCH_WEIGHT
from janus_shards.batching.lengths import Sizes, check, describe_rule, is_count, planned_lengths, read_column
from janus_shards.batching.plan import Closed, MicroBatches, plan_lanes, scattered

_MAX_BINS_BY_RADIX = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Micro-batches of several rows in one sequence of ``max_tokens``.

    Args:
        column: Index column with the length of each row, in tokens.
        max_tokens: Length of a sequence.
        max_length: Longer rows are cut to it; ``None``: a row longer than ``max_tokens`` is an error.
        open_bins: Sequences that are filled at once in each lane.
        extra_tokens: What every row has besides the column, such as the 576 tokens of an image.

    Raises:
        ConfigError: A value outside its range.
    """

    column: str
    max_tokens: int
    max_length: int | None = None
    open_bins: int = 4
    extra_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("max_tokens", "open_bins"):
            self._check(name, is_count(getattr(self, name)), "an integer from 1 up")
        fits = self.max_length is None or (is_count(self.max_length) and self.max_length <= self.max_tokens)
        self._check("max_length", fits, f"an integer from 1 to max_tokens={self.max_tokens}")
        self._check("extra_tokens", is_count(self.extra_tokens, 0), "an integer from 0 up")

    @property
    def columns(self) -> tuple[str, ...]:
        """See ``BatchRule``."""
        return (self.column,)

    def sizes(self, columns: Mapping[str, NDArray[Any]]) -> Sizes:
        """See ``BatchRule``."""
        return planned_lengths(
            read_column(columns, self.column, rule="Packing"),
            column=self.column,
            extra=self.extra_tokens,
            max_length=self.max_length,
            limit=self.max_tokens,
            rule="Packing",
        )

    def weights(self, sizes: NDArray[np.int32]) -> NDArray[np.int64]:
        """See ``BatchRule``."""
        return sizes.astype(np.int64) * BATCH_WEIGHT // self.max_tokens

    def lane_weight(self, sizes: NDArray[np.int32]) -> int:
        """See ``BatchRule``."""
        return 8 * self.open_bins * BATCH_WEIGHT

    def plan(
        self, sizes: NDArray[np.int32], borders: NDArray[np.int64], *, groups: NDArray[np.integer] | None = None
    ) -> MicroBatches:
        """See ``BatchRule``."""
        rows, offsets, lanes = plan_lanes(sizes, borders, close=self._close, flush=self._flush, groups=groups)
        num_batches = len(offsets) - 1
        return MicroBatches(
            rows=rows,
            offsets=offsets,
            lanes=lanes,
            shapes=np.full(num_batches, self.max_tokens, np.int32),
            num_tokens=int(sizes.sum(dtype=np.int64)),
            num_slots=num_batches * self.max_tokens,
        )

    def describe(self, sizes: NDArray[np.int32]) -> dict[str, str | int | None]:
        """See ``BatchRule``."""
        return describe_rule(self, sizes)

    def _close(self, sizes: NDArray[np.int32]) -> Closed:
        bins, still_open = best_fit(sizes.tolist(), capacity=self.max_tokens, open_bins=self.open_bins)
        is_open = np.zeros(max(bins, default=-1) + 1, np.bool_)
        is_open[still_open] = True
        return _by_bin(np.array(bins, np.int32), is_open)

    def _flush(self, sizes: NDArray[np.int32]) -> Closed:
        """What is left, the longest rows first and all bins open."""
        order = np.argsort(-sizes, kind="stable")
        bins = np.empty(len(sizes), np.int32)
        bins[order], _ = best_fit(sizes[order].tolist(), capacity=self.max_tokens, open_bins=len(sizes) + 1)
        return scattered(_by_bin(bins, np.zeros(len(sizes) + 1, np.bool_)))

    def _check(self, name: str, holds: bool, expected: str) -> None:
        check("Packing", name, getattr(self, name), holds, expected)


def best_fit(lengths: list[int], *, capacity: int, open_bins: int) -> tuple[list[int], list[int]]:
    """Bin of each row, bins numbered as they are opened; and the bins that are still open.

    Among equally full bins the one that was filled last is taken.
    """
    rooms: list[int] = []  # left in each open bin, increasing
    numbers: list[int] = []  # of the same bins
    bins: list[int] = []
    num_bins = 0
    # Row by row, since each choice depends on all before it: 0.15 µs.
    for length in lengths:
        at = bisect_left(rooms, length)
        if at < len(rooms):
            room, number = rooms[at] - length, numbers[at]
            bins.append(number)
            if room and (not at or rooms[at - 1] < room):
                rooms[at] = room
                continue
            del rooms[at], numbers[at]
        else:
            if at == open_bins:
                del rooms[0], numbers[0]
            room, number = capacity - length, num_bins
            bins.append(number)
            num_bins += 1
        if room:
            at = bisect_left(rooms, room)
            rooms.insert(at, room)
            numbers.insert(at, number)
    return bins, numbers


def _by_bin(bins: NDArray[np.int32], is_open: NDArray[np.bool_]) -> Closed:
    """Rows of each closed bin together, and those of open ones."""
    small = len(is_open) <= _MAX_BINS_BY_RADIX
    order = np.argsort(bins.astype(np.uint16) if small else bins, kind="stable")
    closed = ~is_open[bins]  # [n]
    counts = np.bincount(bins[closed])
    return Closed(rows=order[closed[order]], counts=counts[counts > 0], left=np.flatnonzero(~closed))
