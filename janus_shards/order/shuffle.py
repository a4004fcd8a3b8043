"""One epoch: which row stands at which position. Stored order, one bijection over all rows, or windows in lanes.

::

    lane l, epoch e      |   5   |   0   |   7   |   2   |   6   |      blocks permuted by (seed, BLOCKS, e, l)
    windows (k = 1)      |--|-------|-------|-------|-------|----|      rows permuted by (seed, ROWS, e, l, window)
                          0     1       2       3       4      5

A window is k blocks long: k * block_rows rows, whatever blocks they come from. The first one is shortened to
ceil((l + 1) / L x window) rows, so that the windows of all lanes turn in turn and not all at once. A block is thus open
in one window or in two neighbouring ones, and in no other: it is read once, and let go soon.

A *turn* is what a block gives to a window: consecutive rows, served in some order during that window. All rows here
are *ordinals* (see ``blocks``).

Source: docs/design/0001-epoch-order.md. Feistel network with cycle walking: Black, Rogaway, "Ciphers with Arbitrary
Finite Domains", CT-RSA 2002. Two levels of shuffling: Xu et al., "In-Database Machine Learning with CorgiPile",
SIGMOD 2022.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from janus_shards.order import seeds
from janus_shards.order.blocks import Ordinals
from janus_shards.order.lanes import Deal, LaneGrid
from janus_shards.order.seeds import Tag

_FEISTEL_ROUNDS = 8
# The permutation of a longer window is kept from one call to the next: a call for a few thousand rows uses only a few
# rows of each, and to make the whole again costs 30 ns a row. Short ones are made again all at once, at 5 ns a row.
_SHORT_WINDOW_ROWS = 512


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What stands at some positions; arrays of equal length.

    Attributes:
        ordinals: The row.
        lanes: Its lane.
        places: Its place in that lane.
        blocks: Number of its block.
        turn_starts: First ordinal of the turn: what this block gives to the window.
        turn_stops: One past its last ordinal.
    """

    ordinals: NDArray[np.int64]
    lanes: NDArray[np.int64]
    places: NDArray[np.int64]
    blocks: NDArray[np.int64]
    turn_starts: NDArray[np.int64]
    turn_stops: NDArray[np.int64]


