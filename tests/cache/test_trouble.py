import errno
import logging
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from janus_shards.cache.base import CacheOptions, EntryKey
from janus_shards.cache.disk import DiskCache, open_disk_cache
from janus_shards.cache.locks import LocksMissingError
from tests.contracts.cache import RECORD_BYTES, read, record, write

MakeKey = Callable[..., EntryKey]
Fork = Callable[[Callable[[], Iterator[str]]], Any]


class NoLocks:
    """A file system without byte-range locks, such as some network file systems."""

    def try_lock(self, fd: int, place: int) -> bool:
        """Not to be had."""
        raise LocksMissingError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    def unlock(self, fd: int, place: int) -> None:
        """Not to be had."""
        raise LocksMissingError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Texts of the warnings that were logged."""
    return [line.getMessage() for line in caplog.records if line.levelno >= logging.WARNING]


def use(cache: DiskCache, key: MakeKey, *numbers: int) -> None:
    """Everything that a loader does with some blocks."""
    cache.begin_epoch(0)
    for number in numbers:
        cache.admits(100)
        with cache.flight(key(number)):
            if cache.raw(key(number)) is None:
                cache.store_raw(key(number), [bytes(100)])
        block = cache.decoded(key(number, transform="t"), record_bytes=RECORD_BYTES)
        write(block, 0, record(0))
        read(block, 0)
        block.release()
    cache.stats()


@pytest.fixture
def options(tmp_path: Path) -> CacheOptions:
    """A cache in a folder that is not there yet."""
    return CacheOptions(directory=str(tmp_path / "cache"), max_bytes=10**6, min_free_bytes=0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", path], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting needs rights that this process lacks")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def test_a_full_disk_is_one_warning(small_disk: Path, key: MakeKey, caplog: pytest.LogCaptureFixture) -> None:
    """When the disk is filled by others, what is there stays in use, and nothing half is left."""
    options = CacheOptions(directory=str(small_disk), max_bytes="1GB", min_free_bytes=0)
    cache = open_disk_cache(options, dataset="a")
    use(cache, key, 0)
    # The lease is taken; only writing tells that its space is gone.
    (small_disk / "others").write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096))
    use(cache, key, *range(20))
    (warning,) = warnings_of(caplog)
    assert "No space left on device" in warning
    assert str(small_disk) in warning
    assert [number for number in range(20) if cache.raw(key(number)) is not None] == [0]
    assert not list(small_disk.glob("*/tmp-*"))


def test_a_disk_with_room_again_is_used_again(small_disk: Path, key: MakeKey) -> None:
    """The next epoch tries once more."""
    options = CacheOptions(directory=str(small_disk), max_bytes="1GB", min_free_bytes=0)
    cache = open_disk_cache(options, dataset="a")
    # The lease is taken while there is still room.
    assert cache.store_raw(key(0), [bytes(100)])
    (small_disk / "others").write_bytes(bytes(200 << 10))
    cache.begin_epoch(0)
    assert cache.store_raw(key(1), [bytes(100_000)]) is None
    (small_disk / "others").unlink()
    cache.begin_epoch(1)
    assert cache.store_raw(key(1), [bytes(100_000)]) is not None


def test_the_floor_stays_free(small_disk: Path, key: MakeKey, caplog: pytest.LogCaptureFixture) -> None:
    """The cache stops while the disk still has the space that it is to leave free, and says so once."""
    options = CacheOptions(directory=str(small_disk), max_bytes="1GB", min_free_bytes=100 << 10)
    cache = open_disk_cache(options, dataset="a")
    use(cache, key, *range(40))
    free = os.statvfs(small_disk)
    assert 100 << 10 <= free.f_bavail * free.f_frsize <= 120 << 10
    (warning,) = warnings_of(caplog)
    assert f"{100 << 10} are to stay free" in warning


def test_a_read_only_disk_is_read(small_disk: Path, key: MakeKey, caplog: pytest.LogCaptureFixture) -> None:
    """What is on a read-only disk is used; one warning says that nothing is added."""
    options = CacheOptions(directory=str(small_disk), max_bytes="1GB", min_free_bytes=0)
    cache = open_disk_cache(options, dataset="a")
    use(cache, key, 0)
    cache.close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    cache = open_disk_cache(options, dataset="a")
    use(cache, key, 0, 1)
    assert cache.raw(key(0)) is not None
    block = cache.decoded(key(0, transform="t"), record_bytes=RECORD_BYTES)
    assert read(block, 0) is not None
    assert len(warnings_of(caplog)) == 1


def test_a_folder_that_cannot_be_made_is_one_warning(
    small_disk: Path, key: MakeKey, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a place for the folder everything is a miss."""
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    cache = open_disk_cache(CacheOptions(directory=str(small_disk / "cache")), dataset="a")
    use(cache, key, 0, 1)
    assert len(warnings_of(caplog)) == 1


