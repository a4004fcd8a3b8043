"""From positions of the order to the byte ranges of fields, a stretch of steps at a time.

Everything here is vectorised over the rows of one shard: a few thousand rows are planned in one call, and the workers
then only read numbers from lists.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from janus_shards.catalog import Catalog
from janus_shards.order.serving import RankSlots

# Rows planned in one vectorised call: enough to make the call's fixed cost small, few enough to plan in milliseconds.
_ROWS_TOGETHER = 2048


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """Where one field of each row lies: plain lists of equal length, for fast access by one row.

    Attributes:
        offsets: Position of the data in the shard, bytes.
        sizes: Length of the data, bytes; -1 where the sample lacks the field.
        xxh3: XXH3-64 of the data.
        inline: The data itself where the index keeps it, else ``None``.
    """

    offsets: list[int]
    sizes: list[int]
    xxh3: list[int]
    inline: list[bytes | None]


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Everything that is known about a batch before its bytes are.

    Attributes:
        step: Steps since the planning began.
        sample_ids: int64 ``[B]``.
        valid: bool ``[B]``; False for the repeats that fill a padded last step.
        blocks: Block of the order that each row belongs to.
        turns: The turn of the order that each row belongs to: rows of one block that are served in one stretch.
        shards: Shard number of each row.
        keys: Key of each row.
        fields: Byte ranges by field.
    """

    step: int
    sample_ids: NDArray[np.int64]
    valid: NDArray[np.bool_]
    blocks: list[int]
    turns: list[int]
    shards: list[int]
    keys: list[str]
    fields: dict[str, FieldPlan]

    @property
    def stored_bytes(self) -> int:
        """Bytes of all planned fields, as stored."""
        return sum(size for plan in self.fields.values() for size in plan.sizes if size > 0)


class Stretch:
    """Consecutive steps of one rank: their slots, and which rows of a turn are still to come.

    Args:
        served: The slots.
        first_step: Step of the first of them, counted from where planning began.
    """

    def __init__(self, served: RankSlots, first_step: int) -> None:
        self.served = served
        self.first_step = first_step
        self._steps = np.repeat(np.arange(served.num_steps), np.diff(served.offsets)) + first_step
        self._turns: dict[int, NDArray[np.int64]] | None = None

    @property
    def stop_step(self) -> int:
        """One past the last step."""
        return self.first_step + self.served.num_steps

    def rows_of(self, turn: int, step: int) -> NDArray[np.int64]:
        """Sample ids of a turn that are served in this stretch at ``step`` or later."""
        if self._turns is None:
            self._turns = dict(_groups(self.served.slots.turn_starts))
        places = self._turns.get(turn, np.empty(0, np.int64))
        return self.served.slots.sample_ids[places[self._steps[places] >= step]]

    def plans(
        self,
        catalog: Catalog,
        fields: Sequence[str],
        *,
        is_ours: Callable[[int], bool],
        prepare: Callable[[NDArray[np.int64]], None],
    ) -> Iterator[BatchPlan]:
        """Plans of the steps for which ``is_ours`` holds.

        Args:
            catalog: The data set.
            fields: Fields to plan.
            is_ours: Chooses steps.
            prepare: Called with the shards that are about to be looked up.
        """
        at = 0
        while at < self.served.num_steps:
            stop = min(at + self._num_steps_together(at), self.served.num_steps)
            yield from self._some_plans(catalog, fields, range(at, stop), is_ours, prepare)
            at = stop

    def _num_steps_together(self, at: int) -> int:
        """At the start of an epoch one step, then ever more: the first batch waits for no other's plan."""
        rows_a_step = max(1, len(self.served.slots) // max(1, self.served.num_steps))
        full = max(1, _ROWS_TOGETHER // rows_a_step)
        return min(full, self.first_step + at + 1)

    def _some_plans(
        self,
        catalog: Catalog,
        fields: Sequence[str],
        steps: range,
        is_ours: Callable[[int], bool],
        prepare: Callable[[NDArray[np.int64]], None],
    ) -> Iterator[BatchPlan]:
        slots, offsets = self.served.slots, self.served.offsets.tolist()
        base = offsets[steps.start]
        table = _RowTable(catalog, slots.sample_ids[base : offsets[steps.stop]], fields, prepare)
        for at in steps:
            if is_ours(self.first_step + at):
                start, stop = offsets[at], offsets[at + 1]
                yield BatchPlan(
                    step=self.first_step + at,
                    sample_ids=slots.sample_ids[start:stop],
                    valid=self.served.valid[start:stop],
                    blocks=slots.blocks[start:stop].tolist(),
                    turns=slots.turn_starts[start:stop].tolist(),
                    shards=table.shards[start - base : stop - base].tolist(),
                    keys=table.keys[start - base : stop - base].tolist(),
                    fields=table.fields(start - base, stop - base),
                )


def plan_row(catalog: Catalog, sample_id: int, fields: Sequence[str]) -> BatchPlan:
    """The plan of a single sample, outside of any order."""
    ids = np.array([sample_id])
    table = _RowTable(catalog, ids, fields, lambda shards: None)
    return BatchPlan(
        step=-1,
        sample_ids=ids,
        valid=np.ones(1, dtype=bool),
        blocks=[-1],
        turns=[-1],
        shards=table.shards.tolist(),
        keys=table.keys.tolist(),
        fields=table.fields(0, 1),
    )


class _RowTable:
    """Byte ranges of some fields for some rows, as arrays in the order of the rows."""

    def __init__(
        self,
        catalog: Catalog,
        sample_ids: NDArray[np.int64],
        fields: Sequence[str],
        prepare: Callable[[NDArray[np.int64]], None],
    ) -> None:
        self.shards, rows = catalog.locate(sample_ids)
        prepare(self.shards)
        self.keys: NDArray[Any] = np.empty(len(sample_ids), dtype=object)
        self._columns = {name: _columns(len(sample_ids)) for name in fields}
        for shard, places in _groups(self.shards):
            self._fill(catalog, shard, places, rows[places])

    def _fill(self, catalog: Catalog, shard: int, places: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        index = catalog.index(shard)
        self.keys[places] = index.keys.texts(rows)
        for name, (offsets, sizes, xxh3, inline) in self._columns.items():
            spans = index.spans(name, rows)
            offsets[places], sizes[places], xxh3[places] = spans
            inline[places] = index.inline_many(name, rows)

    def fields(self, start: int, stop: int) -> dict[str, FieldPlan]:
        """Byte ranges of rows ``[start, stop)``."""
        return {
            name: FieldPlan(*(column[start:stop].tolist() for column in columns))
            for name, columns in self._columns.items()
        }


def _columns(length: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64], NDArray[Any]]:
    return (
        np.empty(length, np.int64),
        np.empty(length, np.int64),
        np.empty(length, np.uint64),
        np.empty(length, dtype=object),
    )


def _groups(values: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
    """Each distinct value with the places where it stands, both ascending."""
    if not len(values):
        return []
    order = np.argsort(values, kind="stable")
    sorted_values = values[order]
    borders = np.flatnonzero(sorted_values[1:] != sorted_values[:-1]) + 1
    firsts = sorted_values[np.append(0, borders)]
    return list(zip(firsts.tolist(), np.split(order, borders), strict=True))
