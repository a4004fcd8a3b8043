"""Counters of a loader: what was delivered, and where the consumer's waiting time went."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

Stage = Literal["plan", "request", "transfer", "cache", "decode", "assemble", "copy"]
STAGES: tuple[Stage, ...] = ("plan", "request", "transfer", "cache", "decode", "assemble", "copy")


class StageTimes:
    """Seconds of work by stage; safe to add to from many threads."""

    __slots__ = ("_lock", "seconds")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.seconds: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)

    def add(self, stage: Stage, seconds: float) -> None:
        """Count work of one stage."""
        with self._lock:
            self.seconds[stage] += seconds

    @contextmanager
    def measure(self, stage: Stage) -> Iterator[None]:
        """Count the time inside the ``with`` block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - start)


class StoreCounters:
    """Requests and bytes that were read from storage; safe to add to from many threads."""

    __slots__ = ("_lock", "num_bytes", "num_requests")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.num_requests = 0
        self.num_bytes = 0

    def add(self, num_requests: int, num_bytes: int) -> None:
        """Count finished requests."""
        with self._lock:
            self.num_requests += num_requests
            self.num_bytes += num_bytes


class LoaderStats:
    """What a loader has done since it was opened, and since the epoch began.

    The ledger splits the time between deliveries: while the loader waits for a batch, the wait is shared out over the
    stages in proportion to the work that this batch took; the rest is the consumer's. The parts sum to wall time.
    """

    def __init__(self) -> None:
        self.store = StoreCounters()
        self._total_samples = 0
        self._total_batches = 0
        self.begin_epoch(0)

    def begin_epoch(self, epoch: int) -> None:
        """Start the counters of an epoch."""
        self._epoch = epoch
        self._samples = 0
        self._batches = 0
        self._cached = 0
        self._started = self._last = time.perf_counter()
        self._first_batch_s: float | None = None
        self._waits: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
        self._consumer_s = 0.0
        self._store_base = (self.store.num_requests, self.store.num_bytes)

    def wait_begins(self) -> None:
        """The consumer asks for a batch."""
        now = time.perf_counter()
        self._consumer_s += now - self._last
        self._last = now

    def delivered(self, num_samples: int, work: StageTimes, *, num_cached: int = 0) -> None:
        """The batch that was waited for is handed over; ``work`` is what it took.

        Args:
            num_samples: Rows of the batch.
            work: Seconds by stage.
            num_cached: Rows that came from a cache.
        """
        now = time.perf_counter()
        waited, self._last = now - self._last, now
        total = sum(work.seconds.values())
        for stage, seconds in work.seconds.items():
            self._waits[stage] += waited * seconds / total if total else 0.0
        if not total:
            self._waits["assemble"] += waited
        if self._first_batch_s is None:
            self._first_batch_s = now - self._started
        self._samples += num_samples
        self._batches += 1
        self._cached += num_cached
        self._total_samples += num_samples
        self._total_batches += 1

    def snapshot(self) -> dict[str, Any]:
        """The counters of the epoch as plain numbers; seconds, bytes and samples a second."""
        wall_s = self._last - self._started
        requests, num_bytes = self._store_base
        return {
            "epoch": self._epoch,
            "samples": self._samples,
            "batches": self._batches,
            "seconds": wall_s,
            "first_batch_s": self._first_batch_s,
            "samples_per_s": self._samples / wall_s if wall_s else 0.0,
            "total_samples": self._total_samples,
            "total_batches": self._total_batches,
            "cache": {
                "hits": self._cached,
                "misses": self._samples - self._cached,
                "hit_rate": self._cached / self._samples if self._samples else 0.0,
                "bytes": 0,
            },
            "store": {"requests": self.store.num_requests - requests, "bytes": self.store.num_bytes - num_bytes},
            "ledger": {
                "wall_s": wall_s,
                **{f"{stage}_s": seconds for stage, seconds in self._waits.items()},
                "consumer_s": self._consumer_s,
            },
        }
