"""The order of a data set: from options and shard sizes to what stands at any position of any epoch.

::

    order = open_order(shard_rows, shard_bytes, OrderOptions(seed=7))      once a data set
    epoch = order.epoch(3)                                                 once an epoch
    slots = epoch.slots(1_000_000, 1_004_000)                              positions of the global order -> samples

Which rank serves which position is decided in ``serving``.

Source: docs/design/0001-epoch-order.md.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from janus_shards.errors import ConfigError
from janus_shards.order import seeds
from janus_shards.order.blocks import Ordinals, choose_block_rows, cut_blocks, restrict_blocks
from janus_shards.order.lanes import DEFAULT_LANES, Deal, Grid, LaneGrid, choose_num_lanes, deal
from janus_shards.order.seeds import Tag
from janus_shards.order.shuffle import FullShuffle, LaneShuffle, RowOrder, StoredOrder

#: Raised whenever the same options give another order; part of every state.
ORDER_VERSION = 1

#: What an order is made of, by name: JSON values, compared at resume.
Description: TypeAlias = Mapping[str, "str | int | None"]


@dataclass(frozen=True, kw_only=True)
class OrderOptions:
    """How samples are shuffled.

    Args:
        seed: Of everything random, ``0 .. 2**64 - 1``.
        shuffle: ``True``: windows of blocks in lanes. ``"full"``: any sample anywhere, each read by itself. ``None``:
            stored order.
        lanes: Stretches into which the blocks are dealt, shrunk through its divisors for small data sets; ``"mixed"``:
            the default number, dealt anew in each epoch (better mixing, but a node then meets other blocks every time).
        block_rows: Rows of a block; chosen from the manifest when not given.
        window: Blocks whose rows are shuffled together in each lane.

    Raises:
        ConfigError: A value outside its range.
    """

    seed: int = 0
    shuffle: Literal[True, "full"] | None = True
    lanes: int | Literal["mixed"] = DEFAULT_LANES
    block_rows: int | None = None
    window: int = 1

    def __post_init__(self) -> None:
        _check("seed", self.seed, _is_seed(self.seed), "an integer in 0 .. 2**64 - 1")
        _check("shuffle", self.shuffle, self.shuffle is True or self.shuffle in ("full", None), "True, 'full' or None")
        _check("lanes", self.lanes, self.lanes == "mixed" or _is_count(self.lanes), "'mixed' or an integer from 1 up")
        _check("block_rows", self.block_rows, self.block_rows is None or _is_count(self.block_rows), "at least 1")
        _check("window", self.window, _is_count(self.window), "an integer from 1 up")


@dataclass(frozen=True, kw_only=True)
class Slots:
    """What stands at n positions; arrays of shape ``(n,)``.

    Attributes:
        sample_ids: Row across the base data set, int64.
        lanes: int64.
        places: Place in the lane, int64.
        blocks: Number of the block in this order, int64; the same in every epoch, except with ``lanes="mixed"``.
        turn_starts: First ordinal of the slot's turn: what its block gives to its window. These rows are served in the
            same short stretch; the rest of the block, if any, in the window before or after. int64; without a view, an
            ordinal is a sample id, otherwise see ``Order.sample_ids``. Names the turn within the epoch.
        turn_stops: One past its last ordinal, int64.
        sources: Number of the source in a mixture; 0 otherwise. int64.
        source_epochs: Epoch of that source: how often its lane was gone through before; the epoch itself without a
            mixture. int64.
    """

    sample_ids: NDArray[np.int64]
    lanes: NDArray[np.int64]
    places: NDArray[np.int64]
    blocks: NDArray[np.int64]
    turn_starts: NDArray[np.int64]
    turn_stops: NDArray[np.int64]
    sources: NDArray[np.int64]
    source_epochs: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.sample_ids)


class SampleEpoch(Protocol):
    """What stands at each position of one epoch, of a data set or of a mixture.

    Attributes:
        epoch: Its number.
        num_samples: Positions are ``0 .. num_samples - 1``.
        grid: Lane and place of each position.
    """

    epoch: int
    num_samples: int
    grid: Grid

    def slots_at(self, positions: NDArray[np.int64]) -> Slots:
        """Any positions, in any order and with repeats."""

    def ordinals_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Only the ordinals of ``slots_at``: places in arrays that hold something about every sample."""

    def block_span(self, blocks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First ordinal of each block, and one past its last: all inside one shard. See ``SampleOrder.sample_ids``."""


class SampleOrder(Protocol):
    """The order of a data set, a view or a mixture, for every epoch.

    Attributes:
        options: Of the order.
        num_samples: Samples of an epoch.
        num_lanes: Lanes after shrinking; 1 without lanes.
        block_rows: Rows of a block; some have fewer.
        order_hash: 32 hex digits over everything that fixes the order.
    """

    options: OrderOptions
    num_samples: int
    num_lanes: int
    block_rows: int
    order_hash: str

    def describe(self) -> dict[str, str | int | None]:
        """What fixes the order, by name: what a state holds, and what is compared at resume."""

    def epoch(self, epoch: int) -> SampleEpoch:
        """The order of one epoch, from 0 up. The latest one is kept."""

    def sample_ids(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ids of rows, int64."""


class Order:
    """The order of one data set or view, for every epoch. Made by ``open_order``.

    Attributes:
        num_samples: Samples of an epoch: of the view, if there is one.
        num_lanes: Lanes after shrinking; 1 without lanes.
        num_blocks: Blocks are numbered below it.
        block_rows: Rows of a block; the last of a shard, or one that a lane border cuts, has fewer.
        order_hash: 32 hex digits over everything that fixes the order.
    """

    def __init__(
        self,
        options: OrderOptions,
        *,
        layout: "_Layout",
        block_rows: int,
        dealt: Deal | None,
        description: Description,
    ) -> None:
        self.options = options
        self.num_samples = int(layout.borders[-1])
        self.num_lanes = layout.num_lanes
        # Each border of lanes may cut one block in two.
        self.num_blocks = len(layout.borders) - 1 + layout.num_lanes - 1
        self.block_rows = block_rows
        self.order_hash = hash_description(description)
        self._layout = layout
        self._deal = dealt
        self._grid = None if dealt is None else LaneGrid(np.diff(dealt.borders))
        self._description = description
        self._latest: EpochOrder | None = None

    def describe(self) -> dict[str, str | int | None]:
        """What fixes the order, by name: what a state holds, and what is compared at resume."""
        return dict(self._description)

    def epoch(self, epoch: int) -> "EpochOrder":
        """The order of one epoch, from 0 up. The latest one is kept."""
        if epoch < 0:
            raise ConfigError(f"epoch={epoch}: epochs are counted from 0")
        if self._latest is None or self._latest.epoch != epoch:
            self._latest = self.lay_out(epoch)
        return self._latest

    def lay_out(self, epoch: int) -> "EpochOrder":
        """The order of one epoch, without keeping it."""
        return EpochOrder(self, epoch=epoch, rows=self._row_order(epoch))

    def sample_ids(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ids in the base data set of rows of this order, int64."""
        view = self._layout.view
        return ordinals if view is None else view[ordinals]

    def _row_order(self, epoch: int) -> RowOrder:
        options, borders = self.options, self._layout.borders
        if options.shuffle is None:
            return StoredOrder(borders)
        if options.shuffle == "full":
            return FullShuffle(borders, key=seeds.derive(options.seed, Tag.FULL, epoch))
        dealt = self._deal or self._layout.deal(seeds.derive(options.seed, Tag.DEAL, epoch))
        grid = self._grid or LaneGrid(np.diff(dealt.borders))
        return LaneShuffle(dealt, grid, seed=options.seed, epoch=epoch, window_rows=options.window * self.block_rows)


class EpochOrder:
    """What stands at each position of one epoch. To be used by one thread at a time.

    Attributes:
        epoch: Its number.
        num_samples: Positions are ``0 .. num_samples - 1``.
        grid: Lane and place of each position.
    """

    def __init__(self, order: Order, *, epoch: int, rows: RowOrder) -> None:
        self.epoch = epoch
        self.grid: Grid = rows.grid
        self.num_samples = rows.grid.num_positions
        self._order = order
        self._rows = rows

    def slots(self, start: int, stop: int) -> Slots:
        """Positions ``start .. stop - 1``, with ``0 <= start <= stop <= num_samples``."""
        if not 0 <= start <= stop <= self.num_samples:
            raise ConfigError(f"slots({start}, {stop}): positions of this epoch are 0 .. {self.num_samples}")
        return self.slots_at(np.arange(start, stop))

    def slots_at(self, positions: NDArray[np.int64]) -> Slots:
        """Any positions, in any order and with repeats."""
        rows = self._rows.rows_at(positions)
        return Slots(
            sample_ids=self._order.sample_ids(rows.ordinals),
            lanes=rows.lanes,
            places=rows.places,
            blocks=rows.blocks,
            turn_starts=rows.turn_starts,
            turn_stops=rows.turn_stops,
            sources=np.zeros_like(positions),
            source_epochs=np.full_like(positions, self.epoch),
        )

    def ordinals_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See ``SampleEpoch``."""
        return self._rows.rows_at(positions).ordinals

    def block_span(self, blocks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See ``SampleEpoch``."""
        return self._rows.block_span(blocks)


def open_order(
    shard_rows: NDArray[np.int64],
    shard_bytes: NDArray[np.int64],
    options: OrderOptions | None = None,
    *,
    view: NDArray[np.int64] | None = None,
    costs: NDArray[np.int64] | None = None,
    lane_cost: int = 0,
    batching: Description | None = None,
) -> Order:
    """Lay out the blocks and lanes of a data set.

    Args:
        shard_rows: Rows of each shard, shape ``(num_shards,)``; some may be empty.
        shard_bytes: Size of each shard in bytes of tar, shape ``(num_shards,)``.
        options: How to shuffle.
        view: Sample ids to keep, strictly increasing; all when not given.
        costs: Weight of each kept sample, not negative, when batches are planned by cost: lanes are cut at equal cost.
        lane_cost: Cost that a lane has on average, at least; lanes are shrunk until it does.
        batching: What fixes the plans of batches, by name, from ``BatchRule.describe``.

    Raises:
        ConfigError: There is no sample (kind ``empty_dataset``), the view is not sorted or leaves the data set, or
            ``block_rows`` makes too many blocks.

    Source: docs/design/0001-epoch-order.md.
    """
    options = options or OrderOptions()
    shard_rows = np.asarray(shard_rows, np.int64)
    num_rows = int(shard_rows.sum())
    if num_rows == 0 or (view is not None and len(view) == 0):
        what = f"{len(shard_rows)} shards hold no sample" if num_rows == 0 else "the view keeps no sample"
        raise ConfigError(f"open_order: {what}; there is nothing to serve", kind="empty_dataset")
    block_rows = options.block_rows or choose_block_rows(shard_rows, int(np.sum(shard_bytes, dtype=np.int64)))
    borders = cut_blocks(shard_rows, block_rows)
    if view is not None:
        view = _checked_view(view, num_rows)
        borders = restrict_blocks(borders, view, shard_rows=shard_rows, block_rows=block_rows)
    if costs is not None:
        costs = _checked_costs(costs, int(borders[-1]))
    total = 0 if costs is None else int(costs.sum())
    num_lanes = _num_lanes(options, len(borders) - 1, total_weight=total, lane_weight=lane_cost if total else 0)
    layout = _Layout(borders=borders, num_lanes=num_lanes, view=view, costs=costs)
    fixed = options.shuffle is True and options.lanes != "mixed"
    return Order(
        options,
        layout=layout,
        block_rows=block_rows,
        dealt=layout.deal(seeds.derive(options.seed, Tag.DEAL)) if fixed else None,
        description={**_describe(options, layout, block_rows=block_rows), **(batching or {})},
    )


def hash_description(description: Description) -> str:
    """32 hex digits of sha256 over the description as JSON with sorted names and no spaces."""
    text = json.dumps(dict(description), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """What an order is computed from, besides its options."""

    borders: Ordinals
    num_lanes: int
    view: NDArray[np.int64] | None
    costs: NDArray[np.int64] | None

    def deal(self, key: int) -> Deal:
        return deal(self.borders, key=key, num_lanes=self.num_lanes, costs=self.costs)


def _num_lanes(options: OrderOptions, num_blocks: int, *, total_weight: int, lane_weight: int) -> int:
    if options.shuffle is not True:
        return 1
    wanted = DEFAULT_LANES if options.lanes == "mixed" else options.lanes
    return choose_num_lanes(num_blocks, wanted, total_weight=total_weight, lane_weight=lane_weight)


def _describe(options: OrderOptions, layout: _Layout, *, block_rows: int) -> Description:
    """Only what has an influence: without lanes, neither they nor blocks and windows have one."""
    in_lanes = options.shuffle is True
    return {
        "order_version": ORDER_VERSION,
        "seed": options.seed,
        "shuffle": options.shuffle,
        "lanes": layout.num_lanes if in_lanes else None,
        "deal": ("mixed" if options.lanes == "mixed" else "fixed") if in_lanes else None,
        "block_rows": block_rows if in_lanes else None,
        "window": options.window if in_lanes else None,
        "batching": None,
        "mixture": None,
        "costs": _digest(layout.costs),
        "view": _digest(layout.view),
        "samples": int(layout.borders[-1]),
    }


def _digest(values: NDArray[np.int64] | None) -> str | None:
    """32 hex digits of sha256 over the values as little-endian int64."""
    if values is None:
        return None
    return hashlib.sha256(np.ascontiguousarray(values, "<i8").data).hexdigest()[:32]


def _checked_view(view: NDArray[np.int64], num_rows: int) -> NDArray[np.int64]:
    view = np.ascontiguousarray(view, np.int64)
    if int(view[0]) < 0 or int(view[-1]) >= num_rows:
        raise ConfigError(f"view: expected sample ids in 0 .. {num_rows - 1}, found {int(view[0])} .. {int(view[-1])}")
    if np.any(view[1:] <= view[:-1]):
        at = int(np.argmax(view[1:] <= view[:-1]))
        raise ConfigError(f"view: expected increasing sample ids, found {int(view[at])} before {int(view[at + 1])}")
    return view


def _checked_costs(costs: NDArray[np.int64], num_samples: int) -> NDArray[np.int64]:
    costs = np.ascontiguousarray(costs, np.int64)
    if len(costs) != num_samples:
        raise ConfigError(f"costs: expected one for each of {num_samples} samples, found {len(costs)}")
    if int(costs.min()) < 0:
        raise ConfigError(f"costs: expected numbers from 0 up, found {int(costs.min())}")
    return costs


def _check(name: str, value: object, holds: bool, expected: str) -> None:
    if not holds:
        raise ConfigError(f"OrderOptions({name}={value!r}): expected {expected}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_seed(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64
