"""The caches as the loader sees them: by block of the order.

Names the entries of a block and keeps those of open blocks at hand. Which bytes lie where is ``cache``'s business.
"""

import functools
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from janus_shards.cache.base import CacheOptions, DecodedRows, EntryKey
from janus_shards.cache.disk import DiskCache, Shares, open_disk_cache
from janus_shards.cache.memory import MemoryCache
from janus_shards.cache.policy import kind_shares
from janus_shards.cache.tiered import TieredCache
from janus_shards.catalog import Catalog
from janus_shards.decode.transform import TensorSpec
from janus_shards.order.epoch import EpochOrder, Order


class Recipe(Protocol):
    """What the cache wants to know of a recipe; see ``stages.Recipe``."""

    specs: Mapping[str, TensorSpec]
    record: Sequence[str]
    record_fields: Sequence[str]
    fingerprint: str


@dataclass(frozen=True)
class Block:
    """One block of the order.

    Attributes:
        ids: Its sample ids, ascending: all in one shard, with a view only those that the view keeps.
        shard: Number of the shard.
        first_id: Sample id of the first row of the shard.
    """

    ids: NDArray[np.int64]
    shard: int
    first_id: int

    @property
    def row_start(self) -> int:
        """First row in the shard."""
        return int(self.ids[0]) - self.first_id

    @property
    def row_stop(self) -> int:
        """One past the last row."""
        return int(self.ids[-1]) + 1 - self.first_id


class Blocks:
    """The blocks of one epoch, and what their entries are called; safe to use from many threads."""

    def __init__(self, catalog: Catalog, order: Order, epoch: EpochOrder) -> None:
        self._catalog = catalog
        self._order = order
        self._epoch = epoch
        self._data_set = catalog.manifest.fingerprint()

    def __getitem__(self, number: int) -> Block:
        (start,), (stop,) = self._epoch.block_span(np.array([number]))
        ids = self._order.sample_ids(np.arange(start, stop))
        shards, _ = self._catalog.locate(ids[:1])
        shard = int(shards[0])
        return Block(ids, shard, int(self._catalog.row_starts[shard]))

    def key(self, block: Block, *, fields: Sequence[str], transform: str = "") -> EntryKey:
        """Name of a block's entry: of the stored bytes of some fields, or of what a transform makes of them."""
        record = self._catalog.shard(block.shard)
        rows = ""
        if block.row_stop - block.row_start != len(block.ids):
            # A view keeps some rows of the stretch; which ones is part of the name.
            rows = hashlib.sha256((block.ids - block.first_id).astype("<i8").tobytes()).hexdigest()[:16]
        return EntryKey(
            dataset=self._data_set,
            shard=record.name,
            version=record.sha256.hex(),
            row_start=block.row_start,
            row_stop=block.row_stop,
            rows=rows,
            fields=tuple(fields),
            transform=transform,
        )


class DecodedBlocks:
    """Decoded rows by block and sample id: the entries of the blocks that windows are in, opened at first use.

    Args:
        open_rows: Opens the decoded rows of an entry.
        blocks: The blocks of the epoch.
        fields: Fields that a record is made of.
        transform: Fingerprint of what makes it.
        max_open: Entries kept open; those least recently used are released first.
    """

    def __init__(
        self,
        open_rows: Callable[[EntryKey], DecodedRows],
        blocks: Blocks,
        *,
        fields: Sequence[str],
        transform: str,
        max_open: int,
    ) -> None:
        self._open_rows = open_rows
        self._blocks = blocks
        self._fields = fields
        self._transform = transform
        self._max_open = max_open
        self._lock = threading.Lock()
        self._open: OrderedDict[int, tuple[DecodedRows, int]] = OrderedDict()

    def has(self, block: int, sample_id: int) -> bool:
        """Whether reading the row is worth trying."""
        rows, first = self._rows(block)
        return rows.has(sample_id - first)

    def read(self, block: int, sample_id: int, buffers: Sequence[memoryview]) -> bool:
        """Fill the buffers with the record of a row; False when it is not there."""
        rows, first = self._rows(block)
        return rows.read_into(sample_id - first, buffers)

    def write(self, block: int, sample_id: int, buffers: Sequence[memoryview]) -> None:
        """Keep the record of a row, if there is room."""
        rows, first = self._rows(block)
        rows.write(sample_id - first, buffers)

    def _rows(self, number: int) -> tuple[DecodedRows, int]:
        """Decoded rows of a block, and the sample id of its first row."""
        found = self._open.get(number)
        if found is not None:
            return found
        released = []
        with self._lock:
            found = self._open.get(number)
            if found is None:
                block = self._blocks[number]
                key = self._blocks.key(block, fields=self._fields, transform=self._transform)
                found = self._open[number] = self._open_rows(key), int(block.ids[0])
            while len(self._open) > self._max_open:
                released.append(self._open.popitem(last=False)[1][0])
        for rows in released:
            rows.release()
        return found

    def close(self) -> None:
        """Release every entry that is open."""
        with self._lock:
            rows, self._open = [rows for rows, _ in self._open.values()], OrderedDict()
        for each in rows:
            each.release()


