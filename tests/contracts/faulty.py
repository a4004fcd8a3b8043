"""A storage that fails as it is told, for tests of what reads through a storage."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from janus_shards.sample import RawBytes
from janus_shards.storage.base import ObjectMeta, ReadStorage


@dataclass(frozen=True)
class Call:
    """One call of a storage.

    Attributes:
        method: ``head``, ``read``, ``stream`` or ``list``.
        name: The object, or the prefix.
        start: First byte of a read.
        stop: First byte behind a read.
    """

    method: str
    name: str
    start: int = 0
    stop: int | None = None


class FaultyStorage:
    """Reads through another storage, notes every call, and lets ``fault`` raise or wait before it is answered.

    Args:
        inner: Where the bytes are.
        fault: Called with each call before it is made.
    """

    def __init__(self, inner: ReadStorage, fault: Callable[[Call], None] = lambda call: None) -> None:
        self.inner = inner
        self.fault = fault
        self.url = inner.url
        self.is_local = False
        self.calls: list[Call] = []
        self.closed = False

    def head(self, name: str) -> ObjectMeta:
        """Size and ETag of an object."""
        self._note(Call("head", name))
        return self.inner.head(name)

    def read(self, name: str, start: int = 0, stop: int | None = None, *, etag: str | None = None) -> RawBytes:
        """Exactly the bytes ``[start, stop)``."""
        self._note(Call("read", name, start, stop))
        return self.inner.read(name, start, stop, etag=etag)

    def stream(self, name: str, *, chunk_bytes: int = 4 * 2**20) -> Iterator[RawBytes]:
        """The whole object."""
        self._note(Call("stream", name))
        return self.inner.stream(name, chunk_bytes=chunk_bytes)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """Objects under a prefix."""
        self._note(Call("list", prefix))
        return self.inner.list(prefix)

    def close(self) -> None:
        """Note that it was closed."""
        self.closed = True
        self.inner.close()

    def _note(self, call: Call) -> None:
        self.calls.append(call)
        self.fault(call)
