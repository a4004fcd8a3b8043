"""Where workers get stored bytes from: straight from local shards, or from ranges fetched ahead of a remote store.

A remote store is read block by block: one request brings all wanted fields of the rows that this rank will need from a
block, long before their turn. Rows of the first batches are read singly, so that the first batch does not wait for
whole blocks of every lane.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from janus_shards.catalog import Catalog
from janus_shards.errors import JanusShardsError, StorageError
from janus_shards.pipeline.plan import BatchPlan, Stretch
from janus_shards.pipeline.prefetch import WorkerPool
from janus_shards.pipeline.stats import StoreCounters
from janus_shards.sample import RawBytes
from janus_shards.storage.ranges import plan_ranges

# One request more costs about 20 ms on an object store; at 50 MB/s and 16 requests at once that is 64 KiB of gap.
_MAX_GAP_BYTES = 64 << 10
_MAX_WASTE = 1.0
# Tar headers, padding and a caption between two wanted fields cost less to fetch than to leave out.
_FREE_GAP_BYTES = 4 << 10
# Requests in flight. One stream of an object store brings 50 to 100 MB/s; 16 fill a 10 Gbit/s link.
NUM_FETCH_THREADS = 16


class RowSource(Protocol):
    """Gives workers the stored bytes of one field of one planned row."""

    def wait(self, plan: BatchPlan, rows: range) -> None:
        """Block until the bytes of these rows are here, or have failed to come. Called from several threads."""

    def read(self, plan: BatchPlan, row: int, field: str) -> RawBytes:
        """Exactly the stored bytes; blocks until they are here. Called from several threads."""

    def finish(self, plan: BatchPlan) -> None:
        """All rows of the batch were read; their bytes may be dropped."""

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

    def wait(self, plan: BatchPlan, rows: range) -> None:
        """See ``RowSource``."""

    def read(self, plan: BatchPlan, row: int, field: str) -> RawBytes:
        """See ``RowSource``."""
        place = plan.fields[field]
        start = place.offsets[row]
        shard = plan.shards[row]
        read = self._readers.get(shard)
        if read is None:
            read = self._readers[shard] = self._catalog.reader(shard)
        return read(start, start + place.sizes[row])

    def finish(self, plan: BatchPlan) -> None:
        """See ``RowSource``."""
        # Counted by batch, since a lock for each row would cost more than it tells.
        sizes = [
            size
            for place in plan.fields.values()
            for size, inline in zip(place.sizes, place.inline, strict=True)
            if size > 0 and inline is None
        ]
        self._counters.add(len(sizes), sum(sizes))

    def plans(self, stretches: Iterator[Stretch], is_ours: Callable[[int], bool]) -> Iterator[BatchPlan]:
        """See ``RowSource``."""
        for stretch in stretches:
            yield from stretch.plans(self._catalog, self._fields, is_ours=is_ours, prepare=lambda shards: None)

    def close(self) -> None:
        """See ``RowSource``."""


class _Group:
    """Rows of one shard whose fields are fetched together.

    Attributes:
        ready: Set once the bytes are here or the fetch has failed.
        num_bytes: What the group holds in memory.
        unasked: Rows that no batch has asked for yet.
        asked: Times that a batch asked for a row and has not finished with it.
    """

    __slots__ = ("asked", "bodies", "error", "ids", "num_bytes", "places", "ready", "unasked")

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self.ready = threading.Event()
        self.error: BaseException | None = None
        self.places: dict[tuple[int, str], tuple[int, int, int]] = {}
        self.bodies: list[memoryview] = []
        self.unasked = set(ids)
        self.asked = 0
        self.num_bytes = 0

    def fail(self, error: BaseException) -> None:
        """Wake those who wait for the bytes, with an error unless the bytes are here."""
        if not self.ready.is_set():
            self.error = error
            self.ready.set()

    def take(self, sample_id: int, field: str) -> memoryview:
        body, start, size = self.places[sample_id, field]
        return self.bodies[body][start : start + size]


class BlockSource:
    """Fetches merged ranges of a remote store ahead of the workers.

    Args:
        catalog: The data set.
        fields: Wanted fields.
        counters: Where requests and bytes are counted.
        limit_bytes: Blocks held at once; when they would exceed it, rows are fetched singly.
        num_ahead: Batches whose bytes are asked for before their turn.
        num_single: Batches at the start whose rows are fetched singly.
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
    ) -> None:
        self._catalog = catalog
        self._fields = fields
        self._pool = WorkerPool(NUM_FETCH_THREADS, name="fetch")
        self._counters = counters
        self._limit_bytes = limit_bytes
        self._num_ahead = num_ahead
        self._num_single = num_single
        self._stretches: tuple[Stretch, ...] = ()
        self._closed = False
        self._lock = threading.Lock()
        self._held_bytes = 0
        self._groups: dict[int, _Group] = {}

    def wait(self, plan: BatchPlan, rows: range) -> None:
        """See ``RowSource``."""
        for sample_id in plan.sample_ids[rows.start : rows.stop].tolist():
            self._groups[sample_id].ready.wait()

    def read(self, plan: BatchPlan, row: int, field: str) -> RawBytes:
        """See ``RowSource``."""
        sample_id = int(plan.sample_ids[row])
        group = self._groups[sample_id]
        group.ready.wait()
        if group.error is not None:
            raise group.error
        return group.take(sample_id, field)

    def finish(self, plan: BatchPlan) -> None:
        """See ``RowSource``."""
        with self._lock:
            for sample_id in plan.sample_ids.tolist():
                group = self._groups[sample_id]
                group.asked -= 1
                if not group.asked and not group.unasked:
                    self._held_bytes -= group.num_bytes
                    for key in group.ids:
                        del self._groups[key]

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
                self._start(self._rows_with(sample_id, plan, row, single), plan.shards[row])
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

    def _start(self, ids: NDArray[np.int64], shard: int) -> None:
        group, ranges = self._group(ids, shard)
        if len(ids) > 1 and self._held_bytes + group.num_bytes > self._limit_bytes:
            ids = ids[:1]
            group, ranges = self._group(ids, shard)
        with self._lock:
            self._held_bytes += group.num_bytes
            for sample_id in ids.tolist():
                self._groups[sample_id] = group
        if ranges:
            self._submit(_Fetch(self._catalog, shard, ranges, group, self._counters))
        else:
            group.ready.set()

    def _group(self, ids: NDArray[np.int64], shard: int) -> tuple[_Group, list[tuple[int, int]]]:
        """An empty group for these rows, and the ranges that fill it."""
        index = self._catalog.index(shard)
        rows = ids - self._catalog.row_starts[shard]
        names, owners, starts, stops = [], [], [], []
        for field in self._fields:
            spans = index.spans(field, rows)
            inline = index.inline_many(field, rows)
            stored = [place for place, data in enumerate(inline) if data is None and spans.sizes[place] > 0]
            names += [field] * len(stored)
            owners += ids[stored].tolist()
            starts += spans.offsets[stored].tolist()
            stops += (spans.offsets[stored] + spans.sizes[stored]).tolist()
        plan = plan_ranges(
            np.array(starts, np.int64),
            np.array(stops, np.int64),
            max_gap=_MAX_GAP_BYTES,
            max_waste=_MAX_WASTE,
            free_gap=_FREE_GAP_BYTES,
        )
        group = _Group(ids.tolist())
        for name, owner, start, stop, body in zip(names, owners, starts, stops, plan.range_of.tolist(), strict=True):
            group.places[owner, name] = (body, start - int(plan.starts[body]), stop - start)
        ranges = list(zip(plan.starts.tolist(), plan.stops.tolist(), strict=True))
        group.num_bytes = sum(stop - start for start, stop in ranges)
        return group, ranges


class _Fetch:
    """The task that fills a group."""

    def __init__(
        self, catalog: Catalog, shard: int, ranges: list[tuple[int, int]], group: _Group, counters: StoreCounters
    ) -> None:
        self._catalog = catalog
        self._shard = shard
        self._ranges = ranges
        self._group = group
        self._counters = counters

    def __call__(self) -> None:
        group = self._group
        try:
            for start, stop in self._ranges:
                group.bodies.append(memoryview(self._catalog.read(self._shard, start, stop)))
                self._counters.add(1, stop - start)
        except BaseException as exc:  # noqa: BLE001  thread border: the worker that needs the bytes raises it
            group.fail(exc)
        group.ready.set()


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
) -> RowSource:
    """The source that suits the storage of a data set; see ``BlockSource`` for the arguments."""
    if catalog.storage.is_local:
        return DirectSource(catalog, fields, counters)
    return BlockSource(
        catalog, fields, counters=counters, limit_bytes=limit_bytes, num_ahead=num_ahead, num_single=num_single
    )
