"""Files that appear under their name whole or not at all, and what is left of those whose writer died."""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from janus_shards.errors import StorageError
from janus_shards.sample import RawBytes
from janus_shards.storage.base import TEMP_PREFIX, TEMP_SUFFIX, ObjectMeta, Upload
from janus_shards.storage.local_errors import file_etag, translated

# A name of 255 bytes is the limit of most file systems; the temporary name has 25 more than what it keeps of the final
# one.
_TEMP_KEEPS_BYTES = 200


class LocalUpload(Upload):
    """A temporary file beside the final one, with a lock that says its writer lives.

    Args:
        path: The final path; its folder exists.
        name: The object, for the record returned.
        on_publish: Called when the file is in place.
    """

    _temp = ""  # the file, as long as it may be there

    def __init__(self, path: str, *, name: str, on_publish: Callable[[str], None]) -> None:
        self._path = path
        self._name = name
        self._on_publish = on_publish
        folder, base = os.path.split(path)
        kept = os.fsdecode(os.fsencode(base)[:_TEMP_KEEPS_BYTES])
        self._pid = os.getpid()
        self._fd = -1
        # Known before the file is there: an interrupt may come as soon as it is.
        self._temp = os.path.join(folder, f"{TEMP_PREFIX}{os.urandom(4).hex()}-{kept}{TEMP_SUFFIX}")
        try:
            self._fd = os.open(self._temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError:
            self._temp = ""
            raise
        # Where locks are missing, a stale upload cannot be told from a living one; nothing else depends on them.
        with suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, data: RawBytes) -> None:
        """Append bytes to the temporary file."""
        view = memoryview(data).cast("B")
        with self._aborting():
            while view:
                view = view[os.write(self._open_fd(), view) :]

    def finish(self) -> ObjectMeta:
        """Put the file in its place."""
        return self.publish()

    def publish(self, *, if_absent: bool = False, if_match: str | None = None) -> ObjectMeta:
        """Put the file in its place, durably, if the conditions of ``put`` hold."""
        with self._aborting():
            os.fsync(self._open_fd())
            status = os.fstat(self._fd)
            if if_absent:
                _link(self._temp, self._path)
            elif if_match is not None:
                _replace_if_match(self._temp, self._path, if_match)
            else:
                os.replace(self._temp, self._path)
            _sync_folder(os.path.dirname(self._path))
        self._on_publish(self._name)
        self._close()
        return ObjectMeta(name=self._name, size=status.st_size, etag=file_etag(status))

    def abort(self) -> None:
        """Remove the temporary file."""
        if self._temp:
            with suppress(FileNotFoundError):
                os.unlink(self._temp)
            self._close()

    def __del__(self) -> None:
        # An interrupt can come before the caller holds what it has to abort. A forked child holds only a copy.
        if self._temp and self._pid == os.getpid():
            with suppress(OSError):
                self.abort()

    def _open_fd(self) -> int:
        if self._fd < 0:
            raise StorageError(f"upload of {self._path} is closed", kind="closed", shard=self._name)
        return self._fd

    def _close(self) -> None:
        self._temp = ""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    @contextmanager
    def _aborting(self) -> Iterator[None]:
        try:
            with translated(f"writing {self._path}", self._name):
                yield
        except BaseException:
            self.abort()
            raise


def is_leftover(temp_name: str, start: str) -> bool:
    """Whether a file name is that of a temporary file whose final name begins with ``start``."""
    kept = os.fsencode(temp_name)[len(TEMP_PREFIX) + 9 :]  # behind eight hexadecimal digits and a hyphen
    return temp_name.startswith(TEMP_PREFIX) and kept.startswith(os.fsencode(start)[:_TEMP_KEEPS_BYTES])


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
        if (status.st_ino, file_etag(status)) != (os.fstat(fd).st_ino, etag):
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


def is_abandoned(path: str) -> bool:
    """Whether the writer of a temporary file is gone."""
    with _lock_of_dead(path) as is_locked:
        return is_locked


def remove_unless_locked(path: str) -> int:
    """Remove a temporary file unless its writer lives; returns how many files were removed."""
    with _lock_of_dead(path) as is_locked, suppress(OSError):
        if is_locked:
            os.unlink(path)
            return 1
    return 0


@contextmanager
def _lock_of_dead(path: str) -> Iterator[bool]:
    """Holds the lock of a temporary file, if its writer holds it no more; tells whether it does."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)