@dataclass(frozen=True)
class RawBlocks:
    """The cache of stored bytes, and the blocks it keeps."""

    disk: DiskCache
    blocks: Blocks


class LoaderCache:
    """The cache tiers of one loader: what they keep of its data set, and how they look to an epoch.

    Args:
        options: Folder and budgets.
        catalog: The data set.
        num_samples: Samples that this node serves in an epoch.
        fields: Fields that are fetched.
        recipe: What rows become.
    """

    def __init__(
        self, options: CacheOptions, catalog: Catalog, *, num_samples: int, fields: Sequence[str], recipe: Recipe
    ) -> None:
        self._catalog = catalog
        self._fields = fields
        self._recipe = recipe
        self._record_bytes = sum(recipe.specs[name].row_bytes for name in recipe.record)
        share = num_samples / max(1, catalog.num_samples)
        # Local shards are read where they lie; a second copy would gain nothing.
        raw_bytes = 0 if catalog.storage.is_local else int(share * catalog.manifest.shard_bytes().sum())
        self._shares = Shares(raw=1.0 if raw_bytes else 0.0, decoded=0.0)
        if options.decoded and recipe.record:
            self._shares = _shares(raw_bytes, num_samples * self._record_bytes, options.budget_bytes)
        self._disk = open_disk_cache(options, dataset=catalog.manifest.fingerprint(), shares=self._shares)
        self._memory = MemoryCache(options.memory_budget_bytes) if options.memory_budget_bytes else None
        self._tiers = TieredCache(self._disk, self._memory, keeps_decoded=self._shares.decoded > 0)

    def begin_epoch(self, epoch: int, *, whole: bool) -> None:
        """What is touched from now on counts as touched in this epoch; ``whole`` tells of the epoch before."""
        self._tiers.begin_epoch(epoch, whole=whole)

    def decoded(self, blocks: Blocks, *, max_open: int) -> DecodedBlocks | None:
        """Decoded rows of an epoch, or ``None`` when none are kept."""
        if not self._recipe.record or not (self._shares.decoded or self._memory):
            return None
        return DecodedBlocks(
            functools.partial(self._tiers.decoded, record_bytes=self._record_bytes),
            blocks,
            fields=self._recipe.record_fields,
            transform=self._recipe.fingerprint,
            max_open=max_open,
        )

    def raw(self, blocks: Blocks) -> RawBlocks | None:
        """Stored bytes of an epoch, or ``None`` when none are kept."""
        return RawBlocks(self._disk, blocks) if self._shares.raw else None

    def stats(self) -> dict[str, object]:
        """Hits, misses and bytes, and which share of the data set is kept in which form."""
        return {**self._tiers.stats(), "raw_share": self._shares.raw, "decoded_share": self._shares.decoded}


def _shares(raw_bytes: int, decoded_bytes: int, budget_bytes: int) -> Shares:
    if not raw_bytes:
        # With one kind alone, keeping what comes first leaves no gap; a share would.
        return Shares(raw=0.0, decoded=1.0)
    found = kind_shares(raw_bytes=raw_bytes, decoded_bytes=decoded_bytes, budget_bytes=budget_bytes)
    return Shares(raw=found.raw, decoded=found.decoded)
