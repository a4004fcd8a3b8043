"""Several data sets in one order, at given shares: inside every lane, so that all promises of the order hold.

::

    lane l, places       0   1   2   3   4   5   6   7        of one run through all epochs
    point on a circle   .20 .82 .44 .05 .67 .29 .91 .53       places are a golden ratio apart, lanes evenly spaced
    source              a   b   a   a   a   a   b   a         a owns [0, .7), b the rest
    drawn from          a's lane l: 0 1 2 3 4 5               b's lane l: 0 1          each runs on over its own epochs

A source with fewer lanes gives its lane ``l mod L_s`` to every L_s-th lane, in the order of the run. Since L_s divides
L, a block still belongs to one rank when the world divides L_s.

Source: docs/design/0002-batches-and-mixtures.md.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from janus_shards.errors import ConfigError
from janus_shards.order import seeds
from janus_shards.order.draws import Draws, Share
from janus_shards.order.epoch import (
    ORDER_VERSION,
    Description,
    EpochOrder,
    Order,
    OrderOptions,
    Slots,
    hash_description,
    open_order,
)
from janus_shards.order.lanes import DEFAULT_LANES, Grid, RunGrid, choose_num_lanes, row_cuts
from janus_shards.order.mixture import Mixture
from janus_shards.order.seeds import Tag

#: Raised whenever the same mixture gives another order; part of every state.
MIXTURE_VERSION = 1

# Epochs of its own that are kept laid out for each source: lanes cross from one to the next at different times.
_EPOCHS_A_SOURCE = 3


@dataclass(frozen=True, kw_only=True)
class SourceTable:
    """What the order of a source is made from.

    Attributes:
        shard_rows: Rows of each shard.
        shard_bytes: Bytes of each shard.
        view: Sample ids that are kept, strictly increasing; all when not given.
    """

    shard_rows: NDArray[np.int64]
    shard_bytes: NDArray[np.int64]
    view: NDArray[np.int64] | None = None


class MixtureOrder:
    """The order of a mixture, for every epoch; a ``SampleOrder``. Made by ``open_mixture``.

    Rows are counted over all sources, one source after another: ordinals over what is served of them, sample ids over
    all their rows.

    Attributes:
        options: As given.
        num_samples: Samples of an epoch.
        num_lanes: Lanes of the mixture; a source may have fewer.
        block_rows: Most rows of a block.
        order_hash: 32 hex digits over everything that fixes the order.
        sources: The order of each source.
        row_starts: First ordinal of each source, and one past the last of all; int64, ``(num_sources + 1,)``.
        id_starts: First sample id of each source, and one past the last of all; int64, ``(num_sources + 1,)``.
        source_lanes: Number and lengths of the lanes of each source.
        unit: Samples that are drawn at once.
    """

    def __init__(
        self,
        options: OrderOptions,
        *,
        sources: Sequence[Order],
        id_starts: NDArray[np.int64],
        layout: "_Layout",
        description: Description,
    ) -> None:
        self.options = options
        self.sources = sources
        self.row_starts = np.append(0, np.cumsum([order.num_samples for order in sources])).astype(np.int64)
        self.id_starts = id_starts
        self.num_samples = layout.num_units * layout.unit
        self.num_lanes = layout.num_lanes
        self.block_rows = max(order.block_rows for order in sources)
        self.order_hash = hash_description(description)
        self.unit = layout.unit
        self._layout = layout
        self._description = description
        self.source_lanes = [_SourceLanes(row_cuts(order.num_samples, order.num_lanes)) for order in sources]
        # Where a whole step draws at once, its samples go through all lanes of the source.
        drawn = [order.num_lanes if layout.draw_lanes == layout.num_lanes else 1 for order in sources]
        self._draws = Draws(num_lanes=layout.draw_lanes, source_lanes=drawn, shares=layout.shares)
        self._block_starts = np.append(0, np.cumsum([order.num_blocks for order in sources])).astype(np.int64)
        self._kept: OrderedDict[tuple[int, int], EpochOrder] = OrderedDict()
        self._latest: MixtureEpoch | None = None

    def describe(self) -> dict[str, str | int | None]:
        """See ``SampleOrder``."""
        return dict(self._description)

    def epoch(self, epoch: int) -> "MixtureEpoch":
        """See ``SampleOrder``."""
        if epoch < 0:
            raise ConfigError(f"epoch={epoch}: epochs are counted from 0")
        if self._latest is None or self._latest.epoch != epoch:
            self._latest = MixtureEpoch(self, epoch=epoch, grid=self._layout.grid(epoch))
        return self._latest

    def sample_ids(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
        """See ``SampleOrder``; counted over all rows of all sources."""
        out = np.empty_like(ordinals)
        for source, here in _each(np.searchsorted(self.row_starts, ordinals, side="right") - 1):
            ids = self.sources[source].sample_ids(ordinals[here] - self.row_starts[source])
            out[here] = ids + self.id_starts[source]
        return out

    def locate(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Source of each sample, and its id in the data set of that source."""
        sources = np.searchsorted(self.id_starts, sample_ids, side="right") - 1
        return sources, sample_ids - self.id_starts[sources]

    def drawn_at(
        self, epoch: int, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Source of each position of an epoch, the lane of the source, and how far that lane has run, in samples."""
        units, inside = np.divmod(positions + epoch * self.num_samples, self.unit)
        sources, before = self._draws.at(units)
        runs = before * self.unit + inside
        num_lanes = np.array([lanes.num_lanes for lanes in self.source_lanes])[sources]
        if self._layout.draw_lanes == self.num_lanes:
            return sources, units % num_lanes, runs
        runs, lanes = np.divmod(runs, num_lanes)
        return sources, lanes, runs

    def source_epoch(self, source: int, epoch: int) -> EpochOrder:
        """An epoch of one source. The latest few are kept."""
        found = self._kept.pop((source, epoch), None) or self.sources[source].lay_out(epoch)
        self._kept[source, epoch] = found
        if len(self._kept) > _EPOCHS_A_SOURCE * len(self.sources):
            self._kept.popitem(last=False)
        return found

    def block_span(self, blocks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See ``SampleEpoch``."""
        starts, stops = np.empty_like(blocks), np.empty_like(blocks)
        for source, here in _each(np.searchsorted(self._block_starts, blocks, side="right") - 1):
            span = self.sources[source].epoch(0).block_span(blocks[here] - self._block_starts[source])
            starts[here], stops[here] = (ordinals + self.row_starts[source] for ordinals in span)
        return starts, stops


class MixtureEpoch:
    """What stands at each position of one epoch of a mixture; a ``SampleEpoch``. To be used by one thread at a time."""

    def __init__(self, order: MixtureOrder, *, epoch: int, grid: Grid) -> None:
        self.epoch = epoch
        self.num_samples = order.num_samples
        self.grid = grid
        self._order = order

    def slots(self, start: int, stop: int) -> Slots:
        """Positions ``start .. stop - 1``, with ``0 <= start <= stop <= num_samples``."""
        if not 0 <= start <= stop <= self.num_samples:
            raise ConfigError(f"slots({start}, {stop}): positions of this epoch are 0 .. {self.num_samples}")
        return self.slots_at(np.arange(start, stop))

    def slots_at(self, positions: NDArray[np.int64]) -> Slots:
        """See ``SampleEpoch``."""
        order = self._order
        found = {name: np.empty(len(positions), np.int64) for name in _COPIED}
        for here, source, epoch, at in self._parts(positions):
            part = epoch.slots_at(at)
            row_start, block_start = order.row_starts[source], order._block_starts[source]
            found["sample_ids"][here] = part.sample_ids + order.id_starts[source]
            found["blocks"][here] = part.blocks + block_start
            found["turn_starts"][here] = part.turn_starts + row_start
            found["turn_stops"][here] = part.turn_stops + row_start
            found["sources"][here] = source
            found["source_epochs"][here] = epoch.epoch
        lanes, places = self.grid.locate(positions)
        return Slots(lanes=lanes, places=places, **found)

    def ordinals_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See ``SampleEpoch``."""
        out = np.empty(len(positions), np.int64)
        for here, source, epoch, at in self._parts(positions):
            out[here] = epoch.ordinals_at(at) + self._order.row_starts[source]
        return out

    def block_span(self, blocks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See ``SampleEpoch``."""
        return self._order.block_span(blocks)

    def _parts(
        self, positions: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.intp], int, EpochOrder, NDArray[np.int64]]]:
        """Positions by source and epoch of it: which of ``positions``, source, its epoch, positions in that."""
        sources, lanes, runs = self._order.drawn_at(self.epoch, positions)
        for source, mine in _each(sources):
            own = self._order.source_lanes[source]
            epochs, places = np.divmod(runs[mine], own.lengths[lanes[mine]])
            for epoch, here in _each(epochs):
                at = places[here] * own.num_lanes + lanes[mine][here]
                yield mine[here], source, self._order.source_epoch(source, epoch), at


