"""Steps, tails, and which rank serves what of a global batch.

Step t serves positions ``q + t * B .. q + (t + 1) * B - 1`` of the global order from the resume position q, whatever
the world size: the global batch B fixes the batches, the world only divides each of them. A position holds a sample, or
a micro-batch where batches are planned: everything here is the same for both.

::

    W divides the lanes (L = 6, W = 2)          W does not (L = 4, W = 3): the batch by (lane, place), in W runs
    position   0  1  2  3  4  5 | 6  7 ...      positions 0 .. 11     0 4 8 1 | 5 9 2 6 | 10 3 7 11
    lane       0  1  2  3  4  5 | 0  1 ...      lane                  0 0 0 1 | 1 1 2 2 |  2 3 3  3
    rank       0  1  0  1  0  1 | 0  1 ...      rank                  0 0 0 0 | 1 1 1 1 |  2 2 2  2
    a block is read by one rank, also after     a lane has hardly more than one reader
    resuming anywhere with any B

Source: docs/design/0001-epoch-order.md.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from janus_shards.errors import ConfigError
from janus_shards.order.epoch import SampleEpoch, Slots
from janus_shards.order.lanes import Grid
from janus_shards.order.planned import PlannedEpoch
from janus_shards.world import World

#: What becomes of the last, partial global batch of an epoch. ``drop``: left out. ``pad``: filled with repeats of the
#: samples just before, ``valid=False``. ``uneven``: served as it is, for evaluation; a rank's last batch may be one
#: sample shorter than another's, or empty, but every rank has it.
Tail: TypeAlias = Literal["drop", "pad", "uneven"]


@dataclass(frozen=True, kw_only=True)
class RankPositions:
    """The positions that one rank serves in some consecutive steps.

    Attributes:
        positions: What stands there is served, in serving order; n in all, each inside the epoch.
        valid: bool, shape ``(n,)``; False where a repeat only fills the last batch.
        offsets: Step i holds positions ``offsets[i] .. offsets[i + 1] - 1``; int64, shape ``(num_steps + 1,)``.
    """

    positions: NDArray[np.int64]
    valid: NDArray[np.bool_]
    offsets: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class RankSlots:
    """What one rank serves in some consecutive steps.

    Attributes:
        slots: Of all these steps, in serving order, n in all.
        valid: bool, shape ``(n,)``; False where a sample only fills the last batch.
        offsets: Step i holds slots ``offsets[i] .. offsets[i + 1] - 1``; int64, shape ``(num_steps + 1,)``.
    """

    slots: Slots
    valid: NDArray[np.bool_]
    offsets: NDArray[np.int64]

    @property
    def num_steps(self) -> int:
        """Steps, some of which may be empty with ``tail="uneven"``."""
        return len(self.offsets) - 1

    def step(self, number: int) -> slice:
        """Where the slots of one step lie."""
        return slice(int(self.offsets[number]), int(self.offsets[number + 1]))


@dataclass(frozen=True, kw_only=True)
class RankBatches(RankSlots):
    """What one rank serves where batches are planned: the slots of all rows, and which make a micro-batch.

    Attributes:
        batches: Micro-batch b holds slots ``batches[b] .. batches[b + 1] - 1``; int64, shape ``(num_batches + 1,)``.
        steps: Step i holds micro-batches ``steps[i] .. steps[i + 1] - 1``; int64, shape ``(num_steps + 1,)``.
        shapes: What each micro-batch is padded to, int32, shape ``(num_batches,)``; see ``MicroBatches``.
    """

    batches: NDArray[np.int64]
    steps: NDArray[np.int64]
    shapes: NDArray[np.int32]


def global_batch(*, batch_size: int | None, global_batch_size: int | None, world: World) -> int:
    """Samples of all ranks together in one step: the global batch B.

    Args:
        batch_size: Samples of one rank in one step.
        global_batch_size: Samples of all ranks in one step.
        world: Whose ranks share it.

    Raises:
        ConfigError: Not exactly one of the two is given, it is below 1, or no multiple of the world size.
    """
    if batch_size is not None and global_batch_size is None:
        _check_count("batch_size", batch_size)
        return batch_size * world.world_size
    if batch_size is not None or global_batch_size is None:
        given = "neither" if batch_size is None else "both"
        raise ConfigError(f"batch_size and global_batch_size: expected exactly one of them, found {given}")
    _check_count("global_batch_size", global_batch_size)
    following = -(-global_batch_size // world.world_size) * world.world_size
    if following != global_batch_size:
        raise ConfigError(
            f"global_batch_size={global_batch_size}: expected a multiple of the {world.world_size} ranks; "
            f"the next is {following}"
        )
    return global_batch_size


def num_steps(num_samples: int, *, batch: int, tail: Tail, position: int = 0, what: str = "samples") -> int:
    """Steps from a position to the end of the epoch, the same on every rank; from 0, the steps of an epoch.

    Args:
        num_samples: Length of the epoch, in samples or micro-batches, like all numbers here.
        batch: Global batch B: samples of all ranks in one step.
        tail: What becomes of the last, partial batch.
        position: Samples already served, ``0 .. num_samples``.
        what: ``"samples"`` or ``"micro-batches"``, for messages.

    Raises:
        ConfigError: The epoch is shorter than one batch, and ``tail`` is ``drop``: there would never be a step.
    """
    if tail not in ("drop", "pad", "uneven"):
        raise ConfigError(f"tail={tail!r}: expected 'drop', 'pad' or 'uneven'")
    if tail != "drop":
        return -(-(num_samples - position) // batch)
    if num_samples < batch:
        raise ConfigError(
            f"a global batch of {batch} {what} and tail='drop': an epoch has only {num_samples} {what}, so "
            f"there would be no step; take a global batch of at most {num_samples}, or tail='pad' or 'uneven'"
        )
    return (num_samples - position) // batch


def next_position(num_samples: int, *, batch: int, tail: Tail, epoch: int, position: int) -> tuple[int, int]:
    """Epoch and position after the step that begins at ``position``: the next epoch's start after the last step."""
    position = min(position + batch, num_samples)
    left = num_steps(num_samples, batch=batch, tail=tail, position=position)
    return (epoch, position) if left else (epoch + 1, 0)


