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
        device: Where tensors go; ``None`` and ``"cpu"`` stay in host memory.

    Raises:
        ConfigError: The device does not exist on this machine.
    """

    def __init__(self, device: str | None) -> None:
        try:
            self._device = torch.device(device or "cpu")
        except RuntimeError as exc:
            raise ConfigError(f"device={device!r}: expected 'cpu', 'cuda' or 'cuda:<number>'") from exc
        if self._device.type == "cuda" and not torch.cuda.is_available():
            raise ConfigError(f"device={device!r}: torch sees no CUDA device; use device=None for host memory")

    def __call__(self, batch: Batch) -> Batch:
        """The batch with tensors for arrays; lists stay lists."""
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
        if not isinstance(value, np.ndarray):
            return value
        tensor = torch.from_numpy(value)
        return tensor if self._device.type == "cpu" else tensor.to(self._device)
