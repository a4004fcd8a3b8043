"""Source files, local or in a store: listing, sizes and bytes. What they mean is decided in ``sources``."""

import io
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO, NoReturn, Protocol

from janus_shards.errors import AccessDeniedError, ObjectNotFoundError, StorageError
from janus_shards.sample import RawBytes
from janus_shards.storage.base import ObjectMeta, Storage, StorageOptions
from janus_shards.storage.urls import open_storage

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to be packed.

    Attributes:
        name: Path relative to its folder, with ``/``; what a table names may also be absolute.
        size: Length in bytes.
        mtime_ns: Time of its last change in nanoseconds; 0 where a store does not say.
    """

    name: str
    size: int
    mtime_ns: int = 0


class SourceFolder(Protocol):
    """Files under one folder.

    Attributes:
        url: The folder, for messages.

    Every method raises ``StorageError`` naming the file.
    """

    url: str

    def files(self) -> Iterator[SourceFile]:
        """All files, folders below included, in any order; hidden ones are left out."""
        ...

    def stat(self, name: str) -> SourceFile:
        """Size and time of one file."""
        ...

    def read(self, name: str) -> RawBytes:
        """All bytes of one file."""
        ...

    def stream(self, name: str) -> Iterator[RawBytes]:
        """All bytes of one file, in pieces."""
        ...

    def open(self, name: str) -> BinaryIO:
        """One file to be read from any place in it."""
        ...


def open_folder(url: str, storage_options: Mapping[str, object] | None = None) -> SourceFolder:
    """The files under a local folder or an object-store URL."""
    if "://" in url and not url.startswith("file://"):
        return RemoteFolder(url, storage_options)
    return LocalFolder(url.removeprefix("file://"))


class LocalFolder:
    """Files of this machine. Links are followed to files inside the folder only; linked folders are refused.

    Linked folders would pack files twice, or never end.
    """

    def __init__(self, path: str) -> None:
        self.url = path
        self._root = os.path.abspath(path)

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name)

    def files(self) -> Iterator[SourceFile]:
        """All files, hidden ones left out."""
        if not os.path.isdir(self._root):
            raise ObjectNotFoundError(f"{self.url}: expected a folder with files to pack, found none", shard=self.url)
        inside = os.path.realpath(self._root)
        folders = [""]
        while folders:
            folder = folders.pop()
            for entry in self._entries(folder):
                name = f"{folder}{entry.name}"
                if entry.name.startswith("."):
                    continue
                if entry.is_symlink():
                    self._check_link(name, inside)
                if entry.is_dir():
                    folders.append(f"{name}/")
                elif entry.is_file():
                    yield self.stat(name)

    def _entries(self, folder: str) -> list["os.DirEntry[str]"]:
        try:
            with os.scandir(self._path(folder)) as entries:
                return list(entries)
        except OSError as exc:
            self._translate(folder, exc)

    def _check_link(self, name: str, inside: str) -> None:
        path = self._path(name)
        target = os.path.realpath(path)
        if os.path.isdir(target):
            problem = "it links to a folder; give that folder as the source, or copy it"
        elif not os.path.exists(target):
            problem = "it is a link to a file that does not exist"
        elif os.path.commonpath([inside, target]) != inside:
            problem = "it is a link that leaves the folder; copy the file, or name it in a table"
        else:
            return
        raise StorageError(f"{path}: {problem}", kind="bad_path", shard=path)

    def stat(self, name: str) -> SourceFile:
        """Size and time of one file."""
        try:
            found = os.stat(self._path(name))
        except (OSError, ValueError) as exc:
            self._translate(name, exc)
        if not stat.S_ISREG(found.st_mode):
            raise ObjectNotFoundError(f"{self._path(name)}: expected a file", shard=self._path(name))
        return SourceFile(name, found.st_size, found.st_mtime_ns)

    def read(self, name: str) -> bytes:
        """All bytes of one file."""
        try:
            with open(self._path(name), "rb", buffering=0) as file:
                return file.read()
        except (OSError, ValueError) as exc:
            self._translate(name, exc)

    def stream(self, name: str) -> Iterator[bytes]:
        """All bytes of one file, in pieces."""
        try:
            with open(self._path(name), "rb", buffering=0) as file:
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk
        except (OSError, ValueError) as exc:
            self._translate(name, exc)

    def open(self, name: str) -> BinaryIO:
        """One file to be read from any place in it."""
        try:
            return open(self._path(name), "rb")
        except (OSError, ValueError) as exc:
            self._translate(name, exc)

    def _translate(self, name: str, exc: Exception) -> NoReturn:
        path = self._path(name)
        if isinstance(exc, FileNotFoundError | ValueError):  # ValueError: a name with NUL
            raise ObjectNotFoundError(f"{path!r}: there is no such file", shard=path) from exc
        if isinstance(exc, PermissionError):
            raise AccessDeniedError(
                f"{path}: may not be read by this user; change its permissions", shard=path
            ) from exc
        raise StorageError(f"{path}: cannot be read: {exc}", shard=path) from exc


class RemoteFolder:
    """Objects under a prefix of a store."""

    def __init__(self, url: str, storage_options: Mapping[str, object] | None = None) -> None:
        self._storage = open_storage(url, StorageOptions.from_mapping(storage_options))
        self.url = self._storage.url

    def files(self) -> Iterator[SourceFile]:
        """All files, hidden ones left out."""
        for name, meta in self._listing.items():
            if not any(part.startswith(".") for part in name.split("/")) and not name.endswith("/"):
                yield SourceFile(name, meta.size)

    @cached_property
    def _listing(self) -> dict[str, ObjectMeta]:
        return {meta.name: meta for meta in self._storage.list()}

    def stat(self, name: str) -> SourceFile:
        """Size and time of one file."""
        # One listing names 1,000 objects a request; asking for each costs a round trip.
        meta = self._listing.get(name)
        if meta is None:
            raise ObjectNotFoundError(f"{self.url}/{name}: there is no such object", shard=f"{self.url}/{name}")
        return SourceFile(name, meta.size)

    def read(self, name: str) -> RawBytes:
        """All bytes of one file."""
        return self._storage.read(name)

    def stream(self, name: str) -> Iterator[RawBytes]:
        """All bytes of one file, in pieces."""
        return self._storage.stream(name)

    def open(self, name: str) -> BinaryIO:
        """One file to be read from any place in it, by ranged requests of a megabyte or more."""
        return io.BufferedReader(_ObjectFile(self._storage, self._storage.head(name)), buffer_size=_CHUNK_BYTES)


class _ObjectFile(io.RawIOBase):
    """An object of a store as a seekable file; all reads are of one version."""

    def __init__(self, storage: Storage, meta: ObjectMeta) -> None:
        self._storage = storage
        self._meta = meta
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._meta.size}[whence]
        return self._position

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]  # typeshed names a newer type
        stop = min(self._position + len(buffer), self._meta.size)
        if stop <= self._position:
            return 0
        data = self._storage.read(self._meta.name, self._position, stop, etag=self._meta.etag)
        buffer[: len(data)] = data
        self._position = stop
        return len(data)
