"""Locks on single bytes of one file: between the processes of a machine, freed by the kernel when their owner dies.

Open file description locks belong to one opening of the file: two caches in one process exclude each other, threads
that share one cache do not, so that those take a lock of their own besides.

Source: fcntl(2), "Open file description locks".
"""

import errno
import fcntl
import struct
import time
from typing import Protocol

_SET_LOCK: int = getattr(fcntl, "F_OFD_SETLK", 0)
# struct flock of Linux on 64 bits: type, whence, (padding), start, length, process, (padding).
_FLOCK = "hhqqi4x"
_MISSING = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_HELD = {errno.EAGAIN, errno.EACCES}
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.0002, 0.02


class LocksMissingError(OSError):
    """The file system has no byte-range locks."""


class RangeLocks(Protocol):
    """Exclusive locks on single bytes of an open file."""

    def try_lock(self, fd: int, place: int) -> bool:
        """Lock a byte unless another opening holds it.

        Raises:
            LocksMissingError: The file system cannot say.
        """

    def unlock(self, fd: int, place: int) -> None:
        """Free a byte."""


class FileLocks:
    """Open file description locks; POSIX locks of the process on systems that lack them."""

    def try_lock(self, fd: int, place: int) -> bool:
        """See ``RangeLocks``."""
        return self._set(fd, place, fcntl.F_WRLCK)

    def unlock(self, fd: int, place: int) -> None:
        """See ``RangeLocks``."""
        self._set(fd, place, fcntl.F_UNLCK)

    def _set(self, fd: int, place: int, kind: int) -> bool:
        try:
            if _SET_LOCK:
                fcntl.fcntl(fd, _SET_LOCK, struct.pack(_FLOCK, kind, 0, place, 1, 0))
            elif kind == fcntl.F_UNLCK:
                fcntl.lockf(fd, fcntl.LOCK_UN, 1, place)
            else:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError as exc:
            if exc.errno in _HELD:
                return False
            if exc.errno in _MISSING:
                raise LocksMissingError(exc.errno, exc.strerror) from exc
            raise
        return True


def wait_for(locks: RangeLocks, fd: int, place: int, *, limit_s: float) -> bool:
    """Lock a byte, trying again in growing steps; False when ``limit_s`` went by.

    A blocking lock would wait for ever for an owner that is stopped, and could not be ended by Ctrl-C in a thread.
    """
    deadline = time.monotonic() + limit_s
    wait_s = _FIRST_WAIT_S
    while not locks.try_lock(fd, place):
        if time.monotonic() > deadline:
            return False
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
    return True
