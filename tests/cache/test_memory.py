import pickle
from collections.abc import Callable

import pytest

from janus_shards.cache.base import DecodedRows, EntryKey
from janus_shards.cache.disk import DiskCache
from janus_shards.cache.memory import MemoryCache
from janus_shards.cache.tiered import TieredCache
from tests.contracts.cache import RECORD_BYTES, DecodedRowsContract, read, record, write

MakeKey = Callable[..., EntryKey]


class TestMemoryRows(DecodedRowsContract):
    @pytest.fixture
    def rows(self, key: MakeKey) -> DecodedRows:
        """A block with room for all of its rows."""
        return MemoryCache(10**6).decoded(key(0, transform="t"))


def put(cache: MemoryCache, key: EntryKey) -> None:
    """Keep row 0 of a block."""
    write(cache.decoded(key), 0, record(0))


def held(cache: MemoryCache, key: MakeKey, *numbers: int) -> list[int]:
    """Blocks whose row 0 comes back; asking is no touching."""
    return [number for number in numbers if cache.decoded(key(number)).has(0)]


def test_rows_are_kept_until_the_budget_is_full(key: MakeKey) -> None:
    """The first rows stay, later ones are not admitted, and the budget is never exceeded."""
    cache = MemoryCache(3 * RECORD_BYTES + 10)
    for number in range(5):
        put(cache, key(number))
    assert held(cache, key, *range(5)) == [0, 1, 2]
    assert cache.num_bytes == 3 * RECORD_BYTES


def test_rows_outlive_the_epoch(key: MakeKey) -> None:
    """Rows that each epoch asks for stay for good, however many others are asked for."""
    cache = MemoryCache(2 * RECORD_BYTES)
    for epoch in range(5):
        cache.begin_epoch()
        for number in [0, 1, *range(2 * epoch, 2 * epoch + 6)]:
            put(cache, key(number))
        assert held(cache, key, *range(20)) == [0, 1]


def test_idle_blocks_make_room(key: MakeKey) -> None:
    """What was not asked for during one whole epoch goes, when something else is to be kept."""
    cache = MemoryCache(2 * RECORD_BYTES)
    cache.begin_epoch()
    put(cache, key(0))
    put(cache, key(1))
    cache.begin_epoch()
    assert read(cache.decoded(key(1)), 0) is not None
    put(cache, key(2))
    assert held(cache, key, 0, 1, 2) == [0, 1]
    cache.begin_epoch(whole=False)
    put(cache, key(2))
    assert held(cache, key, 0, 1, 2) == [0, 1]
    assert read(cache.decoded(key(1)), 0) is not None
    cache.begin_epoch()
    put(cache, key(2))
    assert held(cache, key, 0, 1, 2) == [1, 2]
    assert cache.num_bytes == 2 * RECORD_BYTES


def test_a_dropped_block_can_be_kept_again(key: MakeKey) -> None:
    """Whoever has a block open while it is dropped goes on with it, within the budget."""
    cache = MemoryCache(RECORD_BYTES)
    cache.begin_epoch()
    block = cache.decoded(key(0))
    write(block, 0, record(0))
    cache.begin_epoch()
    cache.begin_epoch()
    put(cache, key(1))
    assert read(block, 0) is None
    write(block, 0, record(0))
    assert cache.num_bytes == RECORD_BYTES
    assert held(cache, key, 0, 1) == [1]


def test_pickles_without_rows(key: MakeKey) -> None:
    """A worker process gets the budget and starts with nothing."""
    cache = MemoryCache(2 * RECORD_BYTES)
    put(cache, key(0))
    assert held(pickle.loads(pickle.dumps(cache)), key, 0) == []


def test_writing_through_memory_alone_needs_no_disk(open_cache: Callable[..., DiskCache], key: MakeKey) -> None:
    """Rows kept in memory alone leave the disk empty."""
    disk = open_cache()
    tiers = TieredCache(disk, MemoryCache(10**6), keeps_decoded=False)
    block = tiers.decoded(key(0, transform="t"), record_bytes=RECORD_BYTES)
    write(block, 0, record(0))
    assert read(block, 0) is not None
    assert disk.stats()["admitted"] == 0
