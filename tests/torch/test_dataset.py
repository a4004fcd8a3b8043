import copy
import itertools
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import janus_shards as js
from tests.torch import worker_functions
from tests.torch.conftest import LIMIT_S, NUM_SAMPLES, wait_for_end

Workers = Callable[..., "DataLoader[js.Batch]"]
# torch counts the cores of the machine and advises against more workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

CONTEXTS = ["fork", pytest.param("spawn", marks=pytest.mark.slow), pytest.param("forkserver", marks=pytest.mark.slow)]


def open_iterable(source: Any, **changed: Any) -> js.TorchIterable:
    """Captions in batches of 4."""
    arguments: dict[str, Any] = {"batch_size": 4, "fields": ("txt",), "seed": 7, "world": js.World()}
    return js.TorchIterable(source, **{**arguments, "options": js.LoaderOptions(threads=1), **changed})


def keys(batches: Any) -> list[list[str]]:
    """Keys of each batch of one pass."""
    return [batch.keys for batch in batches]


def flat(batches: list[list[str]]) -> list[str]:
    """Keys in the order of delivery."""
    return list(itertools.chain.from_iterable(batches))


@pytest.fixture
def epochs(root: str) -> list[list[list[str]]]:
    """Keys of the batches that ``open_loader`` gives in its first five epochs."""
    loader = js.open_loader(root, batch_size=4, fields=("txt",), seed=7, world=js.World())
    return [keys(loader) for _ in range(5)]


def test_without_workers_it_is_the_loaders_stream(root: str, epochs: list[list[list[str]]], workers: Workers) -> None:
    """Alone or in a ``DataLoader`` without workers, passes are the epochs of ``open_loader``, of the same length."""
    dataset = open_iterable(root)
    assert (keys(dataset), keys(workers(dataset, 0))) == (epochs[0], epochs[1])
    assert len(dataset) == len(workers(dataset, 0)) == len(epochs[0]) == 22


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("num_workers", [2, 3])
def test_workers_together_give_the_loaders_stream(
    root: str, epochs: list[list[list[str]]], workers: Workers, context: str, persistent: bool, num_workers: int
) -> None:
    """Batch by batch the same stream for any number of workers and start method, and each pass is the next epoch."""
    loader = workers(open_iterable(root), num_workers, context, persistent_workers=persistent)
    assert [keys(loader) for _ in range(2)] == epochs[:2]


def test_values_come_out_of_workers(root: str, workers: Workers) -> None:
    """Tensors, captions, ids and flags arrive whole."""
    transform = {"png": js.ImageTransform(size=8, fit="stretch", engine="pillow")}
    dataset = open_iterable(root, fields=("cls", "png", "txt"), transform=transform)
    for batch in workers(dataset, 2):
        numbers = [int(key[1:]) for key in batch.keys]
        assert batch["png"][:, 2, 7, 7].tolist() == [number % 256 for number in numbers]
        assert batch["cls"].tolist() == [number % 7 for number in numbers]
        assert batch["txt"] == [f"caption {number}" for number in numbers]
        assert (batch.sample_ids.tolist(), batch.valid.all()) == (numbers, True)


def test_more_workers_than_batches(root: str, workers: Workers) -> None:
    """Workers without a batch end at once; nothing is lost or repeated."""
    dataset = open_iterable(root, batch_size=40, options=js.LoaderOptions(threads=1, tail="uneven"))
    assert sorted(flat(keys(workers(dataset, 5)))) == [f"k{number:04d}" for number in range(NUM_SAMPLES)]


@pytest.mark.parametrize("persistent", [False, True])
def test_set_epoch_reaches_workers(
    root: str, epochs: list[list[list[str]]], workers: Workers, persistent: bool
) -> None:
    """The epoch set in the main process holds for workers that already run, and the passes count on from it."""
    dataset = open_iterable(root)
    loader = workers(dataset, 2, persistent_workers=persistent)
    assert keys(loader) == epochs[0]
    dataset.set_epoch(3)
    assert [keys(loader) for _ in range(2)] == epochs[3:5]
    dataset.set_epoch(1)
    assert keys(loader) == epochs[1]
    with pytest.raises(js.ConfigError, match="counted from 0"):
        dataset.set_epoch(-1)


