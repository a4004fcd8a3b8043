"""Where workers get stored bytes from: straight from local shards, or from ranges fetched ahead of a remote store.

A remote store is read block by block: one request brings all wanted fields of the rows that this rank will need from a
block, long before their turn. Rows of the first batches are read singly, so that the first batch does not wait for
whole blocks of every lane.
"""

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from janus_shards.catalog import Catalog
from janus_shards.errors import FormatError, JanusShardsError, StorageError
from janus_shards.pipeline.caching import RawBlocks
from janus_shards.pipeline.groups import FetchBlock, FetchRows, Group, StoredSpans
from janus_shards.pipeline.plan import BatchPlan, Stretch
from janus_shards.pipeline.prefetch import WorkerPool
from janus_shards.pipeline.stats import StoreCounters
from janus_shards.sample import RawBytes

# Requests in flight. One stream of an object store brings 50 to 100 MB/s; 16 fill a 10 Gbit/s link.
NUM_FETCH_THREADS = 16

#: Says of a block, a field and a sample id whether its bytes are not needed.
BlockSkip = Callable[[int, str, int], bool]


class RowSource(Protocol):
    """Gives workers the stored bytes of one field of one planned row."""

    def wait(self, plan: BatchPlan, rows: range) -> None:
        """Block until the bytes of these rows are here, or have failed to come. Called from several threads."""

    def read(self, plan: BatchPlan, row: int, field: str) -> RawBytes:
        """Exactly the stored bytes; blocks until they are here. Called from several threads."""

    def finish(self, plan: BatchPlan) -> int:
        """All rows of the batch were read; their bytes may be dropped. Returns how many came from the cache."""

    def plans(self, stretches: Iterator[Stretch], is_ours: Callable[[int], bool]) -> Iterator[BatchPlan]:
        """Plans of the steps for which ``is_ours`` holds, in order; fetching for those behind may have begun."""

    def close(self) -> None:
        """End whatever is under way; workers that wait for bytes get an error."""


class DirectSource:
    """Reads each field where it lies: for local shards, where a read costs less than any bookkeeping."""

    def __init__(self, catalog: Catalog, fields: Sequence[str], counters: StoreCounters) -> None:
        self._catalog = catalog
        self._fields = fields
        self._counters = counters
        # Half a microsecond a read, which is worth it where a read is all there is to do.
        self._readers: dict[int, Callable[[int, int], RawBytes]] = {}
        self._sizes: deque[int] = deque()

    def wait(self, plan: BatchPlan, rows: range) -> None:
        """See ``RowSource``."""

    def read(self, plan: BatchPlan, row: int, field: str) -> RawBytes:
        """See ``RowSource``."""
        place = plan.fields[field]
        start = place.offsets[row]
        shard = plan.shards[row]
        size = place.sizes[row]
        try:
            read = self._readers.get(shard)
            if read is None:
                read = self._readers[shard] = self._catalog.reader(shard)
            self._sizes.append(size)
            return read(start, start + size)
        except (StorageError, FormatError) as exc:
            raise exc.of_sample(plan.keys[row], field) from exc

    def finish(self, plan: BatchPlan) -> int:
        """See ``RowSource``."""
        # Counted by batch, since a lock for each read would cost more than it tells.
        count = num_bytes = 0
        while self._sizes:
            count, num_bytes = count + 1, num_bytes + self._sizes.popleft()
        self._counters.add(count, num_bytes)
        return 0

    def plans(self, stretches: Iterator[Stretch], is_ours: Callable[[int], bool]) -> Iterator[BatchPlan]:
        """See ``RowSource``."""
        for stretch in stretches:
            yield from stretch.plans(self._catalog, self._fields, is_ours=is_ours, prepare=lambda shards: None)

    def close(self) -> None:
        """See ``RowSource``."""


