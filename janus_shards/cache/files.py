"""Open files of entries: a bounded number at a time, opened again where that was not enough."""

import errno
import os
import resource
from collections import OrderedDict
from collections.abc import Iterator

from janus_shards.cache.base import Pieces
from janus_shards.cache.entry import Header, Stamp, decode_header, is_whole_file, read_table, stamp_of
from janus_shards.cache.folder import CacheFolder, read_head

_MAX_OPEN_FILES = 1024
# What one call of pwritev takes: the limit of Linux is 1,024 pieces.
_MAX_PIECES = 1000


class OpenFile:
    """A descriptor that closes when nobody refers to it any more.

    Attributes:
        fd: Positioned reads and writes on it share no state.
        header: What the file is.
        stamp: Who had touched it when it was opened.
        table: Checksums of the records of a decoded entry, when it was opened.
        num_bytes: Length of the file when it was opened.
    """

    __slots__ = ("fd", "header", "num_bytes", "stamp", "table")

    def __init__(self, fd: int, header: Header, stamp: Stamp, table: list[int]) -> None:
        self.fd = fd
        self.header = header
        self.stamp = stamp
        self.table = table
        self.num_bytes = header.file_bytes

    def __del__(self) -> None:
        try:
            os.close(self.fd)
        except OSError:
            pass


class Damage(Exception):
    """An entry is there and ours, but not whole; never leaves the cache."""


class EntryFiles:
    """Opens entries of one folder, and keeps at most so many open.

    Args:
        folder: Where they lie.
        max_open: Descriptors at a time; by default a quarter of what the process may open.
    """

    def __init__(self, folder: CacheFolder, *, max_open: int | None = None) -> None:
        self.folder = folder
        self._max_open = max_open or _default_max_open()
        # No lock: its methods are atomic, and a lock could be asked for by a finaliser of the thread that holds it.
        self._kept: OrderedDict[EntryFile, None] = OrderedDict()

    def open(self, name: str, identity: bytes) -> OpenFile | None:
        """Open an entry; ``None`` when it is not there or holds something else.

        Raises:
            Damage: It was cut, or its header is damaged.
            OSError: The disk failed.
        """
        fd = self.folder.open_entry(name)
        if fd is None:
            return None
        try:
            head = read_head(fd)
            header = decode_header(head)
            if header is not None and header.identity == identity:
                if not is_whole_file(os.fstat(fd).st_size, header):
                    raise Damage(f"expected {header.file_bytes} bytes, found {os.fstat(fd).st_size}")
                return OpenFile(fd, header, stamp_of(head), read_table(head, header))
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return None

    def keep(self, entry: "EntryFile") -> None:
        """Count an open entry; the one that was opened longest ago closes when there are too many."""
        self._kept[entry] = None
        while len(self._kept) > self._max_open:
            try:
                self._kept.popitem(last=False)[0].let_go()
            except KeyError:
                break

    def drop(self, entry: "EntryFile") -> None:
        """Do not count it any longer."""
        self._kept.pop(entry, None)


def _default_max_open() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MAX_OPEN_FILES if limit == resource.RLIM_INFINITY else min(_MAX_OPEN_FILES, max(1, limit // 4))


class EntryFile:
    """One entry that is in use: its file, opened again when it was closed meanwhile."""

    def __init__(self, files: EntryFiles, name: str, opened: OpenFile) -> None:
        self.name = name
        self._files = files
        self._opened: OpenFile | None = opened
        self._header = opened.header
        files.keep(self)

    def get(self) -> OpenFile | None:
        """The open file; ``None`` when another file has taken its place, or it is gone."""
        opened = self._opened
        return self._open_again() if opened is None else opened

    def _open_again(self) -> OpenFile | None:
        try:
            opened = self._files.open(self.name, self._header.identity)
        except (OSError, Damage):
            return None
        if opened is None or opened.header.nonce != self._header.nonce:
            return None
        self._opened = opened
        self._files.keep(self)
        return opened

    def let_go(self) -> None:
        """Close the file, once those who read it now are done."""
        self._opened = None

    def close(self) -> None:
        """Close the file for good, as far as this entry is concerned."""
        self._files.drop(self)
        self.let_go()


def write_all(fd: int, pieces: Pieces, start: int) -> None:
    """Write pieces one after the other.

    Raises:
        OSError: The disk failed or is full.
    """
    for group in _groups(pieces):
        size = sum(piece.nbytes for piece in group)
        count = os.pwritev(fd, group, start)
        if count != size:
            # A disk that fills up takes a part; the next byte says why.
            _write_rest(fd, b"".join(group), start, count)
        start += size


def _write_rest(fd: int, data: bytes, start: int, count: int) -> None:
    view = memoryview(data)
    while count < len(view):
        written = os.pwrite(fd, view[count:], start + count)
        if not written:
            raise OSError(errno.ENOSPC, "nothing was written")
        count += written


def _groups(pieces: Pieces) -> Iterator[list[memoryview]]:
    views = [memoryview(piece).cast("B") for piece in pieces if memoryview(piece).nbytes]
    for at in range(0, len(views), _MAX_PIECES):
        yield views[at : at + _MAX_PIECES]
