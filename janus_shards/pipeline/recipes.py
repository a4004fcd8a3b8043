"""What a row becomes: one recipe for each kind of ``transform``.

A recipe says which arrays a batch has and fills one row at a time, from any worker thread: a mapping from fields, a
``SampleTransform``, or a plain callable.
"""

import hashlib
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from janus_shards.decode.fields import Decoder, decode_field, empty_value, yields_integer
from janus_shards.decode.lazy import Sample
from janus_shards.decode.transform import Augment, FieldTransform, SampleTransform, TensorSpec, takes_rng
from janus_shards.errors import ConfigError, DecodeError, SampleError
from janus_shards.pipeline.stages import BatchWork, Recipe

_INTEGER = TensorSpec((), np.dtype(np.int64))
# Stands for the result of a sample that was skipped.
_CLEARED = object()


class _RowByRow(ABC):
    """Rows are filled one by one."""

    @abstractmethod
    def fill(self, work: BatchWork, row: int) -> None:
        """See ``Recipe``."""

    def fill_rows(self, work: BatchWork, rows: range) -> None:
        """See ``Recipe``."""
        for row in rows:
            work.attempt(row, self.fill)


class FieldRecipe(_RowByRow):
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
        shapes = {name: _spec(name, transform.shape, transform.dtype) for name, transform, _ in self._transforms}
        self.specs: Mapping[str, TensorSpec] = shapes | dict.fromkeys(self._integers, _INTEGER)
        self.record: Sequence[str] = [name for name, _, _ in self._transforms]
        self.record_fields: Sequence[str] = self.record
        self.fingerprint = _joined({name: transform.fingerprint for name, transform, _ in self._transforms})
        self._decode = decode
        self._decoders = decoders

    def fill(self, work: BatchWork, row: int) -> None:
        """See ``Recipe``."""
        if self._transforms:
            self._fill_record(work, row)
        for name in self._integers:
            self._set_integer(work, row, name)
        for name in self.lists:
            work.lists[name][row] = self._value(work, row, name)

    def _fill_record(self, work: BatchWork, row: int) -> None:
        if not work.has_record(row):
            made = [self._apply(work, row, name, transform) for name, transform, _ in self._transforms]
            if all(made):
                work.keep(row)
        for name, _, augment in self._transforms:
            if augment is not None:
                with _Named(work, row):
                    augment.augment(work.arrays[name][row, ...], work.rng(row))

    def _apply(self, work: BatchWork, row: int, name: str, transform: FieldTransform) -> bool:
        """Write one array row; False, and zeros, when the field is missing."""
        data = work.raw(row, name)
        out = work.arrays[name][row, ...]
        if data is None:
            out[...] = 0
            return False
        try:
            with _Named(work, row):
                transform.apply(data, out)
        except SampleError as exc:
            raise work.located(exc, row, name) from exc
        return True

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


class StoredRecipe:
    """Every field as it is stored."""

    specs: Mapping[str, TensorSpec] = {}
    record: Sequence[str] = ()
    record_fields: Sequence[str] = ()
    fingerprint = ""

    def __init__(self, fields: Sequence[str]) -> None:
        self.lists = fields

    def fill(self, work: BatchWork, row: int) -> None:
        """See ``Recipe``."""
        for name in self.lists:
            data = work.raw(row, name)
            work.lists[name][row] = None if data is None else bytes(data)

    def fill_rows(self, work: BatchWork, rows: range) -> None:
        """See ``Recipe``."""
        try:
            for name in self.lists:
                found = work.raw_rows(rows, name)
                # bytes() of bytes is the same object; fetched ranges are views that would keep whole blocks alive.
                work.lists[name][rows.start : rows.stop] = [None if data is None else bytes(data) for data in found]
        except SampleError:
            for row in rows:
                work.attempt(row, self.fill)

    def clear(self, work: BatchWork, row: int) -> None:
        """See ``Recipe``."""
        for name in self.lists:
            work.lists[name][row] = b""

    def finish(self, work: BatchWork) -> dict[str, Any]:
        """See ``Recipe``."""
        return dict(work.lists)


