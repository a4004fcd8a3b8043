"""What the processes of a scenario do, and how they are started: from a fork server that has torch loaded already."""

import multiprocessing
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader

import janus_shards as js

ArgumentT = TypeVar("ArgumentT")
ResultT = TypeVar("ResultT")

_CONTEXT = multiprocessing.get_context("forkserver")
# Importing torch takes seconds; children of the server have it at once, and what the main module imports.
_CONTEXT.set_forkserver_preload(["pytest", "janus_shards.torch.dataset", "janus_shards.torch.loading", __name__])


def run_together(
    function: Callable[[ArgumentT], ResultT], arguments: Sequence[ArgumentT], *, timeout_s: float
) -> list[ResultT]:
    """Results of a function, one process an argument, all at once; fails when one does not end in time."""
    deadline = time.monotonic() + timeout_s
    running = []
    for argument in arguments:
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(target=_answer, args=(theirs, function, argument))
        process.start()
        theirs.close()
        running.append((process, ours))
    try:
        return [_result(connection, deadline) for _, connection in running]
    finally:
        for process, connection in running:
            connection.close()
            process.kill()
            process.join()


def _result(connection: "Connection[Any, Any]", deadline: float) -> Any:
    assert connection.poll(max(0.0, deadline - time.monotonic())), "a process did not answer in time"
    result, error = connection.recv()
    if error is not None:
        raise error
    return result


def _answer(connection: "Connection[Any, Any]", function: Callable[[Any], Any], argument: object) -> None:
    try:
        answer = (function(argument), None)
    except Exception as exc:  # noqa: BLE001  border of the process: the test raises it
        answer = (None, exc)
    connection.send(answer)
    # As a killed job ends: what was prefetched is waiting, and nobody cleans up.
    os._exit(0)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One rank of a training job over a data set.

    Attributes:
        root: The data set.
        batch: Samples a batch.
        seed: Seed of the order.
        rank: Number of this rank.
        world_size: Number of ranks.
        workers: Worker processes of a ``DataLoader``.
        tail: What becomes of samples that fill no step.
        persistent: Whether workers live on from epoch to epoch.
        draws: Whether each sample is mapped to random numbers.
        epochs: Epochs to run, by ``set_epoch``; epoch 0 as it comes when empty.
    """

    root: str
    batch: int
    seed: int = 7
    rank: int = 0
    world_size: int = 1
    workers: int = 0
    tail: str = "uneven"
    persistent: bool = False
    draws: bool = False
    epochs: Sequence[int] = ()

    def dataset(self) -> js.TorchIterable:
        """What torch's loader iterates."""
        return js.TorchIterable(
            self.root,
            batch_size=self.batch,
            fields=("txt",),
            seed=self.seed,
            world=js.World(rank=self.rank, world_size=self.world_size),
            options=js.LoaderOptions(threads=1, tail=self.tail),  # type: ignore[arg-type]  # checked by LoaderOptions
            transform=draw if self.draws else None,
        )


@dataclass(frozen=True)
class Epoch:
    """What one epoch delivered.

    Attributes:
        keys: Of the valid samples, by batch.
        sizes: Rows of each batch, valid or not.
        length: ``len()`` of the loader before the epoch.
        drawn: Random numbers, a row a sample.
    """

    keys: Sequence[Sequence[str]]
    sizes: Sequence[int]
    length: int
    drawn: Sequence[Sequence[float]]

    @property
    def order(self) -> list[str]:
        """All keys in order."""
        return [key for batch in self.keys for key in batch]


def run_epochs(job: Job) -> list[Epoch]:
    """The epochs of a job through torch's ``DataLoader``."""
    dataset = job.dataset()
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=job.workers,
        persistent_workers=job.persistent,
        # A child of a fork server would start a fork server.
        multiprocessing_context="fork" if job.workers else None,
    )
    found = []
    for epoch in job.epochs or (None,):
        if epoch is not None:
            dataset.set_epoch(epoch)
        found.append(_one_epoch(loader, draws=job.draws))
    return found


def _one_epoch(loader: "DataLoader[js.Batch]", *, draws: bool) -> Epoch:
    length, keys, sizes, drawn = len(loader), [], [], []
    for batch in loader:
        keys.append([key for key, valid in zip(batch.keys, batch.valid.tolist(), strict=True) if valid])
        sizes.append(len(batch.keys))
        drawn += [list(row) for row in batch["drawn"].tolist()] if draws else []
    return Epoch(keys, sizes, length, drawn)


def draw(sample: js.Sample) -> dict[str, Any]:
    """Eight numbers from each global generator."""
    numbers = [*np.random.random(8), *(random.random() for _ in range(8)), *torch.rand(8).tolist()]  # noqa: NPY002  the one users draw from
    return {"drawn": np.array(numbers, dtype=np.float64)}


def open_loader(job: Job) -> js.Loader:
    """The library's own loader for a job; ``workers`` are its threads."""
    return js.open_loader(
        job.root,
        batch_size=job.batch,
        fields=("txt",),
        seed=job.seed,
        world=js.World(rank=job.rank, world_size=job.world_size),
        options=js.LoaderOptions(threads=max(1, job.workers), tail=job.tail),  # type: ignore[arg-type]  # the same
    )


@dataclass(frozen=True, kw_only=True)
class Stop:
    """A place where a job is stopped.

    Attributes:
        job: The job.
        epoch: Epoch in which it stops.
        after_batches: Batches of that epoch that are delivered before.
    """

    job: Job
    epoch: int
    after_batches: int


@dataclass(frozen=True)
class Stopped:
    """What a stopped job leaves: the batches it delivered, by epoch, and its state."""

    batches: Sequence[Sequence[Sequence[str]]]
    state: dict[str, Any]


def run_until(stop: Stop) -> Stopped:
    """Run a job to a place inside an epoch."""
    loader = open_loader(stop.job)
    batches = [[batch.keys for batch in loader] for _ in range(stop.epoch)]
    if stop.after_batches:
        stream = iter(loader)
        batches.append([next(stream).keys for _ in range(stop.after_batches)])
        # Reached only when the others behind are being made, or are waiting.
        assert loader.state_dict() == loader.state_dict()
    return Stopped(batches, loader.state_dict())


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """A job that goes on from a state, to the end of an epoch."""

    job: Job
    state: dict[str, Any]
    last_epoch: int


def run_on(resumed: Resumed) -> Sequence[Sequence[Sequence[str]]]:
    """The batches from a state to the end of an epoch, by epoch."""
    loader = open_loader(resumed.job)
    loader.load_state_dict(resumed.state)
    assert loader.state_dict() == resumed.state
    batches = []
    while not batches or loader.epoch < resumed.last_epoch:
        batches.append([batch.keys for batch in loader])
    return batches
