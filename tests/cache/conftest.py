"""Caches in temporary folders, with names of entries by number; and other processes."""

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from janus_shards.cache.base import CacheOptions, EntryKey
from janus_shards.cache.disk import DiskCache, open_disk_cache

OpenCache = Callable[..., DiskCache]


def make_key(number: int, *, dataset: str = "a", transform: str = "", rows: int = 4) -> EntryKey:
    """Name of the entry of a block."""
    return EntryKey(
        dataset=dataset,
        shard="train-000000.tar",
        version="5" * 64,
        row_start=number * rows,
        row_stop=(number + 1) * rows,
        fields=("jpg",),
        transform=transform,
    )


class Child:
    """A forked process that sends what a function yields.

    Args:
        work: Yields text.
    """

    def __init__(self, work: Callable[[], Iterator[str]]) -> None:
        self._answers, answer = os.pipe()
        with warnings.catch_warnings():
            # Newer Pythons warn where other threads run, such as that of the S3 server; the child needs none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if not self._pid:
            try:
                for text in work():
                    os.write(answer, text.encode())
            except BaseException as exc:  # noqa: BLE001  the parent shows it
                os.write(answer, repr(exc).encode())
            os._exit(0)
        os.close(answer)

    def read(self, number: int) -> str:
        """Up to so many characters of what it yields; waits for the first one."""
        return os.read(self._answers, number).decode()

    def kill(self) -> None:
        """End it at once, wherever it is."""
        os.kill(self._pid, signal.SIGKILL)
        os.close(self._answers)
        assert os.waitpid(self._pid, 0)[1] == signal.SIGKILL

    def result(self) -> str:
        """Everything it yields, once it has ended."""
        with os.fdopen(self._answers, "rb") as file:
            answer = file.read().decode()
        os.waitpid(self._pid, 0)
        return answer


@pytest.fixture
def fork() -> Callable[[Callable[[], Iterator[str]]], Child]:
    """Runs functions in forked processes."""
    return Child


@pytest.fixture
def key() -> Callable[..., EntryKey]:
    """Makes names."""
    return make_key


@pytest.fixture
def open_cache(tmp_path: Path) -> Iterator[OpenCache]:
    """Opens caches of one directory, each as another process would; all are closed at the end."""
    opened = []

    def make(*, dataset: str = "a", max_bytes: int = 10**6, **options: object) -> DiskCache:
        chosen = CacheOptions(directory=str(tmp_path / "cache"), max_bytes=max_bytes, min_free_bytes=0, **options)
        opened.append(open_disk_cache(chosen, dataset=dataset))
        return opened[-1]

    yield make
    for cache in opened:
        cache.close()


@pytest.fixture
def entries(tmp_path: Path) -> Callable[[], list[Path]]:
    """Lists the files of entries and temporary files in the directory."""

    def found() -> list[Path]:
        files = sorted((tmp_path / "cache").glob("janus-cache-*/*"))
        return [path for path in files if path.suffix in (".raw", ".rows") or path.name.startswith("tmp-")]

    return found