class SampleRecipe(_RowByRow):
    """A ``SampleTransform`` writes all arrays of a row."""

    lists: Sequence[str] = ()

    def __init__(self, transform: SampleTransform, fields: Sequence[str], *, decoders: Mapping[str, Decoder]) -> None:
        self._transform = transform
        self._augment = _augment(transform)
        self._decoders = decoders
        self.specs: Mapping[str, TensorSpec] = {
            name: _spec(name, spec.shape, spec.dtype) for name, spec in transform.outputs.items()
        }
        # What a decoder of the caller does is not part of any fingerprint.
        self.record: Sequence[str] = () if decoders else tuple(self.specs)
        self.record_fields: Sequence[str] = fields
        self.fingerprint = _joined({"sample": transform.fingerprint})

    def fill(self, work: BatchWork, row: int) -> None:
        """See ``Recipe``."""
        out = {name: work.arrays[name][row, ...] for name in self.specs}
        with _Named(work, row):
            if not work.has_record(row):
                self._transform.apply(work.sample(row, self._decoders), out)
                work.keep(row)
            if self._augment is not None:
                self._augment.augment(out, work.rng(row))

    def clear(self, work: BatchWork, row: int) -> None:
        """See ``Recipe``."""
        for name in self.specs:
            work.arrays[name][row] = 0

    def finish(self, work: BatchWork) -> dict[str, Any]:
        """See ``Recipe``."""
        return {name: work.arrays[name] for name in self.specs}


class CallableRecipe(_RowByRow):
    """A plain function of a sample returns a mapping; equal shapes are stacked, numbers become arrays, all else lists.

    With a parameter ``rng`` it runs on the workers. Without, it may use the global generators, which have one state a
    process: then it runs in the consumer's thread, in delivery order, with those generators seeded for each sample.
    """

    specs: Mapping[str, TensorSpec] = {}
    lists: Sequence[str] = ("",)
    record: Sequence[str] = ()
    record_fields: Sequence[str] = ()
    fingerprint = ""

    def __init__(self, function: Callable[..., Any], decoders: Mapping[str, Decoder]) -> None:
        self._function = function
        self._takes_rng = takes_rng(function)
        self._decoders = decoders
        # Zeros in the form of what the function returned first: for batches without a good sample.
        self._example: Any = None

    def fill(self, work: BatchWork, row: int) -> None:
        """See ``Recipe``."""
        sample = work.sample(row, self._decoders)
        if self._takes_rng:
            with _Named(work, row):
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
        sample = read if isinstance(read, Sample) and read.key == work.key(row) else work.sample(row, self._decoders)
        with _Named(work, row), work.global_generators(row):
            work.lists[""][row] = self._function(sample)

    def finish(self, work: BatchWork) -> dict[str, Any]:
        """See ``Recipe``."""
        results = work.lists[""]
        if not self._takes_rng:
            for row in range(len(results)):
                if results[row] is not _CLEARED:
                    work.attempt(row, self._call)
        good = next((result for result in results if result is not _CLEARED), self._example)
        if good is None and work.bad:
            # What the function returns is not known yet, so there is nothing to fill the slots with.
            raise work.bad[0].error
        results[:] = [_empty_like(good) if result is _CLEARED else result for result in results]
        for row, result in enumerate(results):
            if not isinstance(result, Mapping) or result.keys() != good.keys():
                raise ConfigError(
                    f"transform: expected a mapping with the same names for every sample, found {_shown(result)} for "
                    f"key {work.key(row)!r}" + (f" and {_shown(good)} for another" if result is not good else ""),
                    key=work.key(row),
                )
        if not results:
            # A rank may have nothing in the last batch of an uneven tail.
            return {name: _nothing_like(value) for name, value in (good or {}).items()}
        stacked = {name: _stacked(name, [result[name] for result in results], work) for name in good}
        if self._example is None:
            self._example = _empty_like(good)
        return stacked


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


def _nothing_like(value: Any) -> Any:
    """No rows of what ``_stacked`` makes of such values."""
    return np.asarray(value)[None][:0] if isinstance(value, bool | int | float | np.ndarray) else []


