"""An epoch of planned micro-batches: a position holds a micro-batch, its rows are those of an order of samples.

::

    lane 0    b0 b3 b6 b8            positions: by place, then lane, as for samples; lanes may differ in length
    lane 1    b1 b4 b7
    lane 2    b2 b5
    tail               b9 b10        then the tail, planned from what the lanes left open

Which rows make a micro-batch is decided elsewhere, by the rules of ``batching``; here come their arrays.

Source: docs/design/0002-batches-and-mixtures.md.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from janus_shards.errors import ConfigError, FormatError
from janus_shards.order.blocks import ordinal_dtype
from janus_shards.order.epoch import SampleEpoch, Slots
from janus_shards.order.lanes import LaneGrid, RunGrid

# Rows that are laid out at once: enough to be fast, few enough to stay in memory beside a large plan.
_ROWS_TOGETHER = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Some micro-batches.

    Attributes:
        slots: Of all their rows, one batch after another.
        offsets: Batch b holds slots ``offsets[b] .. offsets[b + 1] - 1``; int64, shape ``(num_batches + 1,)``.
        shapes: What each is padded to, int32, shape ``(num_batches,)``.
    """

    slots: Slots
    offsets: NDArray[np.int64]
    shapes: NDArray[np.int32]


class PlannedGrid:
    """The global order of micro-batches: those of the lanes by place, then lane; then the tail as a lane of its own.

    Args:
        lengths: Micro-batches of each lane, shape ``(num_lanes,)``.
        num_tail: Micro-batches of the tail.
    """

    def __init__(self, lengths: NDArray[np.int64], num_tail: int) -> None:
        self._grid = LaneGrid(lengths)
        self.num_lanes = len(lengths) + 1
        self.num_positions = self._grid.num_positions + num_tail
        self.round_robin = False
        self.first_lane, self.unit = 0, 1
        # The rows of a batch were read by now: which lane it is from does not matter.
        self.period = 1

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See ``Grid``."""
        behind = positions - self._grid.num_positions
        in_tail = behind >= 0
        if not self._grid.num_positions:
            return np.full_like(positions, self.num_lanes - 1), behind
        lanes, places = self._grid.locate(np.where(in_tail, 0, positions))
        return np.where(in_tail, self.num_lanes - 1, lanes), np.where(in_tail, behind, places)


class PlannedEpoch:
    """The micro-batches of one epoch. To be used by one thread at a time.

    Args:
        samples: The order of samples that was planned.
        rows: Rows of all batches, one batch after another, as places of the sequence of ``lane_rows``.
        offsets: Where each batch starts in ``rows``, shape ``(num_batches + 1,)``.
        lanes: Which batches each lane made, shape ``(num_lanes + 1,)``; those behind are the tail.
        shapes: What each batch is padded to, shape ``(num_batches,)``.

    Attributes:
        epoch: Its number.
        num_batches: Positions are ``0 .. num_batches - 1``.
        grid: Lane and place of each position; the tail is the last lane.

    Raises:
        FormatError: The plan is of another order.
    """

    def __init__(
        self,
        samples: SampleEpoch,
        *,
        rows: NDArray[np.signedinteger],
        offsets: NDArray[np.int64],
        lanes: NDArray[np.int64],
        shapes: NDArray[np.int32],
    ) -> None:
        lane_grid = plannable(samples)
        if len(rows) != samples.num_samples or len(lanes) != lane_grid.num_lanes + 1:
            raise FormatError(
                f"plan of epoch {samples.epoch}: expected {samples.num_samples} rows in {lane_grid.num_lanes} lanes, "
                f"found {len(rows)} in {len(lanes) - 1}",
                kind="other_plan",
            )
        self.epoch = samples.epoch
        self.num_batches = len(shapes)
        self.grid = PlannedGrid(np.diff(lanes), len(shapes) - int(lanes[-1]))
        self._samples = samples
        self._lane_grid = lane_grid
        self._borders = np.append(0, np.cumsum(lane_grid.lengths))
        self._rows, self._offsets, self._lanes, self._shapes = rows, offsets, lanes, shapes

    def batches_at(self, positions: NDArray[np.int64]) -> Batches:
        """The micro-batches at these positions, in any order and with repeats."""
        lanes, places = self.grid.locate(positions)
        numbers = self._lanes[lanes] + places
        starts = self._offsets[numbers]
        counts = self._offsets[numbers + 1] - starts
        offsets = np.append(0, np.cumsum(counts))
        rows = self._rows[np.repeat(starts - offsets[:-1], counts) + np.arange(int(offsets[-1]))].astype(np.int64)
        row_lanes = np.searchsorted(self._borders, rows, side="right") - 1
        at = self._lane_grid.positions(row_lanes, rows - self._borders[row_lanes])
        return Batches(slots=self._samples.slots_at(at), offsets=offsets, shapes=self._shapes[numbers])

    def block_span(self, blocks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See ``SampleEpoch``."""
        return self._samples.block_span(blocks)


def lane_rows(samples: SampleEpoch) -> tuple[NDArray[np.signedinteger], NDArray[np.int64]]:
    """The sequence that is planned: all rows of an epoch, lane after lane.

    Returns:
        Ordinals, shape ``(num_samples,)``: places in arrays that hold something about every sample. And where each lane
        starts, shape ``(num_lanes + 1,)``.
    """
    grid = plannable(samples)
    borders = np.append(0, np.cumsum(grid.lengths))
    sequence: NDArray[np.signedinteger] = np.empty(samples.num_samples, np.int32)
    for start in range(0, samples.num_samples, _ROWS_TOGETHER):
        positions = np.arange(start, min(start + _ROWS_TOGETHER, samples.num_samples))
        ordinals = samples.ordinals_at(positions)
        if ordinal_dtype(int(ordinals.max())) is np.int64:
            sequence = sequence.astype(np.int64)
        lanes, places = grid.locate(positions)
        sequence[borders[lanes] + places] = ordinals
    return sequence, borders


def plannable(samples: SampleEpoch) -> LaneGrid | RunGrid:
    """The lanes of an order whose batches can be planned.

    Raises:
        ConfigError: A mixture has made batches of one source already.
    """
    if isinstance(samples.grid, LaneGrid | RunGrid) and samples.grid.unit == 1:
        return samples.grid
    raise ConfigError("one_source: an order of batches of one source is planned already")
