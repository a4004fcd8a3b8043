"""One epoch: which row stands at which position. Stored order, one bijection over all rows, or windows in lanes.

::

    lane l, epoch e      5     0       7       2       6      5'      its blocks, permuted by (seed, BLOCKS, e, l)
    windows (k = 1)    |---|-------|-------|-------|-------|----|     rows permuted by (seed, ROWS, e, l, window)
                         0     1       2       3       4      5

The first window is shortened to ceil((l + 1) / L x window) rows, so that the windows of all lanes turn in turn and not
all at once. The block in which it ends is cut there: its head opens the epoch, its other rows (5') close it.
No other block is open for longer than its window, and every row is read once. (Windows that reach over the borders of
blocks by a fixed number of rows would stagger too, with two blocks of every lane open at all times.)

A *turn* is the stay of a block in a window: the rows of one block that are served in one stretch. All rows here are
*ordinals* (see ``blocks``).

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
# Windows are permuted in groups of about so many rows, to bound memory where windows are long: 32 MiB of keys.
_GROUP_ROWS = 2**22


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What stands at some positions; arrays of equal length.

    Attributes:
        ordinals: The row.
        lanes: Its lane.
        places: Its place in that lane.
        blocks: Number of its block.
        turn_starts: First ordinal of the turn: what is served from this block in one stretch.
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
    """Blocks permuted inside each lane, rows inside windows of ``window`` whole blocks.

    A lane is laid out when it is first asked for. To be used by one thread at a time.

    Args:
        deal: The blocks of each lane.
        grid: The global order of the lanes of ``deal``.
        seed: Of the whole order.
        epoch: At least 0.
        window: Blocks in a window, at least 1.
    """

    def __init__(self, deal: Deal, grid: LaneGrid, *, seed: int, epoch: int, window: int) -> None:
        self.grid = grid
        self._deal = deal
        self._window = window
        lanes = np.arange(deal.num_lanes)
        self._block_keys = seeds.derive_each(seeds.derive(seed, Tag.BLOCKS, epoch), lanes)
        self._row_keys = seeds.derive_each(seeds.derive(seed, Tag.ROWS, epoch), lanes)
        # Lane l has a turn for each block, and one for the rest of the block that its first window cuts (maybe 0 rows).
        self._turns = deal.blocks + np.arange(deal.num_lanes + 1)
        self._turn_blocks = np.zeros(self._turns[-1], np.int32)
        # Where each turn starts in the sequence of all lanes, in rows. Lanes not yet laid out hold their own start
        # throughout: so the whole array is sorted at all times, and one search serves all lanes.
        self._turn_starts = np.empty(self._turns[-1] + 1, deal.first.dtype)
        self._turn_starts[:-1] = np.repeat(deal.borders[:-1], np.diff(self._turns))
        self._turn_starts[-1] = deal.borders[-1]
        self._leading = np.zeros(deal.num_lanes, np.int64)  # turns in the first window
        self._head_rows = np.zeros(deal.num_lanes, np.int64)  # rows before the cut in the block that is cut
        self._laid_out = np.zeros(deal.num_lanes, np.bool_)

    def rows_at(self, positions: NDArray[np.int64]) -> Rows:
        """See ``RowOrder``."""
        lanes, places = self.grid.locate(positions)
        self._lay_out_lanes(lanes)
        rows = self._deal.borders[lanes] + places  # of the sequence of all lanes, lane after lane
        order, rows = _sort(rows)
        turns, inside = self._shuffled(rows, lanes[order])
        turns, inside = _unsort(turns, order), _unsort(inside, order)
        starts = self._first_ordinals(turns, lanes)
        stops = starts + (self._turn_starts[turns + 1] - self._turn_starts[turns])
        return Rows(
            ordinals=starts + inside,
            lanes=lanes,
            places=places,
            blocks=self._turn_blocks[turns].astype(np.int64),
            turn_starts=starts,
            turn_stops=stops,
        )

    def block_span(self, blocks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See ``RowOrder``."""
        first = self._deal.first[blocks].astype(np.int64)
        return first, first + self._deal.rows[blocks]

    def _first_ordinals(self, turns: NDArray[np.int64], lanes: NDArray[np.int64]) -> NDArray[np.int64]:
        """First ordinal of each turn; the last turn of a lane begins behind the cut."""
        first = self._deal.first[self._turn_blocks[turns]].astype(np.int64)
        return first + np.where(turns == self._turns[lanes + 1] - 1, self._head_rows[lanes], 0)

    def _shuffled(
        self, rows: NDArray[np.int64], lanes: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Turn, and row inside it, of what is served at each row of the sequence of all lanes; ``rows`` increase."""
        turns = np.searchsorted(self._turn_starts, rows, side="right") - 1
        starts, stops, numbers = self._windows(turns, lanes)
        opens = np.empty(len(rows), np.bool_)  # the first row asked for in each window
        opens[:1] = True
        np.not_equal(starts[1:], starts[:-1], out=opens[1:])
        at = np.flatnonzero(opens)  # [num_windows]
        keys = seeds.derive_each(self._row_keys[lanes[at]], numbers[at])
        window_starts = self._turn_starts[starts[at]].astype(np.int64)
        counts = self._turn_starts[stops[at]] - window_starts
        window = np.cumsum(opens) - 1  # of each row
        served = window_starts[window] + _permuted(keys, counts, window, rows - window_starts[window])
        if self._window > 1:
            turns = np.searchsorted(self._turn_starts, served, side="right") - 1
        return turns, served - self._turn_starts[turns]

    def _windows(
        self, turns: NDArray[np.int64], lanes: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """First turn, one past the last turn, and number in its lane of the window that holds each turn."""
        lane_starts = self._turns[lanes]
        after = turns - lane_starts - self._leading[lanes]  # turns since the first window, negative inside it
        if self._window == 1:  # then the first window, too, is one turn
            return turns, turns + 1, after + 1
        whole, inside = np.divmod(after, self._window)
        is_first = after < 0
        starts = np.where(is_first, lane_starts, turns - inside)
        stops = np.where(is_first, lane_starts + self._leading[lanes], starts + self._window)
        return starts, np.minimum(stops, self._turns[lanes + 1]), np.where(is_first, 0, whole + 1)

    def _lay_out_lanes(self, lanes: NDArray[np.int64]) -> None:
        if self._laid_out.all():
            return
        wanted = np.zeros(len(self._laid_out), np.bool_)
        wanted[lanes] = True
        for lane in np.flatnonzero(wanted & ~self._laid_out).tolist():
            self._lay_out(lane)

    def _lay_out(self, lane: int) -> None:
        """Permute the blocks of one lane and cut its first window short."""
        start, stop = self._deal.blocks[lane : lane + 2].tolist()
        order = seeds.permutation(int(self._block_keys[lane]), stop - start)
        rows = self._deal.rows[start:stop][order]
        ends = np.cumsum(rows[: self._window], dtype=np.int64)
        first_window = -(-(lane + 1) * int(ends[-1]) // self._deal.num_lanes)
        cut = int(np.searchsorted(ends, first_window))
        remainder = int(ends[cut]) - first_window
        rows[cut] -= remainder
        turns = slice(self._turns[lane], self._turns[lane + 1])
        self._turn_blocks[turns] = np.append(order, order[cut]) + start
        starts = self._turn_starts[turns]
        np.cumsum(rows, out=starts[1:])
        starts[1:] += starts[0]
        self._leading[lane] = cut + 1
        self._head_rows[lane] = rows[cut]
        self._laid_out[lane] = True


class Bijection:
    """A permutation of ``0 .. size - 1`` that is computed value by value, in no memory.

    A Feistel network over the fewest ``bits`` that hold ``size - 1`` (at least 2), its low half ``bits // 2`` wide. With
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
        self._low_bits = bits // 2
        self._low_mask = np.uint64((1 << self._low_bits) - 1)
        self._high_mask = np.uint64((1 << (bits - self._low_bits)) - 1)
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
        high: NDArray[np.uint64] = values >> self._low_bits
        low = values & self._low_mask
        for number, key in enumerate(self._keys):
            if number % 2 == 0:
                high ^= seeds.derive_each(key, low) & self._high_mask
            else:
                low ^= seeds.derive_each(key, high) & self._low_mask
        out: NDArray[np.uint64] = (high << self._low_bits) | low
        return out


def _permuted(
    keys: NDArray[np.uint64], counts: NDArray[np.int64], window: NDArray[np.int64], inside: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Row ``inside`` of the permutation of each window.

    Args:
        keys: Key of each window, shape ``(num_windows,)``.
        counts: Its rows, shape ``(num_windows,)``.
        window: Window of each wanted row, increasing, shape ``(n,)``.
        inside: Row inside it, shape ``(n,)``.
    """
    step = max(1, _GROUP_ROWS // int(counts.max(initial=1)))
    if len(keys) <= step:
        return seeds.permutations(keys, counts)[window, inside].view(np.int64) if len(keys) else inside
    out = np.empty(len(inside), np.int64)
    for start in range(0, len(keys), step):
        here = slice(*np.searchsorted(window, [start, start + step]))
        table = seeds.permutations(keys[start : start + step], counts[start : start + step])
        out[here] = table[window[here] - start, inside[here]]
    return out


def _sort(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Stable argsort, and the sorted values."""
    order = np.argsort(values, kind="stable")
    return order, values[order]


def _unsort(values: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    out = np.empty_like(values)
    out[order] = values
    return out


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
