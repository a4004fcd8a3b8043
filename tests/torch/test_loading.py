import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import janus_shards as js
from tests.torch.worker_functions import join_ranks, open_on_rank

LIMIT_S = 60


def test_batches_hold_tensors(root: str) -> None:
    """Pictures and labels are tensors, captions a list; numbers belong to their keys."""
    transform = {"png": js.ImageTransform(size=8, fit="stretch", engine="pillow")}
    batch = next(iter(js.open_loader(root, batch_size=4, transform=transform)))
    numbers = [int(key[1:]) for key in batch.keys]
    assert (batch["png"].dtype, tuple(batch["png"].shape)) == (torch.uint8, (4, 3, 8, 8))
    assert batch["png"][:, 0, 0, 0].tolist() == [number % 256 for number in numbers]
    assert batch["cls"].tolist() == [number % 7 for number in numbers]
    assert (batch.sample_ids.tolist(), batch.sample_ids.dtype) == (numbers, torch.int64)


def test_kept_tensors_stay_valid(root: str) -> None:
    """A tensor keeps the memory under it, although batches are dropped and their memory is used again."""
    transform = {"png": js.ImageTransform(size=8, fit="stretch", engine="pillow")}
    kept = [(batch["png"], batch.keys) for batch in js.open_loader(root, batch_size=4, transform=transform)]
    for pictures, keys in kept:
        assert pictures[:, 0, 0, 0].tolist() == [int(key[1:]) % 256 for key in keys]


def test_tensors_of_a_batch_are_not_shared_with_another(root: str) -> None:
    """A consumer may write into what it got, ids and flags included."""
    batches = list(js.open_loader(root, batch_size=4, fields=("cls",)))
    expected = [batch.sample_ids.clone() for batch in batches[1:]]
    batches[0].sample_ids[:] = -1
    batches[0].valid[:] = False
    batches[0]["cls"][:] = 99
    assert all(
        (batch.sample_ids == ids).all() and batch.valid.all() for batch, ids in zip(batches[1:], expected, strict=True)
    )


def test_world_comes_from_the_launcher(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``world`` the variables of torchrun say which rank this is."""
    found = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        found.append({key for batch in js.open_loader(root, batch_size=5, fields=("txt",)) for key in batch.keys})
    assert len(found[0] | found[1]) == len(found[0]) + len(found[1]) == 90


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import janus_shards as js
print(type(next(iter(js.open_loader(sys.argv[1], batch_size=4, fields=("cls",))))["cls"]))
js.open_loader(sys.argv[1], batch_size=4, device="cuda")
"""


def test_without_torch_batches_are_arrays(root: str) -> None:
    """Where torch is not installed ``device=None`` gives NumPy arrays; a device is an error that says how to get it."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, root], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout.strip() == "<class 'numpy.ndarray'>"
    assert "ConfigError: device='cuda' needs torch: pip install 'janus-shards[torch]'" in done.stderr


@pytest.fixture
def job_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process as the only rank of a distributed job."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    join_ranks(0, str(tmp_path), 1)
    yield
    dist.destroy_process_group()


def test_opening_inside_a_job(root: str, job_of_one: None) -> None:
    """The exchange over the ranks changes nothing for those that agree, and passes a rank's own error on."""
    expected = [batch.keys for batch in js.open_loader(root, batch_size=4, fields=("txt",), world=js.World())]
    assert len(expected) == 22
    with pytest.raises(js.ObjectNotFoundError, match="no such folder"):
        js.open_loader(root + "-missing", batch_size=4)


Ranks = Callable[[list[str], list[int]], list[str]]


@pytest.fixture
def open_on_ranks(tmp_path: Path) -> Ranks:
    """Opens a loader in one process a rank; returns what each of them found."""

    def run(roots: list[str], seeds: list[int]) -> list[str]:
        context = multiprocessing.get_context("spawn")
        ranks = [
            context.Process(target=open_on_rank, args=(rank, str(tmp_path), roots, seeds)) for rank in range(len(roots))
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(LIMIT_S)
        stuck = [process for process in ranks if process.is_alive()]
        for process in stuck:
            process.kill()
            process.join()
        assert not stuck
        return [(tmp_path / f"rank{rank}").read_text() for rank in range(len(roots))]

    return run


@pytest.mark.slow
def test_ranks_that_agree(root: str, open_on_ranks: Ranks) -> None:
    """Ranks of one job get disjoint samples, as many each."""
    found = [answer.split(",") for answer in open_on_ranks([root, root], [7, 7])]
    assert len(found[0]) == len(found[1]) == 44
    assert len({*found[0], *found[1]}) == 88


@pytest.mark.slow
def test_ranks_with_different_seeds(root: str, open_on_ranks: Ranks) -> None:
    """Every rank gets the error, naming what differs and where; none waits for the other."""
    for answer in open_on_ranks([root, root], [7, 8]):
        assert answer.startswith("ConfigError: ranks opened different loaders")
        assert "seed is 7 on rank 0" in answer or "seed is 8 on rank 1" in answer or "order hash" in answer


@pytest.mark.slow
def test_a_rank_that_cannot_open(root: str, open_on_ranks: Ranks) -> None:
    """The rank raises its own error; the others raise one that names the rank and its error."""
    own, other = open_on_ranks([root + "-missing", root], [7, 7])
    assert own.startswith("ObjectNotFoundError: ")
    assert other.startswith("ConfigError: open_loader failed on 1 of 2 ranks; rank 0: ObjectNotFoundError: ")
    assert root + "-missing" in other
