"""The loader: one pass over it is one epoch of batches of this rank, in an order that a small state can resume
anywhere.
"""

import functools
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from janus_shards.cache.base import CacheOptions
from janus_shards.errors import ConfigError
from janus_shards.order.cursor import Cursor, choose_generation
from janus_shards.order.epoch import EpochOrder, Order, OrderOptions, open_order
from janus_shards.order.serving import global_batch, num_steps, rank_slots
from janus_shards.pipeline.bad_samples import BadSampleLog
from janus_shards.pipeline.batch import Batch
from janus_shards.pipeline.buffers import SlabLayout, SlabRing, keep_freed_memory
from janus_shards.pipeline.caching import Blocks, DecodedBlocks, LoaderCache, RawBlocks
from janus_shards.pipeline.fetch import RowSource, open_source
from janus_shards.pipeline.options import LoaderOptions
from janus_shards.pipeline.plan import BatchPlan, Stretch
from janus_shards.pipeline.prefetch import Prefetcher
from janus_shards.pipeline.recipes import make_recipe
from janus_shards.pipeline.stages import BatchWork, Recipe, Workshop
from janus_shards.pipeline.stats import LoaderStats
from janus_shards.reader import Dataset, open_dataset
from janus_shards.storage.base import StorageOptions
from janus_shards.world import World

# Positions that are laid out together, at least and at most.
_STRETCH_ROWS = 4096
_MAX_STRETCH_ROWS = 1 << 20
# Decoded entries kept open beyond those that windows need.
_SPARE_ENTRIES = 64
# Batches whose bytes are asked for before a remote store is needed for them: about a second of training.
_FETCH_AHEAD = 16
# Blocks up to this size come as fast as single rows of them.
_SMALL_BLOCK_BYTES = 256 << 10
# Rows of a task: small enough that the threads of a rank finish a batch together, large enough to pay for handing it
# over. Rows without arrays take microseconds, rows with arrays milliseconds.
_MAX_TASK_ROWS = 16

