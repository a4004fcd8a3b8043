"""Folders of this machine: positioned reads on kept file descriptors, and writes that appear whole or not at all.

Reads may follow symbolic links, as users link data sets together; writes never leave the root through one.
"""

import contextlib
import errno
import fcntl
import os
import resource
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from janus_shards.errors import AccessDeniedError, IntegrityError, ObjectNotFoundError, StorageError, TransientError
from janus_shards.sample import RawBytes
from janus_shards.storage.base import TEMP_PREFIX, ObjectMeta, Upload

_MAX_OPEN_FILES = 4096
# A name of 255 bytes is the limit of most file systems; the temporary name has 19 more than what it keeps of the final
# one.
_TEMP_KEEPS_BYTES = 200


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

    def __reduce__(self) -> tuple[type["LocalStorage"], tuple[str]]:
        return LocalStorage, (self.root,)

    def head(self, name: str) -> ObjectMeta:
        """Size and ETag (from size and time of change) of a file."""
        with _translated(f"reading the size of {self._path(name)}", name):
            status = os.stat(self._path(name))
            if not stat.S_ISREG(status.st_mode):
                raise ObjectNotFoundError(f"{self._path(name)} is not a file", shard=name)
        return ObjectMeta(name=name, size=status.st_size, etag=_etag(status))

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
            raise _short(self._path(name), name, start=start, stop=stop, size=file.size)
        try:
            data = os.pread(file.fd, stop - start, start)
            return data if len(data) == stop - start else self._read_rest(file, name, start, stop, data)
        except OSError as exc:
            raise _error(exc, f"reading bytes {start}-{stop} of {self._path(name)}", name) from exc

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
            raise _error(exc, f"reading {len(buffer)} bytes at {start} of {self._path(name)}", name) from exc

    def stream(self, name: str, *, chunk_bytes: int = 4 * 2**20) -> Iterator[RawBytes]:
        """The whole file in order."""
        file = self._open(name)
        with _translated(f"reading {self._path(name)}", name):
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            start = 0
            while start < file.size:
                data = os.pread(file.fd, min(chunk_bytes, file.size - start), start)
                if not data:
                    raise _short(self._path(name), name, start=start, stop=file.size, size=start)
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
        with _translated(f"removing {path}", name), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def abort_stale_uploads(self, prefix: str) -> int:
        """Remove temporary files of writers that are gone; those of living ones hold a lock."""
        folder, _, start = prefix.rpartition("/")
        path = self._writable_path(folder + "/x") if folder else os.path.join(self.root, "x")
        removed = 0
        wanted = os.fsencode(start)[:_TEMP_KEEPS_BYTES]
        for entry in _scan(os.path.dirname(path)):
            kept = os.fsencode(entry.name)[len(TEMP_PREFIX) + 9 :]  # behind eight hexadecimal digits and a hyphen
            if entry.name.startswith(TEMP_PREFIX) and kept.startswith(wanted):
                removed += _remove_unless_locked(entry.path)
        return removed

    def forget(self, name: str) -> None:
        """Let go of the descriptor of a file that was replaced."""
        self._files.pop(name, None)

    def _open_temp(self, name: str) -> "_LocalUpload":
        path = self._writable_path(name)
        with _translated(f"writing {path}", name):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            # Once more: a folder of the path may have appeared as a link since.
            self._writable_path(name)
            return _LocalUpload(self, name, path)

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
        with _translated(f"opening {path}", name):
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
                raise _short(self._path(name), name, start=start, stop=stop, size=os.fstat(file.fd).st_size)
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
                        yield ObjectMeta(name=name, size=status.st_size, etag=_etag(status))


class _OpenFile:
    """A descriptor that closes with its last reference, so eviction never closes it under a reader."""

    __slots__ = ("etag", "fd", "is_regular", "size")

    def __init__(self, path: str) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self.fd)
        self.is_regular = stat.S_ISREG(status.st_mode)
        self.size = status.st_size
        self.etag = _etag(status)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # Bound early: at the end of the interpreter the name may be gone.
        if self.fd >= 0:
            close(self.fd)


