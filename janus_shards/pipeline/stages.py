"""From stored bytes to the arrays and lists of a batch: what each field becomes, and the work of one batch.

A recipe says which arrays a batch has and fills one row at a time, from any worker thread. Which recipe is used follows
from ``transform``: a mapping from fields, a ``SampleTransform``, or a plain callable.
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

from janus_shards.decode.fields import Decoder, decode_field, yields_integer
from janus_shards.decode.lazy import Sample, locate
from janus_shards.decode.transform import Augment, FieldTransform, SampleTransform, TensorSpec, takes_rng
from janus_shards.errors import ConfigError, DecodeError, MissingFieldError, SampleError
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

_INTEGER = TensorSpec((), np.dtype(np.int64))


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
        """Seed the generators of ``random``, ``numpy.random`` and, where it is loaded, torch; restore them afterwards."""
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


class FieldRecipe:
    """Each field for itself: a transform writes an array row, class labels become integers, all else a list of values."""

    def __init__(
        self,
        fields: Sequence[str],
        transforms: Mapping[str, FieldTransform],
        *,
        decode: bool,
        decoders: Mapping[str, Decoder],
    ) -> None:
        self._fields = fields
        self._transforms = [
            (name, transforms[name], _augment(transforms[name])) for name in fields if name in transforms
        ]
        plain = [name for name in fields if name not in transforms]
        self._integers = [name for name in plain if decode and yields_integer(name) and name not in decoders]
        self.lists: Sequence[str] = [name for name in plain if name not in self._integers]
        shapes = {name: TensorSpec(transform.shape, transform.dtype) for name, transform, _ in self._transforms}
        self.specs: Mapping[str, TensorSpec] = shapes | dict.fromkeys(self._integers, _INTEGER)
        self._decode = decode
        self._decoders = decoders

    def fill(self, work: BatchWork, row: int) -> None:
        """See ``Recipe``."""
        for name, transform, augment in self._transforms:
            data = work.raw(row, name)
            out = work.arrays[name][row]
            if data is None:
                out[...] = 0
                continue
            try:
                transform.apply(data, out)
            except SampleError as exc:
                raise work.located(exc, row, name) from exc
            if augment is not None:
                augment.augment(out, work.rng(row))
        for name in self._integers:
            work.arrays[name][row] = self._value(work, row, name) or 0
        for name in self.lists:
            work.lists[name][row] = self._value(work, row, name)

    def _value(self, work: BatchWork, row: int, name: str) -> Any:
        data = work.raw(row, name)
        if data is None:
            return None
        if not self._decode:
            return bytes(data)
        try:
            return decode_field(name, data, self._decoders)
        except SampleError as exc:
            raise work.located(exc, row, name) from exc

    def finish(self, work: BatchWork) -> dict[str, Any]:
        """See ``Recipe``."""
        return {name: work.arrays[name] if name in work.arrays else work.lists[name] for name in self._fields}


class SampleRecipe:
    """A ``SampleTransform`` writes all arrays of a row."""

    lists: Sequence[str] = ()

    def __init__(self, transform: SampleTransform) -> None:
        self._transform = transform
        self._augment = _augment(transform)
        self.specs = transform.outputs

    def fill(self, work: BatchWork, row: int) -> None:
        """See ``Recipe``."""
        out = {name: work.arrays[name][row] for name in self.specs}
        with _named(work, row):
            self._transform.apply(work.sample(row), out)
            if self._augment is not None:
                self._augment.augment(out, work.rng(row))

    def finish(self, work: BatchWork) -> dict[str, Any]:
        """See ``Recipe``."""
        return {name: work.arrays[name] for name in self.specs}


class CallableRecipe:
    """A plain function of a sample returns a mapping; equal shapes are stacked, numbers become arrays, all else lists.

    With a parameter ``rng`` it runs on the workers. Without, it may use the global generators, which have one state a
    process: then it runs in the consumer's thread, in delivery order, with those generators seeded for each sample.
    """

    specs: Mapping[str, TensorSpec] = {}
    lists: Sequence[str] = ("",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._takes_rng = takes_rng(function)

    def fill(self, work: BatchWork, row: int) -> None:
        """See ``Recipe``."""
        sample = work.sample(row)
        if not self._takes_rng:
            for name in sample:
                sample.raw(name)
            work.lists[""][row] = sample
            return
        with _named(work, row):
            work.lists[""][row] = self._function(sample, rng=work.rng(row))

    def finish(self, work: BatchWork) -> dict[str, Any]:
        """See ``Recipe``."""
        results = work.lists[""]
        if not self._takes_rng:
            for row, sample in enumerate(results):
                with _named(work, row), work.global_generators(row):
                    results[row] = self._function(sample)
        for row, result in enumerate(results):
            if not isinstance(result, Mapping) or result.keys() != results[0].keys():
                raise ConfigError(
                    f"transform: expected a mapping with the same names for every sample, found {_shown(result)} for "
                    f"key {work.plan.keys[row]!r} and {_shown(results[0])} for key {work.plan.keys[0]!r}",
                    key=work.plan.keys[row],
                )
        return {name: _stacked(name, [result[name] for result in results], work) for name in results[0]}


def _shown(result: object) -> str:
    return str(sorted(map(str, result))) if isinstance(result, Mapping) else f"a {type(result).__name__}"


def _stacked(name: str, values: list[Any], work: BatchWork) -> Any:
    if all(isinstance(value, bool | int | float | np.generic) for value in values):
        return np.array(values)
    # Tensors and arrays alike offer themselves to NumPy; so do PIL images, which have no shape.
    if not all(hasattr(value, "__array__") and hasattr(value, "shape") for value in values):
        return values
    arrays = [np.asarray(value) for value in values]
    for row, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise ConfigError(
                f"transform: {name!r} has shape {arrays[0].shape} for key {work.plan.keys[0]!r} and {array.shape} for "
                f"key {work.plan.keys[row]!r}, which cannot be stacked; pad them, or return a list to get a list",
                key=work.plan.keys[row],
            )
    return np.stack(arrays)


def _augment(transform: object) -> Any:
    return transform if isinstance(transform, Augment) else None


@contextmanager
def _named(work: BatchWork, row: int) -> "Iterator[None]":
    """Errors of the caller's code say at which sample they happened."""
    try:
        yield
    except DecodeError:
        raise
    except Exception as exc:
        shard = work.shop.catalog.shard_url(work.plan.shards[row])
        exc.add_note(f"in the transform of key {work.plan.keys[row]!r} of shard {shard}")
        raise


