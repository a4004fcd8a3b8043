"""Raw entries: the stored bytes of the wanted fields of a block, as one payload."""

import os

import xxhash

from janus_shards.cache.base import EntryKey, Pieces, num_bytes
from janus_shards.cache.entry import RAW, Header
from janus_shards.cache.files import Damage, EntryFile, EntryFiles, OpenFile
from janus_shards.cache.shelf import Shelf, new_nonce

# Read at once to verify a payload.
_CHECK_BYTES = 4 << 20


class RawEntry:
    """An entry that is there. Safe to use from many threads; closes with its last reference.

    Attributes:
        num_bytes: Length of the payload.
    """

    __slots__ = ("_file", "num_bytes")

    def __init__(self, file: EntryFile, num_bytes: int) -> None:
        self._file = file
        self.num_bytes = num_bytes

    def read(self, start: int, size: int) -> bytes | None:
        """Bytes ``[start, start + size)`` of the payload, in one system call without the GIL.

        ``None`` when the file failed since it was opened: a miss.
        """
        opened = self._file.get()
        if opened is None or not 0 <= start <= start + size <= self.num_bytes:
            return None
        try:
            data = os.pread(opened.fd, size, opened.header.payload_start + start)
        except OSError:
            return None
        return data if len(data) == size else None

    def __del__(self) -> None:
        self._file.close()


def is_sound(opened: OpenFile) -> bool:
    """Whether the payload has the checksum of the header."""
    start, stop = opened.header.payload_start, opened.header.file_bytes
    digest = xxhash.xxh3_64()
    for place in range(start, stop, _CHECK_BYTES):
        digest.update(os.pread(opened.fd, min(_CHECK_BYTES, stop - place), place))
    return digest.intdigest() == opened.header.payload_xxh3


def find_raw(shelf: Shelf, key: EntryKey) -> RawEntry | None:
    """An entry that is there and, if the options say so, was verified once by this process."""
    file, opened = shelf.find(key), shelf.open()
    if file is None or opened is None or file.header.kind != RAW:
        return None
    nonce = file.header.nonce
    if shelf.options.verify and not shelf.verified_rows(key.digest, nonce):
        sound = False
        with shelf.trouble("verifying an entry"):
            sound = is_sound(file)
            if not sound:
                shelf.discard(key, Damage("the payload has another checksum than the header says"))
        if not sound:
            return None
        shelf.set_verified(key.digest, nonce, 1)
    return _entry(opened.files, key, file)


def store_raw(shelf: Shelf, key: EntryKey, pieces: Pieces) -> RawEntry | None:
    """A new entry, or the one that another process made meanwhile; ``None`` when there is no room."""
    opened = shelf.open()
    if opened is None or shelf.budget() is None:
        return None
    found = find_raw(shelf, key)
    if found is not None:
        return found
    header = Header(
        kind=RAW,
        identity=key.identity,
        payload_bytes=num_bytes(pieces),
        payload_xxh3=_digest(pieces),
        nonce=new_nonce(),
    )
    with shelf.trouble("storing an entry"):
        file = shelf.create(key, header, pieces)
        if file is not None:
            shelf.set_verified(key.digest, header.nonce, 1)
            return _entry(opened.files, key, file)
    return None


def _entry(files: EntryFiles, key: EntryKey, file: OpenFile) -> RawEntry:
    return RawEntry(EntryFile(files, key.file_name, file), file.header.payload_bytes)


def _digest(pieces: Pieces) -> int:
    digest = xxhash.xxh3_64()
    for piece in pieces:
        digest.update(piece)
    return digest.intdigest()
