"""Looking after caches: what they hold, every kind of damage, and removing nothing but what is ours."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from janus_shards.cache.base import CacheOptions, EntryKey
from janus_shards.cache.disk import DiskCache, open_disk_cache
from janus_shards.errors import ObjectNotFoundError, StorageError
from janus_shards.operations.cache import cache_status, clear_cache, verify_cache

ROW = b"r" * 1000


def key(number: int, transform: str = "") -> EntryKey:
    """Name of the entry of a block."""
    return EntryKey(
        dataset="d", shard="s", version="v", row_start=number, row_stop=number + 4, fields=("jpg",), transform=transform
    )


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[DiskCache]:
    """A cache with three raw entries and one decoded one, of which two rows are there; it stays open."""
    cache = open_disk_cache(CacheOptions(directory=str(tmp_path), max_bytes=10**6, min_free_bytes=0), dataset="d")
    cache.begin_epoch(0)
    for number in range(3):
        cache.store_raw(key(number), [bytes([number]) * 5000])
    block = cache.decoded(key(0, "t"), record_bytes=1000)
    for row in (1, 3):
        block.write(row, [memoryview(ROW)])
    block.release()
    yield cache
    cache.close()


def entry(tmp_path: Path, key: EntryKey) -> Path:
    """The file of an entry."""
    (found,) = tmp_path.glob(f"*/{key.file_name}")
    return found


def change(path: Path, place: int) -> None:
    """Change one byte."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_status_counts_what_is_there(tmp_path: Path, cache: DiskCache) -> None:
    """Entries by kind, their bytes, rows, and who uses the folder now."""
    entry(tmp_path, key(2)).write_bytes(b"not ours")
    (found,) = cache_status(str(tmp_path))
    assert (found.raw_entries, found.raw_bytes) == (2, 2 * (4096 + 5000))
    assert (found.decoded_entries, found.decoded_rows, found.decoded_bytes) == (1, 2, 4096 + 4000)
    assert (found.data_sets, found.foreign, found.processes) == (1, 1, 1)
    cache.close()
    assert cache_status(str(tmp_path))[0].processes == 0


def test_a_sound_cache_has_no_findings(tmp_path: Path, cache: DiskCache) -> None:
    """All entries are read, also of blocks that are not complete."""
    report = verify_cache(str(tmp_path))
    assert (report.findings, report.entries) == ([], 4)
    assert report.num_bytes == 3 * (4096 + 5000) + 4096 + 4000


def test_every_damage_is_found(tmp_path: Path, cache: DiskCache) -> None:
    """A changed payload, a changed row, a cut file and a file of somebody else are one finding each."""
    change(entry(tmp_path, key(0)), 5000)
    entry(tmp_path, key(1)).write_bytes(entry(tmp_path, key(1)).read_bytes()[:-1])
    entry(tmp_path, key(2)).write_bytes(b"not ours")
    change(entry(tmp_path, key(0, "t")), 4096 + 3000)
    found = {Path(finding.file).name: finding for finding in verify_cache(str(tmp_path)).findings}
    assert {name: finding.kind for name, finding in found.items()} == {
        key(0).file_name: "cache_damaged",
        key(1).file_name: "cache_damaged",
        key(2).file_name: "not_an_entry",
        key(0, "t").file_name: "cache_damaged",
    }
    assert "rows 3 have" in found[key(0, "t").file_name].message


def test_clearing_removes_what_is_ours(tmp_path: Path, cache: DiskCache) -> None:
    """Entries go, files of others stay, and a process that uses the cache goes on within its budget."""
    entry(tmp_path, key(2)).write_bytes(b"not ours")
    (tmp_path / "notes.txt").write_text("mine")
    report = clear_cache(str(tmp_path))
    assert (report.entries, report.num_bytes, report.kept) == (3, 2 * (4096 + 5000) + 4096 + 4000, 1)
    assert entry(tmp_path, key(2)).read_bytes() == b"not ours"
    assert (tmp_path / "notes.txt").exists()
    assert cache.raw(key(0)) is None
    assert cache.store_raw(key(0), [bytes(5000)]) is not None
    assert verify_cache(str(tmp_path)).entries == 2


def test_where_no_cache_is_nothing_is_done(tmp_path: Path) -> None:
    """A folder without a cache, or none at all, is an error, and nothing is made in it."""
    (tmp_path / "janus-cache-v1-u0").mkdir()
    for action in (cache_status, verify_cache, clear_cache):
        with pytest.raises(ObjectNotFoundError, match="no cache of this user"):
            action(str(tmp_path))
        with pytest.raises(ObjectNotFoundError, match="no such folder"):
            action(str(tmp_path / "no"))
        with pytest.raises(StorageError, match="Not a directory"):
            action(__file__)
    assert [path.name for path in tmp_path.rglob("*")] == ["janus-cache-v1-u0"]
