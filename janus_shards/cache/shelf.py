"""What entries of both kinds need: to be found, made, touched, locked and dropped, without ever raising for the disk.

The first trouble is logged once as a warning. A full disk takes no more entries until the next epoch; one that is
read-only, or without locks, takes none at all; a folder that is gone is missed from then on.
"""

import errno
import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from janus_shards.cache.base import CacheOptions, EntryKey, Pieces
from janus_shards.cache.budget import Budget, BusyError, GoneError
from janus_shards.cache.entry import STAMP_OFFSET, Header
from janus_shards.cache.files import Damage, EntryFiles, OpenFile, write_all
from janus_shards.cache.folder import MARKER_NAME, CacheFolder, open_folder
from janus_shards.cache.locks import LocksMissingError, RangeLocks, wait_for

_log = logging.getLogger(__name__)

_FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM, errno.EBADF}
_UNSUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
# Entries remembered as verified: a hundred bytes each.
_MAX_VERIFIED = 1_000_000
# Behind the places of the usage file and its slots; two blocks that share one only wait for each other.
_FIRST_BLOCK_PLACE = 1 << 32


@dataclass(frozen=True, slots=True)
class Opened:
    """What is open while the cache works.

    Attributes:
        folder: The folder.
        files: Its open entries.
        budget: This process's part in the budget; ``None`` when nothing can be stored.
    """

    folder: CacheFolder
    files: EntryFiles
    budget: Budget | None


