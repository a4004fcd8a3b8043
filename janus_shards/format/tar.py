"""Tar members as bytes: reproducible headers for writing, and a forward-only scanner for reading.

Writing follows POSIX.1-1988 ustar, with a pax header (POSIX.1-2001) only where ustar cannot hold the name or the size. Reading also
takes GNU long names, base-256 numbers, pax global headers and pre-POSIX headers. Nothing here opens files: chunks of bytes come in.

Source: IEEE Std 1003.1-2017, pax, "ustar Interchange Format" and "pax Interchange Format"; GNU tar manual, "Basic Tar Format".
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import xxhash

from janus_shards.errors import TarFormatError
from janus_shards.sample import RawBytes

BLOCK_BYTES = 512
END_BLOCKS = bytes(2 * BLOCK_BYTES)

_ZERO_BLOCK = bytes(BLOCK_BYTES)
_MAX_USTAR_SIZE = 8**11 - 1
# A name longer than this is damage or an attack; PATH_MAX is 4096 on Linux.
_MAX_EXTENSION_BYTES = 1 << 20
_COMPRESSED = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2"), (b"\xfd7zXZ\x00", "xz"))
_FILE_TYPES = (b"0", b"\0", b"7")
_LINK_TYPES = (b"1", b"2")

MemberKind = Literal["file", "link", "directory", "other"]


# --- writing -----------------------------------------------------------------------------------------------------------


def encode_header(name: str, size: int) -> bytes:
    """Header blocks of one regular file: mode 0644, no owner, no time.

    Args:
        name: Member path; any text without NUL.
        size: Length of the data that follows, in bytes.

    Returns:
        One block, or three and more when a pax header is needed; the same bytes for the same arguments, always.
    """
    raw = name.encode()
    prefix, base = _split_ustar(raw) if raw.isascii() else (b"", None)
    records = b""
    if base is None:
        records += _pax_record("path", raw)
        # Readers that ignore pax see this stand-in, the same one that Python's tarfile writes.
        base = name.encode("ascii", "replace")[:100]
    if size > _MAX_USTAR_SIZE:
        records += _pax_record("size", str(size).encode())
    block = _ustar_block(base, prefix=prefix, size=size if size <= _MAX_USTAR_SIZE else 0, kind=b"0", mode=b"0000644")
    return (_pax_header(records) if records else b"") + block


def padding(size: int) -> bytes:
    """The zero bytes that fill the last block of ``size`` bytes of data."""
    return _ZERO_BLOCK[: -size % BLOCK_BYTES]


def member_bytes(name: str, size: int) -> int:
    """Length in bytes of a whole member: headers, data and padding."""
    return len(encode_header(name, size)) + size + -size % BLOCK_BYTES


def _split_ustar(raw: bytes) -> tuple[bytes, bytes | None]:
    """Prefix and name field for a path, or ``None`` as the name when no split at a slash fits 155 + 100 bytes."""
    if len(raw) <= 100:
        return b"", raw
    cut = raw.find(b"/", len(raw) - 101)
    if 0 < cut <= 155 and cut < len(raw) - 1:
        return raw[:cut], raw[cut + 1 :]
    return b"", None


def _pax_record(keyword: str, value: bytes) -> bytes:
    """``"%d %s=%s\\n"`` where the number counts the whole record, its own digits included."""
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


# --- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TarMember:
    """One entry of a tar, after its data has passed by.

    Attributes:
        name: Full path, from pax, GNU or ustar headers; bytes that are no UTF-8 are kept as surrogate escapes.
        kind: ``file``, ``link``, ``directory`` or ``other``.
        offset: Position of the first data byte in the shard.
        size: Length of the data in bytes; 0 unless ``kind`` is ``file``.
        xxh3: XXH3-64 of the data.
        data: The data itself, when it was asked for and is not longer than ``keep_bytes``.
    """

    name: str
    kind: MemberKind
    offset: int
    size: int
    xxh3: int
    data: bytes | None


class TarScanner:
    """Members of one tar in order, from consecutive chunks of its bytes.

    Runs in linear time and keeps one chunk, one name and at most ``keep_bytes`` of data in memory, whatever the headers claim.

    Attributes:
        position: Bytes consumed so far.
        num_links: Hard and symbolic links seen; they carry no data and are never followed.
        has_end: Whether an end-of-archive block was seen.
    """

    def __init__(self, chunks: Iterable[RawBytes], *, shard: str, keep_bytes: int = 0) -> None:
        self._bytes = _Cursor(chunks, shard)
        self._shard = shard
        self._keep_bytes = keep_bytes
        self.num_links = 0
        self.has_end = False

    @property
    def position(self) -> int:
        return self._bytes.position

    def __iter__(self) -> Iterator[TarMember]:
        """Read on to the end of the archive.

        Raises:
            TarFormatError: ``not_a_tar``, ``compressed_shard``, ``bad_header``, ``truncated_shard``, ``unsupported_member`` or
                ``trailing_data``, with the offset in the message.
        """
        extended: dict[str, bytes] = {}
        common: dict[str, bytes] = {}
        while (block := self._next_header()) is not None:
            kind, size = block[156:157], self._size(block, extended or common)
            if kind in (b"x", b"g", b"L", b"K"):
                self._extension(kind, size, into=common if kind == b"g" else extended)
                continue
            yield self._member(block, kind, size, {**common, **extended})
            extended = {}
        if extended:
            raise self._error("truncated_shard", "the shard ends after an extended header, without its member")

    def _next_header(self) -> bytes | None:
        """The next header block, or ``None`` at the end of the archive."""
        start = self._bytes.position
        block = self._bytes.take(BLOCK_BYTES, allow_end=True)
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
        if start == 0:
            for magic, name in _COMPRESSED:
                if block.startswith(magic):
                    raise self._error(
                        "compressed_shard",
                        f"the shard is {name}-compressed, which allows no random access; "
                        "rewrite it with `janus-shards reshard`",
                    )
        if len(block) < BLOCK_BYTES:
            kind = "truncated_shard" if start or _looks_like_header(block) else "not_a_tar"
            raise self._error(kind, f"expected a header of 512 bytes at offset {start}, found {len(block)} bytes")
        if not _checksum_matches(block):
            kind = "bad_header" if start else "not_a_tar"
            raise self._error(
                kind, f"the header at offset {start} has a wrong checksum; this is no tar or it is damaged"
            )

    def _check_rest_is_zero(self) -> None:
        """Padding after the end is normal (tar pads to 10 KiB); anything else means samples that nobody would see."""
        start = self._bytes.position
        while chunk := self._bytes.take_some():
            if chunk.count(0) != len(chunk):
                raise self._error(
                    "trailing_data",
                    f"bytes other than zero follow the end blocks after offset {start} (joined tars?); "
                    "unpack and pack again, or extract with `tar --ignore-zeros`",
                )

    def _size(self, block: bytes, extended: dict[str, bytes]) -> int:
        raw = extended.get("size") if block[156:157] not in (b"x", b"g", b"L", b"K") else None
        try:
            size = int(raw) if raw is not None else _number(block[124:136])
        except ValueError:
            size = -1
        if size < 0:
            at = self._bytes.position - BLOCK_BYTES
            raise self._error("bad_header", f"the header at offset {at} has no valid size field")
        return size

    def _extension(self, kind: bytes, size: int, *, into: dict[str, bytes]) -> None:
        if size > _MAX_EXTENSION_BYTES:
            at = self._bytes.position - BLOCK_BYTES
            raise self._error(
                "bad_header", f"the extended header at offset {at} claims {size} bytes; at most 1 MiB is taken"
            )
        data = self._bytes.take(size)
        self._bytes.take(-size % BLOCK_BYTES)
        if kind == b"L":
            into["path"] = data.rstrip(b"\0")
        elif kind != b"K":
            into.update(self._pax_records(data))

    def _pax_records(self, data: bytes) -> dict[str, bytes]:
        records: dict[str, bytes] = {}
        start = 0
        while start < len(data) and data[start] != 0:
            space = data.find(b" ", start, start + 20)
            digits = data[start:space] if space > 0 else b""
            length = int(digits) if digits.isdigit() else 0
            record = data[space + 1 : start + length]
            keyword, equals, value = record.partition(b"=")
            if length <= space - start or start + length > len(data) or not equals or not value.endswith(b"\n"):
                at = self._bytes.position
                raise self._error("bad_header", f"the pax header that ends at offset {at} has a malformed record")
            records[keyword.decode("utf-8", "replace")] = value[:-1]
            start += length
        return records

    def _member(self, block: bytes, kind: bytes, size: int, extended: dict[str, bytes]) -> TarMember:
        name = _name(block, extended)
        if kind in _FILE_TYPES and not (kind == b"\0" and name.endswith("/")):
            if any(keyword.startswith("GNU.sparse") for keyword in extended):
                raise self._error(
                    "unsupported_member", f"member {name!r} is a sparse file; pack it again without --sparse"
                )
            return self._file(name, size)
        if kind in _LINK_TYPES:
            # POSIX lets a hard link carry data, but no writer in use does: like tarfile, take none.
            self.num_links += 1
            return TarMember(name, "link", self._bytes.position, 0, 0, None)
        if kind == b"S" or kind == b"M":
            raise self._error(
                "unsupported_member", f"member {name!r} is a sparse or split file; pack it again without that"
            )
        is_directory = kind in (b"5", b"\0", b"D")
        if kind not in (b"3", b"4", b"5", b"6"):
            self._bytes.skip(size + -size % BLOCK_BYTES)
        return TarMember(name, "directory" if is_directory else "other", self._bytes.position, 0, 0, None)

    def _file(self, name: str, size: int) -> TarMember:
        offset = self._bytes.position
        data = None
        if size <= self._keep_bytes:
            data = self._bytes.take(size, what=name)
            digest = xxhash.xxh3_64_intdigest(data)
        else:
            hasher = xxhash.xxh3_64()
            for piece in self._bytes.pieces(size, what=name):
                hasher.update(piece)
            digest = hasher.intdigest()
        self._bytes.skip(-size % BLOCK_BYTES, what=name)
        return TarMember(name, "file", offset, size, digest, data)

    def _error(self, kind: str, message: str) -> TarFormatError:
        return TarFormatError(f"shard {self._shard}: {message}", kind=kind, shard=self._shard)


class _Cursor:
    """Takes exact numbers of bytes from a sequence of chunks of any length."""

    def __init__(self, chunks: Iterable[RawBytes], shard: str) -> None:
        self._chunks = iter(chunks)
        self._chunk = memoryview(b"")
        self._shard = shard
        self.position = 0

    def take(self, size: int, *, allow_end: bool = False, what: str = "") -> bytes:
        """Exactly ``size`` bytes; with ``allow_end`` fewer at the end of the shard."""
        if size <= len(self._chunk):
            piece, self._chunk = bytes(self._chunk[:size]), self._chunk[size:]
            self.position += size
            return piece
        return b"".join(self.pieces(size, allow_end=allow_end, what=what))

    def skip(self, size: int, *, what: str = "") -> None:
        for _ in self.pieces(size, what=what):
            pass

    def pieces(self, size: int, *, allow_end: bool = False, what: str = "") -> Iterator[memoryview]:
        start, left = self.position, size
        while left:
            piece = self._some(left)
            if not piece:
                if allow_end:
                    return
                named = f" of member {what!r}" if what else ""
                raise TarFormatError(
                    f"shard {self._shard}: ends at offset {self.position}, inside the {size} bytes{named} that start at "
                    f"offset {start}; the file was cut, fetch or write it again",
                    kind="truncated_shard",
                    shard=self._shard,
                )
            left -= len(piece)
            yield piece

    def take_some(self) -> bytes:
        return bytes(self._some(1 << 20))

    def _some(self, limit: int) -> memoryview:
        while not self._chunk:
            chunk = next(self._chunks, None)
            if chunk is None:
                return self._chunk
            self._chunk = memoryview(chunk)
        piece, self._chunk = self._chunk[:limit], self._chunk[limit:]
        self.position += len(piece)
        return piece


def _looks_like_header(block: bytes) -> bool:
    return block[257:262] == b"ustar"


def _checksum_matches(block: bytes) -> bool:
    try:
        stored = _number(block[148:156])
    except ValueError:
        return False
    rest = block[:148] + block[156:]
    unsigned = sum(rest) + 8 * ord(" ")
    # Some historic writers summed signed bytes: each byte above 127 then counts 256 less.
    return stored in (unsigned, unsigned - 256 * sum(byte > 127 for byte in rest))


def _number(field: bytes) -> int:
    """An octal or, with the top bit set, a GNU base-256 number field; an empty field is 0."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    if field[0] == 0xFF:
        return -1
    digits = field.split(b"\0", 1)[0].strip(b" ")
    if digits and not digits.isdigit():
        raise ValueError(f"no octal number: {field!r}")
    return int(digits or b"0", 8)


def _name(block: bytes, extended: dict[str, bytes]) -> str:
    raw = extended.get("path")
    if raw is None:
        raw = block[:100].split(b"\0", 1)[0]
        # GNU tar uses the prefix area for times; only POSIX's magic gives it the meaning of a prefix.
        prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
        if prefix:
            raw = prefix + b"/" + raw
    return raw.decode("utf-8", "surrogateescape")
