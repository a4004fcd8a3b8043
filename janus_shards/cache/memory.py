"""The memory tier: decoded rows of this process, kept as they came until the budget is full."""

import threading

import numpy as np
from numpy.typing import NDArray

from janus_shards.cache.base import EntryKey, RecordBuffers


class _Rows:
    """Rows of one block: the pieces of a record, as flat bytes, by row."""

    __slots__ = ("num_bytes", "records", "touched")

    def __init__(self) -> None:
        self.records: dict[int, list[NDArray[np.uint8]]] = {}
        self.num_bytes = 0
        self.touched = 0


class MemoryCache:
    """Decoded rows in memory. Safe to use from many threads.

    What was admitted is kept, except rows of blocks that were not asked for during one whole epoch: those go when there
    is something else to keep.

    Args:
        budget_bytes: Bytes of records that are kept.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._blocks: dict[EntryKey, _Rows] = {}
        self._num_bytes = 0
        # Epochs this process has begun, and from which of them on a block counts as asked for.
        self._epoch = 0
        self._since = 0
        self._idle: list[EntryKey] | None = None

    def __reduce__(self) -> tuple[type["MemoryCache"], tuple[int]]:
        return MemoryCache, (self._budget_bytes,)

    @property
    def num_bytes(self) -> int:
        """Bytes of the records that are kept."""
        return self._num_bytes

    def begin_epoch(self, *, whole: bool = True) -> None:
        """Another epoch begins; ``whole`` says that the one before it was served from its start to its end."""
        with self._lock:
            self._since = self._epoch if whole else 0
            self._epoch += 1
            self._idle = None

    def has(self, key: EntryKey, row: int) -> bool:
        """Whether a record is kept."""
        block = self._blocks.get(key)
        return block is not None and row in block.records

    def get_into(self, key: EntryKey, row: int, buffers: RecordBuffers) -> bool:
        """Copy a record into the caller's buffers, without the GIL; False when it is not kept."""
        block = self._blocks.get(key)
        record = block.records.get(row) if block is not None else None
        if block is None or record is None or len(record) != len(buffers):
            return False
        block.touched = self._epoch
        for buffer, piece in zip(buffers, record, strict=True):
            np.copyto(np.frombuffer(buffer, np.uint8), piece)
        return True

    def put(self, key: EntryKey, row: int, buffers: RecordBuffers) -> None:
        """Keep a copy of a record, if there is room."""
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        if self.has(key, row) or not self._reserve(key, size):
            return
        record = [np.frombuffer(buffer, np.uint8).copy() for buffer in buffers]
        with self._lock:
            block = self._blocks.setdefault(key, _Rows())
            block.touched = self._epoch
            if row in block.records:
                self._num_bytes -= size  # another thread was first
            else:
                block.records[row] = record
                block.num_bytes += size

    def _reserve(self, key: EntryKey, size: int) -> bool:
        if self._num_bytes + size > self._budget_bytes and self._idle == []:
            return False
        with self._lock:
            while self._num_bytes + size > self._budget_bytes:
                if not self._drop_idle(key):
                    return False
            self._num_bytes += size
            return True

    def _drop_idle(self, wanted: EntryKey) -> bool:
        """Drop one block that was not asked for during the last whole epoch."""
        if self._idle is None:
            self._idle = [key for key, block in self._blocks.items() if block.touched < self._since]
        while self._idle:
            key = self._idle.pop()
            block = self._blocks.get(key)
            if block is not None and block.touched < self._since and key != wanted:
                self._num_bytes -= block.num_bytes
                del self._blocks[key]
                return True
        return False