def test_one_dataset_in_several_loaders(root: str, epochs: list[list[list[str]]], workers: Workers) -> None:
    """A look at a batch, another number of workers or a pass broken off: the next pass is the next epoch, and whole."""
    dataset = open_iterable(root)
    assert next(iter(dataset)).keys == epochs[0][0]
    assert keys(workers(dataset, 2)) == epochs[1]
    assert next(iter(workers(dataset, 3))).keys == epochs[2][0]
    assert keys(workers(dataset, 2)) == epochs[3]
    assert keys(dataset) == epochs[4]


def test_torch_seeded_alike_before_each_pass(root: str, epochs: list[list[list[str]]], workers: Workers) -> None:
    """The epochs follow each other whatever the caller does to torch's generator."""
    loader = workers(open_iterable(root), 2)
    found = []
    for _ in range(3):
        torch.manual_seed(0)
        found.append(keys(loader))
    assert found == epochs[:3]


def test_copied_datasets_count_their_epochs_too(root: str, epochs: list[list[list[str]]], workers: Workers) -> None:
    """A deep copy, as trainers make, goes through the epochs in its own workers."""
    loader = workers(copy.deepcopy(open_iterable(root)), 2)
    assert [keys(loader) for _ in range(2)] == epochs[:2]


def test_a_view_goes_into_workers(root: str, workers: Workers) -> None:
    """An opened data set, used before the fork, or a view of it serves as well as a URL."""
    dataset = js.open_dataset(root)
    view = dataset.where(dataset.column("number") % 2 == 1)
    assert view[0]["txt"] == "caption 1"
    found = keys(workers(open_iterable(view, options=js.LoaderOptions(threads=1, tail="uneven")), 2))
    assert sorted(flat(found)) == [f"k{number:04d}" for number in range(1, NUM_SAMPLES, 2)]


def drawn_rows(root: str, workers: Workers, world_size: int, num_epochs: int) -> dict[tuple[int, int, str], bytes]:
    """What the random transform drew, by rank, epoch and key, over two workers a rank."""
    found = {}
    for rank in range(world_size):
        dataset = open_iterable(
            root,
            batch_size=5,
            transform=worker_functions.draw_numbers,
            world=js.World(rank=rank, world_size=world_size),
        )
        loader = workers(dataset, 2)
        for epoch in range(num_epochs):
            for batch in loader:
                for key, row in zip(batch.keys, batch["drawn"], strict=True):
                    found[rank, epoch, key] = row.numpy().tobytes()
    return found


def test_random_numbers_in_workers(root: str, workers: Workers) -> None:
    """Draws from the global generators differ for every rank, worker, epoch and sample, and repeat in a second run."""
    first = drawn_rows(root, workers, world_size=2, num_epochs=2)
    assert len(first) == 2 * NUM_SAMPLES
    assert len(set(first.values())) == len(first)
    assert drawn_rows(root, workers, world_size=2, num_epochs=2) == first


def failure(batches: Any, pid_to_kill: int | None = None) -> Exception:
    """The error that ends a pass, after killing a process if one is named."""
    try:
        if pid_to_kill is not None:
            os.kill(pid_to_kill, signal.SIGKILL)
        for _ in batches:
            pass
    except (js.JanusShardsError, ArithmeticError, RuntimeError, OSError, EOFError) as exc:
        # The frames that it passed hold the iterator and so the workers.
        exc.__cause__ = exc.__context__ = None
        return exc.with_traceback(None)
    raise AssertionError("the pass ended well")


@pytest.fixture
def damaged(tmp_path: Path) -> str:
    """A data set of 20 captions, of which ``k13`` is no text."""
    with js.ShardWriter(str(tmp_path / "bad"), prefix="bad", max_samples=10) as writer:
        for number in range(20):
            writer.write({"__key__": f"k{number}", "txt": b"\xff\xfe\xff" if number == 13 else b"fine"})
    return str(tmp_path / "bad")


