from typing import Any

import numpy as np
import pytest
import torch

from janus_shards.errors import ConfigError
from janus_shards.pipeline.batch import Batch
from janus_shards.torch.collate import Tensors


def make_batch(**fields: Any) -> Batch:
    """A batch of two samples."""
    return Batch(fields, ["a", "b"], np.array([5, 3]), np.array([True, False]), {"x": np.array([True, True])})


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool"])
def test_arrays_become_tensors_over_the_same_memory(dtype: str) -> None:
    """Shape and dtype are kept, and nothing is copied."""
    array = np.ones((2, 3, 4), dtype)
    tensor = Tensors(None)(make_batch(x=array))["x"]
    assert (tensor.shape, str(tensor.dtype)) == ((2, 3, 4), f"torch.{dtype}")
    assert tensor.data_ptr() == array.__array_interface__["data"][0]


def test_ids_and_flags_become_tensors() -> None:
    """``sample_ids`` is int64, ``valid`` and ``present`` are bool; keys stay texts."""
    batch = Tensors("cpu")(make_batch())
    assert (batch.sample_ids.dtype, batch.sample_ids.tolist()) == (torch.int64, [5, 3])
    assert (batch.valid.dtype, batch.valid.tolist()) == (torch.bool, [True, False])
    assert batch.present["x"].dtype == torch.bool
    assert batch.keys == ["a", "b"]


@pytest.mark.parametrize(
    "value", [["a", "b"], [b"a", None], np.array(["a", "b"]), np.array([None, 1]), [np.ones(1)] * 2]
)
def test_what_torch_has_no_type_for_stays(value: Any) -> None:
    """Lists, texts and objects come through as they are."""
    assert Tensors(None)(make_batch(x=value))["x"] is value


@pytest.mark.parametrize("device", ["gpu", "", "cuda:x", "cuda:99", 99, ["cpu"]])
def test_device_that_does_not_exist(device: Any) -> None:
    """Is an error before anything is read, naming it."""
    with pytest.raises(ConfigError, match=r"device="):
        Tensors(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_cuda_without_a_cuda_device(device: str) -> None:
    """The error says what torch sees and what to use instead."""
    with pytest.raises(ConfigError, match="torch sees 0 CUDA devices; None is host memory"):
        Tensors(device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_tensors_on_the_gpu() -> None:
    """Fields, ids and flags lie on the device that was asked for, with the values of the host."""
    batch = Tensors("cuda")(make_batch(x=np.arange(6).reshape(2, 3), txt=["a", "b"]))
    assert {tensor.device.type for tensor in (batch["x"], batch.sample_ids, batch.valid, batch.present["x"])} == {
        "cuda"
    }
    assert (batch["x"].tolist(), batch["txt"]) == ([[0, 1, 2], [3, 4, 5]], ["a", "b"])


class Pinnable:
    """Stands for a tensor on a machine with CUDA."""

    def __init__(self, pinned: bool = False) -> None:
        self.pinned = pinned

    def pin_memory(self) -> "Pinnable":
        """A pinned copy."""
        return Pinnable(pinned=True)


def test_pinning_a_batch_pins_its_tensors() -> None:
    """``DataLoader(pin_memory=True)`` asks a batch to pin itself: all of its tensors, and nothing else."""
    batch = make_batch(x=Pinnable(), txt=["a", "b"]).pin_memory()
    assert batch["x"].pinned
    assert batch["txt"] == ["a", "b"]
    assert batch.keys == ["a", "b"]