def _stacked(name: str, values: list[Any], work: BatchWork) -> Any:
    if all(isinstance(value, bool | int | float | np.bool_ | np.number) for value in values):
        return _unless_objects(np.array(values), values)
    # Tensors and arrays alike offer themselves to NumPy; so do PIL images, which have no shape, and NumPy's own text.
    if not all(hasattr(value, "__array__") and hasattr(value, "shape") for value in values):
        return values
    arrays = [_as_array(name, value, work.key(row)) for row, value in enumerate(values)]
    for row, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise ConfigError(
                f"transform: {name!r} has shape {arrays[0].shape} for key {work.key(0)!r} and {array.shape} for "
                f"key {work.key(row)!r}, which cannot be stacked; pad them, or return a list to get a list",
                key=work.key(row),
            )
    return _unless_objects(np.stack(arrays), values)


def _as_array(name: str, value: Any, key: str) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except (TypeError, RuntimeError) as exc:
        raise ConfigError(
            f"transform: {name!r} of key {key!r}: a {type(value).__name__} that NumPy cannot hold ({exc}); return an "
            "array, or a CPU tensor without gradient of a type that NumPy has",
            key=key,
        ) from exc


def _unless_objects(stacked: NDArray[Any], values: list[Any]) -> Any:
    """Numbers as an array; texts, dates and integers beyond 64 bits as the list they came in."""
    return stacked if stacked.dtype.kind in "biufc" else values


def _augment(transform: object) -> Any:
    return transform if isinstance(transform, Augment) else None


class _Named:
    """Errors of the caller's code, inside the ``with`` block, say at which sample they happened."""

    __slots__ = ("_row", "_work")

    def __init__(self, work: BatchWork, row: int) -> None:
        self._work = work
        self._row = row

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            return
        key, shard = self._work.key(self._row), self._work.shard_url(self._row)
        if isinstance(error, SampleError):
            error.key, error.shard = error.key or key, error.shard or shard
        elif isinstance(error, StopIteration):
            # Left alone, it would end the pass as if all samples had been delivered.
            raise RuntimeError(f"the transform of key {key!r} of shard {shard} raised StopIteration") from error
        elif isinstance(error, Exception):
            error.add_note(f"in the transform of key {key!r} of shard {shard}")


def _spec(name: str, shape: Sequence[int], dtype: Any) -> TensorSpec:
    try:
        return TensorSpec(tuple(shape), np.dtype(dtype))
    except TypeError as exc:
        raise ConfigError(f"transform: {name!r}: expected a shape and a dtype, found {shape!r} and {dtype!r}") from exc


def _check_signature(function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins and extension types show none
        return
    try:
        signature.bind(None, **({"rng": None} if takes_rng(function) else {}))
    except TypeError as exc:
        raise ConfigError(
            f"transform: expected a function fn(sample) or fn(sample, rng), found one that takes {signature}"
        ) from exc


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
    if not transform and not decode:
        return StoredRecipe(fields)
    if transform is None:
        return FieldRecipe(fields, {}, decode=decode, decoders=decoders)
    if isinstance(transform, Mapping):
        for name, value in transform.items():
            if name not in fields:
                raise ConfigError(f"transform: field {name!r} is not among the requested fields {list(fields)}")
            if not isinstance(value, FieldTransform) or isinstance(value, type):
                raise ConfigError(
                    f"transform: field {name!r}: expected a FieldTransform such as ImageTransform(size=384), found "
                    f"{_kind(value)}; a function is passed for the whole sample: transform=fn(sample, rng)"
                )
        return FieldRecipe(fields, transform, decode=decode, decoders=decoders)
    if isinstance(transform, SampleTransform) and not isinstance(transform, type):
        return SampleRecipe(transform, fields, decoders=decoders)
    if callable(transform) and not isinstance(transform, SampleTransform | FieldTransform):
        _check_signature(transform)
        return CallableRecipe(transform, decoders)
    raise ConfigError(
        "transform: expected a mapping from field to FieldTransform, a SampleTransform or a function, found "
        f"{_kind(transform)}"
    )


def _joined(fingerprints: Mapping[str, str]) -> str:
    """One fingerprint of several, by name; empty when there are none."""
    text = json.dumps(dict(fingerprints), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32] if fingerprints else ""


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