_COPIED = ("sample_ids", "blocks", "turn_starts", "turn_stops", "sources", "source_epochs")


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """How draws fill an epoch.

    Attributes:
        num_lanes: Lanes that are served.
        draw_lanes: Lanes that draw: the same, or one where a whole step draws at once.
        unit: Samples that are drawn at once.
        num_units: Draws of an epoch.
        shares: Of the sources.
    """

    num_lanes: int
    draw_lanes: int
    unit: int
    num_units: int
    shares: Sequence[Share]

    def grid(self, epoch: int) -> Grid:
        """Lanes and places of an epoch."""
        # Where a whole step is of one source, its samples go through the lanes of that source in turn.
        unit = self.unit if self.draw_lanes == self.num_lanes else 1
        units = self.num_units * self.unit // unit
        return RunGrid(epoch * units, units, unit=unit, num_lanes=self.num_lanes)


def open_mixture(
    mixture: Mixture,
    tables: Sequence[SourceTable],
    options: OrderOptions | None = None,
    *,
    unit: int = 1,
    weights: NDArray[np.int64] | None = None,
    lane_weight: int = 0,
    batching: Description | None = None,
) -> MixtureOrder:
    """Lay out the sources of a mixture.

    Args:
        mixture: Sources and shares.
        tables: Of each source, in the mixture's order.
        options: How to shuffle; the seed of each source is derived from the mixture's.
        unit: With ``one_source``, samples that must be of one source: a rank's batch, or the global batch.
        weights: Of every row of all sources, when batches are planned; see ``BatchRule.weights``.
        lane_weight: Weight that a lane has on average, at least; lanes are shrunk until it does.
        batching: What fixes the plans of batches, by name, from ``BatchRule.describe``.

    Raises:
        ConfigError: A source is empty, or options do not work together.

    Source: docs/design/0002-batches-and-mixtures.md.
    """
    options = options or OrderOptions()
    sizes = [_num_served(table) for table in tables]
    _check_combination(mixture, sizes, options, unit, planned=batching is not None)
    num_samples = mixture.samples_of(sizes)
    unit = unit if mixture.one_source != "off" and batching is None else 1
    num_units = num_samples // unit
    if not num_units:
        raise ConfigError(
            f"Mixture(one_source={mixture.one_source!r}): an epoch of {num_samples} samples holds no batch of {unit}"
        )
    wanted = DEFAULT_LANES if options.lanes == "mixed" else options.lanes
    num_lanes = 1
    if options.shuffle is not None:
        total = 0 if weights is None else _expected_weight(mixture, sizes, weights, num_samples)
        num_lanes = choose_num_lanes(4 * wanted, wanted, total_weight=total, lane_weight=lane_weight if total else 0)
    sources = [
        open_order(
            table.shard_rows,
            table.shard_bytes,
            replace(options, seed=seeds.derive(options.seed, Tag.SOURCE, number), lanes=num_lanes),
            view=table.view,
        )
        for number, table in enumerate(tables)
    ]
    layout = _Layout(
        num_lanes=num_lanes,
        draw_lanes=1 if mixture.one_source == "global" and unit > 1 else num_lanes,
        unit=unit,
        num_units=num_units,
        shares=[
            Share(start=-(-start // unit), weights=mixture.weights(values, sizes)) for start, values in mixture.pieces
        ],
    )
    rows = [int(np.sum(table.shard_rows, dtype=np.int64)) for table in tables]
    return MixtureOrder(
        options,
        sources=sources,
        id_starts=np.append(0, np.cumsum(rows)).astype(np.int64),
        layout=layout,
        description={**_describe(mixture, options, layout, sources), **(batching or {})},
    )


def _describe(
    mixture: Mixture, options: OrderOptions, layout: _Layout, sources: Sequence[Order]
) -> dict[str, str | int | None]:
    hashes = "\n".join(order.order_hash for order in sources)
    return {
        "order_version": ORDER_VERSION,
        "mixture_version": MIXTURE_VERSION,
        "seed": options.seed,
        "shuffle": options.shuffle,
        "lanes": layout.num_lanes,
        "window": options.window,
        "batching": None,
        "mixture": mixture.kind,
        "weights": mixture.describe_weights(),
        "one_source": mixture.one_source,
        "unit": layout.unit,
        "sources": hashlib.sha256(hashes.encode()).hexdigest()[:32],
        "samples": layout.num_units * layout.unit,
    }


def _expected_weight(mixture: Mixture, sizes: Sequence[int], weights: NDArray[np.int64], num_samples: int) -> int:
    """Of an epoch at the first shares of the schedule."""
    shares = mixture.weights(mixture.pieces[0][1], sizes)
    borders = np.append(0, np.cumsum(sizes))
    sums = np.add.reduceat(weights, borders[:-1]).tolist()
    mean = sum(share * total / size for share, total, size in zip(shares, sums, sizes, strict=True)) / sum(shares)
    return int(mean * num_samples)


def _num_served(table: SourceTable) -> int:
    return int(np.sum(table.shard_rows, dtype=np.int64)) if table.view is None else len(table.view)


class _SourceLanes:
    """Lanes of a source: position p is lane p mod L_s, place p div L_s. With borders of the lanes, in rows."""

    def __init__(self, borders: NDArray[np.int64]) -> None:
        self.num_lanes = len(borders) - 1
        self.lengths = np.diff(borders)


def _each(values: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Each distinct value with the places where it stands."""
    for value in np.unique(values).tolist():
        yield value, np.flatnonzero(values == value)


def _check_combination(
    mixture: Mixture, sizes: Sequence[int], options: OrderOptions, unit: int, *, planned: bool
) -> None:
    if len(mixture.sources) != len(sizes):
        raise ConfigError(
            f"open_mixture: expected a table for each of {len(mixture.sources)} sources, found {len(sizes)}"
        )
    if unit < 1:
        raise ConfigError(f"open_mixture(unit={unit}): expected an integer from 1 up")
    if not all(sizes):
        raise ConfigError(f"Mixture: source {sizes.index(0)} of {len(sizes)} holds no sample", kind="empty_dataset")
    if options.lanes == "mixed":
        raise ConfigError("lanes='mixed': the sources of a mixture keep their blocks in their lanes; leave it out")
    if planned and mixture.one_source == "global":
        raise ConfigError(
            "Mixture(one_source='global') with planned batches: a step holds micro-batches of any source; take "
            "one_source='rank', which makes every micro-batch of one source"
        )
