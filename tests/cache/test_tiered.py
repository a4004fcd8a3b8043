import pickle
from collections.abc import Callable

import numpy as np
import pytest

from janus_shards.cache.base import DecodedRows, EntryKey
from janus_shards.cache.disk import DiskCache
from janus_shards.cache.memory import MemoryCache
from janus_shards.cache.tiered import TieredCache, open_tiered_cache
from tests.contracts.cache import NUM_ROWS, RECORD_BYTES, DecodedRowsContract, read, record, write

OpenCache = Callable[..., DiskCache]
MakeKey = Callable[..., EntryKey]


def open_block(tiers: TieredCache, key: MakeKey, number: int = 0) -> DecodedRows:
    """The decoded rows of a block."""
    return tiers.decoded(key(number, transform="t"), record_bytes=RECORD_BYTES)


class TestBothTiers(DecodedRowsContract):
    @pytest.fixture
    def rows(self, open_cache: OpenCache, key: MakeKey) -> DecodedRows:
        """A block with room in memory and on disk."""
        return open_block(TieredCache(open_cache(), MemoryCache(10**6), keeps_decoded=True), key)


class TestDiskBelowFullMemory(DecodedRowsContract):
    @pytest.fixture
    def rows(self, open_cache: OpenCache, key: MakeKey) -> DecodedRows:
        """A block with room for two rows in memory."""
        return open_block(TieredCache(open_cache(), MemoryCache(2 * RECORD_BYTES), keeps_decoded=True), key)


def test_memory_is_filled_from_the_disk(open_cache: OpenCache, key: MakeKey) -> None:
    """A process that starts with a full disk reads each row from there once, and from memory ever after."""
    block = open_block(TieredCache(open_cache(), None, keeps_decoded=True), key)
    for row in range(NUM_ROWS):
        write(block, row, record(row))
    block.release()
    tiers = TieredCache(open_cache(), MemoryCache(2 * RECORD_BYTES), keeps_decoded=True)
    block = open_block(tiers, key)
    for _ in range(3):
        for row in range(NUM_ROWS):
            np.testing.assert_array_equal(read(block, row), record(row))
    found = tiers.stats()
    # Two rows fit: they are read from disk at first, the other two each time.
    assert (found["memory_hits"], found["disk_hits"], found["row_misses"]) == (4, 8, 0)
    assert found["memory_bytes"] == 2 * RECORD_BYTES


def test_misses_are_counted(open_cache: OpenCache, key: MakeKey) -> None:
    """A row in neither tier is one miss."""
    tiers = TieredCache(open_cache(), MemoryCache(10**6), keeps_decoded=True)
    assert read(open_block(tiers, key), 0) is None
    assert tiers.stats()["row_misses"] == 1


def test_options_choose_the_tiers(open_cache: OpenCache, key: MakeKey) -> None:
    """A memory budget gives a memory tier, ``decoded`` gives decoded rows on disk; pickling keeps both choices."""
    tiers = open_tiered_cache(open_cache(memory_bytes=10**6, decoded=True))
    copied = pickle.loads(pickle.dumps(tiers))
    for each in (tiers, copied):
        write(open_block(each, key), 0, record(0))
        assert each.memory is not None
        assert each.stats()["memory_bytes"] == RECORD_BYTES
    assert copied.stats()["bytes"] > RECORD_BYTES
    copied.close()
    assert open_tiered_cache(open_cache()).memory is None
