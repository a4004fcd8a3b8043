"""What a transform is: protocols only. ``image.py`` holds the one for pictures; users bring their own.

A transform keeps two parts apart. ``apply`` is deterministic: its result depends on the bytes and on the transform
alone, so it may be cached under ``fingerprint``. ``augment`` is random, is optional, and runs at each delivery on the
result of ``apply``. A plain callable in place of a transform works as well; what it returns is never cached.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from janus_shards.sample import RawBytes

Rows = TypeVar("Rows", contravariant=True)


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of one output row, without the batch dimension."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@runtime_checkable
class FieldTransform(Protocol):
    """Turns the bytes of one field into one row of a batch.

    The properties are the same for every call.
    """

    @property
    def fingerprint(self) -> str:
        """Changes whenever ``apply`` would write something else for the same bytes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the row."""

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Dtype of the row."""

    def apply(self, data: RawBytes, out: NDArray[np.generic]) -> None:
        """Write every element of ``out``, or raise ``DecodeError`` before writing any. Called from several threads at
        once.
        """


@runtime_checkable
class SampleTransform(Protocol):
    """Turns a whole sample into named rows of a batch.

    The properties are the same for every call.
    """

    @property
    def fingerprint(self) -> str:
        """Changes whenever ``apply`` would write something else for the same sample."""

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        """What is written, by name."""

    def apply(self, sample: Mapping[str, object], out: Mapping[str, NDArray[np.generic]]) -> None:
        """Write every element of every array of ``out``. Called from several threads at once."""


@runtime_checkable
class Augment(Protocol[Rows]):
    """The random part of a transform; a transform has one if it has this method.

    ``Rows`` is the array of a ``FieldTransform`` or the mapping of arrays of a ``SampleTransform``.
    """

    def augment(self, out: Rows, rng: np.random.Generator) -> None:
        """Change the rows in place; all randomness comes from ``rng``."""


def takes_rng(function: Callable[..., object]) -> bool:
    """Whether a plain callable asks for a generator of its own: it has a parameter named ``rng``."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some builtins and extension types show no signature
        return False
    return "rng" in parameters
