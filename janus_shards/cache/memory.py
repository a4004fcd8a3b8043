"""The memory tier: decoded rows of this process, kept as they came until the budget is full."""

import threading

import numpy as np
from numpy.typing import NDArray

from janus_shards.cache.base import EntryKey, RecordBuffers


class MemoryCache:
    """Decoded rows in memory. Safe to use from many threads; pickles without the rows.

    What was admitted is kept, except rows of blocks that were not asked for during one whole epoch: those go when there
    is something else to keep.

    Args:
        budget_bytes: Bytes of records that are kept.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._blocks: dict[EntryKey, MemoryRows] = {}
        self._num_bytes = 0
        self._since = 0
        self._idle: list[MemoryRows] | None = None
        #: Epochs that were begun.
        self.epoch = 0

    def __reduce__(self) -> tuple[type["MemoryCache"], tuple[int]]:
        return MemoryCache, (self._budget_bytes,)

    @property
    def num_bytes(self) -> int:
        """Bytes of the records that are kept."""
        return self._num_bytes

    def begin_epoch(self, *, whole: bool = True) -> None:
        """Another epoch begins; ``whole`` says that the one before it was served from its start to its end."""
        with self._lock:
            self._since = self.epoch if whole else 0
            self.epoch += 1
            self._idle = None

    def decoded(self, key: EntryKey) -> "MemoryRows":
        """The decoded rows of a block that are kept, and room for the others as far as the budget goes."""
        return self._blocks.get(key) or MemoryRows(self, key)

    def keep(self, rows: "MemoryRows", row: int, buffers: RecordBuffers) -> None:
        """Keep a copy of a record, if there is room and it is not kept already."""
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        if not self._reserve(rows, size):
            return
        record = [np.frombuffer(buffer, np.uint8).copy() for buffer in buffers]
        with self._lock:
            # Another user of the block may have been first, with the block or with the row.
            rows = self._blocks.setdefault(rows.key, rows)
            if rows.add(row, record):
                return
            self._num_bytes -= size

    def _reserve(self, rows: "MemoryRows", size: int) -> bool:
        if self._num_bytes + size > self._budget_bytes and self._idle == []:
            return False  # full, and known to be so in this epoch
        with self._lock:
            while self._num_bytes + size > self._budget_bytes:
                if not self._drop_idle(rows):
                    return False
            self._num_bytes += size
            return True

    def _drop_idle(self, wanted: "MemoryRows") -> bool:
        """Drop one block that was not asked for during the last whole epoch."""
        if self._idle is None:
            self._idle = [rows for rows in self._blocks.values() if rows.touched < self._since]
        while self._idle:
            rows = self._idle.pop()
            if rows.touched < self._since and rows is not wanted:
                del self._blocks[rows.key]
                self._num_bytes -= rows.drop()
                return True
        return False


class MemoryRows:
    """Decoded rows of one block in memory. Made by ``MemoryCache.decoded``.

    Attributes:
        key: What they are.
        touched: The last epoch in which one of them was asked for.
    """

    def __init__(self, cache: MemoryCache, key: EntryKey) -> None:
        self.key = key
        self.touched = cache.epoch
        self._cache = cache
        # The pieces of a record, as flat bytes, by row.
        self._records: dict[int, list[NDArray[np.uint8]]] = {}

    def has(self, row: int) -> bool:
        """See ``DecodedRows``."""
        return row in self._records

    def read_into(self, row: int, buffers: RecordBuffers) -> bool:
        """See ``DecodedRows``. Large pieces are copied without the GIL."""
        record = self._records.get(row)
        if record is None or len(record) != len(buffers):
            return False
        self.touched = self._cache.epoch
        for buffer, piece in zip(buffers, record, strict=True):
            np.copyto(np.frombuffer(buffer, np.uint8), piece)
        return True

    def write(self, row: int, buffers: RecordBuffers) -> None:
        """See ``DecodedRows``."""
        self.touched = self._cache.epoch
        if row not in self._records:
            self._cache.keep(self, row, buffers)

    def release(self) -> None:
        """See ``DecodedRows``. The rows stay."""

    def add(self, row: int, record: list[NDArray[np.uint8]]) -> bool:
        """Take a record, unless there is one."""
        return self._records.setdefault(row, record) is record

    def drop(self) -> int:
        """Forget all records: how many bytes they had. Whoever reads one now still has it."""
        records, self._records = self._records, {}
        return sum(piece.nbytes for record in records.values() for piece in record)
