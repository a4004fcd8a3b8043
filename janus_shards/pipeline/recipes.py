"""What a row becomes: one recipe for each kind of ``transform``.

A recipe says which arrays a batch has and fills one row at a time, from any worker thread: a mapping from fields, a
``SampleTransform``, or a plain callable.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from janus_shards.decode.fields import Decoder, decode_field, empty_value, yields_integer
from janus_shards.decode.lazy import Sample
from janus_shards.decode.transform import Augment, FieldTransform, SampleTransform, TensorSpec, takes_rng
from janus_shards.errors import ConfigError, DecodeError, SampleError
from janus_shards.pipeline.stages import BatchWork, Recipe

_INTEGER = TensorSpec((), np.dtype(np.int64))
# Stands for the result of a sample that was skipped.
_CLEARED = object()


class FieldRecipe:
    """Each field for itself: a transform writes an array row, class labels become integers, all else stays a list."""

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
        self._integers = [name for name in plain if decode and yields_integer(name, decoders)]
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
            self._set_integer(work, row, name)
        for name in self.lists:
            work.lists[name][row] = self._value(work, row, name)

    def _set_integer(self, work: BatchWork, row: int, name: str) -> None:
        value = self._value(work, row, name) or 0
        try:
            work.arrays[name][row] = value
        except OverflowError as exc:
            error = DecodeError(f"{value} does not fit 64 bits", kind="integer_decode")
            raise work.located(error, row, name) from exc

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

    def clear(self, work: BatchWork, row: int) -> None:
        """See ``Recipe``."""
        for name in self.specs:
            work.arrays[name][row] = 0
        for name in self.lists:
            work.lists[name][row] = empty_value(name, self._decoders) if self._decode else b""

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

    def clear(self, work: BatchWork, row: int) -> None:
        """See ``Recipe``."""
        for name in self.specs:
            work.arrays[name][row] = 0

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
        if self._takes_rng:
            with _named(work, row):
                work.lists[""][row] = self._function(sample, rng=work.rng(row))
        else:
            for name in sample:
                sample.raw(name)
            work.lists[""][row] = sample

    def clear(self, work: BatchWork, row: int) -> None:
        """See ``Recipe``."""
        work.lists[""][row] = _CLEARED

    def _call(self, work: BatchWork, row: int) -> None:
        """Run the function in the consumer's thread."""
        read = work.lists[""][row]
        # A substitute was not read by the workers.
        sample = read if isinstance(read, Sample) and read.key == work.key(row) else work.sample(row)
        with _named(work, row), work.global_generators(row):
            work.lists[""][row] = self._function(sample)

    def finish(self, work: BatchWork) -> dict[str, Any]:
        """See ``Recipe``."""
        results = work.lists[""]
        if not self._takes_rng:
            for row in range(len(results)):
                if results[row] is not _CLEARED:
                    work.attempt(row, self._call)
        good = next((result for result in results if result is not _CLEARED), None)
        if good is None and work.bad:
            # What the function returns is not known, so there is nothing to fill the slots with.
            raise work.bad[0].error
        results[:] = [_empty_like(good) if result is _CLEARED else result for result in results]
        for row, result in enumerate(results):
            if not isinstance(result, Mapping) or result.keys() != results[0].keys():
                raise ConfigError(
                    f"transform: expected a mapping with the same names for every sample, found {_shown(result)} for "
                    f"key {work.key(row)!r} and {_shown(results[0])} for key {work.key(0)!r}",
                    key=work.key(row),
                )
        return {name: _stacked(name, [result[name] for result in results], work) for name in results[0]}


def _shown(result: object) -> str:
    return str(sorted(map(str, result))) if isinstance(result, Mapping) else f"a {type(result).__name__}"


def _empty_like(result: Any) -> Any:
    """Zeros and empty values of the same names, types and shapes."""
    if isinstance(result, Mapping):
        return {name: _empty_like(value) for name, value in result.items()}
    if isinstance(result, bool | int | float | str | bytes):
        return type(result)()
    if isinstance(result, np.generic) or (hasattr(result, "__array__") and hasattr(result, "shape")):
        return np.zeros_like(np.asarray(result))
    return None


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
                f"transform: {name!r} has shape {arrays[0].shape} for key {work.key(0)!r} and {array.shape} for "
                f"key {work.key(row)!r}, which cannot be stacked; pad them, or return a list to get a list",
                key=work.key(row),
            )
    return np.stack(arrays)


def _augment(transform: object) -> Any:
    return transform if isinstance(transform, Augment) else None


@contextmanager
def _named(work: BatchWork, row: int) -> Iterator[None]:
    """Errors of the caller's code say at which sample they happened."""
    try:
        yield
    except SampleError:
        raise
    except Exception as exc:
        exc.add_note(f"in the transform of key {work.key(row)!r} of shard {work.shard_url(row)}")
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
