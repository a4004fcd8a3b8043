"""The sidecar index of one shard: where every field of every sample lies, small fields themselves, and typed metadata.

``IndexBuilder`` collects samples while a shard is written or scanned; ``ShardIndex`` answers questions about rows,
vectorised. Byte layout: ``docs/format.md``.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from janus_shards.errors import ConfigError, IndexFormatError
from janus_shards.format.columns import (
    MAX_ENTRIES,
    Columns,
    Strings,
    pack_array,
    pack_map,
    pack_strings,
    pack_unsigned,
    unpack_map,
)
from janus_shards.format.naming import is_field, is_unicode, may_inline
from janus_shards.format.tar import BLOCK_BYTES, MAX_TAR_BYTES
from janus_shards.sample import RawBytes

INDEX_MAGIC = "janus-shards-index"
DEFAULT_INLINE_BYTES = 4096

_MARK_VALUES = 256

#: Values of this length and more are never kept in an index.
MAX_INLINE_BYTES = 1 << 24

#: One value of a metadata column.
ColumnValue: TypeAlias = bool | int | float | str


class FieldSpan(NamedTuple):
    """Where one field of one sample lies.

    ``offset`` is the position of the data in the shard and ``size`` its length, both in bytes; ``xxh3`` is the XXH3-64
    of the data, and ``data`` the data itself where it is at hand.
    """

    field: str
    offset: int
    size: int
    xxh3: int
    data: bytes | None


@dataclass(frozen=True)
class FieldColumn:
    """One field over all rows of a shard that have it (``m`` of ``n``).

    Attributes:
        rows: Shape ``(m,)``, ascending row numbers; ``None`` when every row has the field.
        units: Shape ``(m,)``, uint32, data offset in units of 512 bytes.
        sizes: Shape ``(m,)``, uint32 or uint64, bytes.
        xxh3: Shape ``(m,)``, uint64, XXH3-64 of the data.
        inline: Values shorter than ``inline_bytes``, joined in row order; empty when none is kept.
        inline_bytes: Values of at least this length are not in ``inline``; 0 when the field is not inlined.
    """

    rows: NDArray[np.uint32] | None
    units: NDArray[np.uint32]
    sizes: NDArray[Any]
    xxh3: NDArray[np.uint64]
    inline: RawBytes = b""
    inline_bytes: int = 0

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each row stands in this column, -1 for rows without the field. Shape as ``rows``."""
        if self.rows is None:
            return rows
        if not len(self.rows):
            return np.full(len(rows), -1)
        at = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
        return np.where(self.rows[at] == rows, at, -1)

    def inline_starts(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Start in ``inline`` of the values at some places, which may be any where ``sizes >= inline_bytes``."""
        first, last = int(places.min()) // _MARK_VALUES, int(places.max()) // _MARK_VALUES
        if first == last:
            return self._starts_from(first)[places - first * _MARK_VALUES]
        kept = self._kept_sizes(first * _MARK_VALUES, (last + 1) * _MARK_VALUES)
        at = places - first * _MARK_VALUES
        starts: NDArray[np.int64] = self._inline_marks[first] + np.cumsum(kept)[at] - kept[at]
        return starts

    def _starts_from(self, mark: int) -> NDArray[np.int64]:
        """Starts of the values behind one mark; those asked for last are kept, as neighbours are asked for next."""
        last: tuple[int, NDArray[np.int64]] | None = self.__dict__.get("_last_starts")
        if last is None or last[0] != mark:
            kept = self._kept_sizes(mark * _MARK_VALUES, (mark + 1) * _MARK_VALUES)
            last = mark, self._inline_marks[mark] + np.cumsum(kept) - kept
            self.__dict__["_last_starts"] = last  # one assignment, so that threads may do it at once
        return last[1]

    @property
    def num_inline_bytes(self) -> int:
        """Length that ``inline`` must have."""
        return int(self._inline_marks[-1])

    @cached_property
    def _inline_marks(self) -> NDArray[np.int64]:
        """Bytes of ``inline`` in front of every 256th value, and of all of them.

        Starts of all values would take 8 bytes a value in each process that shares the index with others.
        """
        kept = self._kept_sizes(0, len(self.sizes))
        sums = np.add.reduceat(kept, np.arange(0, len(kept), _MARK_VALUES)) if len(kept) else kept
        return np.concatenate([[0], np.cumsum(sums)]).astype(np.int64)

    def _kept_sizes(self, start: int, stop: int) -> NDArray[np.int64]:
        sizes = self.sizes[start:stop]
        return np.where(sizes < self.inline_bytes, sizes, 0).astype(np.int64)


class Spans(NamedTuple):
    """Byte ranges of one field for ``n`` rows, each array of shape ``(n,)``.

    A row without the field has size -1, offset 0 and hash 0.
    """

    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    xxh3: NDArray[np.uint64]


@dataclass(frozen=True)
class ShardIndex:
    """Everything known about one shard without reading it.

    Attributes:
        name: Name of the index or its shard, for messages.
        tar_bytes: Length of the shard.
        tar_sha256: SHA-256 of the shard, 32 bytes.
        keys: One key a row.
        fields: Columns by field name, in order of first appearance.
        columns: Metadata by column name: a NumPy array of bool, int64 or float64, or strings.
    """

    name: str
    tar_bytes: int
    tar_sha256: bytes
    keys: Strings
    fields: Mapping[str, FieldColumn]
    columns: Mapping[str, "NDArray[Any] | Strings"] = field(default_factory=dict)

    @property
    def num_samples(self) -> int:
        """Rows of the shard."""
        return len(self.keys)

    def key(self, row: int) -> str:
        """Key of one row; bytes that are no UTF-8 are surrogate escapes."""
        return self.keys[row].decode("utf-8", "surrogateescape")

    def spans(self, field_name: str, rows: NDArray[np.int64]) -> Spans:
        """Byte ranges of one field for many rows.

        Args:
            field_name: A field; one that the shard does not have gives sizes of -1.
            rows: Shape ``(n,)``, row numbers in this shard.
        """
        column = self.fields.get(field_name)
        if column is None or not len(column.units):
            return Spans(
                np.zeros(len(rows), np.int64), np.full(len(rows), -1, np.int64), np.zeros(len(rows), np.uint64)
            )
        places = column.places(rows)
        offsets, sizes = column.units[places].astype(np.int64) * BLOCK_BYTES, column.sizes[places].astype(np.int64)
        if column.rows is None:
            return Spans(offsets, sizes, column.xxh3[places])
        found = places >= 0
        return Spans(np.where(found, offsets, 0), np.where(found, sizes, -1), np.where(found, column.xxh3[places], 0))

    def inline(self, field_name: str, row: int) -> bytes | None:
        """The bytes of a field when the index keeps them, else ``None``."""
        return self.inline_many(field_name, np.array([row]))[0]

    def inline_many(self, field_name: str, rows: NDArray[np.int64]) -> list[bytes | None]:
        """For each row the bytes of a field when the index keeps them, else ``None``."""
        column = self.fields.get(field_name)
        if column is None or not column.inline_bytes or not len(column.sizes):
            return [None] * len(rows)
        if not len(rows):
            return []
        places = column.places(rows)
        sizes = column.sizes[places]
        kept = (places >= 0) & (sizes < column.inline_bytes)
        starts, data = column.inline_starts(np.maximum(places, 0)), column.inline
        stops = starts + sizes.astype(np.int64)
        found = zip(kept.tolist(), starts.tolist(), stops.tolist(), strict=True)
        return [bytes(data[start:stop]) if keep else None for keep, start, stop in found]

    def fields_of(self, row: int) -> list[FieldSpan]:
        """All fields of one sample, in the order of their members."""
        at, spans = np.array([row]), []
        for name in self.fields:
            found = self.spans(name, at)
            if found.sizes[0] >= 0:
                span = FieldSpan(
                    name, int(found.offsets[0]), int(found.sizes[0]), int(found.xxh3[0]), self.inline(name, row)
                )
                spans.append(span)
        return sorted(spans, key=lambda span: span.offset)

    def encode(self) -> bytes:
        """The index as stored; the same bytes for the same content."""
        content = {
            "tar_bytes": self.tar_bytes,
            "tar_sha256": self.tar_sha256,
            "num_samples": self.num_samples,
            "keys": pack_strings(self.keys),
            "fields": {name: _pack_field(column) for name, column in self.fields.items()},
            "columns": {name: _pack_column(column) for name, column in self.columns.items()},
        }
        return pack_map(INDEX_MAGIC, content)

    @classmethod
    def decode(cls, data: RawBytes, *, name: str) -> "ShardIndex":
        """Read an index and check every offset, size and count against the length of the shard.

        Raises:
            IndexFormatError: The bytes are damaged or contradict each other.
            VersionError: A later format wrote them.
        """
        content = unpack_map(data, magic=INDEX_MAGIC, name=name, error=IndexFormatError)
        top = Columns(content, name=name, error=IndexFormatError)
        tar_bytes = top.integer("tar_bytes", MAX_TAR_BYTES)
        # Each sample has at least one member, and each member a header.
        num_samples = top.integer("num_samples", tar_bytes // BLOCK_BYTES)
        fields, columns = top.map("fields"), top.map("columns")
        return cls(
            name=name,
            tar_bytes=tar_bytes,
            tar_sha256=top.binary("tar_sha256", 32),
            keys=top.strings("keys", num_samples),
            fields={key: _unpack_field(fields, key, num_samples, tar_bytes) for key in fields.names()},
            columns={key: _unpack_column(columns, key, num_samples) for key in columns.names()},
        )


def _pack_field(column: FieldColumn) -> dict[str, Any]:
    packed: dict[str, Any] = {
        "offset": pack_array(column.units),
        "size": pack_unsigned(column.sizes),
        "xxh3": pack_array(column.xxh3),
    }
    if column.rows is not None:
        packed["rows"] = pack_array(column.rows)
    if column.inline_bytes:
        packed["inline_bytes"] = column.inline_bytes
        packed["inline"] = column.inline
    return packed


def _unpack_field(fields: Columns, name: str, num_samples: int, tar_bytes: int) -> FieldColumn:
    if not is_field(name):
        raise fields.damaged(name, "a field name", "an empty name, or one with a slash or NUL")
    packed = fields.map(name)
    rows = packed.optional_array("rows", ("<u4",))
    # Compared, not subtracted: differences of unsigned numbers wrap round.
    if rows is not None and len(rows) and ((rows[1:] <= rows[:-1]).any() or int(rows[-1]) >= num_samples):
        raise packed.damaged("rows", f"ascending rows below {num_samples}", "others")
    length = num_samples if rows is None else len(rows)
    has_inline = "inline_bytes" in packed.names()
    column = FieldColumn(
        rows=rows,
        units=packed.array("offset", length, ("<u4",)),
        sizes=packed.array("size", length),
        xxh3=packed.array("xxh3", length, ("<u8",)),
        inline=packed.view("inline") if has_inline else b"",
        inline_bytes=packed.integer("inline_bytes", MAX_INLINE_BYTES) if has_inline else 0,
    )
    if not _lies_inside(column, tar_bytes):
        raise packed.damaged("offset", f"fields inside the {tar_bytes} bytes of the shard", "one that ends beyond")
    if column.num_inline_bytes != len(column.inline):
        raise packed.damaged("inline", f"{column.num_inline_bytes} bytes", f"{len(column.inline)} bytes")
    return column


def _lies_inside(column: FieldColumn, tar_bytes: int) -> bool:
    if not len(column.sizes):
        return True
    # The largest size first: below 2**53 the sum of offset and size is exact in int64.
    if int(column.sizes.max()) > tar_bytes:
        return False
    ends = column.units.astype(np.int64) * BLOCK_BYTES + column.sizes.astype(np.int64)
    return int(ends.max()) <= tar_bytes


def _pack_column(column: "NDArray[Any] | Strings") -> dict[str, Any]:
    return {"strings": pack_strings(column)} if isinstance(column, Strings) else {"values": pack_array(column)}


def _unpack_column(columns: Columns, name: str, num_samples: int) -> "NDArray[Any] | Strings":
    packed = columns.map(name)
    if "strings" in packed.names():
        return packed.strings("strings", num_samples)
    return packed.array("values", num_samples, ("|b1", "<i8", "<f8"))


class IndexBuilder:
    """Collects the samples of one shard, in order, and becomes its index.

    Args:
        name: Name of the shard, for messages.
        inline_bytes: Values shorter than this are kept in the index, media and tensors excepted; 0 keeps none.

    Raises:
        ConfigError: ``inline_bytes`` is outside 0 to 16 MiB.
    """

    def __init__(self, name: str, *, inline_bytes: int = DEFAULT_INLINE_BYTES) -> None:
        if not 0 <= inline_bytes <= MAX_INLINE_BYTES:
            raise ConfigError(f"inline_bytes={inline_bytes}: expected 0 (keep none) to {MAX_INLINE_BYTES} (16 MiB)")
        self._name = name
        self._inline_bytes = inline_bytes
        self._keys = bytearray()
        self._key_stops = array("q", [0])
        self._fields: dict[str, _GrowingField] = {}
        self._columns: dict[str, list[ColumnValue]] = {}

    @property
    def num_samples(self) -> int:
        """Rows added so far."""
        return len(self._key_stops) - 1

    def keeps_inline(self, field_name: str, size: int) -> bool:
        """Whether ``add`` wants the data of such a field."""
        return size < self._inline_bytes and may_inline(field_name)

    def add(self, key: str, spans: Sequence[FieldSpan], columns: Mapping[str, ColumnValue] | None = None) -> None:
        """Add the next row; after an error the builder is as before.

        Raises:
            ConfigError: A metadata column is missing, new in a later row or no storable value; a field occurs twice, or
                lies where an index cannot point to.
        """
        values = self._checked_columns(key, columns or {})
        self._check_spans(key, spans)
        for name, value in values.items():
            self._columns.setdefault(name, []).append(value)
        row = self.num_samples
        for span in spans:
            growing = self._fields.get(span.field)
            if growing is None:
                growing = self._fields[span.field] = _GrowingField(self._inline_bytes if may_inline(span.field) else 0)
            growing.add(row, span)
        self._keys += key.encode("utf-8", "surrogateescape")
        self._key_stops.append(len(self._keys))

    def build(self, *, tar_bytes: int, tar_sha256: bytes) -> ShardIndex:
        """The finished index of a shard of this length and digest.

        Raises:
            ConfigError: A metadata column mixes types, or the shard is longer than 2 TiB.
            ValueError: A field ends beyond the shard.
        """
        if tar_bytes > MAX_TAR_BYTES:
            raise self._error(
                f"expected at most 2 TiB, found {tar_bytes} bytes; write smaller shards", "shard_too_large"
            )
        fields = {name: growing.build(self.num_samples) for name, growing in self._fields.items()}
        if not all(_lies_inside(column, tar_bytes) for column in fields.values()):
            raise ValueError(f"shard {self._name}: a field ends beyond its {tar_bytes} bytes")
        return ShardIndex(
            name=self._name,
            tar_bytes=tar_bytes,
            tar_sha256=tar_sha256,
            keys=Strings(bytes(self._keys), np.array(self._key_stops, dtype=np.int64)),
            fields=fields,
            columns={name: _column(name, values) for name, values in self._columns.items()},
        )

    def _checked_columns(self, key: str, columns: Mapping[str, ColumnValue]) -> dict[str, ColumnValue]:
        if self.num_samples and columns.keys() != self._columns.keys():
            raise self._error(
                f"expected metadata columns {sorted(self._columns)} as in the rows before, found {sorted(columns)}",
                "bad_column",
                key=key,
            )
        return {name: _checked_value(name, value, key) for name, value in columns.items()}

    def _check_spans(self, key: str, spans: Sequence[FieldSpan]) -> None:
        names = {span.field for span in spans}
        if len(names) != len(spans):
            raise self._error("a field occurs twice", "duplicate_field", key=key)
        if len(self._fields) + sum(name not in self._fields for name in names) > MAX_ENTRIES:
            raise self._error(f"the shard has more than {MAX_ENTRIES} different fields", "too_many_fields", key=key)
        for span in spans:
            if span.offset % BLOCK_BYTES or not 0 <= span.offset < MAX_TAR_BYTES or span.size < 0:
                raise self._error(
                    f"data at offset {span.offset}: expected a multiple of 512 below 2 TiB; write smaller shards",
                    "shard_too_large",
                    key=key,
                    field=span.field,
                )
            if self.keeps_inline(span.field, span.size) and (span.data is None or len(span.data) != span.size):
                raise ValueError(f"field {span.field!r} of key {key!r}: its {span.size} bytes are needed for the index")

    def _error(self, problem: str, kind: str, *, key: str | None = None, field: str | None = None) -> ConfigError:
        named = "".join(f", {word} {value!r}" for word, value in (("key", key), ("field", field)) if value is not None)
        return ConfigError(f"shard {self._name}{named}: {problem}", kind=kind, shard=self._name, key=key, field=field)


class _GrowingField:
    """One field while rows come in. Machine numbers, not Python's: a shard may have millions of rows."""

    __slots__ = ("hashes", "inline", "inline_bytes", "rows", "sizes", "units")

    def __init__(self, inline_bytes: int) -> None:
        self.rows = array("I")
        self.units = array("I")
        self.sizes = array("Q")
        self.hashes = array("Q")
        self.inline = bytearray()
        self.inline_bytes = inline_bytes

    def add(self, row: int, span: FieldSpan) -> None:
        self.rows.append(row)
        self.units.append(span.offset // BLOCK_BYTES)
        self.sizes.append(span.size)
        self.hashes.append(span.xxh3)
        if span.size < self.inline_bytes and span.data is not None:
            self.inline += span.data

    def build(self, num_samples: int) -> FieldColumn:
        # A row list costs 4 bytes a value, less than a marker for each missing row unless hardly any row is missing.
        dense = len(self.rows) == num_samples
        return FieldColumn(
            rows=None if dense else np.array(self.rows, dtype=np.uint32),
            units=np.array(self.units, dtype=np.uint32),
            sizes=np.array(self.sizes, dtype=np.uint64),
            xxh3=np.array(self.hashes, dtype=np.uint64),
            inline=bytes(self.inline),
            inline_bytes=self.inline_bytes,
        )


def _checked_value(name: str, value: object, key: str) -> ColumnValue:
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, int) and not -(2**63) <= plain < 2**63:
        found = f"{plain}"
    elif isinstance(plain, str) and not is_unicode(plain):
        found = "text with lone surrogates"
    elif isinstance(plain, bool | int | float | str):
        return plain
    else:
        found = type(value).__name__
    raise ConfigError(
        f"column {name!r} of key {key!r}: expected a bool, 64-bit integer, float or text, found {found}",
        kind="bad_column",
        key=key,
    )


def _column(name: str, values: list[ColumnValue]) -> "NDArray[Any] | Strings":
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return Strings.of([str(value).encode() for value in values])
    if kinds == {bool}:
        return np.array(values, dtype=np.bool_)
    if kinds == {int}:
        return np.array(values, dtype=np.int64)
    found = ", ".join(sorted(kind.__name__ for kind in kinds))
    if kinds <= {int, float}:
        if all(float(value) == value for value in values if isinstance(value, int)):
            return np.array(values, dtype=np.float64)
        found = "floats, and integers that a float64 would round"
    raise ConfigError(f"column {name!r}: expected one type in all rows, found {found}", kind="bad_column")
