"""Rows of one shard whose stored bytes are fetched together: from merged ranges of the store, or from a cached block.

Which rows belong together, and when they are asked for, is ``fetch``'s business.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from janus_shards.cache.base import EntryKey
from janus_shards.cache.disk import DiskCache
from janus_shards.cache.raw import RawEntry
from janus_shards.catalog import Catalog
from janus_shards.pipeline.stats import StoreCounters
from janus_shards.sample import RawBytes
from janus_shards.storage.ranges import RangePlan, plan_ranges

# One request more costs about 20 ms on an object store; at 50 MB/s and 16 requests at once that is 64 KiB of gap.
_MAX_GAP_BYTES = 64 << 10
_MAX_WASTE = 1.0
# Tar headers, padding and a caption between two wanted fields cost less to fetch than to leave out.
_FREE_GAP_BYTES = 4 << 10

#: Says of a field and a sample id whether its bytes are not needed.
Skip = Callable[[str, int], bool]


@dataclass(frozen=True)
class StoredSpans:
    """Where the stored, not inlined fields of some rows of one shard lie; lists of equal length.

    Attributes:
        shard: Number of the shard.
        owners: Sample id of each span.
        fields: Its field.
        starts: Its first byte in the shard.
        sizes: Its length.
    """

    shard: int
    owners: list[int]
    fields: list[str]
    starts: list[int]
    sizes: list[int]

    @classmethod
    def of(
        cls, catalog: Catalog, shard: int, ids: NDArray[np.int64], fields: Sequence[str], skip: Skip | None = None
    ) -> "StoredSpans":
        """Look the rows up in the index of their shard."""
        index = catalog.index(shard)
        rows = ids - catalog.row_starts[shard]
        spans = cls(shard, [], [], [], [])
        for field in fields:
            found, inline = index.spans(field, rows), index.inline_many(field, rows)
            for at, sample_id in enumerate(ids.tolist()):
                if inline[at] is None and found.sizes[at] > 0 and not (skip is not None and skip(field, sample_id)):
                    spans.owners.append(sample_id)
                    spans.fields.append(field)
                    spans.starts.append(int(found.offsets[at]))
                    spans.sizes.append(int(found.sizes[at]))
        return spans

    @property
    def num_bytes(self) -> int:
        """Bytes of all spans."""
        return sum(self.sizes)

    def ranges(self) -> RangePlan:
        """What to ask the store for."""
        starts = np.array(self.starts, np.int64)
        return plan_ranges(
            starts,
            starts + np.array(self.sizes, np.int64),
            max_gap=_MAX_GAP_BYTES,
            max_waste=_MAX_WASTE,
            free_gap=_FREE_GAP_BYTES,
        )

    def fetch(self, catalog: Catalog, counters: StoreCounters) -> list[memoryview]:
        """The bytes of each span, from merged ranges."""
        plan = self.ranges()
        bodies = []
        for start, stop in zip(plan.starts.tolist(), plan.stops.tolist(), strict=True):
            bodies.append(memoryview(catalog.read(self.shard, start, stop)))
            counters.add(1, stop - start)
        firsts = plan.starts.tolist()
        return [
            bodies[body][start - firsts[body] : start - firsts[body] + size]
            for start, size, body in zip(self.starts, self.sizes, plan.range_of.tolist(), strict=True)
        ]


class Group:
    """Rows that are fetched together, and who still needs them.

    Attributes:
        ids: Their sample ids.
        num_bytes: What the group may hold in memory.
        unasked: Rows that no batch has asked for yet.
        asked: Times that a batch asked for a row and has not finished with it.
        was_cached: Whether the bytes were in the cache before they were asked for.
        ready: Set once the bytes are here or the fetch has failed.
    """

    __slots__ = ("_entry", "_error", "_found", "_places", "asked", "ids", "num_bytes", "ready", "unasked", "was_cached")

    def __init__(self, ids: list[int], num_bytes: int) -> None:
        self.ids = ids
        self.num_bytes = num_bytes
        self.unasked = set(ids)
        self.asked = 0
        self.was_cached = False
        self.ready = threading.Event()
        self._error: BaseException | None = None
        self._found: dict[tuple[int, str], memoryview] = {}
        self._entry: RawEntry | None = None
        self._places: dict[tuple[int, str], tuple[int, int]] = {}

    def fail(self, error: BaseException) -> None:
        """Wake those who wait for the bytes, with an error unless the bytes are here."""
        if not self.ready.is_set():
            self._error = error
            self.ready.set()

    def fill(self, spans: StoredSpans, bodies: Sequence[memoryview]) -> None:
        """The bytes have come from the store; those of other rows are left out."""
        mine = set(self.ids)
        rows = zip(spans.owners, spans.fields, bodies, strict=True)
        self._found = {(owner, field): body for owner, field, body in rows if owner in mine}
        self.ready.set()

    def fill_from(self, entry: RawEntry, places: dict[tuple[int, str], tuple[int, int]], *, was_cached: bool) -> None:
        """The bytes lie in a cached entry."""
        self._entry, self._places, self.was_cached = entry, places, was_cached
        self.ready.set()

    def take(self, sample_id: int, field: str) -> RawBytes | None:
        """The bytes of a field once they are here; ``None`` when they were not fetched."""
        self.ready.wait()
        if self._error is not None:
            raise self._error
        if self._entry is not None:
            place = self._places.get((sample_id, field))
            return None if place is None else self._entry.read(*place)
        return self._found.get((sample_id, field))


class FetchRows:
    """The task that fills a group from the store."""

    def __init__(self, group: Group, spans: StoredSpans, catalog: Catalog, counters: StoreCounters) -> None:
        self._group = group
        self._spans = spans
        self._catalog = catalog
        self._counters = counters

    def __call__(self) -> None:
        """Fetch and wake those who wait."""
        try:
            self._fill()
        except BaseException as exc:  # noqa: BLE001  thread border: the worker that needs the bytes raises it
            self._group.fail(exc)

    def _fill(self) -> None:
        self._group.fill(self._spans, self._spans.fetch(self._catalog, self._counters))


class FetchBlock(FetchRows):
    """The task that fills a group from the cached block that its rows belong to, and caches the block before if it may.

    Args:
        group: Rows to fill.
        spans: Their spans.
        catalog: The data set.
        counters: Where requests and bytes are counted.
        disk: The cache.
        key: Name of the block's entry.
        whole: Spans of all rows of the block, in the order of the entry's payload.
        may_store: Whether to fetch and cache the block when it is not there.
    """

    def __init__(
        self,
        group: Group,
        spans: StoredSpans,
        catalog: Catalog,
        counters: StoreCounters,
        *,
        disk: DiskCache,
        key: EntryKey,
        whole: StoredSpans,
        may_store: bool,
    ) -> None:
        super().__init__(group, spans, catalog, counters)
        self._disk = disk
        self._key = key
        self._whole = whole
        self._may_store = may_store

    def _fill(self) -> None:
        entry = self._disk.raw(self._key)
        was_cached = entry is not None
        if entry is None and self._may_store and self._disk.admits(self._whole.num_bytes):
            # One process of the node fetches a block; the others wait for it and find it in the cache.
            with self._disk.flight(self._key):
                entry = self._disk.raw(self._key)
                if entry is None:
                    bodies = self._whole.fetch(self._catalog, self._counters)
                    entry = self._disk.store_raw(self._key, bodies)
                    if entry is None:
                        self._group.fill(self._whole, bodies)
                        return
        if entry is None:
            super()._fill()
        else:
            self._group.fill_from(entry, self._places(), was_cached=was_cached)

    def _places(self) -> dict[tuple[int, str], tuple[int, int]]:
        """Start and size in the payload, by sample id and field."""
        whole = self._whole
        starts = np.concatenate([[0], np.cumsum(whole.sizes)]).tolist()
        rows = zip(whole.owners, whole.fields, starts, whole.sizes, strict=False)
        return {(owner, field): (start, size) for owner, field, start, size in rows}
