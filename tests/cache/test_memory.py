import pickle
from collections.abc import Callable

import numpy as np
import pytest

from janus_shards.cache.base import DecodedRows, EntryKey
from janus_shards.cache.disk import DiskCache
from janus_shards.cache.memory import MemoryCache
from janus_shards.cache.tiered import TieredCache
from tests.contracts.cache import RECORD_BYTES, DecodedRowsContract, read, record, write

MakeKey = Callable[..., EntryKey]


class TestMemoryTier(DecodedRowsContract):
    @pytest.fixture
    def rows(self, open_cache: Callable[..., DiskCache], key: MakeKey) -> DecodedRows:
        """A block that is kept in memory alone."""
        tiers = TieredCache(open_cache(), MemoryCache(10**6), keeps_decoded=False)
        return tiers.decoded(key(0, transform="t"), record_bytes=RECORD_BYTES)


def put(cache: MemoryCache, key: EntryKey, row: int) -> None:
    """Keep a record."""
    cache.put(key, row, [memoryview(record(row))])


def test_rows_are_kept_until_the_budget_is_full(key: MakeKey) -> None:
    """The first rows stay, later ones are not admitted, and the budget is never exceeded."""
    cache = MemoryCache(3 * RECORD_BYTES + 10)
    for row in range(5):
        put(cache, key(row), row)
    assert [cache.has(key(row), row) for row in range(5)] == [True, True, True, False, False]
    assert cache.num_bytes == 3 * RECORD_BYTES


def test_rows_outlive_the_epoch(key: MakeKey) -> None:
    """Rows that each epoch asks for stay for good."""
    cache = MemoryCache(2 * RECORD_BYTES)
    for epoch in range(5):
        cache.begin_epoch()
        for row in range(2 * epoch, 2 * epoch + 6):
            put(cache, key(row), row)
        for row in range(2):
            assert cache.get_into(key(row), row, [memoryview(np.empty(RECORD_BYTES, np.uint8))])


def test_idle_blocks_make_room(key: MakeKey) -> None:
    """What was not asked for during one whole epoch goes, when something else is to be kept."""
    cache = MemoryCache(2 * RECORD_BYTES)
    cache.begin_epoch()
    put(cache, key(0), 0)
    put(cache, key(1), 1)
    cache.begin_epoch()
    assert cache.get_into(key(1), 1, [memoryview(np.empty(RECORD_BYTES, np.uint8))])
    put(cache, key(2), 2)
    assert not cache.has(key(2), 2)
    cache.begin_epoch()
    put(cache, key(2), 2)
    assert [cache.has(key(number), number) for number in range(3)] == [False, True, True]


def test_pickles_without_rows(key: MakeKey) -> None:
    """A worker process gets the budget and starts with nothing."""
    cache = MemoryCache(2 * RECORD_BYTES)
    put(cache, key(0), 0)
    assert not pickle.loads(pickle.dumps(cache)).has(key(0), 0)


def test_writing_through_memory_alone_needs_no_disk(open_cache: Callable[..., DiskCache], key: MakeKey) -> None:
    """Rows kept in memory alone leave the disk empty."""
    disk = open_cache()
    tiers = TieredCache(disk, MemoryCache(10**6), keeps_decoded=False)
    block = tiers.decoded(key(0, transform="t"), record_bytes=RECORD_BYTES)
    write(block, 0, record(0))
    assert read(block, 0) is not None
    assert disk.stats()["admitted"] == 0