class Shelf:
    """The folder as one process uses it. Opens at first use, and anew in a forked child. Safe to use from many threads.

    Args:
        options: Folder and budgets.
        dataset: Fingerprint of the data set that is read.
        locks: How processes exclude each other.
        max_open: Entries whose files are open at a time; a part of what the process may open when not given.
    """

    def __init__(self, options: CacheOptions, *, dataset: str, locks: RangeLocks, max_open: int | None = None) -> None:
        self.options = options
        self.locks = locks
        self._max_open = max_open
        self._dataset = dataset
        self._warned = False
        # Whether entries may be looked for, and whether they may be stored, for good and in this epoch.
        self._reads = self._writes = True
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._opened: Opened | None = None
        self._finish: weakref.finalize[[], Shelf] | None = None
        self._pauses = False
        self._verified: dict[bytes, tuple[int, int]] = {}
        self._counts: Counter[str] = Counter()

    def after_fork(self) -> None:
        """In a forked child: let go of the parent's slot and locks, and begin anew."""
        opened = self._opened
        if opened is not None and opened.budget is not None:
            opened.budget.forget()
            if self._finish is not None:
                self._finish.detach()
        self._reset()

    def open(self) -> Opened | None:
        """The folder; ``None`` when there is none to be had.

        Raises:
            ConfigError: The directory cannot be used by anybody's doing but the user's.
        """
        opened = self._opened
        if opened is None and self._reads:
            with self._lock:
                opened = self._opened
                if opened is None:
                    opened = self._opened = self._open()
        return opened if self._reads else None

    def _open(self) -> Opened | None:
        try:
            folder = open_folder(self.options.directory, self.options.group_id)
        except OSError as exc:
            self._reads = self._writes = False
            self._warn("opening the folder", exc, "nothing is cached")
            return None
        return Opened(folder, EntryFiles(folder, max_open=self._max_open), self._open_budget(folder))

    def _open_budget(self, folder: CacheFolder) -> Budget | None:
        budget = None
        with self.trouble("opening the shared budget"):
            if not folder.has_marker():
                raise PermissionError(errno.EPERM, f"the folder has files but no {MARKER_NAME}")
            budget = Budget(folder, self.locks, self.options, self._dataset)
            # Also when the cache is forgotten, and at the end of the process.
            self._finish = weakref.finalize(self, budget.close)
        self._writes = budget is not None
        return budget

    def close(self) -> None:
        """Give back what was leased; the next use opens the folder again."""
        with self._lock:
            self._opened, finish = None, self._finish
        if finish is not None:
            finish()

    def begin_epoch(self, epoch: int, *, whole: bool) -> None:
        """See ``DiskCache.begin_epoch``."""
        self._pauses = False
        budget = self.budget()
        if budget is not None:
            with self.trouble("beginning an epoch"):
                budget.begin_epoch(epoch, whole=whole)

    def budget(self) -> Budget | None:
        """The budget, if something may be stored now."""
        opened = self.open()
        return opened.budget if opened is not None and self._writes and not self._pauses else None

    # Entries.

    def find(self, key: EntryKey) -> OpenFile | None:
        """Open an entry and mark it as touched; one that was cut is removed."""
        opened = self.open()
        if opened is None:
            return None
        with self.trouble("reading an entry"):
            try:
                file = opened.files.open(key.file_name, key.identity)
            except Damage as exc:
                self.discard(key, exc)
                return None
            if file is not None:
                self._touch(opened, file)
            return file
        return None

    def _touch(self, opened: Opened, file: OpenFile) -> None:
        """Leave this epoch's stamp, once an epoch."""
        if opened.budget is None:
            return
        stamp = opened.budget.stamp
        if file.stamp.data_set != stamp.data_set or file.stamp.tick < stamp.tick:
            try:
                os.pwrite(file.fd, stamp.encode(), STAMP_OFFSET)
            except OSError:
                pass  # a read-only disk: nothing is evicted there either

    def create(self, key: EntryKey, header: Header, pieces: Pieces) -> OpenFile | None:
        """Make an entry and publish it; ``None`` when there is no room or something else has its name.

        Args:
            key: Its name.
            header: What it is.
            pieces: Its payload. A decoded entry starts without one, but with all of its space.
        """
        opened, budget = self.open(), self.budget()
        if opened is None or budget is None or opened.folder.is_taken(key.file_name):
            return None
        if not budget.reserve(header.file_bytes):
            self.count("refused")
            return None
        try:
            file = _write(opened.folder, budget, header, pieces, key.file_name)
        except BaseException:
            budget.refund(header.file_bytes)
            raise
        budget.spend(header.file_bytes)
        self.count("admitted")
        return file

    def discard(self, key: EntryKey, reason: Exception) -> None:
        """Remove a damaged entry."""
        _log.info("cache %s: dropped %s: %s", self.options.directory, key.file_name, reason)
        self.count("damaged")
        budget = self.budget()
        if budget is not None:
            with self.trouble("removing a damaged entry"):
                budget.remove(key.file_name)

    @contextmanager
    def locked(self, place: int, *, limit_s: float) -> Iterator[bool]:
        """Run the block with a lock over all processes; the value says whether it was to be had in time."""
        budget, held = self.budget(), False
        if budget is not None:
            with self.trouble("locking a block"):
                held = wait_for(self.locks, budget.locks_fd, place, limit_s=limit_s)
        try:
            yield held
        finally:
            if held and budget is not None:
                with self.trouble("unlocking a block"):
                    self.locks.unlock(budget.locks_fd, place)

    # What was verified, by this process.

    def verified_rows(self, digest: bytes, nonce: int) -> int:
        """Bit mask of the records that were verified; bit 0 stands for the payload of a raw entry."""
        known, rows = self._verified.get(digest, (0, 0))
        return rows if known == nonce else 0

    def set_verified(self, digest: bytes, nonce: int, rows: int) -> None:
        """Remember what was verified, for as long as the process lives."""
        if len(self._verified) >= _MAX_VERIFIED:
            self._verified.clear()
        self._verified[digest] = nonce, rows

    def count(self, what: str, number: int = 1) -> None:
        """Count something for ``stats``."""
        with self._lock:
            self._counts[what] += number

    def counts(self) -> Counter[str]:
        """What was counted since the cache was opened."""
        with self._lock:
            return self._counts.copy()

    # Trouble.

    @contextmanager
    def trouble(self, what: str) -> Iterator[None]:
        """Whatever the disk does in the block ends it, and is no error."""
        try:
            yield
        except LocksMissingError as exc:
            self._writes = False
            self._warn(what, exc, "entries that are there are used, nothing is stored")
        except BusyError as exc:
            self._pauses = True
            self._warn(what, exc, "nothing more is stored in this epoch")
        except OSError as exc:
            self._judge(what, exc)

    def _judge(self, what: str, exc: OSError) -> None:
        opened = self._opened
        is_gone = opened is not None and opened.folder.is_gone()
        if is_gone or isinstance(exc, GoneError) or exc.errno == errno.ESTALE:
            self._reads = self._writes = False
            self._warn(what, exc, "the folder is gone; nothing is cached any more")
        elif exc.errno in _FORBIDDEN:
            self._writes = False
            self._warn(what, exc, "entries that are there are used, nothing more is stored")
        else:
            self._pauses = True
            self._warn(what, exc, "nothing more is stored in this epoch")

    def _warn(self, what: str, exc: OSError, consequence: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("cache %s: %s: %s; %s", self.options.directory, what, exc, consequence)


def block_place(digest: bytes) -> int:
    """Where the locks of a block begin in the ``locks`` file: one for its entry, then one for each of its rows."""
    return _FIRST_BLOCK_PLACE + (int.from_bytes(digest[:8], "little") >> 2)


def new_nonce() -> int:
    """64 random bits."""
    return int.from_bytes(os.urandom(8), "little")


def _write(folder: CacheFolder, budget: Budget, header: Header, pieces: Pieces, name: str) -> OpenFile:
    """Write an entry under a temporary name, and publish it."""
    if not folder.has_marker():
        # Somebody has emptied the folder. Entries without a marker beside them could never be removed.
        raise GoneError(errno.ENOENT, f"{MARKER_NAME} was removed")
    stamp = budget.stamp
    temp, fd = folder.create_temp(budget.slot)
    try:
        write_all(fd, [header.encode(stamp), *pieces], 0)
        if not pieces:
            _allocate(fd, header.file_bytes)
        folder.publish(temp, name)
    except BaseException:
        folder.drop_temp(temp)
        os.close(fd)
        raise
    return OpenFile(fd, header, stamp, [0] * header.num_rows)


def _allocate(fd: int, size: int) -> None:
    """Give a file its length and its space, so that a disk that fills up says so now and not in the middle of a row."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
            return
    except OSError as exc:
        if exc.errno not in _UNSUPPORTED:
            raise
    os.ftruncate(fd, size)
