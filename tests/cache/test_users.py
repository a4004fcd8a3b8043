import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from janus_shards.cache.base import CacheOptions, EntryKey
from janus_shards.cache.disk import open_disk_cache
from janus_shards.cache.folder import folder_name

Fork = Callable[[Callable[[], Iterator[str]]], Any]
RunAs = Callable[..., list[str]]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")


def use_cache(directory: Path, numbers: Iterable[int], shared: int | None) -> list[str]:
    """Use the cache as a loader does: what became of each block."""
    options = CacheOptions(directory=str(directory), max_bytes=60_000, min_free_bytes=0, shared_group=shared)
    cache = open_disk_cache(options, dataset=str(os.geteuid()))
    cache.begin_epoch(0)
    found = []
    for number in numbers:
        key = EntryKey(dataset="d", shard="s", version="v", row_start=number, row_stop=number + 1, fields=())
        entry = cache.raw(key)
        stored = entry is None and cache.store_raw(key, [bytes([number]) * 1000]) is not None
        is_right = entry is not None and entry.read(0, 1000) == bytes([number]) * 1000
        found.append("hit" if is_right else "stored" if stored else "miss")
    cache.close()
    return found


@pytest.fixture
def run_as(fork: Fork, shared_directory: Path) -> RunAs:
    """Uses the cache as another user, a member of a group of the same number and of group 50000."""

    def run(user: int, *numbers: int, shared: int | None = None) -> list[str]:
        def work() -> Iterator[str]:
            os.setgroups([user, 50_000])
            os.setgid(user)
            os.setuid(user)
            os.umask(0o077)
            yield ",".join(use_cache(shared_directory, numbers, shared))

        return fork(work).result().split(",")

    return run


@pytest.fixture
def shared_directory() -> Iterator[Path]:
    """A directory in which everybody may make files, as on the scratch disk of a cluster."""
    # Not below pytest's own folder, which each run of pytest closes to other users.
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o1777)
        yield Path(name)


def test_users_keep_to_themselves(shared_directory: Path, run_as: RunAs) -> None:
    """Two users of one directory have a cache each: neither reads nor changes what the other has."""
    assert run_as(40_001, 1, 2) == ["stored", "stored"]
    assert run_as(40_002, 1, 3) == ["stored", "stored"]
    assert run_as(40_001, 1, 2, 3) == ["hit", "hit", "stored"]
    folders = {path.name: path.stat().st_uid for path in shared_directory.iterdir()}
    assert folders == {"janus-cache-v1-u40001": 40_001, "janus-cache-v1-u40002": 40_002}


def test_entries_of_others_are_misses(shared_directory: Path, run_as: RunAs) -> None:
    """An entry that belongs to somebody else is neither read nor replaced nor removed, right or not."""
    run_as(40_001, 1)
    (path,) = shared_directory.glob("*/*.raw")
    os.chown(path, 40_002, 40_002)
    path.chmod(0o666)
    before = path.stat().st_mtime_ns
    assert run_as(40_001, 1) == ["miss"]
    assert (path.stat().st_mtime_ns, path.stat().st_uid) == (before, 40_002)


@pytest.mark.parametrize("name", ["usage", "locks"])
def test_shared_files_of_others_are_not_used(shared_directory: Path, run_as: RunAs, name: str) -> None:
    """Where somebody else owns what the budget is shared by, nothing is stored."""
    run_as(40_001, 1)
    (path,) = shared_directory.glob(f"*/{name}")
    os.chown(path, 40_002, 40_002)
    path.chmod(0o666)
    assert run_as(40_001, 1, 2) == ["hit", "miss"]


def test_a_folder_made_by_another_user_is_refused(shared_directory: Path, run_as: RunAs) -> None:
    """Whoever makes the cache's folder of another user in advance gains nothing: it is not used."""
    trap = shared_directory / "janus-cache-v1-u40001"
    trap.mkdir()
    os.chown(trap, 40_002, 40_002)
    trap.chmod(0o777)
    assert "belongs to user 40002" in "".join(run_as(40_001, 1))
    assert os.listdir(trap) == []


def test_a_group_shares_when_asked_to(shared_directory: Path, run_as: RunAs) -> None:
    """With ``shared_group`` the members of a group use one cache, whatever their umask; without it they do not."""
    assert run_as(40_001, 1, 2, shared=50_000) == ["stored", "stored"]
    assert run_as(40_002, 1, 2, 3, shared=50_000) == ["hit", "hit", "stored"]
    assert run_as(40_001, 3, shared=50_000) == ["hit"]
    assert run_as(40_001, 1) == ["stored"]
    folder = shared_directory / folder_name(50_000)
    assert folder.stat().st_mode & 0o7777 == 0o2770
    assert {(path.stat().st_mode & 0o777, path.stat().st_gid) for path in folder.iterdir()} == {(0o660, 50_000)}


def test_members_make_room_for_each_other(shared_directory: Path, run_as: RunAs) -> None:
    """Entries of a member who has left are evicted by another one, like one's own."""
    run_as(40_001, *range(20), shared=50_000)
    found = run_as(40_002, *range(30, 50), shared=50_000)
    assert found.count("stored") >= 10