class BlockSource:
    """Fetches merged ranges of a remote store ahead of the workers.

    Args:
        catalog: The data set.
        fields: Wanted fields.
        counters: Where requests and bytes are counted.
        limit_bytes: Blocks held at once; when they would exceed it, rows are fetched singly.
        num_ahead: Batches whose bytes are asked for before their turn.
        num_single: Batches at the start whose rows are fetched singly.
        skip: Says of a block, a field and a sample id that its bytes are not needed: the decoded row is cached.
        raw: The cache of stored bytes.
    """

    def __init__(
        self,
        catalog: Catalog,
        fields: Sequence[str],
        *,
        counters: StoreCounters,
        limit_bytes: int,
        num_ahead: int,
        num_single: int,
        skip: BlockSkip | None = None,
        raw: RawBlocks | None = None,
    ) -> None:
        self._catalog = catalog
        self._fields = fields
        self._skip = skip
        self._raw = raw
        self._pool = WorkerPool(NUM_FETCH_THREADS, name="fetch")
        self._counters = counters
        self._limit_bytes = limit_bytes
        self._num_ahead = num_ahead
        self._num_single = num_single
        self._stretches: tuple[Stretch, ...] = ()
        self._closed = False
        self._lock = threading.Lock()
        self._held_bytes = 0
        self._groups: dict[int, Group] = {}

    def wait(self, plan: BatchPlan, rows: range) -> None:
        """See ``RowSource``."""
        for sample_id in plan.sample_ids[rows.start : rows.stop].tolist():
            self._groups[sample_id].ready.wait()

    def read(self, plan: BatchPlan, row: int, field: str) -> RawBytes:
        """See ``RowSource``."""
        sample_id = int(plan.sample_ids[row])
        try:
            data = self._groups[sample_id].take(sample_id, field)
            if data is None:
                # It was not fetched because a decoded row made it unnecessary, but that row is gone or damaged.
                place = plan.fields[field]
                start, stop = place.offsets[row], place.offsets[row] + place.sizes[row]
                data = self._catalog.read(plan.shards[row], start, stop)
                self._counters.add(1, stop - start)
            return data
        except (StorageError, FormatError) as exc:
            # A new error, since many rows may share the failed transfer.
            raise exc.of_sample(plan.keys[row], field) from exc

    def finish(self, plan: BatchPlan) -> int:
        """See ``RowSource``."""
        cached = 0
        with self._lock:
            for sample_id in plan.sample_ids.tolist():
                group = self._groups[sample_id]
                cached += group.was_cached
                group.asked -= 1
                if not group.asked and not group.unasked:
                    self._held_bytes -= group.num_bytes
                    for key in group.ids:
                        del self._groups[key]
        return cached

    def plans(self, stretches: Iterator[Stretch], is_ours: Callable[[int], bool]) -> Iterator[BatchPlan]:
        """See ``RowSource``."""
        waiting: deque[BatchPlan] = deque()
        passed = 0
        for plan in self._planned(stretches, is_ours):
            self._request(plan, single=passed + len(waiting) < self._num_single)
            waiting.append(plan)
            # The look-ahead grows batch by batch: the first one is on its way as soon as its own requests are.
            if len(waiting) > min(self._num_ahead, passed):
                yield waiting.popleft()
                passed += 1
        yield from waiting

    def close(self) -> None:
        """See ``RowSource``."""
        with self._lock:
            self._closed = True
            groups = set(self._groups.values())
        for group in groups:
            group.fail(_closed())
        for task in self._pool.close():
            if isinstance(task, _LoadIndex):
                task.done.set()

    def _planned(self, stretches: Iterator[Stretch], is_ours: Callable[[int], bool]) -> Iterator[BatchPlan]:
        """Plans, while ``_stretches`` holds the stretch they are in and the one behind it."""
        current = next(stretches, None)
        while current is not None:
            following = next(stretches, None)
            self._stretches = (current,) if following is None else (current, following)
            yield from current.plans(self._catalog, self._fields, is_ours=is_ours, prepare=self._load_indexes)
            current = following

    def _load_indexes(self, shards: NDArray[np.int64]) -> None:
        """Load indexes at once, so that planning does not wait for them one by one."""
        loads = [_LoadIndex(self._catalog, shard) for shard in np.unique(shards).tolist()]
        for load in loads:
            self._submit(load)
        for load in loads:
            load.done.wait()

    def _submit(self, task: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                raise _closed()
            self._pool.submit(task)

    def _request(self, plan: BatchPlan, *, single: bool) -> None:
        for row, sample_id in enumerate(plan.sample_ids.tolist()):
            # A row may be asked for again while it is held: the repeats of a padded last step.
            if not self._ask(sample_id):
                rows = self._rows_with(sample_id, plan, row, single)
                self._start(rows, plan.shards[row], plan.blocks[row], single=single)
                self._ask(sample_id)

    def _ask(self, sample_id: int) -> bool:
        with self._lock:
            group = self._groups.get(sample_id)
            if group is None:
                return False
            group.unasked.discard(sample_id)
            group.asked += 1
            return True

    def _rows_with(self, sample_id: int, plan: BatchPlan, row: int, single: bool) -> NDArray[np.int64]:
        """The rows to fetch together with one that is needed now, itself first."""
        others: list[int] = []
        if not single:
            turn, step = plan.turns[row], plan.step
            rows = np.concatenate([stretch.rows_of(turn, step) for stretch in self._stretches]).tolist()
            # A padded last step may hold a row twice.
            others = [other for other in dict.fromkeys(rows) if other != sample_id and other not in self._groups]
        return np.array([sample_id, *others], dtype=np.int64)

    def _start(self, ids: NDArray[np.int64], shard: int, block: int, *, single: bool) -> None:
        group, spans = self._group(ids, shard, block)
        if len(ids) > 1 and not self._may_hold(group):
            group, spans = self._group(ids[:1], shard, block)
        with self._lock:
            self._held_bytes += group.num_bytes
            for sample_id in group.ids:
                self._groups[sample_id] = group
        if spans.owners:
            self._submit(self._task(group, spans, block, may_store=not single))
        else:
            group.ready.set()

    def _may_hold(self, group: Group) -> bool:
        return self._held_bytes + group.num_bytes <= self._limit_bytes

    def _group(self, ids: NDArray[np.int64], shard: int, block: int) -> tuple[Group, StoredSpans]:
        """An empty group for these rows, and the spans that fill it."""
        skip = None if self._skip is None else functools.partial(self._skip, block)
        spans = StoredSpans.of(self._catalog, shard, ids, self._fields, skip)
        return Group(ids.tolist(), spans.num_bytes), spans

    def _task(self, group: Group, spans: StoredSpans, block: int, *, may_store: bool) -> FetchRows:
        if self._raw is None:
            return FetchRows(group, spans, self._catalog, self._counters)
        found = self._raw.blocks[block]
        return FetchBlock(
            group,
            spans,
            self._catalog,
            self._counters,
            disk=self._raw.disk,
            key=self._raw.blocks.key(found, fields=self._fields),
            whole=StoredSpans.of(self._catalog, spans.shard, found.ids, self._fields),
            may_store=may_store,
        )


def _closed() -> StorageError:
    return StorageError("the loader was closed while bytes were on their way", kind="closed")


class _LoadIndex:
    """The task that loads one index."""

    def __init__(self, catalog: Catalog, shard: int) -> None:
        self._catalog = catalog
        self._shard = shard
        self.done = threading.Event()

    def __call__(self) -> None:
        try:
            self._catalog.index(self._shard)
        except JanusShardsError:
            pass  # planning meets the same error in its own thread and raises it in order
        finally:
            self.done.set()


def open_source(
    catalog: Catalog,
    fields: Sequence[str],
    *,
    counters: StoreCounters,
    limit_bytes: int,
    num_ahead: int,
    num_single: int,
    skip: BlockSkip | None = None,
    raw: RawBlocks | None = None,
) -> RowSource:
    """The source that suits the storage of a data set; see ``BlockSource`` for the arguments."""
    if catalog.storage.is_local:
        return DirectSource(catalog, fields, counters)
    return BlockSource(
        catalog,
        fields,
        counters=counters,
        limit_bytes=limit_bytes,
        num_ahead=num_ahead,
        num_single=num_single,
        skip=skip,
        raw=raw,
    )
