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

from janus_shards.decode.fields import Decoder
from janus_shards.decode.lazy import Sample, locate
from janus_shards.decode.transform import TensorSpec
from janus_shards.errors import MissingFieldError, SampleError
from janus_shards.order.seeds import Tag, derive
from janus_shards.pipeline.bad_samples import BadSample, Policy
from janus_shards.pipeline.batch import Batch
from janus_shards.pipeline.buffers import SlabLayout, SlabRing
from janus_shards.pipeline.caching import DecodedBlocks
from janus_shards.pipeline.fetch import RowSource
from janus_shards.pipeline.plan import BatchPlan, plan_row
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
        decoded: Cached rows after the deterministic part of the recipe, if they are cached.
        recipe: What a row becomes.
        fields: Requested fields, in the order asked.
        layout: Places of the arrays in a slab.
        ring: Slabs.
        seed: Seed of the order, for augmentation.
        epoch: Epoch that is served.
        rows_per_task: Rows that one task fills.
        verify: Whether checksums are compared.
        on_missing: What a missing field means.
        policy: What a bad sample means.
        others_in_block: (block, sample id) -> ids of the other rows of the block, the next one first.
    """

    catalog: "Catalog"
    source: RowSource
    decoded: DecodedBlocks | None
    recipe: "Recipe"
    fields: Sequence[str]
    layout: SlabLayout
    ring: SlabRing
    seed: int
    epoch: int
    rows_per_task: int
    verify: bool
    on_missing: Literal["raise", "none"]
    policy: Policy
    others_in_block: Callable[[int, int], Sequence[int]]


class Recipe(Protocol):
    """What the rows of a batch become.

    Attributes:
        specs: Arrays of a batch, by name.
        lists: Names of the values that stay lists.
        record: Names of the arrays that a decoded row is made of, in order; empty when nothing can be cached.
        record_fields: Fields that are not needed once the decoded row is there.
        fingerprint: Changes whenever a record would have other values.
    """

    specs: Mapping[str, TensorSpec]
    lists: Sequence[str]
    record: Sequence[str]
    record_fields: Sequence[str]
    fingerprint: str

    def fill(self, work: "BatchWork", row: int) -> None:
        """Write one row of the batch. Called from several threads, for different rows."""

    def fill_rows(self, work: "BatchWork", rows: range) -> None:
        """Write some rows, each by ``work.attempt(row, fill)`` or in a way that comes to the same."""

    def clear(self, work: "BatchWork", row: int) -> None:
        """Write what a slot without a sample holds: zeros, and empty values of the same kind."""

    def finish(self, work: "BatchWork") -> dict[str, Any]:
        """Values by name of the whole batch. Called once, in delivery order, by the consumer's thread."""