class RowOrder(Protocol):
    """One epoch of an order."""

    grid: LaneGrid

    def rows_at(self, positions: NDArray[np.int64]) -> Rows:
        """What stands at these positions, in any order and with repeats, each in ``0 .. grid.num_positions - 1``."""

    def block_span(self, blocks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First ordinal of each block, and one past its last."""


class StoredOrder:
    """Stored order: position v is ordinal v.

    Args:
        borders: Blocks in stored order, shape ``(num_blocks + 1,)``.
    """

    def __init__(self, borders: Ordinals) -> None:
        self.grid = LaneGrid(borders[-1:].astype(np.int64))
        self._borders = borders

    def rows_at(self, positions: NDArray[np.int64]) -> Rows:
        """See ``RowOrder``."""
        blocks = _blocks_of(positions, self._borders)
        starts, stops = self.block_span(blocks)
        return _rows_without_lanes(positions, positions, blocks, starts, stops)

    def block_span(self, blocks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See ``RowOrder``."""
        return self._borders[blocks].astype(np.int64), self._borders[blocks + 1].astype(np.int64)


class FullShuffle:
    """Every position may hold any row: one keyed bijection. Each row is a turn of its own.

    Args:
        borders: Blocks in stored order, shape ``(num_blocks + 1,)``.
        key: ``derive(seed, FULL, epoch)``.
    """

    def __init__(self, borders: Ordinals, *, key: int) -> None:
        self.grid = LaneGrid(borders[-1:].astype(np.int64))
        self._borders = borders
        self._bijection = Bijection(int(borders[-1]), key=key)

    def rows_at(self, positions: NDArray[np.int64]) -> Rows:
        """See ``RowOrder``."""
        ordinals = self._bijection(positions)
        return _rows_without_lanes(positions, ordinals, _blocks_of(ordinals, self._borders), ordinals, ordinals + 1)

    def block_span(self, blocks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See ``RowOrder``."""
        return self._borders[blocks].astype(np.int64), self._borders[blocks + 1].astype(np.int64)


class LaneShuffle:
    """Blocks permuted inside each lane, rows inside windows.

    A lane is laid out when it is first asked for. To be used by one thread at a time.

    Args:
        deal: The blocks of each lane.
        grid: The global order of the lanes of ``deal``.
        seed: Of the whole order.
        epoch: At least 0.
        window_rows: Rows of a window, at least 1.
    """

    def __init__(self, deal: Deal, grid: LaneGrid, *, seed: int, epoch: int, window_rows: int) -> None:
        self.grid = grid
        self._deal = deal
        self._window_rows = window_rows
        self._lengths = np.diff(deal.borders)
        lanes = np.arange(deal.num_lanes)
        self._first_windows = -(-(lanes + 1) * window_rows // deal.num_lanes)
        self._block_keys = seeds.derive_each(seeds.derive(seed, Tag.BLOCKS, epoch), lanes)
        self._row_keys = seeds.derive_each(seeds.derive(seed, Tag.ROWS, epoch), lanes)
        # The *sequence*: the blocks of all lanes, lane after lane, each lane in the order of this epoch. Lanes not yet
        # laid out hold their own start throughout: the starts are sorted at all times, and one search serves all lanes.
        self._blocks = np.zeros(len(deal.first), np.int32)
        self._starts = np.empty(len(deal.first) + 1, deal.first.dtype)
        self._starts[:-1] = np.repeat(deal.borders[:-1], np.diff(deal.blocks))
        self._starts[-1] = deal.borders[-1]
        self._laid_out = np.zeros(deal.num_lanes, np.bool_)
        self._kept: dict[int, NDArray[np.int32]] = {}  # key of a long window -> its permutation

    def rows_at(self, positions: NDArray[np.int64]) -> Rows:
        """See ``RowOrder``."""
        lanes, places = self.grid.locate(positions)
        self._lay_out_lanes(lanes)
        numbers, starts, stops = self._windows(lanes, places)
        lane_starts = self._deal.borders[lanes]
        row = lane_starts + starts + self._shuffled(lanes, numbers, places - starts, stops - starts)  # of the sequence
        at = np.searchsorted(self._starts, row.astype(self._starts.dtype), side="right") - 1
        blocks = self._blocks[at]
        ordinals = self._deal.first[blocks] + (row - self._starts[at])
        return Rows(
            ordinals=ordinals,
            lanes=lanes,
            places=places,
            blocks=blocks.astype(np.int64),
            turn_starts=ordinals - (row - np.maximum(self._starts[at], lane_starts + starts)),
            turn_stops=ordinals + (np.minimum(self._starts[at + 1], lane_starts + stops) - row),
        )

    def block_span(self, blocks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See ``RowOrder``."""
        first = self._deal.first[blocks].astype(np.int64)
        return first, first + self._deal.rows[blocks]

    def _windows(
        self, lanes: NDArray[np.int64], places: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Number, first place and one past the last place of the window that holds each place."""
        first = self._first_windows[lanes]
        numbers = (
            places - first + self._window_rows
        ) // self._window_rows  # 0 below `first`, which is at most a window
        stops = first + numbers * self._window_rows
        return numbers, np.maximum(stops - self._window_rows, 0), np.minimum(stops, self._lengths[lanes])

    def _shuffled(
        self,
        lanes: NDArray[np.int64],
        numbers: NDArray[np.int64],
        inside: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Which row of its window is served at row ``inside`` of it.

        Args:
            lanes: Shape ``(n,)``, like all.
            numbers: Of the window in its lane.
            inside: Row of the window.
            counts: Rows of the window.
        """
        if not len(lanes):
            return inside
        order = np.argsort(numbers * len(self._row_keys) + lanes, kind="stable")
        opens = np.ones(len(order), np.bool_)  # the first row asked for in each window
        opens[1:] = (np.diff(lanes[order]) != 0) | (np.diff(numbers[order]) != 0)
        at = order[opens]  # [num_windows], a row of each window
        keys = seeds.derive_each(self._row_keys[lanes[at]], numbers[at])
        if self._window_rows > _SHORT_WINDOW_ROWS:
            borders = np.append(np.flatnonzero(opens), len(order))
            return self._long_windows(keys, counts[at], np.split(order, borders[1:-1]), inside)
        window = np.empty(len(order), np.int64)  # of each row
        window[order] = np.cumsum(opens) - 1
        return seeds.permutations(keys, counts[at])[window, inside].view(np.int64)

    def _long_windows(
        self,
        keys: NDArray[np.uint64],
        counts: NDArray[np.int64],
        asked: list[NDArray[np.int64]],
        inside: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """``inside``, mapped by the permutation of its window; ``asked`` holds the indices into it of each window."""
        kept = self._kept
        self._kept = {}
        out = np.empty(len(inside), np.int64)
        for key, count, here in zip(keys.tolist(), counts.tolist(), asked, strict=True):
            table = kept[key] if key in kept else seeds.permutation(key, count).astype(np.int32)
            self._kept[key] = table
            out[here] = table[inside[here]]
        return out

    def _lay_out_lanes(self, lanes: NDArray[np.int64]) -> None:
        if self._laid_out.all():
            return
        wanted = np.zeros(len(self._laid_out), np.bool_)
        wanted[lanes] = True
        for lane in np.flatnonzero(wanted & ~self._laid_out).tolist():
            self._lay_out(lane)

    def _lay_out(self, lane: int) -> None:
        """Permute the blocks of one lane."""
        start, stop = self._deal.blocks[lane : lane + 2].tolist()
        order = seeds.permutation(int(self._block_keys[lane]), stop - start)
        np.add(order, start, out=self._blocks[start:stop], casting="same_kind")
        ends = np.cumsum(self._deal.rows[self._blocks[start:stop]], dtype=self._starts.dtype)
        self._starts[start + 1 : stop] = ends[:-1] + self._starts[start]
        self._laid_out[lane] = True


class Bijection:
    """A permutation of ``0 .. size - 1`` that is computed value by value, in no memory.

    A Feistel network over the fewest ``bits`` that hold ``size - 1`` (at least 2), ``bits // 2`` in the low half. With
    ``k_r = splitmix64(key ^ r)``, rounds r = 0, 2, 4, 6 do ``high ^= splitmix64(k_r ^ low)`` and rounds 1, 3, 5, 7 do
    ``low ^= splitmix64(k_r ^ high)``, cut to the low bits that the half holds. A result that is not below ``size`` goes
    through the network again until it is.

    Args:
        size: At least 1.
        key: ``derive(seed, FULL, epoch)``.
    """

    def __init__(self, size: int, *, key: int) -> None:
        bits = max((size - 1).bit_length(), 2)
        self._size = np.uint64(size)
        self._low_bits = np.uint64(bits // 2)
        self._low_mask = np.uint64((1 << bits // 2) - 1)
        self._high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
        self._keys = [int(k) for k in seeds.derive_each(key, np.arange(_FEISTEL_ROUNDS))]

    def __call__(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each value goes, shape of ``values``; each in ``0 .. size - 1``."""
        out = self._network(values.astype(np.uint64))
        outside = np.flatnonzero(out >= self._size)
        while len(outside):
            walked = self._network(out[outside])
            out[outside] = walked
            outside = outside[walked >= self._size]
        return out.view(np.int64)

    def _network(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        high = values >> self._low_bits
        low = values & self._low_mask
        for number, key in enumerate(self._keys):
            if number % 2 == 0:
                high ^= seeds.derive_each(key, low) & self._high_mask
            else:
                low ^= seeds.derive_each(key, high) & self._low_mask
        return (high << self._low_bits) | low


def _blocks_of(ordinals: NDArray[np.int64], borders: Ordinals) -> NDArray[np.int64]:
    return np.searchsorted(borders, ordinals.astype(borders.dtype), side="right") - 1


def _rows_without_lanes(
    positions: NDArray[np.int64],
    ordinals: NDArray[np.int64],
    blocks: NDArray[np.int64],
    turn_starts: NDArray[np.int64],
    turn_stops: NDArray[np.int64],
) -> Rows:
    return Rows(
        ordinals=ordinals,
        lanes=np.zeros_like(positions),
        places=positions,
        blocks=blocks,
        turn_starts=turn_starts,
        turn_stops=turn_stops,
    )