def rank_positions(grid: Grid, *, position: int, steps: int, batch: int, tail: Tail, world: World) -> RankPositions:
    """The positions that one rank serves in the next steps.

    Args:
        grid: Of the epoch.
        position: Samples that all ranks together have served, ``0 .. num_samples``; need not be a multiple of anything.
        steps: Wanted steps; fewer come where the epoch ends.
        batch: Global batch B: samples of all ranks in one step, a multiple of the world size.
        tail: What becomes of the last, partial batch.
        world: Which rank.
    """
    size = grid.num_positions
    if not 0 <= position <= size:
        raise ConfigError(f"position={position}: positions of this epoch are 0 .. {size}")
    steps = min(steps, num_steps(size, batch=batch, tail=tail, position=position))
    borders = position + batch * np.arange(steps + 1)  # [steps + 1], where steps begin
    if tail == "uneven":
        borders = np.minimum(borders, size)
    if _by_lane(grid, borders, world):
        positions, offsets = _strided(borders, grid, world)
        served = _existing(positions, grid, batch)
    else:
        positions, served, offsets = _runs(borders, grid, batch, world)
    return RankPositions(positions=served, valid=positions < size, offsets=offsets)


def rank_slots(epoch: SampleEpoch, *, position: int, steps: int, batch: int, tail: Tail, world: World) -> RankSlots:
    """The samples that one rank serves in the next steps; see ``rank_positions`` for the arguments."""
    found = rank_positions(epoch.grid, position=position, steps=steps, batch=batch, tail=tail, world=world)
    return RankSlots(slots=epoch.slots_at(found.positions), valid=found.valid, offsets=found.offsets)


def rank_batches(
    epoch: PlannedEpoch, *, position: int, steps: int, batch: int, tail: Tail, world: World
) -> RankBatches:
    """The micro-batches that one rank serves in the next steps.

    See ``rank_positions`` for the arguments: ``position`` and ``batch`` count micro-batches of all ranks together.
    """
    found = rank_positions(epoch.grid, position=position, steps=steps, batch=batch, tail=tail, world=world)
    planned = epoch.batches_at(found.positions)
    return RankBatches(
        slots=planned.slots,
        valid=np.repeat(found.valid, np.diff(planned.offsets)),
        offsets=planned.offsets[found.offsets],
        batches=planned.offsets,
        steps=found.offsets,
        shapes=planned.shapes,
    )


def _by_lane(grid: Grid, borders: NDArray[np.int64], world: World) -> bool:
    """Whether each rank can have lanes of its own: those equal to it modulo the world size."""
    if world.world_size == 1:
        return True
    whole = grid.unit == 1 or not np.any(borders % grid.unit)
    return grid.round_robin and grid.num_lanes % world.world_size == 0 and whole


def _strided(borders: NDArray[np.int64], grid: Grid, world: World) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions in the lanes that equal the rank modulo the world size, and the offset of each step among them."""
    if world.world_size == 1:
        return np.arange(int(borders[0]), int(borders[-1])), borders - borders[0]
    unit, size = grid.unit, world.world_size
    first = (world.rank - grid.first_lane) % size  # first unit of the epoch that is the rank's
    before = -(-(borders // unit - first) // size)  # how many of the rank's units lie before each border
    units = np.arange(int(before[0]), int(before[-1])) * size + first
    positions = units if unit == 1 else (units[:, None] * unit + np.arange(unit)).reshape(-1)
    return positions, (before - before[0]) * unit


def _runs(
    borders: NDArray[np.int64], grid: Grid, batch: int, world: World
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Run ``rank`` of each batch sorted by (lane, place): positions, the same brought into the epoch, step offsets."""
    sizes = np.diff(borders)  # [steps], all equal to batch but perhaps the last
    starts, stops = sizes * world.rank // world.world_size, sizes * (world.rank + 1) // world.world_size
    positions = np.arange(int(borders[0]), int(borders[-1]))
    served = _existing(positions, grid, batch)
    lanes, places = grid.locate(served)
    step = np.repeat(np.arange(len(sizes)), sizes)
    by_lane = np.lexsort((places, lanes, step))
    inside = np.arange(len(positions)) - np.repeat(borders[:-1] - borders[0], sizes)
    mine = by_lane[(inside >= np.repeat(starts, sizes)) & (inside < np.repeat(stops, sizes))]
    return positions[mine], served[mine], np.append(0, np.cumsum(stops - starts))


def _existing(positions: NDArray[np.int64], grid: Grid, batch: int) -> NDArray[np.int64]:
    """Positions past the end become the latest ones before it that lie in the same lane: their blocks are still open.

    They go back by a multiple of the lanes, and by a batch or more if the epoch is that long: no repeat is repeated.
    """
    size = grid.num_positions
    if not len(positions) or int(positions.max()) < size:
        return positions
    period = grid.period * min(size // grid.period, -(-batch // grid.period))
    past = positions - size
    return np.where(past < 0, positions, positions - (np.maximum(past, 0) // period + 1) * period)


def _check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}={value!r}: expected an integer from 1 up")