@pytest.mark.parametrize("context", CONTEXTS)
def test_errors_keep_their_context(damaged: str, workers: Workers, context: str) -> None:
    """A bad sample in a worker is the same error in the main process: class, kind, shard, key and field."""
    error = failure(workers(open_iterable(damaged, shuffle=None), 2, context))
    assert isinstance(error, js.DecodeError)
    assert (error.kind, error.key, error.field) == ("text_decode", "k13", "txt")
    assert str(error.shard).endswith("bad-000001.tar")
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_damaged_shard_is_told_from_a_worker(damaged: str, workers: Workers, persistent: bool) -> None:
    """A shard that was cut since is an error of its own kind, in every pass."""
    os.truncate(Path(damaged, "bad-000001.tar"), 3000)
    loader = workers(open_iterable(damaged, batch_size=2), 2, persistent_workers=persistent)
    for _ in range(2):
        error = failure(loader)
        assert isinstance(error, js.IndexFormatError)
        assert (error.kind, error.shard) == ("index_mismatch", "bad-000001.tar")
        assert "bytes as when it was indexed" in str(error)


def test_a_data_set_that_is_missing(root: str, workers: Workers) -> None:
    """Workers that cannot open it say so with the error that opening has."""
    error = failure(workers(open_iterable(root + "-missing"), 2))
    assert isinstance(error, js.ObjectNotFoundError)
    assert (error.kind, error.shard) == ("no_manifest", root + "-missing")
    assert "there is no such folder" in str(error)