def make_recipe(transform: object, fields: Sequence[str], *, decode: bool, decoders: Mapping[str, Decoder]) -> Recipe:
    """The recipe for what a caller passed as ``transform``.

    Args:
        transform: ``None``, a mapping from field to ``FieldTransform``, a ``SampleTransform``, or a callable.
        fields: Requested fields.
        decode: False keeps fields without a transform as bytes.
        decoders: The caller's decoders.

    Raises:
        ConfigError: ``transform`` is something else, or names a field that was not requested.
    """
    if transform is None:
        return FieldRecipe(fields, {}, decode=decode, decoders=decoders)
    if isinstance(transform, Mapping):
        for name, value in transform.items():
            if name not in fields:
                raise ConfigError(f"transform: field {name!r} is not among the requested fields {list(fields)}")
            if not isinstance(value, FieldTransform):
                raise ConfigError(
                    f"transform: field {name!r}: expected a FieldTransform such as ImageTransform(size=384), found a "
                    f"{type(value).__name__}; a function is passed for the whole sample: transform=fn(sample, rng)"
                )
        return FieldRecipe(fields, transform, decode=decode, decoders=decoders)
    if isinstance(transform, SampleTransform):
        return SampleRecipe(transform)
    if callable(transform):
        return CallableRecipe(transform)
    raise ConfigError(
        "transform: expected a mapping from field to FieldTransform, a SampleTransform or a function, found "
        f"a {type(transform).__name__}"
    )
