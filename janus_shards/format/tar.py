"""Tar members as bytes: reproducible headers for writing, and a forward-only scanner for reading.

Writing follows POSIX.1-1988 ustar, with a pax header (POSIX.1-2001) only where ustar cannot hold the name or the size.
Reading also takes GNU long names, base-256 numbers, pax global headers and pre-POSIX headers. Nothing here opens files:
chunks of bytes come in.

Source: IEEE Std 1003.1-2017, pax, "ustar Interchange Format" and "pax Interchange Format"; GNU tar manual, "Basic Tar
Format".
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import xxhash

from janus_shards.errors import TarFormatError
from janus_shards.format.naming import is_unicode
from janus_shards.format.tar_blocks import (
    BLOCK_BYTES,
    ByteSource,
    PaxRecords,
    checksum_matches,
    compression,
    has_magic,
    header_name,
    may_start_header,
    number,
    pax_records,
)
from janus_shards.sample import RawBytes

__all__ = [
    "BLOCK_BYTES",
    "END_BLOCKS",
    "MAX_TAR_BYTES",
    "TarMember",
    "TarScanner",
    "encode_header",
    "member_bytes",
    "padding",
]

END_BLOCKS = bytes(2 * BLOCK_BYTES)

#: 2 TiB: offsets in an index are u32 counts of blocks.
MAX_TAR_BYTES = BLOCK_BYTES << 32

_ZERO_BLOCK = bytes(BLOCK_BYTES)
_MAX_USTAR_SIZE = 8**11 - 1
# An extended header longer than this is damage or an attack; PATH_MAX is 4096 on Linux.
_MAX_EXTENSION_BYTES = 1 << 20

# Type flags. A NUL is a file of pre-POSIX tars, "7" a contiguous file, "X" Solaris' name for "x".
_FILES = (b"0", b"\0", b"7")
_LINKS = (b"1", b"2")
_DIRECTORIES = (b"5", b"D")
_PAX_HEADERS = (b"x", b"X")
_EXTENSIONS = (*_PAX_HEADERS, b"g", b"L", b"K")
# Sparse files and parts of files: their data is not what a reader of the member expects.
_PARTIAL = (b"S", b"M")
# The size field of these says nothing about data: links, devices, directories, pipes.
_WITHOUT_DATA = (b"1", b"2", b"3", b"4", b"5", b"6")

MemberKind = Literal["file", "link", "directory", "other"]


# --- writing ---------------------------------------------------------------------------------------------------------


def encode_header(name: str, size: int) -> bytes:
    """Header blocks of one regular file: mode 0644, no owner, no time.

    Args:
        name: Member path; surrogate escapes stand for bytes that are no UTF-8.
        size: Length of the data that follows, in bytes.

    Returns:
        One block, or three and more when a pax header is needed; the same bytes for the same arguments, always.

    Raises:
        ValueError: The name is empty or has a NUL, or the size is negative.
    """
    if not name or "\0" in name or size < 0:
        raise ValueError(f"member {name!r} of {size} bytes: expected a name without NUL and a size of at least 0")
    raw = name.encode("utf-8", "surrogateescape")
    split = _split_ustar(raw) if raw.isascii() and size <= _MAX_USTAR_SIZE else None
    if split is not None:
        return _ustar_block(split[1], prefix=split[0], size=size, kind=b"0", mode=b"0000644")
    return _pax_header(_pax_content(name, raw, size)) + _ustar_block(
        # Readers that ignore pax see these stand-ins, the same ones that Python's tarfile writes.
        name.encode("ascii", "replace")[:100],
        prefix=b"",
        size=size if size <= _MAX_USTAR_SIZE else 0,
        kind=b"0",
        mode=b"0000644",
    )


def padding(size: int) -> bytes:
    """The zero bytes that fill the last block of ``size`` bytes of data."""
    return _ZERO_BLOCK[: -size % BLOCK_BYTES]


def member_bytes(name: str, size: int) -> int:
    """Length in bytes of a whole member: headers, data and padding."""
    # Most names are short: nothing has to be built to know that they take one block.
    is_short = len(name) <= 100 and name.isascii() and 0 <= size <= _MAX_USTAR_SIZE
    return (BLOCK_BYTES if is_short else len(encode_header(name, size))) + size + -size % BLOCK_BYTES


def _split_ustar(raw: bytes) -> tuple[bytes, bytes] | None:
    """Prefix and name field for a path, or ``None`` when no split at a slash fits 155 + 100 bytes."""
    if len(raw) <= 100:
        return b"", raw
    cut = raw.find(b"/", len(raw) - 101)
    if 0 < cut <= 155 and cut < len(raw) - 1:
        return raw[:cut], raw[cut + 1 :]
    return None


def _pax_content(name: str, raw: bytes, size: int) -> bytes:
    """Records for what a header without prefix cannot say."""
    records = b""
    if not raw.isascii() or len(raw) > 100:
        if not is_unicode(name):
            records += _pax_record("hdrcharset", b"BINARY")
        records += _pax_record("path", raw)
    if size > _MAX_USTAR_SIZE:
        records += _pax_record("size", str(size).encode())
    return records


def _pax_record(keyword: str, value: bytes) -> bytes:
    r"""``"%d %s=%s\n"`` where the number counts the whole record, its own digits included."""
    body = b" " + keyword.encode() + b"=" + value + b"\n"
    length = len(body)
    while length != len(body) + len(str(length)):
        length = len(body) + len(str(length))
    return str(length).encode() + body


def _pax_header(records: bytes) -> bytes:
    block = _ustar_block(b"././@PaxHeader", prefix=b"", size=len(records), kind=b"x", mode=b"0000000")
    return block + records + padding(len(records))


def _ustar_block(name: bytes, *, prefix: bytes, size: int, kind: bytes, mode: bytes) -> bytes:
    head = name.ljust(100, b"\0") + mode + b"\x000000000\x000000000\0" + b"%011o\x00" % size + b"00000000000\0"
    tail = kind + bytes(100) + b"ustar\x0000" + bytes(80) + prefix.ljust(155, b"\0") + bytes(12)
    # The checksum counts its own field as eight spaces.
    checksum = sum(head) + sum(tail) + 8 * ord(" ")
    return head + b"%06o\x00 " % checksum + tail


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TarMember:
    """One entry of a tar, after its data has passed by.

    Attributes:
        name: Full path, from pax, GNU or ustar headers; bytes that are no UTF-8 are kept as surrogate escapes.
        kind: ``file``, ``link``, ``directory`` or ``other``.
        offset: Position of the first data byte in the shard.
        size: Length of the data in bytes; 0 unless ``kind`` is ``file``.
        xxh3: XXH3-64 of the data; 0 unless ``kind`` is ``file``.
        data: The data itself, when it was asked for and is not longer than ``keep_bytes``.
    """

    name: str
    kind: MemberKind
    offset: int
    size: int
    xxh3: int
    data: bytes | None


@dataclass(slots=True)
class _Extended:
    """What the extended headers in front of a member say about it."""

    pax: PaxRecords | None = None
    gnu_name: bytes | None = None
    start: int | None = None


class TarScanner:
    """Members of one tar in order, from consecutive chunks of its bytes.

    Runs in linear time and keeps one chunk, one extended header (at most 1 MiB) and at most ``keep_bytes`` of data in
    memory, whatever the headers claim. One pass: iterating again goes on where the last iteration stopped.

    Args:
        chunks: The bytes of the tar, in pieces of any length.
        shard: Name or URL of the tar, for messages.
        keep_bytes: Files up to this length carry their data.

    Attributes:
        num_links: Hard and symbolic links seen; they carry no data and are never followed.
        has_end: Whether an end-of-archive block was seen. Without one, a cut between two members goes unnoticed here.
    """

    def __init__(self, chunks: Iterable[RawBytes], *, shard: str, keep_bytes: int = 0) -> None:
        self._bytes = ByteSource(chunks, shard)
        self._shard = shard
        self._keep_bytes = keep_bytes
        self.num_links = 0
        self.has_end = False

    @property
    def position(self) -> int:
        """Bytes consumed so far; after the last member the length of the tar."""
        return self._bytes.position

    def __iter__(self) -> Iterator[TarMember]:
        """Read on to the end of the archive.

        Raises:
            TarFormatError: ``not_a_tar``, ``compressed_shard``, ``bad_header``, ``truncated_shard``,
                ``unsupported_member`` or ``trailing_data``, with the offset in the message.
        """
        extended = _Extended()
        while (block := self._next_header()) is not None:
            if block[156:157] in _EXTENSIONS:
                self._extension(block, extended)
            else:
                yield self._member(block, extended)
                extended = _Extended()
        if extended.start is not None:
            raise self._error(
                "truncated_shard",
                f"the extended header at offset {extended.start} comes last: the member that it describes is missing",
            )

    def _next_header(self) -> bytes | None:
        """The next header block, or ``None`` at the end of the archive."""
        start = self._bytes.position
        block = self._bytes.take_up_to(BLOCK_BYTES)
        if not block:
            if start == 0:
                raise self._error("truncated_shard", "the shard has 0 bytes; an empty tar has two zero blocks")
            return None
        if block == _ZERO_BLOCK:
            self.has_end = True
            self._check_rest_is_zero()
            return None
        self._check_header(block, start)
        return block

    def _check_header(self, block: bytes, start: int) -> None:
        if len(block) == BLOCK_BYTES and checksum_matches(block):
            return
        # Only now: a member called "BZh.jpg" makes a good header that starts like bzip2.
        if start == 0 and (name := compression(block)):
            raise self._error(
                "compressed_shard",
                f"the shard is {name}-compressed, which allows no random access; "
                "rewrite it with `janus-shards reshard`",
            )
        if len(block) < BLOCK_BYTES:
            kind = "truncated_shard" if start or may_start_header(block) else "not_a_tar"
            raise self._error(kind, f"expected a header of 512 bytes at offset {start}, found {len(block)} bytes")
        kind = "bad_header" if start or has_magic(block) else "not_a_tar"
        raise self._error(kind, f"the header at offset {start} has a wrong checksum; this is no tar or it is damaged")

    def _check_rest_is_zero(self) -> None:
        """Padding after the end is normal (tar pads to 10 KiB); anything else means samples that nobody would see."""
        while chunk := bytes(self._bytes.some(1 << 20)):
            if chunk.count(0) != len(chunk):
                at = self._bytes.position - len(chunk.lstrip(b"\0"))
                raise self._error(
                    "trailing_data",
                    f"the tar has ended, but other bytes than zero follow at offset {at} (joined tars?); "
                    "unpack and pack again, or extract with `tar --ignore-zeros`",
                )

    def _extension(self, block: bytes, extended: _Extended) -> None:
        kind, start, size = block[156:157], self._bytes.position - BLOCK_BYTES, self._size(block)
        if size > _MAX_EXTENSION_BYTES:
            raise self._bad_header(start, f"claims {size} bytes of extended header, and at most 1 MiB is taken")
        data = self._bytes.take(size, what="an extended header")
        self._bytes.skip(-size % BLOCK_BYTES, what="padding")
        if kind in _PAX_HEADERS:
            if extended.pax is not None:
                raise self._bad_header(start, "is a second pax header for one member")
            extended.pax = self._pax(start, data)
        elif kind == b"L":
            if extended.gnu_name is not None:
                raise self._bad_header(start, "is a second long name for one member")
            extended.gnu_name = data.split(b"\0", 1)[0]
        elif kind == b"g" and self._pax(start, data) != PaxRecords():
            raise self._bad_header(start, "gives all members one path or one size")
        if kind != b"g":
            extended.start = start

    def _pax(self, start: int, data: bytes) -> PaxRecords:
        try:
            return pax_records(data)
        except ValueError as exc:
            raise self._bad_header(start, f"is no valid pax header: {exc}") from exc

    def _size(self, block: bytes) -> int:
        try:
            return number(block[124:136])
        except ValueError as exc:
            raise self._bad_header(self._bytes.position - BLOCK_BYTES, "has no valid size field") from exc

    def _member(self, block: bytes, extended: _Extended) -> TarMember:
        kind, pax = block[156:157], extended.pax or PaxRecords()
        name, size = self._name(block, extended), self._size(block) if pax.size is None else pax.size
        if kind in _PARTIAL or pax.is_sparse:
            raise self._error(
                "unsupported_member", f"member {name!r} is sparse or split; pack it again without --sparse and volumes"
            )
        is_directory = kind in _DIRECTORIES or (kind == b"\0" and name.endswith("/"))
        if kind in _FILES and not is_directory:
            return self._file(name, size)
        if kind in _LINKS:
            self.num_links += 1
        elif kind not in _WITHOUT_DATA and kind != b"\0":
            self._bytes.skip(size + -size % BLOCK_BYTES, what=f"member {name!r}")
        # POSIX lets a hard link carry data, but no writer in use does. Like tarfile, take none: data would then stand
        # where a header is due, which raises.
        member_kind: MemberKind = "link" if kind in _LINKS else "directory" if is_directory else "other"
        return TarMember(name, member_kind, self._bytes.position, 0, 0, None)

    def _name(self, block: bytes, extended: _Extended) -> str:
        raw = extended.pax.path if extended.pax else None
        if raw is None:
            raw = extended.gnu_name if extended.gnu_name is not None else header_name(block)
        # An empty path would hide the member, and a NUL would end the path early for whoever writes it out.
        if (not raw and block[156:157] in _FILES) or b"\0" in raw:
            raise self._bad_header(self._bytes.position - BLOCK_BYTES, "has an empty path or one with a NUL")
        return raw.decode("utf-8", "surrogateescape")

    def _file(self, name: str, size: int) -> TarMember:
        offset, what = self._bytes.position, f"member {name!r}"
        if size <= self._keep_bytes:
            data = self._bytes.take(size, what=what)
            digest = xxhash.xxh3_64_intdigest(data)
        else:
            data, hasher = None, xxhash.xxh3_64()
            for piece in self._bytes.pieces(size, what=what):
                hasher.update(piece)
            digest = hasher.intdigest()
        self._bytes.skip(-size % BLOCK_BYTES, what=f"the padding of {what}")
        return TarMember(name, "file", offset, size, digest, data)

    def _bad_header(self, start: int, problem: str) -> TarFormatError:
        return self._error("bad_header", f"the header at offset {start} {problem}; the shard is damaged")

    def _error(self, kind: str, message: str) -> TarFormatError:
        return TarFormatError(f"shard {self._shard}: {message}", kind=kind, shard=self._shard)
