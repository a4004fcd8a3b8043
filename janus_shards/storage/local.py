"""Folders of this machine: positioned reads on kept file descriptors, and writes that appear whole or not at all.

Reads may follow symbolic links, as users link data sets together; writes never leave the root through one.
"""

import contextlib
import mmap
import os
import resource
import stat
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from janus_shards.errors import IntegrityError, ObjectNotFoundError, StorageError
from janus_shards.sample import RawBytes
from janus_shards.storage.base import TEMP_PREFIX, ObjectMeta, Upload
from janus_shards.storage.local_errors import file_error, file_etag, short_file, translated
from janus_shards.storage.local_upload import LocalUpload, is_abandoned, is_leftover, remove_unless_locked

_MAX_OPEN_FILES = 4096
# Before Python 3.13 each mapping keeps a descriptor of its own.
_UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


class LocalStorage:
    """Files under one folder.

    Descriptors are kept open, least recently used closed first, and are shared with forked children: positioned reads
    share no state. No lock is held anywhere, so a fork at any moment leaves the child able to read.

    Args:
        root: The folder; it may not exist yet.
        max_open_files: Descriptors to keep; by default a quarter of what the process may open.
    """

    is_local = True

    def __init__(self, root: str | os.PathLike[str], *, max_open_files: int | None = None) -> None:
        self.root = os.path.abspath(root)
        self.url = self.root
        self._max_open_files = max_open_files or _default_max_open_files()
        # OrderedDict's methods are atomic; a file closes when the last reader lets go of it, not when it is evicted.
        self._files: OrderedDict[str, _OpenFile] = OrderedDict()
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._max_maps = sys.maxsize if _UNTRACKED else 2 * self._max_open_files

    def __reduce__(self) -> tuple[type["LocalStorage"], tuple[str]]:
        return LocalStorage, (self.root,)

    def head(self, name: str) -> ObjectMeta:
        """Size and ETag (from size and time of change) of a file."""
        with translated(f"reading the size of {self._path(name)}", name):
            status = os.stat(self._path(name))
            if not stat.S_ISREG(status.st_mode):
                raise ObjectNotFoundError(f"{self._path(name)} is not a file", shard=name)
        return ObjectMeta(name=name, size=status.st_size, etag=file_etag(status))

    def read(self, name: str, start: int = 0, stop: int | None = None, *, etag: str | None = None) -> RawBytes:
        """Exactly the bytes ``[start, stop)`` of a file, in one system call.

        The ETag is the one the file had when it was opened here: a descriptor goes on reading the old bytes of a file
        that was replaced, so old and new never mix.
        """
        file = self._file(name)
        if etag is not None and etag != file.etag:
            file = self._reopen(name, etag)
        if stop is None:
            stop = file.size
        if not 0 <= start <= stop:
            raise short_file(self._path(name), name, start=start, stop=stop, size=file.size)
        try:
            data = os.pread(file.fd, stop - start, start)
            return data if len(data) == stop - start else self._read_rest(file, name, start, stop, data)
        except OSError as exc:
            raise file_error(exc, f"reading bytes {start}-{stop} of {self._path(name)}", name) from exc

    def pread_into(self, name: str, start: int, buffer: bytearray | memoryview) -> None:
        """Fill a writable buffer with the bytes of a file from ``start`` on; the GIL is released and nothing is copied
        twice.

        Raises:
            IntegrityError: The file ends before the buffer is full (``truncated_shard``).
        """
        file = self._file(name)
        try:
            count = os.preadv(file.fd, (buffer,), start)
            if count != len(buffer):
                buffer[:] = self._read_rest(file, name, start, start + len(buffer), b"")
        except OSError as exc:
            raise file_error(exc, f"reading {len(buffer)} bytes at {start} of {self._path(name)}", name) from exc

    def map(self, name: str, stop: int) -> RawBytes:
        """The first ``stop`` bytes of a file as pages of it, which all processes of the machine share.

        Whoever cuts the file meanwhile kills its readers (SIGBUS); a file that is replaced is safe. Where descriptors
        are scarce, the bytes are a copy.
        """
        if not stop or len(self._maps) >= self._max_maps:
            return self.read(name, 0, stop)
        path = self._path(name)
        with translated(f"mapping {path}", name):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                size = os.fstat(fd).st_size
                if size < stop:
                    raise short_file(path, name, start=0, stop=stop, size=size)
                mapped = _map_pages(fd, stop)
            finally:
                os.close(fd)
        self._maps.add(mapped)
        return memoryview(mapped)

    def stream(self, name: str, *, chunk_bytes: int = 4 * 2**20) -> Iterator[RawBytes]:
        """The whole file in order."""
        file = self._open(name)
        with translated(f"reading {self._path(name)}", name):
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            start = 0
            while start < file.size:
                data = os.pread(file.fd, min(chunk_bytes, file.size - start), start)
                if not data:
                    raise short_file(self._path(name), name, start=start, stop=file.size, size=start)
                yield data
                start += len(data)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """All files under a prefix, in name order; folders behind symbolic links are left out."""
        if not os.path.isdir(self.root):
            raise ObjectNotFoundError(f"{self.root} does not exist or is not a folder")
        folder = prefix.rpartition("/")[0]
        if folder:
            self._path(folder)
        yield from self._walk(folder + "/" if folder else "", prefix)

    def close(self) -> None:
        """Close the kept descriptors; reading afterwards opens files again."""
        self._files.clear()

    def put(self, name: str, data: RawBytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectMeta:
        """Write a file through a temporary one in the same folder."""
        with self._open_temp(name) as upload:
            upload.write(data)
            return upload.publish(if_absent=if_absent, if_match=if_match)

    def open_upload(self, name: str) -> Upload:
        """Begin a file under a temporary name in its folder."""
        return self._open_temp(name)

    def delete(self, name: str) -> None:
        """Remove a file; a missing one is fine."""
        path = self._writable_path(name)
        self._files.pop(name, None)
        with translated(f"removing {path}", name), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def stale_uploads(self, prefix: str) -> Sequence[str]:
        """Temporary files of writers that are gone; those of living ones hold a lock."""
        folder, slash, _ = prefix.rpartition("/")
        return sorted(f"{folder}{slash}{entry.name}" for entry in self._leftovers(prefix) if is_abandoned(entry.path))

    def abort_stale_uploads(self, prefix: str) -> int:
        """Remove temporary files of writers that are gone; those of living ones hold a lock."""
        return sum(remove_unless_locked(entry.path) for entry in self._leftovers(prefix))

    def _leftovers(self, prefix: str) -> "Sequence[os.DirEntry[str]]":
        folder, _, start = prefix.rpartition("/")
        path = self._writable_path(folder + "/x") if folder else os.path.join(self.root, "x")
        return [entry for entry in _scan(os.path.dirname(path)) if is_leftover(entry.name, start)]

    def forget(self, name: str) -> None:
        """Let go of the descriptor of a file that was replaced."""
        self._files.pop(name, None)

    def _open_temp(self, name: str) -> LocalUpload:
        path = self._writable_path(name)
        with translated(f"writing {path}", name):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            # Once more: a folder of the path may have appeared as a link since.
            self._writable_path(name)
            return LocalUpload(path, name=name, on_publish=self.forget)

    def _path(self, name: str) -> str:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or "\0" in name or name.endswith("/"):
            raise StorageError(
                f"{name!r} is no name inside {self.root}: expected a relative path without '..'",
                kind="bad_path",
                shard=name,
            )
        return os.path.join(self.root, name)

    def _writable_path(self, name: str) -> str:
        path = self._path(name)
        folder, root = os.path.realpath(os.path.dirname(path)), os.path.realpath(self.root)
        if folder != root and not folder.startswith(root.rstrip("/") + "/"):
            raise StorageError(
                f"{path} lies outside of {self.root}: a symbolic link leads to {folder}", kind="bad_path", shard=name
            )
        return path

    def _file(self, name: str) -> "_OpenFile":
        file = self._files.get(name)
        if file is None:
            return self._open(name)
        try:
            self._files.move_to_end(name)
        except KeyError:
            pass  # another thread evicted it meanwhile; this reference keeps it open
        return file

    def _open(self, name: str) -> "_OpenFile":
        path = self._path(name)
        with translated(f"opening {path}", name):
            file = _OpenFile(path)
            if not file.is_regular:
                raise ObjectNotFoundError(f"{path} is not a file", shard=name)
        self._files[name] = file
        while len(self._files) > self._max_open_files:
            try:
                self._files.popitem(last=False)
            except KeyError:
                break
        return file

    def _reopen(self, name: str, etag: str) -> "_OpenFile":
        self.forget(name)
        file = self._open(name)
        if etag != file.etag:
            raise IntegrityError(
                f"{self._path(name)} changed: expected ETag {etag}, found {file.etag}; open the data set again",
                shard=name,
            )
        return file

    def _read_rest(self, file: "_OpenFile", name: str, start: int, stop: int, data: bytes) -> bytes:
        """What one call did not return: it gives at most 2 GiB, and less where the file ends."""
        pieces, position = [data], start + len(data)
        while position < stop:
            pieces.append(os.pread(file.fd, stop - position, position))
            position += len(pieces[-1])
            if not pieces[-1]:
                raise short_file(self._path(name), name, start=start, stop=stop, size=os.fstat(file.fd).st_size)
        return b"".join(pieces)

    def _walk(self, folder: str, prefix: str) -> Iterator[ObjectMeta]:
        entries = (
            (f"{folder}{e.name}/" if _is_folder(e) else f"{folder}{e.name}", e)
            for e in _scan(os.path.join(self.root, folder))
        )
        # A folder sorts as its name and a slash, which gives the order of the whole names.
        for name, entry in sorted(entries, key=lambda pair: os.fsencode(pair[0])):
            if name.endswith("/"):
                if name.startswith(prefix) or prefix.startswith(name):
                    yield from self._walk(name, prefix)
            elif name.startswith(prefix) and not entry.name.startswith(TEMP_PREFIX):
                # A file that vanished since, or a dangling link, is not listed.
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat()
                    if stat.S_ISREG(status.st_mode):
                        yield ObjectMeta(name=name, size=status.st_size, etag=file_etag(status))


class _OpenFile:
    """A descriptor that closes with its last reference, so eviction never closes it under a reader."""

    __slots__ = ("etag", "fd", "is_regular", "size")

    def __init__(self, path: str) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self.fd)
        self.is_regular = stat.S_ISREG(status.st_mode)
        self.size = status.st_size
        self.etag = file_etag(status)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # Bound early: at the end of the interpreter the name may be gone.
        if self.fd >= 0:
            close(self.fd)


def _map_pages(fd: int, length: int) -> mmap.mmap:
    return mmap.mmap(fd, length, access=mmap.ACCESS_READ, **_UNTRACKED)


def _default_max_open_files() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MAX_OPEN_FILES if limit == resource.RLIM_INFINITY else max(8, min(_MAX_OPEN_FILES, limit // 4))


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    return entry.is_dir(follow_symlinks=False)


def _scan(path: str) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as exc:
        raise file_error(exc, f"listing {path}", None) from exc
