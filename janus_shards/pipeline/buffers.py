"""One aligned buffer a batch: where each array lies in it, and a ring that reuses buffers once nobody looks at them.

A batch that the caller keeps stays valid: its memory returns to the ring when the last array over it has died.
"""

import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from janus_shards.decode.transform import TensorSpec

# Cache lines in pairs, and what device copies and vector loads like best.
_ALIGNMENT = 128


@dataclass(frozen=True)
class SlabLayout:
    """Places of the arrays of a batch in one buffer.

    Attributes:
        arrays: (byte offset, spec of one row) by array name; offsets are multiples of 128.
        slab_bytes: Length of the buffer.
        num_rows: Rows a batch.
    """

    arrays: Mapping[str, tuple[int, TensorSpec]]
    slab_bytes: int
    num_rows: int

    @classmethod
    def of(cls, specs: Mapping[str, TensorSpec], num_rows: int) -> "SlabLayout":
        """Lay out arrays of ``num_rows`` rows one behind the other."""
        arrays, end = {}, 0
        for name, spec in specs.items():
            arrays[name] = (end, spec)
            size = num_rows * spec.row_bytes
            end += size + -size % _ALIGNMENT
        return cls(arrays, end, num_rows)

    def views(self, slab: NDArray[np.uint8]) -> dict[str, NDArray[np.generic]]:
        """The arrays of a batch over a buffer, shape ``(num_rows, *spec.shape)`` each; no copies."""
        views: dict[str, NDArray[np.generic]] = {}
        for name, (start, spec) in self.arrays.items():
            shape = (self.num_rows, *spec.shape)
            size = self.num_rows * spec.row_bytes
            views[name] = slab[start : start + size].view(spec.dtype).reshape(shape)
        return views


def keep_freed_memory() -> None:
    """Let the C library keep the memory of dropped batches, instead of giving it back and clearing it anew.

    glibc raises its thresholds for that, up to 32 MiB, when a large block is freed (mallopt(3), "dynamic mmap
    threshold"); the block itself is never touched. Undecoded batches then cost half the CPU time. Other allocators do
    not mind.
    """
    np.empty(31 << 20, dtype=np.uint8)


class SlabRing:
    """Buffers of one size that are used again once every array over them is gone.

    Fresh memory costs a page fault and a cleared page every 4 KiB, about 3 % of decoding; the ring pays that once.

    Args:
        slab_bytes: Length of each buffer.
        max_free: Unused buffers that are kept.
    """

    def __init__(self, slab_bytes: int, *, max_free: int) -> None:
        self._slab_bytes = slab_bytes
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=max_free)

    def take(self) -> NDArray[np.uint8]:
        """A buffer, shape ``(slab_bytes,)``, with any content, aligned to 128 bytes."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = np.empty(self._slab_bytes + _ALIGNMENT, dtype=np.uint8)
        # NumPy's views keep their root array alive; this one's root is a memoryview, so it dies with the last view of
        # it.
        slab = np.frombuffer(memory.data, dtype=np.uint8)
        weakref.finalize(slab, self._free.append, memory).atexit = False
        start = -memory.ctypes.data % _ALIGNMENT
        return slab[start : start + self._slab_bytes]
