"""Trying again: jittered pauses that grow, a bounded number of tries, and a deadline. Only ``TransientError`` is tried
again.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from janus_shards.errors import TransientError
from janus_shards.sample import RawBytes
from janus_shards.storage.base import ObjectMeta, Storage, TransferOptions, Upload

_T = TypeVar("_T")

#: Kind of a ``TransientError`` by which a store asks for fewer requests (503 SlowDown, 429).
THROTTLED = "throttled"
# Stores that throttle ask for about a second; their clients do not tell how long exactly.
_THROTTLED_PAUSE_S = 1.0
_STREAM_READ_BYTES = 16 * 2**20


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Time and chance, so that tests need no sleeps."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random


def pause_before(attempt: int, *, throttled: bool, options: TransferOptions, chance: float) -> float:
    """Seconds to wait before a try.

    Args:
        attempt: Number of the try, the first retry being 2.
        throttled: The store asked for fewer requests, so the pause begins at a second.
        options: First and longest pause.
        chance: Uniform in ``[0, 1)``.

    Source: "equal jitter" of the AWS Architecture Blog, "Exponential Backoff And Jitter"; for throttling the random
        part comes on top,
    because a shorter pause than asked for is what the store complains about.
    """
    doubled = 2.0 ** (attempt - 2)
    if throttled:
        return min(options.max_pause_s, _THROTTLED_PAUSE_S * doubled) * (1 + 0.5 * chance)
    return min(options.max_pause_s, options.first_pause_s * doubled) * (0.5 + 0.5 * chance)


def retry_transient(call: Callable[[], _T], *, options: TransferOptions, clock: Clock) -> _T:
    """Result of a call, tried again while it fails with a ``TransientError``.

    Raises:
        TransientError: The last failure (``transfer_failed``), saying how often and how long it was tried.
    """
    began, attempt = clock.now(), 1
    while True:
        try:
            return call()
        except TransientError as exc:
            throttled = exc.kind == THROTTLED
            attempt += 1
            pause = pause_before(attempt, throttled=throttled, options=options, chance=clock.random())
            spent = clock.now() - began
            if attempt > options.max_attempts or spent + pause > options.deadline_s:
                tried = f"{attempt - 1} attempt{'s' if attempt > 2 else ''} in {spent:.1f} s"
                raise TransientError(f"{exc} (gave up after {tried})", shard=exc.shard) from exc
            clock.sleep(pause)


class RetryingStorage:
    """A storage whose reads are tried again.

    Writes go straight through: an upload cannot be replayed from here, so backends retry its parts themselves.

    Args:
        inner: The storage.
        options: Timeouts and tries.
        clock: Time and chance.
    """

    def __init__(self, inner: Storage, options: TransferOptions, clock: Clock = Clock()) -> None:
        self.inner = inner
        self.url = inner.url
        self.is_local = inner.is_local
        self._options = options
        self._clock = clock

    def __reduce__(self) -> tuple[type["RetryingStorage"], tuple[Storage, TransferOptions]]:
        return RetryingStorage, (self.inner, self._options)

    def head(self, name: str) -> ObjectMeta:
        """Size and ETag of an object."""
        return retry_transient(lambda: self.inner.head(name), options=self._options, clock=self._clock)

    def read(self, name: str, start: int = 0, stop: int | None = None, *, etag: str | None = None) -> RawBytes:
        """Exactly the bytes ``[start, stop)``."""
        return retry_transient(
            lambda: self.inner.read(name, start, stop, etag=etag), options=self._options, clock=self._clock
        )

    def stream(self, name: str, *, chunk_bytes: int = 4 * 2**20) -> Iterator[RawBytes]:
        """The whole object, in ranged reads that require the ETag seen first: a cut stream goes on where it broke."""
        meta = self.head(name)
        for start in range(0, meta.size, _STREAM_READ_BYTES):
            data = memoryview(self.read(name, start, min(start + _STREAM_READ_BYTES, meta.size), etag=meta.etag))
            for offset in range(0, len(data), chunk_bytes):
                yield data[offset : offset + chunk_bytes]

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """All objects under a prefix, in name order."""
        return self.inner.list(prefix)

    def close(self) -> None:
        """Release connections."""
        self.inner.close()

    def put(self, name: str, data: RawBytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectMeta:
        """Write a small object whole or not at all."""
        return self.inner.put(name, data, if_absent=if_absent, if_match=if_match)

    def open_upload(self, name: str) -> Upload:
        """Begin an object of any size."""
        return self.inner.open_upload(name)

    def delete(self, name: str) -> None:
        """Remove an object; a missing one is fine."""
        self.inner.delete(name)

    def stale_uploads(self, prefix: str) -> Sequence[str]:
        """Names of what dead writers left."""
        return self.inner.stale_uploads(prefix)

    def abort_stale_uploads(self, prefix: str) -> int:
        """Remove what dead writers left."""
        return self.inner.abort_stale_uploads(prefix)
