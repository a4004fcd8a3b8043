"""The small pieces of reading a tar: one header block, one extended header, and bytes taken from a stream of chunks.

What the pieces mean together, in which order and with which errors, is decided by ``format.tar``.

Source: IEEE Std 1003.1-2017, pax, "ustar Interchange Format" and "pax Interchange Format"; GNU tar manual, "Basic Tar
Format".
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from janus_shards.errors import TarFormatError
from janus_shards.sample import RawBytes

BLOCK_BYTES = 512

# A decimal number of more digits is damage: 20 digits hold every 64-bit integer.
_MAX_DIGITS = 20
_COMPRESSED = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"PK\x03\x04", "zip"),
)


class PaxRecords(NamedTuple):
    """What a pax header says that matters here; ``None`` where it says nothing."""

    path: bytes | None = None
    size: int | None = None
    is_sparse: bool = False


def has_magic(block: bytes) -> bool:
    """Whether a block says that it is a POSIX or GNU header."""
    return block[257:262] == b"ustar"


def may_start_header(start: bytes) -> bool:
    """Whether fewer than 512 bytes can be the start of a header: the magic, or a name filled up with NULs."""
    name, end, fill = start[:100].partition(b"\0")
    return has_magic(start) or (bool(name and end) and not fill.strip(b"\0"))


def compression(block: bytes) -> str | None:
    """Name of the compression that starts like this block, if any."""
    return next((name for magic, name in _COMPRESSED if block.startswith(magic)), None)


def checksum_matches(block: bytes) -> bool:
    """Whether the checksum of a header is right: the sum of its bytes, its own field counted as eight spaces."""
    try:
        stored = number(block[148:156])
    except ValueError:
        return False
    total = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    if stored == total:
        return True
    # Some historic writers summed signed bytes: each byte above 127 then counts 256 less.
    return stored == total - 256 * sum(byte > 127 for byte in block[:148] + block[156:])


def number(field: bytes) -> int:
    """The value of a number field: octal digits or, behind a first byte of 0x80, GNU's big-endian binary. Empty is 0.

    Raises:
        ValueError: The field holds something else, or a negative number.
    """
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip(b" ")
    if digits and not digits.isdigit():
        raise ValueError(f"no octal number: {field!r}")
    return int(digits or b"0", 8)


def header_name(block: bytes) -> bytes:
    """Path in a header block, from its name and prefix fields."""
    name = block[:100].split(b"\0", 1)[0]
    # GNU tar uses the prefix field for times; only POSIX's magic gives it the meaning of a prefix.
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def pax_records(data: bytes) -> PaxRecords:
    r"""Read the records ``"%d %s=%s\n"`` of a pax header; the last one of a keyword counts.

    Raises:
        ValueError: A record is malformed, or its size no number.
    """
    path, size, is_sparse = None, None, False
    # Every record ends with a line feed, so NULs behind the last one are some writer's filling.
    data, start = data.rstrip(b"\0"), 0
    while start < len(data):
        space = data.find(b" ", start, start + _MAX_DIGITS + 1)
        stop = start + _decimal(data[start : max(space, start)])
        keyword, equals, value = data[space + 1 : stop].partition(b"=")
        if stop > len(data) or not keyword or not equals or not value.endswith(b"\n"):
            raise ValueError(f"malformed record at byte {start}")
        if keyword == b"path":
            path = value[:-1]
        elif keyword == b"size":
            size = _decimal(value[:-1])
        is_sparse = is_sparse or keyword.startswith(b"GNU.sparse.")
        start = stop
    return PaxRecords(path, size, is_sparse)


def _decimal(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > _MAX_DIGITS:
        raise ValueError(f"no decimal number: {digits[:_MAX_DIGITS]!r}")
    return int(digits)


class ByteSource:
    """Takes exact numbers of bytes from a sequence of chunks of any lengths; holds one chunk.

    Attributes:
        position: Bytes taken so far.
    """

    def __init__(self, chunks: Iterable[RawBytes], shard: str) -> None:
        self._chunks = iter(chunks)
        self._chunk = memoryview(b"")
        self._shard = shard
        self.position = 0

    def take(self, size: int, *, what: str) -> bytes:
        """Exactly ``size`` bytes.

        Raises:
            TarFormatError: ``truncated_shard``: fewer are left.
        """
        if size <= len(self._chunk):
            return bytes(self.some(size))
        return b"".join(self.pieces(size, what=what))

    def take_up_to(self, size: int) -> bytes:
        """``size`` bytes, fewer only at the end of the shard."""
        piece = self.some(size)
        if len(piece) == size:
            return bytes(piece)
        data = bytearray(piece)
        while len(data) < size and (piece := self.some(size - len(data))):
            data += piece
        return bytes(data)

    def skip(self, size: int, *, what: str) -> None:
        """Pass over exactly ``size`` bytes; raises as ``take`` does."""
        if size <= len(self._chunk):
            self.some(size)
        else:
            for _ in self.pieces(size, what=what):
                pass

    def pieces(self, size: int, *, what: str) -> Iterator[memoryview]:
        """Exactly ``size`` bytes in pieces as they come; raises as ``take`` does."""
        start, left = self.position, size
        while left:
            piece = self.some(left)
            if not piece:
                raise TarFormatError(
                    f"shard {self._shard}: ends at offset {self.position}, inside the {size} bytes of {what} "
                    f"that start at offset {start}; the file was cut, fetch or write it again",
                    kind="truncated_shard",
                    shard=self._shard,
                )
            left -= len(piece)
            yield piece

    def some(self, limit: int) -> memoryview:
        """At least one and at most ``limit`` bytes; none at the end of the shard."""
        while not self._chunk:
            chunk = next(self._chunks, None)
            if chunk is None:
                return self._chunk
            self._chunk = memoryview(chunk)
        piece, self._chunk = self._chunk[:limit], self._chunk[limit:]
        self.position += len(piece)
        return piece
