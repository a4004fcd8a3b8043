"""A small data set, and ways to run and end other processes."""

import gc
import multiprocessing
import os
import select
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader

from janus_shards.pipeline.batch import Batch
from janus_shards.torch.dataset import TorchIterable
from tests.pipeline.conftest import write_samples

NUM_SAMPLES = 90
# What one wait may take on a machine that has other things to do.
LIMIT_S = 60


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a data set of 90 samples in 5 shards; not to be changed."""
    folder = tmp_path_factory.mktemp("torch") / "train"
    write_samples(folder, count=NUM_SAMPLES, samples_a_shard=20)
    return str(folder)


@pytest.fixture
def workers() -> Callable[..., "DataLoader[Batch]"]:
    """Puts a dataset into a ``DataLoader`` whose waits end with an error after a minute."""

    def build(dataset: TorchIterable, num_workers: int = 2, context: str = "fork", **options: Any) -> DataLoader[Batch]:
        arguments: dict[str, Any] = {"timeout": LIMIT_S, "multiprocessing_context": context} if num_workers else {}
        return DataLoader(dataset, batch_size=None, num_workers=num_workers, **{**arguments, **options})

    return build


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """No test of this folder may leave a child process behind."""
    yield
    if multiprocessing.active_children():  # collecting takes 0.3 s where torch is loaded
        gc.collect()
    for child in multiprocessing.active_children():
        child.join(10)
    assert multiprocessing.active_children() == []


def wait_for_end(pid: int, limit_s: float) -> bool:
    """Whether a process, not necessarily a child, ends within a time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], limit_s)[0])
    finally:
        os.close(handle)
