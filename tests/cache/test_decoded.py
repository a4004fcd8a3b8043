import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from janus_shards.cache.base import CacheOptions, DecodedRows, EntryKey
from janus_shards.cache.decoded import DecodedEntry
from janus_shards.cache.disk import DiskCache
from tests.contracts.cache import NUM_ROWS, RECORD_BYTES, DecodedRowsContract, read, record, write

OpenCache = Callable[..., DiskCache]
MakeKey = Callable[..., EntryKey]
Entries = Callable[[], list[Path]]


def open_block(cache: DiskCache, key: MakeKey, number: int = 0) -> DecodedEntry:
    """The decoded rows of a block."""
    return cache.decoded(key(number, transform="t", rows=NUM_ROWS), record_bytes=RECORD_BYTES)


class TestDecodedEntry(DecodedRowsContract):
    @pytest.fixture
    def rows(self, open_cache: OpenCache, key: MakeKey) -> DecodedRows:
        """A block in an empty folder."""
        return open_block(open_cache(), key)


def fill(cache: DiskCache, key: MakeKey, rows: range, number: int = 0) -> None:
    """Keep some rows of a block, and let it go."""
    block = open_block(cache, key, number)
    for row in rows:
        write(block, row, record(row))
    block.release()


def present(cache: DiskCache, key: MakeKey, number: int = 0) -> list[int]:
    """Rows of a block that come back; all of them right."""
    block = open_block(cache, key, number)
    found = {row: read(block, row) for row in range(NUM_ROWS)}
    block.release()
    for row, data in found.items():
        if data is not None:
            np.testing.assert_array_equal(data, record(row))
    return [row for row, data in found.items() if data is not None]


def test_an_incomplete_block_is_kept(open_cache: OpenCache, key: MakeKey, entries: Entries) -> None:
    """Rows of a block that was served only in part are there for the next process, and nothing unfinished is left."""
    fill(open_cache(), key, range(1, 3))
    assert present(open_cache(), key) == [1, 2]
    assert [path.suffix for path in entries()] == [".rows"]


def test_missing_rows_are_added_to_what_is_there(open_cache: OpenCache, key: MakeKey, entries: Entries) -> None:
    """A later epoch, or another rank, adds its rows to the same file."""
    fill(open_cache(), key, range(2))
    fill(open_cache(), key, range(2, 4))
    assert present(open_cache(), key) == [0, 1, 2, 3]
    assert len(entries()) == 1


def test_processes_fill_a_block_together(open_cache: OpenCache, key: MakeKey, entries: Entries) -> None:
    """Two that have the block open at once, each with its own rows, end with one file that has all of them."""
    blocks = [open_block(open_cache(), key) for _ in range(2)]
    for row in range(NUM_ROWS):
        write(blocks[row % 2], row, record(row))
    assert present(open_cache(), key) == [0, 1, 2, 3]
    assert len(entries()) == 1
    # A row that the other one has written meanwhile is not written a second time, and is there from then on.
    write(blocks[0], 1, record(9))
    np.testing.assert_array_equal(read(blocks[0], 1), record(1))


def test_a_block_is_open_once_a_process(open_cache: OpenCache, key: MakeKey) -> None:
    """All users of a block share it, and it closes with the last of them."""
    cache = open_cache()
    first, second = open_block(cache, key), open_block(cache, key)
    assert first is second
    write(first, 0, record(0))
    first.release()
    np.testing.assert_array_equal(read(second, 0), record(0))
    second.release()
    assert not second.has(0)
    assert open_block(cache, key) is not first


def test_the_budget_counts_whole_blocks(open_cache: OpenCache, key: MakeKey, entries: Entries) -> None:
    """An entry takes its full size from its first row on: what was admitted can be completed, the rest is not begun."""
    cache = open_cache(max_bytes=12_000)
    for number in range(4):
        fill(cache, key, range(1), number)
    kept = [number for number in range(4) if present(cache, key, number)]
    assert len(kept) == len(entries()) == 2
    assert sum(path.stat().st_size for path in entries()) <= 12_000
    fill(cache, key, range(1, 4), kept[0])
    assert present(cache, key, kept[0]) == [0, 1, 2, 3]


def damage(path: Path, place: int) -> None:
    """Change one byte of a file."""
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 1]))


def test_a_damaged_record_is_a_miss_and_is_mended(open_cache: OpenCache, key: MakeKey, entries: Entries) -> None:
    """One wrong byte costs one row, once: it is decoded and kept again."""
    fill(open_cache(), key, range(4))
    damage(entries()[0], 4096 + 2 * RECORD_BYTES + 17)
    cache = open_cache()
    assert present(cache, key) == [0, 1, 3]
    fill(cache, key, range(4))
    assert present(open_cache(), key) == [0, 1, 2, 3]
    assert cache.stats()["damaged"] == 1


def test_records_are_verified_once_a_process(open_cache: OpenCache, key: MakeKey, entries: Entries) -> None:
    """The checksum is compared at the first read, and not again after the block was closed and opened."""
    fill(open_cache(), key, range(4))
    cache, other = open_cache(), open_cache()
    assert present(cache, key) == [0, 1, 2, 3]
    damage(entries()[0], 4096)
    block = open_block(cache, key)
    assert block.read_into(0, [memoryview(bytearray(RECORD_BYTES))])
    block.release()
    assert present(other, key) == [1, 2, 3]


def test_verification_can_be_turned_off(open_cache: OpenCache, key: MakeKey, entries: Entries) -> None:
    """Without verification a record is delivered as it lies on disk."""
    fill(open_cache(), key, range(1))
    damage(entries()[0], 4096)
    found = read(open_block(open_cache(verify=False), key), 0)
    assert found is not None
    assert found[0] == record(0)[0] ^ 1


def test_another_transform_has_other_rows(open_cache: OpenCache, key: MakeKey) -> None:
    """Rows of one transform are never delivered for another, nor records of one length for those of another."""
    cache = open_cache()
    fill(cache, key, range(4))
    assert not cache.decoded(key(0, transform="u"), record_bytes=RECORD_BYTES).has(0)
    longer = cache.decoded(key(0, transform="t"), record_bytes=RECORD_BYTES + 1)
    longer.write(0, [memoryview(bytes(RECORD_BYTES + 1))])
    assert not longer.has(0)
    assert present(open_cache(), key) == [0, 1, 2, 3]


def test_a_block_that_vanishes_is_missed(open_cache: OpenCache, key: MakeKey, entries: Entries) -> None:
    """A file that was cut or removed while it was open is a miss; no row of another length is delivered."""
    cache = open_cache()
    fill(cache, key, range(4))
    block = open_block(cache, key)
    os.truncate(entries()[0], 4096 + 2 * RECORD_BYTES)
    assert [read(block, row) is not None for row in range(NUM_ROWS)] == [True, True, False, False]
    block.release()
    assert present(open_cache(), key) == []


def test_many_blocks_need_few_descriptors(tmp_path: Path, key: MakeKey) -> None:
    """Blocks beyond the number of files that may be open are opened again when a row is read or written."""
    cache = DiskCache(CacheOptions(directory=str(tmp_path), min_free_bytes=0), dataset="a", max_open=8)
    cache.begin_epoch(0)
    before = len(os.listdir("/proc/self/fd"))
    blocks = [open_block(cache, key, number) for number in range(40)]
    for row in range(2):
        for number, block in enumerate(blocks):
            write(block, row, record(100 * row + number))
    for row in range(2):
        for number, block in enumerate(blocks):
            np.testing.assert_array_equal(read(block, row), record(100 * row + number))
    assert len(os.listdir("/proc/self/fd")) - before <= 9