#: Changes a delivered batch, for example into tensors.
Finish = Callable[[Batch], Batch]


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What this rank serves and how; fixed for the life of a loader.

    Attributes:
        world: Which rank.
        batch: Samples a step over all ranks.
        fields: Fields to fetch.
        recipe: What a row becomes.
        options: Everything else.
        finish: Applied to each batch on delivery, in the consumer's thread.
        share: (w, n): of the steps, only those with ``step % n == w`` are made; for worker w of n.
    """

    world: World
    batch: int
    fields: Sequence[str]
    recipe: Recipe
    options: LoaderOptions
    finish: Finish | None = None
    share: tuple[int, int] = (0, 1)

    @property
    def rows_per_batch(self) -> int:
        """Most rows in a batch of one rank."""
        return -(-self.batch // self.world.world_size)


class Loader:
    """Batches of one rank. One pass is one epoch; the next pass is the next epoch.

    ``break`` leaves the position behind the last batch returned, where ``state_dict`` finds it; the next ``iter``
    starts the next epoch. After ``load_state_dict`` the next ``iter`` goes on where the state was taken. Only one
    iterator is alive at a time: a new one ends the old. Leaving a ``with`` block, or ``close``, ends all threads; so
    does dropping the loader.
    """

    def __init__(self, dataset: Dataset, order: Order, serving: Serving, cache: LoaderCache | None = None) -> None:
        self.dataset = dataset
        self._cache = cache
        self._order = order
        # An epoch that began on a shorter prefix of the data set, before an append, is finished in that prefix's order.
        self._prefix: tuple[int, Order, int] | None = None
        self._serving = serving
        self._epoch = 0
        self._position = 0
        self._goes_on = True
        self._stats = LoaderStats()
        rows = serving.rows_per_batch
        self._layout = SlabLayout.of(serving.recipe.specs, rows)
        # Delivered batches come back to the ring while the next ones are made; the consumer may hold a few.
        self._ring = SlabRing(self._layout.slab_bytes, max_free=serving.options.prefetch + 2)
        self._bad_log = BadSampleLog(serving.options.bad_samples, world=serving.world, share=serving.share)
        self._live: weakref.ref[_EpochIterator] | None = None

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        world = self._serving.world
        return f"Loader({self.dataset!r}, rank {world.rank} of {world.world_size}, {len(self)} steps an epoch)"

    def __len__(self) -> int:
        """Steps of a whole epoch: batches that one pass delivers, the same on every rank."""
        return self._count(self._steps(self._served(self._epoch)[0].num_samples, 0))

    @property
    def steps_left(self) -> int:
        """Steps of the current epoch that were not delivered yet; 0 at its end."""
        order = self._served(self._epoch)[0]
        return self._count(self._steps(order.num_samples, self._position)) if self._position < order.num_samples else 0

    @property
    def epoch(self) -> int:
        """Epoch that the next batch belongs to, or the last one did."""
        return self._epoch

    @property
    def identity(self) -> dict[str, str | int]:
        """What every rank of a job must have in common: data, order and seed."""
        return {
            "fingerprint": self.dataset.fingerprint,
            "order hash": self._order.order_hash,
            "seed": self._order.options.seed,
            "global batch size": self._serving.batch,
        }

    def __iter__(self) -> Iterator[Batch]:
        self.close()
        if not self._goes_on or not self.steps_left:
            self._epoch, self._position = self._epoch + 1, 0
        self._goes_on = False
        iterator = _EpochIterator(self, self._start())
        self._live = weakref.ref(iterator)
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass epoch ``epoch``, from its beginning."""
        if epoch < 0:
            raise ConfigError(f"set_epoch({epoch}): epochs are counted from 0")
        self.close()
        self._epoch, self._position, self._goes_on = epoch, 0, True

    def state_dict(self) -> dict[str, Any]:
        """Position behind the last batch returned: plain, small, JSON-able, and the same on every rank.

        Batches that are prefetched but were not returned do not count.
        """
        order, num_shards = self._served(self._epoch)
        left = self._steps(order.num_samples, self._position)
        if left:
            return self._cursor_of(order, num_shards, self._epoch, self._position).to_dict()
        return self._cursor_of(*self._served(self._epoch + 1), self._epoch + 1).to_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Sequence[str] = ()) -> None:
        """Go on where a state was taken, on any world size and batch size.

        Args:
            state: From ``state_dict``, of this data set with this order.
            allow: Differences to accept: ``"append"`` when shards were added since; the state's epoch is finished
                without them.

        Raises:
            ResumeError: The state is of another data set, seed or order; names every difference, old and new.
        """
        self.close()
        saved = Cursor.from_dict(state)
        shorter = saved.num_shards < len(self.dataset.catalog.manifest.shards)
        begins = shorter and self.dataset.prefix_fingerprint(saved.num_shards) == saved.fingerprint
        old = self._open_prefix(saved.num_shards) if begins and "append" in allow else None
        prefix = self._cursor_of(old, saved.num_shards) if old is not None else None
        current = self._cursor_of(self._order, len(self.dataset.catalog.manifest.shards))
        chosen = choose_generation(saved, current, prefix=prefix, allow=allow)
        self._prefix = (saved.epoch, old, saved.num_shards) if old is not None and chosen == "prefix" else None
        self._epoch, self._position, self._goes_on = saved.epoch, saved.position, True

    def stats(self) -> dict[str, Any]:
        """Counters of the current epoch: samples, rates, store requests and bytes, and where waiting time went."""
        bad = {"skipped": self._bad_log.num_skipped, "substituted": self._bad_log.num_substituted}
        found = self._stats.snapshot()
        if self._cache is not None:
            found["cache"] = {**found["cache"], **self._cache.stats()}
        return {**found, "bad": bad}

    def close(self) -> None:
        """End all threads of a running pass; the loader can be iterated again."""
        iterator = self._live() if self._live is not None else None
        if iterator is not None:
            iterator.close()
        self._live = None

    def _served(self, epoch: int) -> tuple[Order, int]:
        """The order of an epoch and the number of shards it covers."""
        if self._prefix is not None and self._prefix[0] == epoch:
            return self._prefix[1:]
        return self._order, len(self.dataset.catalog.manifest.shards)

    def _cursor_of(self, order: Order, num_shards: int, epoch: int = 0, position: int = 0) -> Cursor:
        start = Cursor.at_start(order, fingerprint=self.dataset.prefix_fingerprint(num_shards), num_shards=num_shards)
        return replace(start, epoch=epoch, position=position)

    def _open_prefix(self, num_shards: int) -> Order:
        """The order of the first shards, as it was before the others were appended."""
        return _open_order(self.dataset, self._order.options, num_shards)

    def _steps(self, num_samples: int, position: int) -> int:
        return num_steps(num_samples, batch=self._serving.batch, tail=self._serving.options.tail, position=position)

    def _count(self, steps: int) -> int:
        """Steps that are this worker's, of the first ``steps``."""
        worker, workers = self._serving.share
        return max(0, -(-(steps - worker) // workers))

    def _start(self) -> Prefetcher[BatchWork]:
        """Begin to make the batches of the current epoch from the current position on."""
        serving, options = self._serving, self._serving.options
        order = self._served(self._epoch)[0]
        epoch = order.epoch(self._epoch)
        self._stats.begin_epoch(self._epoch)
        if not options.decode:
            keep_freed_memory()
        memory_bytes = options.memory_limit(serving.world)
        decoded, raw = self._open_caches(order, epoch)
        source = open_source(
            self.dataset.catalog,
            serving.fields,
            counters=self._stats.store,
            limit_bytes=memory_bytes // 2,
            num_ahead=_FETCH_AHEAD,
            num_single=options.prefetch if self._block_bytes(order) > _SMALL_BLOCK_BYTES else 0,
            skip=None if decoded is None else functools.partial(_is_cached, decoded, set(serving.recipe.record_fields)),
            raw=raw,
        )
        num_threads = options.num_threads(serving.world)
        shop = Workshop(
            catalog=self.dataset.catalog,
            source=source,
            decoded=decoded,
            recipe=serving.recipe,
            fields=serving.fields,
            layout=self._layout,
            ring=self._ring,
            seed=order.options.seed,
            epoch=self._epoch,
            rows_per_task=_rows_per_task(serving, num_threads),
            verify=options.verify,
            on_missing=options.on_missing,
            policy=options.bad_samples.policy,
            others_in_block=functools.partial(_others_in_block, order, epoch),
        )
        stretches = _stretches(order, epoch, self._position, serving)
        worker, workers = serving.share
        plans = source.plans(stretches, lambda step: step % workers == worker)
        return Prefetcher(
            _works(plans, shop),
            num_threads=num_threads,
            depth=options.prefetch,
            limit_bytes=memory_bytes // 2,
            on_close=functools.partial(_close, source, decoded),
        )

    def _block_bytes(self, order: Order) -> int:
        """Bytes of a block of mean rows."""
        manifest = self.dataset.catalog.manifest
        return order.block_rows * int(manifest.shard_bytes().sum()) // max(1, self.dataset.catalog.num_samples)

    def _open_caches(self, order: Order, epoch: EpochOrder) -> tuple[DecodedBlocks | None, RawBlocks | None]:
        if self._cache is None:
            return None, None
        self._cache.begin_epoch(self._epoch, whole=self._position == 0)
        blocks = Blocks(self.dataset.catalog, order, epoch)
        # A lane has a block open in at most two neighbouring windows.
        max_open = 2 * order.num_lanes * order.options.window + _SPARE_ENTRIES
        return self._cache.decoded(blocks, max_open=max_open), self._cache.raw(blocks)

    def _deliver(self, work: BatchWork, start: int) -> Batch:
        batch = work.finish()
        if work.bad:
            self._bad_log.add(work.bad, len(batch))
        finish = self._serving.finish
        if finish is not None:
            with work.times.measure("copy"):
                batch = finish(batch)
        order = self._served(self._epoch)[0]
        self._position = min(start + (work.plan.step + 1) * self._serving.batch, order.num_samples)
        return batch


class _EpochIterator:
    """The rest of one epoch. Dropping it ends the threads behind it."""

    def __init__(self, loader: Loader, prefetcher: Prefetcher[BatchWork]) -> None:
        self._loader = loader
        self._prefetcher = prefetcher
        self._start = loader._position

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        stats = self._loader._stats
        stats.wait_begins()
        try:
            work = next(self._prefetcher)
            batch = self._loader._deliver(work, self._start)
        except BaseException:
            # Also on Ctrl-C: whatever ends the pass ends its threads.
            self.close()
            raise
        stats.delivered(len(batch), work.times, num_cached=work.num_cached)
        return batch

    def close(self) -> None:
        self._prefetcher.close()


def _stretches(order: Order, epoch: EpochOrder, position: int, serving: Serving) -> Iterator[Stretch]:
    """What this rank serves from a position to the end of the epoch, a stretch at a time.

    Two neighbouring stretches together hold all rows of any turn that begins in the first one.
    """
    rows = max(_STRETCH_ROWS, min(order.block_rows * order.options.window * order.num_lanes, _MAX_STRETCH_ROWS))
    steps = -(-rows // serving.batch)
    done = 0
    while True:
        at = min(position + done * serving.batch, epoch.num_samples)
        served = rank_slots(
            epoch, position=at, steps=steps, batch=serving.batch, tail=serving.options.tail, world=serving.world
        )
        if not served.num_steps:
            return
        yield Stretch(served, done)
        done += served.num_steps


def _is_cached(decoded: DecodedBlocks, fields: set[str], block: int, field: str, sample_id: int) -> bool:
    """Whether a field is not needed because the decoded row is there."""
    return field in fields and decoded.has(block, sample_id)


def _close(source: RowSource, decoded: DecodedBlocks | None) -> None:
    source.close()
    if decoded is not None:
        decoded.close()


def _rows_per_task(serving: Serving, num_threads: int) -> int:
    shares = 4 * num_threads if serving.recipe.specs else num_threads
    return min(_MAX_TASK_ROWS, max(1, serving.rows_per_batch // shares))


def _works(plans: Iterator[BatchPlan], shop: Workshop) -> Iterator[BatchWork]:
    """The work of each plan, which counts the time that its planning took."""
    began = time.perf_counter()
    for plan in plans:
        work = BatchWork(plan, shop)
        work.times.add("plan", time.perf_counter() - began)
        yield work
        began = time.perf_counter()


def _others_in_block(order: Order, epoch: EpochOrder, block: int, sample_id: int) -> list[int]:
    """The other rows of a block, from the one behind ``sample_id`` on and round to the one before it."""
    (start,), (stop,) = epoch.block_span(np.array([block]))
    ids = order.sample_ids(np.arange(start, stop))
    at = int(np.searchsorted(ids, sample_id))
    others: list[int] = np.concatenate([ids[at + 1 :], ids[:at]]).tolist()
    return others


def _open_order(dataset: Dataset, options: OrderOptions, num_shards: int | None = None) -> Order:
    manifest = dataset.catalog.manifest
    rows, sizes = manifest.shard_rows()[:num_shards], manifest.shard_bytes()[:num_shards]
    view = None if dataset.ids is None else dataset.ids[dataset.ids < rows.sum()]
    return open_order(rows, sizes, options, view=view)


def build_loader(
    source: str | Dataset,
    *,
    batch_size: int | None,
    global_batch_size: int | None,
    fields: Sequence[str] | None,
    transform: object,
    shuffle: Literal["full"] | bool | None,
    seed: int,
    cache: str | CacheOptions | None = None,
    world: World,
    options: LoaderOptions,
    storage_options: Mapping[str, Any] | StorageOptions | None,
    finish: Finish | None = None,
    share: tuple[int, int] = (0, 1),
) -> Loader:
    """A loader with NumPy batches, or whatever ``finish`` makes of them; see ``open_loader`` for the other arguments.

    Raises:
        ConfigError: Options contradict each other or do not fit the data set.
    """
    dataset = open_dataset(source, storage_options=storage_options) if isinstance(source, str) else source
    fields = _checked_fields(dataset, fields)
    order_options = OrderOptions(
        seed=seed,
        shuffle=shuffle or None,
        lanes=options.lanes,
        block_rows=options.block_rows,
        window=options.window,
    )
    serving = Serving(
        world=world,
        batch=global_batch(batch_size=batch_size, global_batch_size=global_batch_size, world=world),
        fields=fields,
        recipe=make_recipe(transform, fields, decode=options.decode, decoders=options.decoders),
        options=options,
        finish=finish,
        share=share,
    )
    order = _open_order(dataset, order_options)
    # Refuses an epoch without a single step now, not at the first batch.
    num_steps(order.num_samples, batch=serving.batch, tail=options.tail)
    return Loader(dataset, order, serving, _open_cache(cache, dataset, order, serving))


def _open_cache(
    cache: str | CacheOptions | None, dataset: Dataset, order: Order, serving: Serving
) -> LoaderCache | None:
    if cache is None:
        return None
    world = serving.world
    return LoaderCache(
        cache if isinstance(cache, CacheOptions) else CacheOptions(directory=cache),
        dataset.catalog,
        num_samples=order.num_samples * min(world.local_world_size, world.world_size) // world.world_size,
        fields=serving.fields,
        recipe=serving.recipe,
    )


def _checked_fields(dataset: Dataset, fields: Sequence[str] | None) -> tuple[str, ...]:
    dataset.check_fields(fields)
    return dataset.fields if fields is None else tuple(fields)
