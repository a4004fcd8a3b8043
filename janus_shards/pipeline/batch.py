"""What the loader delivers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch of one rank: ``batch["jpg"]`` and so on, and who is in it.

    Attributes:
        fields: Value by field: an array or tensor ``[B, …]`` where the shape is fixed, else a list of ``B`` values.
        keys: Key of each sample.
        sample_ids: int64 ``[B]``, ids of the base data set.
        valid: bool ``[B]``; False marks a repeat that fills the last step, or a slot without a good sample.
        present: bool ``[B]`` by field, with ``on_missing="none"``: whether the sample has the field.
    """

    fields: Mapping[str, Any]
    keys: list[str]
    sample_ids: NDArray[np.int64]
    valid: NDArray[np.bool_]
    present: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def __contains__(self, name: object) -> bool:
        return name in self.fields

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        """Number of slots in the batch."""
        return len(self.keys)

    def pin_memory(self) -> "Batch":
        """The batch with its tensors in page-locked memory; ``DataLoader(pin_memory=True)`` calls this."""
        return replace(
            self,
            fields={name: _pinned(value) for name, value in self.fields.items()},
            sample_ids=_pinned(self.sample_ids),
            valid=_pinned(self.valid),
            present={name: _pinned(value) for name, value in self.present.items()},
        )

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}: {_describe(value)}" for name, value in self.fields.items())
        return f"Batch({len(self)} samples, {shown})"


def _pinned(value: Any) -> Any:
    return value.pin_memory() if hasattr(value, "pin_memory") else value


def _describe(value: Any) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return f"{dtype} {list(shape)}" if shape is not None else f"list of {len(value)}"
