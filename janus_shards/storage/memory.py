"""Objects in memory: the fake that tests use in place of a store."""

import hashlib
import threading
from collections.abc import Iterator, Sequence

from janus_shards.errors import IntegrityError, ObjectNotFoundError, StorageError
from janus_shards.sample import RawBytes
from janus_shards.storage.base import ObjectMeta, Upload


class MemoryStorage:
    """A storage that lives as long as this Python object; a pickled copy has a copy of the objects.

    Args:
        url: What to call it in messages.
    """

    is_local = True

    def __init__(self, url: str = "janus-memory://") -> None:
        self.url = url
        self._objects: dict[str, tuple[bytes, str]] = {}  # name -> bytes, etag
        self._versions = 0
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        return {"url": self.url, "_objects": self._objects, "_versions": self._versions}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def head(self, name: str) -> ObjectMeta:
        """Size and ETag of an object."""
        data, etag = self._object(name)
        return ObjectMeta(name=name, size=len(data), etag=etag)

    def read(self, name: str, start: int = 0, stop: int | None = None, *, etag: str | None = None) -> RawBytes:
        """Exactly the bytes ``[start, stop)``."""
        data, found = self._object(name)
        if etag is not None and etag != found:
            raise IntegrityError(f"{self.url}/{name} changed: expected ETag {etag}, found {found}", shard=name)
        stop = len(data) if stop is None else stop
        if not 0 <= start <= stop <= len(data):
            raise IntegrityError(
                f"reading bytes {start}-{stop} of {self.url}/{name}: the object has {len(data)}",
                kind="truncated_shard",
                shard=name,
            )
        return data[start:stop]

    def stream(self, name: str, *, chunk_bytes: int = 4 * 2**20) -> Iterator[RawBytes]:
        """The whole object in order."""
        data, _ = self._object(name)
        view = memoryview(data)
        for start in range(0, len(data), chunk_bytes):
            yield view[start : start + chunk_bytes]

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """All objects under a prefix, in name order."""
        for name in sorted(self._objects, key=str.encode):
            if name.startswith(prefix):
                yield self.head(name)

    def close(self) -> None:
        """Nothing to release; the objects stay."""

    def put(self, name: str, data: RawBytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectMeta:
        """Write an object, if the conditions hold."""
        with self._lock:
            found = self._objects.get(name)
            if if_absent and found is not None:
                raise StorageError(f"{self.url}/{name} exists already", kind="conflict", shard=name)
            if if_match is not None and (found is None or found[1] != if_match):
                raise StorageError(f"{self.url}/{name} is not at ETag {if_match} any more", kind="conflict", shard=name)
            # Numbered, so that a rewrite with the same bytes is seen too.
            self._versions += 1
            etag = f"{hashlib.sha256(data).hexdigest()[:16]}-{self._versions}"
            self._objects[name] = (bytes(data), etag)
        return self.head(name)

    def open_upload(self, name: str) -> Upload:
        """Begin an object."""
        return _MemoryUpload(self, name)

    def delete(self, name: str) -> None:
        """Remove an object; a missing one is fine."""
        with self._lock:
            self._objects.pop(name, None)

    def stale_uploads(self, prefix: str) -> Sequence[str]:
        """Unfinished uploads vanish with their Python objects: there are none."""
        return []

    def abort_stale_uploads(self, prefix: str) -> int:
        """Unfinished uploads vanish with their Python objects: there are none."""
        return 0

    def _object(self, name: str) -> tuple[bytes, str]:
        try:
            return self._objects[name]
        except KeyError:
            raise ObjectNotFoundError(f"{self.url}/{name} does not exist", shard=name) from None


class _MemoryUpload(Upload):
    def __init__(self, storage: MemoryStorage, name: str) -> None:
        self._storage = storage
        self._name = name
        self._data: bytearray | None = bytearray()

    def write(self, data: RawBytes) -> None:
        if self._data is None:
            raise StorageError(f"upload of {self._name} is closed", kind="closed", shard=self._name)
        self._data += data

    def finish(self) -> ObjectMeta:
        if self._data is None:
            raise StorageError(f"upload of {self._name} is closed", kind="closed", shard=self._name)
        data, self._data = self._data, None
        return self._storage.put(self._name, memoryview(data))

    def abort(self) -> None:
        self._data = None
