"""The work of one batch: its slab, its tasks, and the checked bytes that a recipe asks for.

What a row becomes is a recipe's business; see ``recipes``.
"""

import functools
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import xxhash

from janus_shards.decode.lazy import Sample, locate
from janus_shards.decode.transform import TensorSpec
from janus_shards.errors import MissingFieldError, SampleError
from janus_shards.order.seeds import Tag, derive
from janus_shards.pipeline.batch import Batch
from janus_shards.pipeline.buffers import SlabLayout, SlabRing
from janus_shards.pipeline.fetch import RowSource
from janus_shards.pipeline.plan import BatchPlan
from janus_shards.pipeline.stats import StageTimes
from janus_shards.reader import checksum_error
from janus_shards.sample import RawBytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from janus_shards.catalog import Catalog


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """What the work of every batch of an epoch shares.

    Attributes:
        catalog: The data set.
        source: Where stored bytes come from.
        recipe: What a row becomes.
        fields: Requested fields, in the order asked.
        layout: Places of the arrays in a slab.
        ring: Slabs.
        seed: Seed of the order, for augmentation.
        epoch: Epoch that is served.
        rows_per_task: Rows that one task fills.
        verify: Whether checksums are compared.
        on_missing: What a missing field means.
    """

    catalog: "Catalog"
    source: RowSource
    recipe: "Recipe"
    fields: Sequence[str]
    layout: SlabLayout
    ring: SlabRing
    seed: int
    epoch: int
    rows_per_task: int
    verify: bool
    on_missing: Literal["raise", "none"]


class Recipe(Protocol):
    """What the rows of a batch become.

    Attributes:
        specs: Arrays of a batch, by name.
        lists: Names of the values that stay lists.
    """

    specs: Mapping[str, TensorSpec]
    lists: Sequence[str]

    def fill(self, work: "BatchWork", row: int) -> None:
        """Write one row of the batch. Called from several threads, for different rows."""

    def finish(self, work: "BatchWork") -> dict[str, Any]:
        """Values by name of the whole batch. Called once, in delivery order, by the consumer's thread."""


class BatchWork:
    """One batch under construction: a job of the prefetcher.

    Attributes:
        plan: Which rows, and where their bytes are.
        arrays: Arrays over one slab, ``[B, …]`` by name.
        lists: Values by name and row, for what has no fixed shape.
        present: Whether a row has a field, by field.
        times: Seconds of work by stage.
        tasks: Pieces of the work, for any thread.
        cost_bytes: Memory the batch holds until it is delivered.
    """

    def __init__(self, plan: BatchPlan, shop: Workshop) -> None:
        rows = len(plan.keys)
        self.plan = plan
        self.shop = shop
        # A last batch may be shorter than its slab.
        self.arrays = {name: array[:rows] for name, array in shop.layout.views(shop.ring.take()).items()}
        self.lists: dict[str, list[Any]] = {name: [None] * rows for name in shop.recipe.lists}
        self.present = {name: np.ones(rows, dtype=bool) for name in shop.fields}
        self.times = StageTimes()
        step = shop.rows_per_task
        self.tasks: Sequence[Callable[[], None]] = [
            functools.partial(self._fill, start, min(start + step, rows)) for start in range(0, rows, step)
        ]
        self.cost_bytes = shop.layout.slab_bytes + plan.stored_bytes
        self._transfer_s = 0.0

    def _fill(self, start: int, stop: int) -> None:
        began = time.perf_counter()
        for row in range(start, stop):
            self.shop.recipe.fill(self, row)
        self.times.add("decode", time.perf_counter() - began)

    def finish(self) -> Batch:
        """The batch, once all tasks have run."""
        with self.times.measure("assemble"):
            fields = self.shop.recipe.finish(self)
            self.shop.source.finish(self.plan)
        # Tasks refer back to this object; left in place, the slab would wait for the cycle collector.
        self.tasks, self.arrays = (), {}
        present = self.present if self.shop.on_missing == "none" else {}
        return Batch(fields, self.plan.keys, self.plan.sample_ids, self.plan.valid, present)

    def raw(self, row: int, field: str) -> RawBytes | None:
        """Stored bytes of a field of one row, checked against the index; ``None`` when it is missing and may be.

        Raises:
            MissingFieldError: The sample lacks the field, and ``on_missing`` is ``raise``.
            DecodeError: Kind ``index_mismatch``: the bytes are not those that were indexed.
        """
        place = self.plan.fields[field]
        inline = place.inline[row]
        if inline is not None:
            return inline
        size = place.sizes[row]
        if size == 0:
            return b""
        if size < 0:
            self._note_missing(row, field)
            return None
        data = self.shop.source.read(self.plan, row, field)
        if self.shop.verify and xxhash.xxh3_64_intdigest(data) != place.xxh3[row]:
            raise checksum_error(self.shop.catalog, self.plan.shards[row], self.plan.keys[row], field)
        return data

    def _note_missing(self, row: int, field: str) -> None:
        if self.shop.on_missing == "none":
            self.present[field][row] = False
            return
        index = self.shop.catalog.index(self.plan.shards[row])
        number = int(self.plan.sample_ids[row] - self.shop.catalog.row_starts[self.plan.shards[row]])
        found = ", ".join(span.field for span in index.fields_of(number))
        error = MissingFieldError(
            f"expected this field, the sample has {found}; pass LoaderOptions(on_missing='none') to go on without it"
        )
        raise self.located(error, row, field)

    def located(self, error: SampleError, row: int, field: str) -> SampleError:
        """The error with shard, key and field."""
        return locate(
            error, shard=self.shop.catalog.shard_url(self.plan.shards[row]), key=self.plan.keys[row], field=field
        )

    def sample(self, row: int) -> Sample:
        """One row as a lazy sample of the requested fields that it has."""
        held = [name for name, place in self.plan.fields.items() if place.sizes[row] >= 0]
        return Sample(
            self.plan.keys[row],
            int(self.plan.sample_ids[row]),
            functools.partial(self._read_present, row),
            held,
            shard=self.shop.catalog.shard(self.plan.shards[row]).name,
        )

    def _read_present(self, row: int, field: str) -> RawBytes:
        data = self.raw(row, field)
        return b"" if data is None else data

    def rng(self, row: int) -> np.random.Generator:
        """The generator of one sample: the same on any world, thread count and after resume."""
        return np.random.Generator(np.random.Philox(key=self._seed(row)))

    def _seed(self, row: int) -> int:
        return derive(self.shop.seed, Tag.AUGMENT, 0, self.shop.epoch, int(self.plan.sample_ids[row]), 0)

    @contextmanager
    def global_generators(self, row: int) -> "Iterator[None]":
        """Seed ``random``, ``numpy.random`` and, where it is loaded, torch for one row; restore them afterwards."""
        torch: Any = sys.modules.get("torch")
        kept_python, kept_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  the caller's code uses it
        kept_torch = torch.get_rng_state() if torch else None
        seed = self._seed(row)
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002  the same
        if torch:
            torch.random.default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
        try:
            yield
        finally:
            random.setstate(kept_python)
            np.random.set_state(kept_numpy)  # noqa: NPY002  the same
            if torch:
                torch.set_rng_state(kept_torch)
