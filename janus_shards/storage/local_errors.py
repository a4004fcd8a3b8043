"""What the operating system's errors mean for a file of ours, and how a file is told from its later versions."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from janus_shards.errors import AccessDeniedError, IntegrityError, ObjectNotFoundError, StorageError, TransientError


def file_etag(status: os.stat_result) -> str:
    """An ETag from size and time of change: rewriting a file changes it, and no byte has to be read."""
    return f"{status.st_size:x}-{status.st_mtime_ns:x}"


@contextmanager
def translated(doing: str, name: str | None) -> Iterator[None]:
    """Errors of the operating system inside the block become storage errors.

    Args:
        doing: What is tried, and on which path.
        name: The object.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as exc:
        raise file_error(exc, doing, name) from exc


def file_error(exc: OSError, doing: str, name: str | None) -> StorageError:
    """The storage error for one of the operating system."""
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


def short_file(path: str, name: str, *, start: int, stop: int, size: int) -> IntegrityError:
    """The error for a range that reaches behind the end of a file."""
    return IntegrityError(
        f"reading bytes {start}-{stop} of {path}: the file has {size} bytes; it was cut or belongs to another index",
        kind="truncated_shard",
        shard=name,
    )
