"""Memory over disk, for decoded rows: each comes from the fastest tier that has it, and goes to those that lack it."""

import threading
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
        self._memory_hits = self._disk_hits = self._misses = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.disk, self.memory, self.keeps_decoded)

    def begin_epoch(self, epoch: int, *, whole: bool = True) -> None:
        """See ``DiskCache.begin_epoch``."""
        self.disk.begin_epoch(epoch, whole=whole)
        if self.memory is not None:
            self.memory.begin_epoch(whole=whole)

    def decoded(self, key: EntryKey, *, record_bytes: int, num_rows: int | None = None) -> DecodedRows:
        """See ``DiskCache.decoded``."""
        memory = None if self.memory is None else self.memory.decoded(key)
        disk = None
        if self.keeps_decoded:
            disk = self.disk.decoded(key, record_bytes=record_bytes, num_rows=num_rows)
        return _TieredRows(self, memory, disk)

    def count(self, *, memory: int = 0, disk: int = 0, store: int = 0) -> None:
        """Count rows by the tier that they came from; ``store`` is a miss."""
        with self._lock:
            self._memory_hits += memory
            self._disk_hits += disk
            self._misses += store

    def stats(self) -> dict[str, int]:
        """Rows by where they came from (``memory_hits``, ``disk_hits``, ``row_misses``), bytes in memory, and what the
        SSD tier counts.
        """
        with self._lock:
            hits = {"memory_hits": self._memory_hits, "disk_hits": self._disk_hits, "row_misses": self._misses}
        return {
            **hits,
            "memory_bytes": self.memory.num_bytes if self.memory is not None else 0,
            **self.disk.stats(),
        }

    def close(self) -> None:
        """See ``DiskCache.close``. The rows in memory stay."""
        self.disk.close()


class _TieredRows:
    """The rows of one block, over both tiers."""

    __slots__ = ("_cache", "_disk", "_memory")

    def __init__(self, cache: TieredCache, memory: DecodedRows | None, disk: DecodedRows | None) -> None:
        self._cache = cache
        self._memory = memory
        self._disk = disk

    def has(self, row: int) -> bool:
        """See ``DecodedRows``."""
        memory, disk = self._memory, self._disk
        return (memory is not None and memory.has(row)) or (disk is not None and disk.has(row))

    def read_into(self, row: int, buffers: RecordBuffers) -> bool:
        """See ``DecodedRows``."""
        memory, disk = self._memory, self._disk
        if memory is not None and memory.read_into(row, buffers):
            self._cache.count(memory=1)
            return True
        if disk is not None and disk.read_into(row, buffers):
            self._cache.count(disk=1)
            if memory is not None:
                memory.write(row, buffers)
            return True
        self._cache.count(store=1)
        return False

    def write(self, row: int, buffers: RecordBuffers) -> None:
        """See ``DecodedRows``."""
        for tier in (self._disk, self._memory):
            if tier is not None:
                tier.write(row, buffers)

    def release(self) -> None:
        """See ``DecodedRows``."""
        for tier in (self._disk, self._memory):
            if tier is not None:
                tier.release()


def open_tiered_cache(disk: DiskCache) -> TieredCache:
    """The tiers that a cache's options ask for."""
    budget = disk.options.memory_budget_bytes
    return TieredCache(disk, MemoryCache(budget) if budget else None, keeps_decoded=disk.options.decoded)


def _restore(disk: DiskCache, memory: MemoryCache | None, keeps_decoded: bool) -> TieredCache:
    return TieredCache(disk, memory, keeps_decoded=keeps_decoded)
