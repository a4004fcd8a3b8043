"""Lanes: the split of all blocks that does not depend on the world size, and the grid of places and lanes.

::

    stored     | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | ...                    blocks of all shards
    dealt      | 5 | 0 | 7 | 2¦ 2 | 6 | 1 | 4 | 3 | ...                 one seeded permutation, cut in equal stretches
                 lane 0       |  lane 1          |  lane 2              a border inside a block makes two blocks of it

    place         0    1    2    3    4
    lane 0        0    3    6    9   12                                 position in the global order: places first,
    lane 1        1    4    7   10   13                                 then lanes; here lane = position mod 3
    lane 2        2    5    8   11

Source: docs/design/0001-epoch-order.md.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from janus_shards.order import seeds
from janus_shards.order.blocks import Ordinals

DEFAULT_LANES = 192
MIN_BLOCKS_A_LANE = 4


def choose_num_lanes(
    num_blocks: int, lanes: int = DEFAULT_LANES, *, total_weight: int = 0, lane_weight: int = 0
) -> int:
    """The largest divisor of ``lanes`` that leaves a lane at least 4 blocks on average; at least 1.

    Args:
        num_blocks: Of all lanes.
        lanes: Wanted number.
        total_weight: Of all rows.
        lane_weight: Weight that a lane has on average, at least.
    """
    divisors = (d for d in range(lanes, 0, -1) if lanes % d == 0)
    return next((d for d in divisors if num_blocks >= MIN_BLOCKS_A_LANE * d and total_weight >= lane_weight * d), 1)


@dataclass(frozen=True, kw_only=True)
class Deal:
    """All blocks, dealt onto lanes. Blocks are numbered in dealt order, lane after lane.

    Attributes:
        first: First ordinal of each block, shape ``(num_blocks,)``.
        rows: Rows of each block, shape ``(num_blocks,)``.
        blocks: Lane l holds blocks ``blocks[l] .. blocks[l + 1] - 1``; shape ``(num_lanes + 1,)``.
        borders: Rows of all lanes before lane l; shape ``(num_lanes + 1,)``.
    """

    first: Ordinals
    rows: Ordinals
    blocks: NDArray[np.int64]
    borders: NDArray[np.int64]

    @property
    def num_lanes(self) -> int:
        """Lanes, some of which may be empty when they are cut by cost."""
        return len(self.blocks) - 1


def deal(borders: Ordinals, *, key: int, num_lanes: int, costs: NDArray[np.int64] | None = None) -> Deal:
    """Permute the blocks by ``key`` and cut the sequence into lanes of equal weight, within one row.

    Args:
        borders: Blocks in stored order, shape ``(num_blocks + 1,)``.
        key: From ``seeds.derive``.
        num_lanes: At most the number of rows.
        costs: Weight of each ordinal, not negative, shape ``(num_rows,)``; 1 a row when not given.
    """
    num_rows = int(borders[-1])
    order = seeds.permutation(key, len(borders) - 1).astype(np.int32)
    first = borders[order]
    rows = np.diff(borders)[order]
    starts = np.empty(len(order) + 1, borders.dtype)  # where each block starts in the dealt sequence, in rows
    starts[0] = 0
    np.cumsum(rows, out=starts[1:])
    if costs is None or not costs.any():
        cuts = row_cuts(num_rows, num_lanes)
    else:
        cuts = _cost_cuts(costs, borders, order, starts, num_lanes)
    first, starts = _split(first, starts, cuts[1:-1])
    return Deal(
        first=first,
        rows=np.diff(starts),
        blocks=np.append(np.searchsorted(starts[:-1], cuts[:-1]), len(first)),
        borders=cuts,
    )


def row_cuts(num_rows: int, num_lanes: int) -> NDArray[np.int64]:
    """Borders of stretches of equal rows, the longer ones first: lengths differ by at most 1."""
    lanes = np.arange(num_lanes + 1, dtype=np.int64)
    cuts: NDArray[np.int64] = lanes * (num_rows // num_lanes) + np.minimum(lanes, num_rows % num_lanes)
    return cuts


def _cost_cuts(
    costs: NDArray[np.int64], borders: Ordinals, order: NDArray[np.int32], starts: Ordinals, num_lanes: int
) -> NDArray[np.int64]:
    """Borders of stretches of equal cost: border l lies after the row that reaches l / num_lanes of the total."""
    ends = np.cumsum(np.add.reduceat(costs, borders[:-1])[order])  # cost up to the end of each dealt block
    total = int(ends[-1])
    cuts = np.zeros(num_lanes + 1, np.int64)
    for lane in range(1, num_lanes):
        target = -(-total * lane // num_lanes)
        at = int(np.searchsorted(ends, target))
        stored = order[at]
        inside = np.cumsum(costs[borders[stored] : borders[stored + 1]])
        before = int(ends[at] - inside[-1])
        cuts[lane] = int(starts[at]) + int(np.searchsorted(inside, target - before)) + 1
    cuts[-1] = starts[-1]
    # A row that costs more than a lane should leaves the lanes after it empty.
    ordered: NDArray[np.int64] = np.minimum(np.maximum.accumulate(cuts), cuts[-1])
    return ordered


def _split(first: Ordinals, starts: Ordinals, cuts: NDArray[np.int64]) -> tuple[Ordinals, Ordinals]:
    """Split the blocks in which a cut falls: both pieces become blocks of their own.

    Args:
        first: First ordinal of each dealt block, shape ``(n,)``.
        starts: Where it starts in the dealt sequence, shape ``(n + 1,)`` with the number of rows at its end.
        cuts: Places of the dealt sequence, increasing.
    """
    cuts = np.unique(cuts)
    at = np.searchsorted(starts, cuts, side="right") - 1
    inside = starts[at] < cuts
    at, cuts = at[inside], cuts[inside].astype(starts.dtype)
    new_first = first[at] + (cuts - starts[at])
    return np.insert(first, at + 1, new_first), np.insert(starts, at + 1, cuts)


class Grid(Protocol):
    """The global order: which lane and place stands at each position.

    Attributes:
        num_lanes: Lanes, some of which may be empty.
        num_positions: Positions are ``0 .. num_positions - 1``.
        round_robin: Positions go through the lanes in turn: p lies in lane ``(first_lane + p div unit) mod num_lanes``,
            for every p.
        first_lane: See ``round_robin``; 0 where it is false.
        unit: See ``round_robin``; 1 where it is false.
        period: A position and the one so many before it lie in the same lane; at most ``num_positions``, unless that
            is 0.
    """

    num_lanes: int
    num_positions: int
    round_robin: bool
    first_lane: int
    unit: int
    period: int

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Lane and place of each position, two arrays of the shape of ``positions``."""


