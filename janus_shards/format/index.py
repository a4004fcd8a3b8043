"""The sidecar index of one shard: where every field of every sample lies, small fields themselves, and typed metadata.

``IndexBuilder`` collects samples while a shard is written or scanned; ``ShardIndex`` answers questions about rows, vectorised.
Byte layout: ``docs/format.md``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from janus_shards.errors import ConfigError, IndexFormatError
from janus_shards.format.columns import Columns, Strings, pack_array, pack_map, pack_strings, pack_unsigned, unpack_map
from janus_shards.format.naming import check_relative, may_inline
from janus_shards.format.tar import BLOCK_BYTES
from janus_shards.sample import RawBytes

INDEX_MAGIC = "janus-shards-index"
DEFAULT_INLINE_BYTES = 4096

#: One value of a metadata column.
ColumnValue: TypeAlias = bool | int | float | str


class FieldSpan(NamedTuple):
    """Where one field of one sample lies: data offset in the shard, length in bytes, XXH3-64 of the data, inline data if kept."""

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
    inline: bytes = b""
    inline_bytes: int = 0

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each row stands in this column, -1 for rows without the field. Shape as ``rows``."""
        if self.rows is None:
            return rows
        at = np.searchsorted(self.rows, rows)
        at_safe = np.minimum(at, max(len(self.rows) - 1, 0))
        found = (self.rows[at_safe] == rows) if len(self.rows) else np.zeros(len(rows), dtype=bool)
        return np.where(found, at_safe, -1)

    @cached_property
    def inline_starts(self) -> NDArray[np.int64]:
        """Start of each value in ``inline``, shape ``(m + 1,)``; meaningful where ``sizes < inline_bytes``."""
        starts = np.zeros(len(self.sizes) + 1, dtype=np.int64)
        np.cumsum(np.where(self.sizes < self.inline_bytes, self.sizes, 0), out=starts[1:])
        return starts


class Spans(NamedTuple):
    """Byte ranges of one field for ``n`` rows; ``sizes`` is -1 where a row lacks the field. All int64 but ``xxh3``, shape ``(n,)``."""

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
        return len(self.keys)

    def key(self, row: int) -> str:
        return self.keys[row].decode("utf-8", "surrogateescape")

    def spans(self, field_name: str, rows: NDArray[np.int64]) -> Spans:
        """Byte ranges of one field for many rows.

        Args:
            field_name: A field; one that the shard does not have gives sizes of -1.
            rows: Shape ``(n,)``, row numbers in this shard.
        """
        column = self.fields.get(field_name)
        if column is None or not len(column.units):
            return Spans(np.zeros(len(rows), np.int64), np.full(len(rows), -1), np.zeros(len(rows), np.uint64))
        places = column.places(rows)
        offsets = column.units[places].astype(np.int64) * BLOCK_BYTES
        return Spans(offsets, np.where(places >= 0, column.sizes[places].astype(np.int64), -1), column.xxh3[places])

    def inline(self, field_name: str, row: int) -> bytes | None:
        """The bytes of a field when the index keeps them, else ``None``."""
        return self.inline_many(field_name, np.array([row]))[0]

    def inline_many(self, field_name: str, rows: NDArray[np.int64]) -> list[bytes | None]:
        """For each row the bytes of a field when the index keeps them, else ``None``."""
        column = self.fields.get(field_name)
        if column is None or not column.inline_bytes or not len(column.sizes):
            return [None] * len(rows)
        places = column.places(rows)
        kept = (places >= 0) & (column.sizes[places] < column.inline_bytes)
        starts, data = column.inline_starts[places], column.inline
        stops = column.inline_starts[places + 1]
        found = zip(kept.tolist(), starts.tolist(), stops.tolist(), strict=True)
        return [data[start:stop] if keep else None for keep, start, stop in found]

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
        num_samples, tar_bytes = top.integer("num_samples"), top.integer("tar_bytes")
        fields, columns = top.map("fields"), top.map("columns")
        return cls(
            name=name,
            tar_bytes=tar_bytes,
            tar_sha256=top.binary("tar_sha256", 32),
            keys=top.strings("keys", num_samples),
            fields={key: _unpack_field(fields, key, num_samples, tar_bytes) for key in _checked_names(fields)},
            columns={key: _unpack_column(columns, key, num_samples) for key in columns.names()},
        )


def _checked_names(fields: Columns) -> list[str]:
    names = fields.names()
    for name in names:
        if not check_relative(name) or "/" in name:
            raise fields.damaged(name, "a field name", "a name with path components")
    return names


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
    packed = fields.map(name)
    rows = packed.optional_array("rows")
    if rows is not None and len(rows) and ((np.diff(rows.astype(np.int64)) <= 0).any() or int(rows[-1]) >= num_samples):
        raise packed.damaged("rows", f"ascending rows below {num_samples}", "others")
    length = num_samples if rows is None else len(rows)
    units, sizes, xxh3 = packed.array("offset", length), packed.array("size", length), packed.array("xxh3", length)
    # Compared as floats so that a size near 2**64 cannot wrap round; a tar is far below 2**53 bytes.
    if length and (units.astype(np.float64) * BLOCK_BYTES + sizes.astype(np.float64)).max() > tar_bytes:
        raise packed.damaged("offset", f"fields inside the {tar_bytes} bytes of the shard", "one that ends beyond")
    has_inline = "inline_bytes" in packed.names()
    inline_bytes = packed.integer("inline_bytes") if has_inline else 0
    column = FieldColumn(rows, units, sizes, xxh3, packed.binary("inline") if has_inline else b"", inline_bytes)
    if int(column.inline_starts[-1]) != len(column.inline):
        raise packed.damaged("inline", f"{int(column.inline_starts[-1])} bytes", f"{len(column.inline)} bytes")
    return column