class BatchWork:
    """One batch under construction: a job of the prefetcher.

    Attributes:
        plan: Which rows were planned, and where their bytes are.
        arrays: Arrays over one slab, ``[B, …]`` by name.
        lists: Values by name and row, for what has no fixed shape.
        present: Whether a row has a field, by field.
        num_cached: Rows that came from a cache, once finished.
        bad: Bad samples that were skipped or substituted.
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
        self.bad: list[BadSample] = []
        self.times = StageTimes()
        step = shop.rows_per_task
        self.tasks: Sequence[Callable[[], None]] = [
            functools.partial(self._fill, start, min(start + step, rows)) for start in range(0, rows, step)
        ]
        self.cost_bytes = shop.layout.slab_bytes + plan.stored_bytes
        # Rows that stand in for bad ones, each as a plan of one row.
        self._substitutes: dict[int, BatchPlan] = {}
        self._skipped: set[int] = set()
        # Rows whose record came from the cache.
        self._restored: set[int] = set()
        self.num_cached = 0

    def _fill(self, start: int, stop: int) -> None:
        rows = range(start, stop)
        with self.times.measure("transfer"):
            self.shop.source.wait(self.plan, rows)
        with self.times.measure("cache"):
            self._restore(rows)
        with self.times.measure("decode"):
            self.shop.recipe.fill_rows(self, rows)

    def attempt(self, row: int, fill: Callable[["BatchWork", int], None]) -> None:
        """Fill a row; when its sample is bad, do what the policy says.

        Raises:
            SampleError: The sample is bad and the policy is ``raise``.
        """
        try:
            fill(self, row)
        except SampleError as exc:
            if self.shop.policy == "raise":
                raise
            self._replace(row, exc, fill)

    def _replace(self, row: int, error: SampleError, fill: Callable[["BatchWork", int], None]) -> None:
        sample_id, key = int(self.plan.sample_ids[row]), self.plan.keys[row]
        found = self.shop.policy == "substitute" and self._substitute(row, sample_id, fill)
        if not found:
            self._substitutes.pop(row, None)
            self._skipped.add(row)
            self.shop.recipe.clear(self, row)
        substitute = self._substitutes[row].keys[0] if found else None
        self.bad.append(BadSample(row=row, sample_id=sample_id, key=key, error=error, substitute=substitute))

    def _substitute(self, row: int, sample_id: int, fill: Callable[["BatchWork", int], None]) -> bool:
        """Fill the row with the next good sample of the same block."""
        for candidate in self.shop.others_in_block(self.plan.blocks[row], sample_id):
            self._substitutes[row] = plan_row(self.shop.catalog, candidate, self.shop.fields)
            for present in self.present.values():
                present[row] = True
            try:
                fill(self, row)
            except SampleError:
                continue
            return True
        return False

    def _restore(self, rows: range) -> None:
        """Fill the records of those rows that are cached: one loop, since little else is to be done for them."""
        decoded = self.shop.decoded
        if decoded is None:
            return
        arrays = [self.arrays[name] for name in self.shop.recipe.record]
        blocks, ids, read = self.plan.blocks, self.plan.sample_ids.tolist(), decoded.read
        restored = [row for row in rows if read(blocks[row], ids[row], [array[row : row + 1].data for array in arrays])]
        self._restored.update(restored)

    def has_record(self, row: int) -> bool:
        """Whether the record of a row came from the cache; otherwise it is to be made, whatever its arrays hold now."""
        return row in self._restored and row not in self._substitutes

    def keep(self, row: int) -> None:
        """Offer the record of a row, as it was made, to the cache."""
        decoded = self.shop.decoded
        if decoded is not None and row not in self._substitutes:
            began = time.perf_counter()
            record = [self.arrays[name][row : row + 1].data for name in self.shop.recipe.record]
            decoded.write(self.plan.blocks[row], int(self.plan.sample_ids[row]), record)
            seconds = time.perf_counter() - began
            self.times.add("cache", seconds)
            self.times.add("decode", -seconds)

    def finish(self) -> Batch:
        """The batch, once all tasks have run."""
        with self.times.measure("assemble"):
            fields = self.shop.recipe.finish(self)
            self.num_cached = len(self._restored) + self.shop.source.finish(self.plan)
        # Tasks refer back to this object; left in place, the slab would wait for the cycle collector.
        self.tasks, self.arrays = (), {}
        self.bad.sort(key=lambda bad: bad.row)
        keys, sample_ids, valid = self.plan.keys, self.plan.sample_ids, self.plan.valid
        if self.bad:
            keys, sample_ids, valid = list(keys), sample_ids.copy(), valid.copy()
            for row, plan in self._substitutes.items():
                keys[row], sample_ids[row] = plan.keys[0], plan.sample_ids[0]
            valid[list(self._skipped)] = False
        return Batch(fields, keys, sample_ids, valid, self.present if self.shop.on_missing == "none" else {})

    def _planned(self, row: int) -> tuple[BatchPlan, int]:
        """The plan that a row follows, and its place there."""
        plan = self._substitutes.get(row)
        return (self.plan, row) if plan is None else (plan, 0)

    def key(self, row: int) -> str:
        """Key of the sample in a row."""
        plan, at = self._planned(row)
        return plan.keys[at]

    def shard_url(self, row: int) -> str:
        """Shard of the sample in a row."""
        plan, at = self._planned(row)
        return self.shop.catalog.shard_url(plan.shards[at])

    def raw(self, row: int, field: str) -> RawBytes | None:
        """Stored bytes of a field of one row, checked against the index; ``None`` when it is missing and may be.

        Raises:
            MissingFieldError: The sample lacks the field, and ``on_missing`` is ``raise``.
            DecodeError: Kind ``index_mismatch``: the bytes are not those that were indexed.
        """
        plan, at = (self.plan, row) if row not in self._substitutes else (self._substitutes[row], 0)
        place = plan.fields[field]
        inline = place.inline[at]
        if inline is not None:
            return inline
        size = place.sizes[at]
        if size == 0:
            return b""
        if size < 0:
            self._note_missing(row, field)
            return None
        # Substitutes were not planned, so nobody has fetched them.
        data = self.shop.source.read(plan, at, field) if plan is self.plan else self._read(plan, at, field)
        if self.shop.verify and xxhash.xxh3_64_intdigest(data) != place.xxh3[at]:
            # Once more, past whatever kept the bytes: they may have been damaged on their way.
            data = self._read(plan, at, field)
            if xxhash.xxh3_64_intdigest(data) != place.xxh3[at]:
                raise checksum_error(self.shop.catalog, plan.shards[at], plan.keys[at], field)
        return data

    def raw_rows(self, rows: range, field: str) -> list[RawBytes | None]:
        """``raw`` of several rows in one tight loop: half the work where reading is all there is to do."""
        plan, read, verify = self.plan, self.shop.source.read, self.shop.verify
        place = plan.fields[field]
        inline, sizes, hashes = place.inline, place.sizes, place.xxh3
        digest = xxhash.xxh3_64_intdigest
        found: list[RawBytes | None] = []
        for row in rows:
            data: RawBytes | None = inline[row]
            if data is None and sizes[row] > 0:
                data = read(plan, row, field)
                if verify and digest(data) != hashes[row]:
                    data = None
            # What is missing, empty or damaged takes the careful way.
            found.append(self.raw(row, field) if data is None else data)
        return found

    def _read(self, plan: BatchPlan, at: int, field: str) -> RawBytes:
        place = plan.fields[field]
        return self.shop.catalog.read(plan.shards[at], place.offsets[at], place.offsets[at] + place.sizes[at])

    def _note_missing(self, row: int, field: str) -> None:
        if self.shop.on_missing == "none":
            self.present[field][row] = False
            return
        plan, at = self._planned(row)
        number = int(plan.sample_ids[at] - self.shop.catalog.row_starts[plan.shards[at]])
        found = ", ".join(span.field for span in self.shop.catalog.index(plan.shards[at]).fields_of(number))
        error = MissingFieldError(
            f"expected this field, the sample has {found}; pass LoaderOptions(on_missing='none') to go on without it"
        )
        raise self.located(error, row, field)

    def located(self, error: SampleError, row: int, field: str) -> SampleError:
        """The error with shard, key and field."""
        return locate(error, shard=self.shard_url(row), key=self.key(row), field=field)

    def sample(self, row: int, decoders: Mapping[str, Decoder]) -> Sample:
        """One row as a lazy sample of the requested fields that it has."""
        plan, at = self._planned(row)
        held = [name for name, place in plan.fields.items() if place.sizes[at] >= 0]
        for name in plan.fields.keys() - held:
            self.present[name][row] = False
        return Sample(
            plan.keys[at],
            int(plan.sample_ids[at]),
            functools.partial(self._read_present, row),
            held,
            decoders,
            shard=self.shop.catalog.shard_url(plan.shards[at]),
        )

    def _read_present(self, row: int, field: str) -> RawBytes:
        data = self.raw(row, field)
        return b"" if data is None else data

    def rng(self, row: int) -> np.random.Generator:
        """The generator of one sample: the same on any world, thread count and after resume."""
        return np.random.Generator(np.random.Philox(key=self._seed(row)))

    def _seed(self, row: int) -> int:
        plan, at = self._planned(row)
        return derive(self.shop.seed, Tag.AUGMENT, 0, self.shop.epoch, int(plan.sample_ids[at]), 0)

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
