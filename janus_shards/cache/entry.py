"""The bytes of an entry's file. Numbers and bytes in, bytes out; no I/O.

::

    0      magic, version, kind, header_bytes, payload_bytes, payload_xxh3, num_rows, identity_bytes, record_bytes,
           nonce, check                          never changed; check = XXH3-64 of what stands before it and of identity
    72     stamp: who touched the entry last     changed in place, with a check of its own
    128    identity                              JSON: what the entry holds
    ...    table, u64 a row                      decoded only, changed in place: XXH3-64 of the record, 0 = not there
    4096·n payload                               stored bytes; or records of equal length, changed in place

All numbers are little-endian. A record counts only when it has the checksum of the table, so that whatever a crash
leaves of a record or of the table is a row that is not there.

Source: docs/design/0003-cache.md.
"""

import struct
from dataclasses import dataclass

import xxhash

MAGIC = b"JSHCACHE"
VERSION = 1
RAW, DECODED = 1, 2

_FIXED = struct.Struct("<8sHHIQQIIQQ")
_CHECK = struct.Struct("<Q")
_STAMP = struct.Struct("<QqQ")
STAMP_OFFSET = 72
_IDENTITY_OFFSET = 128
_PAGE = 4096
# Longer than any identity that is written; whoever claims more is no entry of ours.
_MAX_HEADER_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Stamp:
    """Who touched an entry last.

    Attributes:
        data_set: Tag of the data set; see ``data_set_tag``.
        epoch: The consumer's epoch, for people.
        tick: The folder's clock at the start of that epoch.
    """

    data_set: int = 0
    epoch: int = 0
    tick: int = 0

    def encode(self) -> bytes:
        """32 bytes."""
        fixed = _STAMP.pack(self.data_set, self.epoch, self.tick)
        return fixed + _CHECK.pack(xxhash.xxh3_64_intdigest(fixed))

    @classmethod
    def decode(cls, data: bytes) -> "Stamp":
        """The stamp; that of nobody, long ago, when it is damaged."""
        fixed = data[: _STAMP.size]
        if len(data) != _STAMP.size + 8 or _CHECK.unpack(data[_STAMP.size :])[0] != xxhash.xxh3_64_intdigest(fixed):
            return cls()
        return cls(*_STAMP.unpack(fixed))


STAMP_BYTES = _STAMP.size + _CHECK.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What an entry is.

    Attributes:
        kind: ``RAW`` or ``DECODED``.
        identity: See ``EntryKey.identity``.
        payload_bytes: Length of the payload.
        payload_xxh3: XXH3-64 of the payload of a raw entry, otherwise 0.
        num_rows: Records that a decoded entry has room for, otherwise 0.
        record_bytes: Length of a record, otherwise 0.
        nonce: Different in each file, also when a file replaces another of the same name.
    """

    kind: int
    identity: bytes
    payload_bytes: int
    payload_xxh3: int = 0
    num_rows: int = 0
    record_bytes: int = 0
    nonce: int = 0

    @property
    def table_start(self) -> int:
        """Where the table lies."""
        return -(-(_IDENTITY_OFFSET + len(self.identity)) // 8) * 8

    @property
    def payload_start(self) -> int:
        """Where the payload lies: at the start of a page."""
        return -(-(self.table_start + 8 * self.num_rows) // _PAGE) * _PAGE

    @property
    def file_bytes(self) -> int:
        """Length of the whole file."""
        return self.payload_start + self.payload_bytes

    def record_start(self, row: int) -> int:
        """Where a record lies."""
        return self.payload_start + row * self.record_bytes

    def encode(self, stamp: Stamp) -> bytes:
        """``payload_start`` bytes, with an empty table."""
        fixed = self._fixed()
        check = _CHECK.pack(xxhash.xxh3_64_intdigest(fixed + self.identity))
        head = (fixed + check).ljust(STAMP_OFFSET, b"\0") + stamp.encode()
        return (head.ljust(_IDENTITY_OFFSET, b"\0") + self.identity).ljust(self.payload_start, b"\0")

    def _fixed(self) -> bytes:
        return _FIXED.pack(
            MAGIC,
            VERSION,
            self.kind,
            self.payload_start,
            self.payload_bytes,
            self.payload_xxh3,
            self.num_rows,
            len(self.identity),
            self.record_bytes,
            self.nonce,
        )


#: What to read of a file to decode most headers in one go.
PROBE_BYTES = _PAGE


def header_bytes(probe: bytes) -> int | None:
    """Bytes before the payload as the first bytes of a file claim, or ``None`` when it is no entry of this version."""
    if len(probe) < _IDENTITY_OFFSET or probe[:8] != MAGIC or _FIXED.unpack_from(probe)[1] != VERSION:
        return None
    claimed = int(_FIXED.unpack_from(probe)[3])
    return claimed if _IDENTITY_OFFSET <= claimed <= _MAX_HEADER_BYTES else None


def decode_header(data: bytes) -> Header | None:
    """The header at the start of a file, or ``None`` when there is none or it is damaged.

    Args:
        data: At least what stands before the table.
    """
    if header_bytes(data) is None:
        return None
    fixed = data[: _FIXED.size]
    _, _, kind, payload_start, payload_bytes, payload_xxh3, num_rows, length, record_bytes, nonce = _FIXED.unpack(fixed)
    identity = data[_IDENTITY_OFFSET : _IDENTITY_OFFSET + length]
    check = _CHECK.unpack_from(data, _FIXED.size)[0]
    if len(identity) != length or check != xxhash.xxh3_64_intdigest(fixed + identity):
        return None
    header = Header(
        kind=kind,
        identity=identity,
        payload_bytes=payload_bytes,
        payload_xxh3=payload_xxh3,
        num_rows=num_rows,
        record_bytes=record_bytes,
        nonce=nonce,
    )
    sound = header.payload_start == payload_start and num_rows * record_bytes == (
        payload_bytes if kind == DECODED else 0
    )
    return header if sound and kind in (RAW, DECODED) else None


def stamp_of(data: bytes) -> Stamp:
    """The stamp in the first bytes of a file."""
    return Stamp.decode(data[STAMP_OFFSET : STAMP_OFFSET + STAMP_BYTES])


def read_table(data: bytes, header: Header) -> list[int]:
    """Checksum of each record, 0 where there is none; shape ``(num_rows,)``.

    Args:
        data: Everything before the payload.
        header: Its header.
    """
    return list(struct.unpack_from(f"<{header.num_rows}Q", data, header.table_start))


def is_whole_file(size: int, header: Header) -> bool:
    """Whether a file has the length that its header says."""
    return size == header.file_bytes
