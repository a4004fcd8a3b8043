"""The SSD tier: entries in one folder, shared by the processes of a node; every trouble with it is a miss."""

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from janus_shards.cache.base import CacheOptions, EntryKey, Pieces
from janus_shards.cache.decoded import DecodedEntry
from janus_shards.cache.locks import FileLocks, RangeLocks
from janus_shards.cache.policy import in_share
from janus_shards.cache.raw import RawEntry, find_raw, store_raw
from janus_shards.cache.shelf import Shelf, block_place

# Longer than any sensible fetch; afterwards the block is fetched a second time, which is harmless.
_FLIGHT_WAIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Which share of a data set's entries to keep, by kind; from ``policy.kind_shares`` and ``policy.shares``."""

    raw: float = 1.0
    decoded: float = 1.0


class DiskCache:
    """Entries on a local disk. Safe to use from many threads and from forked children; pickles by its options.

    Made by ``open_disk_cache``. No method raises for what the disk does: the first trouble is logged once as a warning,
    and from then on entries are missed, or at least none are stored.

    Args:
        options: Folder and budgets.
        dataset: Fingerprint of the data set that is read through it.
        shares: Which part of it to keep.
        locks: How processes exclude each other.
        max_open: Entries whose files are open at a time; a part of what the process may open when not given.
        flight_wait_s: How long to wait for another one that fetches the same block.
    """

    def __init__(
        self,
        options: CacheOptions,
        *,
        dataset: str,
        shares: Shares | None = None,
        locks: RangeLocks | None = None,
        max_open: int | None = None,
        flight_wait_s: float = _FLIGHT_WAIT_S,
    ) -> None:
        self.options = options
        self._dataset = dataset
        self._shares = shares or Shares()
        self._flight_wait_s = flight_wait_s
        self._shelf = Shelf(options, dataset=dataset, locks=locks or FileLocks(), max_open=max_open)
        self._reset()
        _living.add(self)

    def _reset(self) -> None:
        self._flights = _Flights()
        self._lock = threading.Lock()
        # Decoded entries in use, with the number of their users.
        self._blocks: dict[EntryKey, tuple[DecodedEntry, int]] = {}

    def after_fork(self) -> None:
        """In a forked child: begin anew, without the parent's part in the budget and without its locks."""
        self._shelf.after_fork()
        self._reset()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.options, self._dataset, self._shares)

    def begin_epoch(self, epoch: int, *, whole: bool = True) -> None:
        """Entries touched from now on count as touched in this epoch; what no consumer touches may be evicted.

        Args:
            epoch: The consumer's count.
            whole: Whether the epoch before it was served from its start to its end.
        """
        self._shelf.begin_epoch(epoch, whole=whole)

    def admits(self, num_bytes: int) -> bool:
        """Whether an entry of about so many bytes would be stored now, as far as room goes."""
        budget = self._shelf.budget()
        if budget is not None:
            with self._shelf.trouble("leasing from the budget"):
                return budget.admits(num_bytes + _HEADER_BYTES)
        return False

    @contextmanager
    def flight(self, key: EntryKey) -> Iterator[None]:
        """Run the block while no other thread or process runs one for this entry.

        Whoever waited should look for the entry again before fetching it. Where the file system has no locks, or the
        other one takes a minute, two may run at once, which costs a second fetch.
        """
        digest = key.digest
        wait_s = self._flight_wait_s
        with self._flights.alone(digest, wait_s), self._shelf.locked(block_place(digest), limit_s=wait_s):
            yield

    def raw(self, key: EntryKey) -> RawEntry | None:
        """The stored bytes of a block, or ``None`` when they are not here."""
        found = find_raw(self._shelf, key)
        self._shelf.count("raw_misses" if found is None else "raw_hits")
        return found

    def store_raw(self, key: EntryKey, pieces: Pieces) -> RawEntry | None:
        """Keep the stored bytes of a block.

        Args:
            key: Names them.
            pieces: The payload, one piece after the other. It must follow from the key and the shard alone.

        Returns:
            The entry, or ``None`` when it was not admitted or the disk failed.
        """
        return store_raw(self._shelf, key, pieces) if in_share(key.digest, self._shares.raw) else None

    def decoded(self, key: EntryKey, *, record_bytes: int, num_rows: int | None = None) -> DecodedEntry:
        """The decoded rows of a block: those that are here, and room for the others as far as the budget goes.

        Args:
            key: Names them.
            record_bytes: Length of a record: all outputs of a row together.
            num_rows: Rows of the block; those between ``row_start`` and ``row_stop`` when not given.

        Returns:
            What is shared by all who have the block open; to be released once by each of them.
        """
        with self._lock:
            entry, users = self._blocks.get(key, (None, 0))
            if entry is None:
                entry = DecodedEntry(
                    self._shelf,
                    key,
                    num_rows=key.row_stop - key.row_start if num_rows is None else num_rows,
                    record_bytes=record_bytes,
                    share=self._shares.decoded,
                    on_release=self._release,
                )
                entry.open()
            self._blocks[key] = entry, users + 1
        return entry

    def _release(self, entry: DecodedEntry) -> None:
        with self._lock:
            _, users = self._blocks.get(entry.key, (None, 0))
            if users > 1:
                self._blocks[entry.key] = entry, users - 1
                return
            self._blocks.pop(entry.key, None)
        entry.close()

    def stats(self) -> dict[str, int]:
        """What this process did: raw hits and misses, entries admitted, refused, evicted and damaged; and the bytes of
        all entries of the folder.
        """
        counts = self._shelf.counts()
        names = ("raw_hits", "raw_misses", "admitted", "refused", "damaged")
        opened = self._shelf.open()
        budget = opened.budget if opened is not None else None
        return {name: counts[name] for name in names} | {
            "evicted": budget.evicted if budget is not None else 0,
            "bytes": budget.total_bytes() if budget is not None else 0,
        }

    def close(self) -> None:
        """Give back what was leased from the budget; the next use opens the folder again."""
        self._shelf.close()


def open_disk_cache(options: CacheOptions, *, dataset: str, shares: Shares | None = None) -> DiskCache:
    """Open the cache of a directory.

    Args:
        options: Folder and budgets.
        dataset: Fingerprint of the data set that is read through it.
        shares: Which part of it to keep; all, as far as the budget goes, when not given.

    Raises:
        ConfigError: The directory is no folder, or the cache's folder in it belongs to somebody else.
    """
    cache = _restore(options, dataset, shares)
    cache._shelf.open()
    return cache


def _restore(options: CacheOptions, dataset: str, shares: Shares | None) -> DiskCache:
    return DiskCache(options, dataset=dataset, shares=shares)


class _Flights:
    """One block at a time, between the threads of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[bytes, tuple[threading.Lock, int]] = {}

    @contextmanager
    def alone(self, digest: bytes, wait_s: float) -> Iterator[None]:
        """Run the block alone among those with this digest."""
        with self._lock:
            lock, users = self._locks.get(digest, (threading.Lock(), 0))
            self._locks[digest] = lock, users + 1
        held = lock.acquire(timeout=wait_s)
        try:
            yield
        finally:
            if held:
                lock.release()
            with self._lock:
                users = self._locks[digest][1]
                self._locks[digest] = lock, users - 1
                if users == 1:
                    del self._locks[digest]


# Close enough for deciding what to fetch; what is stored is counted to the byte.
_HEADER_BYTES = 4096

_living: "weakref.WeakSet[DiskCache]" = weakref.WeakSet()


def _after_fork() -> None:
    for cache in list(_living):
        cache.after_fork()


os.register_at_fork(after_in_child=_after_fork)