class LaneGrid:
    """The global order: all existing (place, lane) pairs, sorted by place, then lane. Lanes of any lengths, no holes.

    Args:
        lengths: Rows of each lane, shape ``(num_lanes,)``.
    """

    def __init__(self, lengths: NDArray[np.int64]) -> None:
        # Between two neighbouring lengths the same lanes exist: a level. [num_levels + 1], from 0 to the longest lane.
        self._levels = np.unique(np.append(lengths, 0)).astype(np.int64)
        present = lengths > self._levels[:-1, None]  # [num_levels, num_lanes]
        self._widths = present.sum(axis=1)
        self._positions = np.append(0, np.cumsum(np.diff(self._levels) * self._widths))
        self._lanes = np.nonzero(present)[1]  # the lanes of each level, level after level
        self._lane_starts = np.cumsum(self._widths) - self._widths
        self._columns = np.cumsum(present, axis=1) - 1  # column of a lane among those of its level
        self.lengths = lengths
        self.num_lanes = len(lengths)
        self.num_positions = int(self._positions[-1])
        self.round_robin = bool(lengths[0] - lengths[-1] <= 1 and np.all(np.diff(lengths) <= 0))
        self.first_lane = 0
        self.unit = 1
        self.period = self.num_lanes if self.num_positions >= self.num_lanes else 1

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See ``Grid``."""
        if self.round_robin:
            places, lanes = np.divmod(positions, self.num_lanes)
            return lanes, places
        level = np.searchsorted(self._positions, positions, side="right") - 1
        rows, columns = np.divmod(positions - self._positions[level], self._widths[level])
        return self._lanes[self._lane_starts[level] + columns], self._levels[level] + rows

    def positions(self, lanes: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Position of each existing (lane, place) pair."""
        level = np.searchsorted(self._levels, places, side="right") - 1
        rows = places - self._levels[level]
        out: NDArray[np.int64] = self._positions[level] + rows * self._widths[level] + self._columns[level, lanes]
        return out


class RunGrid:
    """An epoch out of an endless run of units that goes through the lanes in turn: unit u of the run in lane u mod L.

    ::

        run       0 1 2 3 4 5 6 7 8 ...        L = 3, epochs of 4 units
        lane      0 1 2 0 1 2 0 1 2 ...
        epoch 1           | 4 5 6 7 |          positions 0 .. 3 in lanes 1 2 0 1, places 0 0 0 1

    Args:
        first: Unit of the run that the epoch begins with.
        num_units: Of the epoch.
        unit: Positions of a unit.
        num_lanes: L.
    """

    def __init__(self, first: int, num_units: int, *, unit: int, num_lanes: int) -> None:
        self.num_lanes = num_lanes
        self.num_positions = num_units * unit
        self.round_robin = True
        self.first_lane = first % num_lanes
        self.unit = unit
        self.period = unit * (num_lanes if num_units >= num_lanes else 1)
        lanes = np.arange(num_lanes)
        self._first = first
        self._before = _units_before(first, lanes, num_lanes)  # of each lane
        #: Positions of each lane.
        self.lengths = unit * (_units_before(first + num_units, lanes, num_lanes) - self._before)

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See ``Grid``."""
        units, inside = np.divmod(positions, self.unit)
        places, lanes = np.divmod(units + self._first, self.num_lanes)
        return lanes, (places - self._before[lanes]) * self.unit + inside

    def positions(self, lanes: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Position of each existing (lane, place) pair."""
        units, inside = np.divmod(places, self.unit)
        out: NDArray[np.int64] = (units + self._before[lanes]) * self.num_lanes + lanes - self._first
        return out * self.unit + inside


def _units_before(unit: int, lanes: NDArray[np.int64], num_lanes: int) -> NDArray[np.int64]:
    """How many units of each lane come before one of the run."""
    out: NDArray[np.int64] = (unit - lanes - 1) // num_lanes + 1
    return out