class _LocalUpload(Upload):
    """A temporary file with a lock that says its writer lives."""

    def __init__(self, storage: LocalStorage, name: str, path: str) -> None:
        self._storage = storage
        self._name = name
        self._path = path
        folder, base = os.path.split(path)
        kept = os.fsdecode(os.fsencode(base)[:_TEMP_KEEPS_BYTES])
        self._temp = os.path.join(folder, f"{TEMP_PREFIX}{os.urandom(4).hex()}-{kept}")
        self._fd = os.open(self._temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        # Where locks are missing, a stale upload cannot be told from a living one; nothing else depends on them.
        with contextlib.suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, data: RawBytes) -> None:
        view = memoryview(data).cast("B")
        with self._aborting():
            while view:
                view = view[os.write(self._open_fd(), view) :]

    def finish(self) -> ObjectMeta:
        return self.publish()

    def publish(self, *, if_absent: bool = False, if_match: str | None = None) -> ObjectMeta:
        with self._aborting():
            os.fsync(self._open_fd())
            etag_status = os.fstat(self._fd)
            if if_absent:
                _link(self._temp, self._path)
            elif if_match is not None:
                _replace_if_match(self._temp, self._path, if_match)
            else:
                os.replace(self._temp, self._path)
            _sync_folder(os.path.dirname(self._path))
        self._storage.forget(self._name)
        self._close()
        return ObjectMeta(name=self._name, size=etag_status.st_size, etag=_etag(etag_status))

    def abort(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temp)
            self._close()

    def _open_fd(self) -> int:
        if self._fd < 0:
            raise StorageError(f"upload of {self._path} is closed", kind="closed", shard=self._name)
        return self._fd

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1

    @contextlib.contextmanager
    def _aborting(self) -> Iterator[None]:
        try:
            with _translated(f"writing {self._path}", self._name):
                yield
        except BaseException:
            self.abort()
            raise


def _default_max_open_files() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MAX_OPEN_FILES if limit == resource.RLIM_INFINITY else max(8, min(_MAX_OPEN_FILES, limit // 4))


def _etag(status: os.stat_result) -> str:
    return f"{status.st_size:x}-{status.st_mtime_ns:x}"


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    return entry.is_dir(follow_symlinks=False)


def _scan(path: str) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as exc:
        raise _error(exc, f"listing {path}", None) from exc


def _link(temp: str, path: str) -> None:
    """Publish under a name that must be free."""
    try:
        os.link(temp, path)
    except FileExistsError:
        raise
    except OSError:
        # A file system without hard links: claim the name first, then put the file in its place.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW))
        os.replace(temp, path)
    else:
        os.unlink(temp)


def _replace_if_match(temp: str, path: str, etag: str) -> None:
    """Replace a file that must still be the known one; the lock on the old file makes one of two writers the first."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise FileExistsError(errno.EEXIST, f"it is not at ETag {etag} any more, but gone") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        status = os.stat(path)
        if (status.st_ino, _etag(status)) != (os.fstat(fd).st_ino, etag):
            raise FileExistsError(errno.EEXIST, f"it is not at ETag {etag} any more")
        os.replace(temp, path)
    finally:
        os.close(fd)


def _sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove_unless_locked(path: str) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except OSError:
        return 0
    finally:
        os.close(fd)
    return 1


@contextlib.contextmanager
def _translated(doing: str, name: str | None) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as exc:
        raise _error(exc, doing, name) from exc


def _error(exc: OSError, doing: str, name: str | None) -> StorageError:
    if isinstance(exc, StorageError):
        return exc
    reason = exc.strerror or str(exc)
    if isinstance(exc, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return ObjectNotFoundError(f"{doing}: it does not exist ({reason})", shard=name)
    if isinstance(exc, FileExistsError):
        return StorageError(f"{doing}: somebody else wrote it ({reason})", kind="conflict", shard=name)
    if isinstance(exc, PermissionError) or exc.errno == errno.EROFS:
        return AccessDeniedError(f"{doing}: {reason}; check owner and mode", shard=name)
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"{doing}: {reason}; free some space or write elsewhere", kind="disk_full", shard=name)
    if exc.errno in (errno.EINTR, errno.EAGAIN, errno.ESTALE):
        return TransientError(f"{doing}: {reason}", shard=name)
    return StorageError(f"{doing}: {reason}", shard=name)


def _short(path: str, name: str, *, start: int, stop: int, size: int) -> IntegrityError:
    return IntegrityError(
        f"reading bytes {start}-{stop} of {path}: the file has {size} bytes; it was cut or belongs to another index",
        kind="truncated_shard",
        shard=name,
    )
