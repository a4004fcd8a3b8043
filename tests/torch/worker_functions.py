"""Functions that other processes import: transforms for workers, and what a rank of a distributed job does."""

import os
import random
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import janus_shards as js


def draw_numbers(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Eight numbers from each global generator."""
    python = [random.random() for _ in range(8)]
    return {"drawn": np.concatenate([python, np.random.random(8), torch.rand(8).numpy()])}  # noqa: NPY002


def say_process(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The process that runs the transform."""
    return {"pid": os.getpid()}


def divide_by_zero(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A fault of the caller's code."""
    return {"x": 1 / 0}


def join_ranks(rank: int, folder: str, world_size: int) -> None:
    """Become a rank of a job that meets in a file."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=50),
    )


def open_on_rank(rank: int, folder: str, roots: list[str], seeds: list[int]) -> None:
    """Open a loader as one rank of a job, and write what came of it to ``folder/rank<n>``."""
    torch.set_num_threads(1)
    join_ranks(rank, folder, len(roots))
    world = js.World(rank=rank, world_size=len(roots))
    try:
        loader = js.open_loader(
            roots[rank],
            batch_size=4,
            fields=("txt",),
            seed=seeds[rank],
            world=world,
            options=js.LoaderOptions(threads=1),
        )
        answer = ",".join(key for batch in loader for key in batch.keys)
    except Exception as exc:  # noqa: BLE001  the answer is which one
        answer = f"{type(exc).__name__}: {exc}"
    Path(folder, f"rank{rank}").write_text(answer)
    dist.destroy_process_group()


def iterate_for_ever(root: str) -> None:
    """Passes over a ``DataLoader`` without end; prints the pids of its workers when each has made a batch."""
    dataset = js.TorchIterable(root, batch_size=1, fields=("txt",), transform=say_process)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    said = False
    while True:
        pids = {int(batch["pid"][0]) for batch in loader}
        if not said:
            print(*sorted(pids), flush=True)
            said = True


if __name__ == "__main__":
    iterate_for_ever(sys.argv[1])