def test_faults_of_the_callers_code_name_the_sample(root: str, workers: Workers) -> None:
    """The message out of a worker holds the note with key and shard."""
    dataset = open_iterable(root, transform=worker_functions.divide_by_zero, shuffle=None)
    error = failure(workers(dataset, 2))
    assert isinstance(error, ZeroDivisionError)
    assert re.search(r"in the transform of key 'k0000' of shard .*part-000000.tar", str(error))


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("pin_memory", [False, True])
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
# Torch's handler of SIGCHLD raises once more while the iterator is deleted, when the other worker ends.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_killed_worker_is_an_error(root: str, workers: Workers, context: str, pin_memory: bool) -> None:
    """In mid-epoch it raises within 10 s in the main process, and no other worker stays."""
    dataset = open_iterable(root, batch_size=1, transform=worker_functions.say_process)
    # Without a timeout of its own torch looks after its workers every 5 s.
    iterator = iter(workers(dataset, 2, context, pin_memory=pin_memory, timeout=0))
    pids = {int(next(iterator)["pid"][0]) for _ in range(2)}
    assert len(pids) == 2
    began = time.monotonic()
    error = failure(iterator, pid_to_kill=min(pids))
    assert time.monotonic() - began < 10
    # Torch notices the dead worker, or that it cannot fetch a tensor from it any more, whichever comes first.
    lost = isinstance(error, OSError | EOFError) and not isinstance(error, js.JanusShardsError)
    assert lost or re.search(r"DataLoader worker .* (killed by signal|exited unexpectedly)", str(error))
    del iterator
    assert all(wait_for_end(pid, 10) for pid in pids)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_pin_memory_without_cuda(root: str, epochs: list[list[list[str]]], workers: Workers) -> None:
    """Torch warns and goes on without it; the stream is the same."""
    with pytest.warns(UserWarning, match="pin_memory"):
        assert keys(workers(open_iterable(root), 2, pin_memory=True)) == epochs[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_pin_memory_with_cuda(root: str, workers: Workers) -> None:
    """All tensors of a batch lie in page-locked memory."""
    batch = next(iter(workers(open_iterable(root, fields=("cls",)), 2, "spawn", pin_memory=True)))
    assert batch["cls"].is_pinned()
    assert batch.sample_ids.is_pinned()
    assert batch.valid.is_pinned()


def test_pickles_are_small_and_hold_no_secret(root: str) -> None:
    """What travels to a spawned worker is small, also after use, and keys given in the program stay behind."""
    dataset = js.open_dataset(root)
    list(dataset)
    dataset.by_key("k0000")
    assert len(pickle.dumps(dataset)) < 5_000
    used = open_iterable(dataset)
    next(iter(used))
    assert len(pickle.dumps(used)) < 20_000
    options = {"access_key_id": "AKIAEXAMPLE", "secret_access_key": "very-secret-key", "region": "eu-west-1"}
    pickled = pickle.dumps(open_iterable("s3://bucket/train", storage_options=options))
    assert b"very-secret-key" not in pickled
    assert b"eu-west-1" in pickled


def samples_of(loader: Any) -> list[js.Sample]:
    """All samples that a ``DataLoader`` gives in lists."""
    return [sample for batch in loader for sample in batch]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_set_is_a_map_style_dataset(root: str, num_workers: int) -> None:
    """``DataLoader`` takes an opened data set as it is; samples come out of its workers with all their bytes."""
    dataset = js.open_dataset(root)
    context = "fork" if num_workers else None
    loader = DataLoader(
        dataset, batch_size=8, collate_fn=list, num_workers=num_workers, multiprocessing_context=context
    )
    samples = samples_of(loader)
    assert [sample.key for sample in samples] == [f"k{number:04d}" for number in range(NUM_SAMPLES)]
    assert samples[17]["txt"] == "caption 17"
    assert samples[17]["png"].tolist() == np.full((8, 8, 3), 17, np.uint8).tolist()


def test_a_view_with_torchs_own_collate(tmp_path: Path) -> None:
    """Samples are mappings, so fields of equal shape are stacked by torch itself."""
    with js.ShardWriter(str(tmp_path / "out"), prefix="out") as writer:
        for number in range(6):
            writer.write({"__key__": f"k{number}", "txt": f"t{number}", "cls": number, "npy": np.full(3, number)})
    view = js.open_dataset(str(tmp_path / "out")).where([1, 2, 5])
    (batch,) = DataLoader(view, batch_size=3)  # type: ignore[arg-type]
    assert (batch["cls"].tolist(), batch["txt"]) == ([1, 2, 5], ["t1", "t2", "t5"])
    assert batch["npy"].tolist() == [[1] * 3, [2] * 3, [5] * 3]


def test_damage_in_a_map_style_worker_reaches_the_main_process(tmp_path: Path) -> None:
    """Bytes that are not the indexed ones do not leave the main process waiting: using the field raises."""
    with js.ShardWriter(str(tmp_path / "out"), prefix="out") as writer:
        for number in range(4):
            writer.write({"__key__": f"k{number}", "bin": bytes([number]) * 5000, "txt": "fine"})
    shard = tmp_path / "out" / "out-000000.tar"
    shard.write_bytes(shard.read_bytes().replace(b"\2" * 5000, b"\2" * 4999 + b"\0"))
    dataset = js.open_dataset(str(tmp_path / "out"))
    loader = DataLoader(
        dataset, batch_size=2, collate_fn=list, num_workers=2, multiprocessing_context="fork", timeout=LIMIT_S
    )  # type: ignore[arg-type]
    samples = samples_of(loader)
    assert [sample["txt"] for sample in samples] == ["fine"] * 4
    with pytest.raises(js.DecodeError, match="not those that were indexed") as caught:
        samples[2]["bin"]
    assert (caught.value.kind, caught.value.key, caught.value.field) == ("index_mismatch", "k2", "bin")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_main_process(root: str, number: signal.Signals) -> None:
    """After Ctrl-C, and after a SIGKILL that nobody can prepare for, no worker lives on."""
    script = Path(worker_functions.__file__)
    main = subprocess.Popen(
        [sys.executable, str(script), root],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=script.parents[2],
        env={**os.environ, "PYTHONPATH": str(script.parents[2]), "PYTHONWARNINGS": "ignore"},
    )
    with main:
        pids = [int(word) for word in main.stdout.readline().split()] if main.stdout else []
        main.send_signal(number)
        assert main.wait(20) != 0
    assert len(pids) == 2
    assert all(wait_for_end(pid, 20) for pid in pids)


def test_no_warning_of_torch_about_lengths(root: str, workers: Workers) -> None:
    """After ``len`` was asked for, torch finds as many batches as it was told, over several workers and epochs."""
    loader = workers(open_iterable(root), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [len(loader), *(len(keys(loader)) for _ in range(2))] == [22, 22, 22]