def _pack_column(column: "NDArray[Any] | Strings") -> dict[str, Any]:
    return {"strings": pack_strings(column)} if isinstance(column, Strings) else {"values": pack_array(column)}


def _unpack_column(columns: Columns, name: str, num_samples: int) -> "NDArray[Any] | Strings":
    packed = columns.map(name)
    if "strings" in packed.names():
        return packed.strings("strings", num_samples)
    return packed.array("values", num_samples, kinds="biuf")


class IndexBuilder:
    """Collects the samples of one shard, in order, and becomes its index.

    Args:
        name: Name of the shard, for messages.
        inline_bytes: Values shorter than this are kept in the index, media and tensors excepted; 0 keeps none.
    """

    def __init__(self, name: str, *, inline_bytes: int = DEFAULT_INLINE_BYTES) -> None:
        self._name = name
        self._inline_bytes = inline_bytes
        self._keys: list[bytes] = []
        self._fields: dict[str, _GrowingField] = {}
        self._columns: dict[str, list[ColumnValue]] = {}

    @property
    def num_samples(self) -> int:
        return len(self._keys)

    def keeps_inline(self, field_name: str, size: int) -> bool:
        """Whether ``add`` wants the data of such a field."""
        return size < self._inline_bytes and may_inline(field_name)

    def add(self, key: str, spans: Sequence[FieldSpan], columns: Mapping[str, ColumnValue] | None = None) -> None:
        """Add the next row.

        Raises:
            ConfigError: A metadata column is missing, new in a later row, or of another type than before.
        """
        columns = columns or {}
        row = len(self._keys)
        if row and set(columns) != set(self._columns):
            raise ConfigError(
                f"shard {self._name}, key {key!r}: expected metadata columns {sorted(self._columns)} as in the rows before, "
                f"found {sorted(columns)}",
                kind="bad_column",
                shard=self._name,
                key=key,
            )
        for name, value in columns.items():
            self._columns.setdefault(name, []).append(_checked_value(name, value, key))
        for span in spans:
            inline_bytes = self._inline_bytes if may_inline(span.field) else 0
            self._fields.setdefault(span.field, _GrowingField(inline_bytes)).add(row, span)
        self._keys.append(key.encode("utf-8", "surrogateescape"))

    def build(self, *, tar_bytes: int, tar_sha256: bytes) -> ShardIndex:
        """The finished index of a shard of this length and digest."""
        return ShardIndex(
            name=self._name,
            tar_bytes=tar_bytes,
            tar_sha256=tar_sha256,
            keys=Strings.of(self._keys),
            fields={name: growing.build(len(self._keys)) for name, growing in self._fields.items()},
            columns={name: _column(name, values) for name, values in self._columns.items()},
        )


class _GrowingField:
    __slots__ = ("hashes", "inline", "inline_bytes", "offsets", "rows", "sizes")

    def __init__(self, inline_bytes: int) -> None:
        self.rows: list[int] = []
        self.offsets: list[int] = []
        self.sizes: list[int] = []
        self.hashes: list[int] = []
        self.inline: list[bytes] = []
        self.inline_bytes = inline_bytes

    def add(self, row: int, span: FieldSpan) -> None:
        self.rows.append(row)
        self.offsets.append(span.offset)
        self.sizes.append(span.size)
        self.hashes.append(span.xxh3)
        if span.size < self.inline_bytes:
            if span.data is None:
                raise ValueError(f"field {span.field!r} of row {row}: data is needed to keep it inline")
            self.inline.append(span.data)

    def build(self, num_samples: int) -> FieldColumn:
        rows = np.array(self.rows, dtype=np.uint32)
        units = np.array(self.offsets, dtype=np.int64) // BLOCK_BYTES
        sizes = np.array(self.sizes, dtype=np.uint64)
        hashes = np.array(self.hashes, dtype=np.uint64)
        # A row list costs 4 bytes a value, less than a marker for each missing row unless hardly any row is missing.
        dense = len(rows) == num_samples
        return FieldColumn(
            None if dense else rows, units.astype(np.uint32), sizes, hashes, b"".join(self.inline), self.inline_bytes
        )


def _checked_value(name: str, value: ColumnValue, key: str) -> ColumnValue:
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, bool | int | float | str) or (isinstance(value, int) and not -(2**63) <= value < 2**63):
        raise ConfigError(
            f"column {name!r} of key {key!r}: expected a bool, 64-bit integer, float or text, found {type(value).__name__}",
            kind="bad_column",
            key=key,
        )
    return value


def _column(name: str, values: list[ColumnValue]) -> "NDArray[Any] | Strings":
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return Strings.of([str(value).encode("utf-8", "surrogateescape") for value in values])
    if kinds == {bool}:
        return np.array(values, dtype=np.bool_)
    if kinds == {int}:
        return np.array(values, dtype=np.int64)
    if kinds <= {int, float}:
        return np.array(values, dtype=np.float64)
    found = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise ConfigError(f"column {name!r}: expected one type in all rows, found {found}", kind="bad_column")