@pytest.mark.parametrize("what", ["directory", "folder", "contents"])
def test_a_vanished_folder_is_one_warning(
    options: CacheOptions, key: MakeKey, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """When the folder is removed during a run, everything is a miss from then on, and it is not made again."""
    cache = open_disk_cache(options, dataset="a")
    use(cache, key, 0)
    root = Path(options.directory)
    (folder,) = root.iterdir()
    for path in {"directory": [root], "folder": [folder], "contents": list(folder.iterdir())}[what]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    # More than the lease, so that the files that are shared are needed as well.
    for number in range(1, 60):
        use(cache, key, number)
    assert cache.raw(key(0)) is None
    assert len(warnings_of(caplog)) == 1
    assert not list(root.glob("*/*.raw"))


def test_an_emptied_folder_gets_no_entries(options: CacheOptions, key: MakeKey) -> None:
    """A folder that was emptied during a run stays empty, so that the next run can take it anew."""
    cache = open_disk_cache(options, dataset="a")
    use(cache, key, 0)
    (folder,) = Path(options.directory).iterdir()
    for path in folder.iterdir():
        path.unlink()
    use(cache, key, 1, 2)
    assert list(folder.iterdir()) == []
    cache = open_disk_cache(options, dataset="a")
    use(cache, key, 1)
    assert cache.raw(key(1)) is not None


def test_too_many_open_files_pass(options: CacheOptions, key: MakeKey, fork: Fork) -> None:
    """A process that has no descriptor left misses and stores nothing, until the next epoch."""

    def work() -> Iterator[str]:
        cache = open_disk_cache(options, dataset="a")
        use(cache, key, 0)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limit))
        stored = [cache.raw(key(0)), cache.store_raw(key(1), [b"x"])]
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, limit))
        cache.begin_epoch(1)
        stored += [cache.raw(key(0)), cache.store_raw(key(1), [b"x"])]
        yield str([entry is not None for entry in stored])

    assert fork(work).result() == "[False, False, True, True]"


def test_without_locks_nothing_is_added(options: CacheOptions, key: MakeKey, caplog: pytest.LogCaptureFixture) -> None:
    """Where the file system has no locks, the budget cannot be shared: entries are used, none are added."""
    cache = open_disk_cache(options, dataset="a")
    use(cache, key, 0)
    cache.close()
    cache = DiskCache(options, dataset="a", locks=NoLocks())
    use(cache, key, 0, 1)
    assert cache.raw(key(0)) is not None
    assert cache.raw(key(1)) is None
    (warning,) = warnings_of(caplog)
    assert "nothing is stored" in warning


def test_a_damaged_usage_file_is_counted_anew(options: CacheOptions, key: MakeKey) -> None:
    """Whatever stands in the file that shares the budget, the entries are counted and the budget is kept."""
    folder = Path(options.directory)
    for damage in (b"", b"x" * 16384, bytes(16384), b"JSHUSAGE" + b"\xff" * 20000):
        cache = open_disk_cache(options, dataset="a")
        use(cache, key, 0, 1, 2)
        taken = cache.stats()["bytes"]
        assert taken == sum(path.stat().st_size for path in folder.glob("*/*.r*"))
        cache.close()
        (usage,) = folder.glob("*/usage")
        usage.write_bytes(damage)


def test_a_limit_on_files_is_a_full_disk(options: CacheOptions, key: MakeKey, fork: Fork) -> None:
    """A limit of the system on the size of files ends neither the process nor the cache."""

    def work() -> Iterator[str]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        cache = open_disk_cache(options, dataset="a")
        stored = [cache.store_raw(key(0), [bytes(100)]), cache.store_raw(key(1), [bytes(100_000)])]
        cache.begin_epoch(0)
        stored.append(cache.store_raw(key(2), [bytes(100)]))
        yield str([entry is not None for entry in stored])

    assert fork(work).result() == "[True, False, True]"
    assert not list(Path(options.directory).glob("*/tmp-*"))
