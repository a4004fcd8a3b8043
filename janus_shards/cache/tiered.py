"""Memory over disk, for decoded rows: each comes from the fastest tier that has it, and goes to those that lack it."""

import threading
from collections import Counter
from typing import Any

from janus_shards.cache.base import DecodedRows, EntryKey, RecordBuffers
from janus_shards.cache.disk import DiskCache
from janus_shards.cache.memory import MemoryCache


class TieredCache:
    """Decoded rows in memory, on disk, or in both. Safe to use from many threads; pickles without the rows in memory.

    Args:
        disk: The SSD tier.
        memory: The memory tier, if there is one.
        keeps_decoded: Whether decoded rows go to disk.
    """

    def __init__(self, disk: DiskCache, memory: MemoryCache | None, *, keeps_decoded: bool) -> None:
        self.disk = disk
        self.memory = memory
        self.keeps_decoded = keeps_decoded
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.disk, self.memory, self.keeps_decoded)

    def begin_epoch(self, epoch: int, *, whole: bool = True) -> None:
        """See ``DiskCache.begin_epoch``."""
        self.disk.begin_epoch(epoch, whole=whole)
        if self.memory is not None:
            self.memory.begin_epoch(whole=whole)

    def decoded(self, key: EntryKey, *, record_bytes: int, num_rows: int | None = None) -> DecodedRows:
        """See ``DiskCache.decoded``."""
        disk = None
        if self.keeps_decoded:
            disk = self.disk.decoded(key, record_bytes=record_bytes, num_rows=num_rows)
        return _TieredRows(self, key, disk)

    def count(self, tier: str) -> None:
        """Count a row by the tier that it came from."""
        with self._lock:
            self._counts[tier] += 1

    def stats(self) -> dict[str, int]:
        """Rows by where they came from (``memory_hits``, ``disk_hits``, ``row_misses``), bytes in memory, and what the
        SSD tier counts.
        """
        with self._lock:
            counts = self._counts.copy()
        return {
            "memory_hits": counts["memory"],
            "disk_hits": counts["disk"],
            "row_misses": counts["store"],
            "memory_bytes": self.memory.num_bytes if self.memory is not None else 0,
            **self.disk.stats(),
        }

    def close(self) -> None:
        """See ``DiskCache.close``. The rows in memory stay."""
        self.disk.close()


class _TieredRows:
    """The rows of one block, over both tiers."""

    __slots__ = ("_cache", "_disk", "_key", "_memory")

    def __init__(self, cache: TieredCache, key: EntryKey, disk: DecodedRows | None) -> None:
        self._cache = cache
        self._key = key
        self._disk = disk
        self._memory = cache.memory

    def has(self, row: int) -> bool:
        """See ``DecodedRows``."""
        if self._disk is not None and self._disk.has(row):
            return True
        return self._memory is not None and self._memory.has(self._key, row)

    def read_into(self, row: int, buffers: RecordBuffers) -> bool:
        """See ``DecodedRows``."""
        memory = self._memory
        if memory is not None and memory.get_into(self._key, row, buffers):
            self._cache.count("memory")
            return True
        if self._disk is not None and self._disk.read_into(row, buffers):
            self._cache.count("disk")
            if memory is not None:
                memory.put(self._key, row, buffers)
            return True
        self._cache.count("store")
        return False

    def write(self, row: int, buffers: RecordBuffers) -> None:
        """See ``DecodedRows``."""
        if self._disk is not None:
            self._disk.write(row, buffers)
        if self._memory is not None:
            self._memory.put(self._key, row, buffers)

    def release(self) -> None:
        """See ``DecodedRows``."""
        if self._disk is not None:
            self._disk.release()


def open_tiered_cache(disk: DiskCache) -> TieredCache:
    """The tiers that a cache's options ask for."""
    budget = disk.options.memory_budget_bytes
    return TieredCache(disk, MemoryCache(budget) if budget else None, keeps_decoded=disk.options.decoded)


def _restore(disk: DiskCache, memory: MemoryCache | None, keeps_decoded: bool) -> TieredCache:
    return TieredCache(disk, memory, keeps_decoded=keeps_decoded)
