"""NumPy batches become torch batches: same memory, torch's types."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from janus_shards.errors import ConfigError
from janus_shards.pipeline.batch import Batch


class Tensors:
    """Turns the arrays of a batch into tensors, without copying on the CPU.

    Args:
        device: Where tensors go, as torch names devices; ``None`` and ``"cpu"`` stay in host memory.

    Raises:
        ConfigError: The device does not exist on this machine.
    """

    def __init__(self, device: str | torch.device | None) -> None:
        try:
            self._device = torch.device("cpu" if device is None else device)
        except (RuntimeError, TypeError) as exc:
            raise ConfigError(f"device={device!r}: expected 'cpu', 'cuda' or 'cuda:<number>'") from exc
        if self._device.type == "cuda" and (self._device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(
                f"device={device!r}: torch sees {torch.cuda.device_count()} CUDA devices; None is host memory"
            )

    def __call__(self, batch: Batch) -> Batch:
        """The batch with tensors for arrays of numbers; everything else stays as it is."""
        return dataclasses.replace(
            batch,
            fields=self._all(batch.fields),
            sample_ids=self._one(batch.sample_ids),
            valid=self._one(batch.valid),
            present=self._all(batch.present),
        )

    def _all(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._one(value) for name, value in values.items()}

    def _one(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
            return value
        tensor = torch.from_numpy(value)
        return tensor if self._device.type == "cpu" else tensor.to(self._device)
