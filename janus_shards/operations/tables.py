"""Tables of samples: CSV, TSV and JSON Lines as rows of text, and rows as samples to be packed.

Values are never guessed: ``000001`` stays a text, ``NA`` and ``nan`` are captions. Lines end at LF or CR LF only,
whatever Unicode calls a line separator. Parquet is read in ``parquet``.
"""

import csv
import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from janus_shards.decode.fields import encode_field
from janus_shards.decode.headers import image_format
from janus_shards.decode.image import image_size
from janus_shards.errors import (
    ConfigError,
    DecodeError,
    FormatError,
    JanusShardsError,
    ObjectNotFoundError,
    StorageError,
)
from janus_shards.format.naming import check_field, check_key
from janus_shards.operations.folders import SourceFile
from janus_shards.operations.sources import Part, SourcePlan, SourceSample, counted, is_image, name_some
from janus_shards.sample import RawBytes

#: File name extensions of tables.
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")

_BOM = "\ufeff"
_UNICODE_FORMS: Sequence[Literal["NFC", "NFD"]] = ("NFC", "NFD")
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, kw_only=True)
class TableColumns:
    """Which columns of a table become what.

    Attributes:
        image: Column with the path of a file, relative to the table; its field is named after the file's extension, in
            lower case. In Parquet also a column with pictures themselves, named after their formats.
        text: Column that becomes the field ``txt``; null and absent values become empty texts.
        key: Column with the keys; without one, rows are numbered ``000000000`` and so on.
        json: Columns that become one field ``json``; ``("*",)`` takes all that are used for nothing else. Columns of
            binary data among them become fields of their own, named like the column in lower case.
        on_bad: Whether a row that cannot be packed ends the run or is left out and reported.

    Raises:
        ConfigError: No column is named that could become a field.
    """

    image: str | None = None
    text: str | None = None
    key: str | None = None
    json: Sequence[str] = ()
    on_bad: Literal["raise", "skip"] = "raise"

    def __post_init__(self) -> None:
        if not (self.image or self.text or self.json):
            raise ConfigError(
                "a table needs to know its columns: name at least one of image (--image-column), text (--text-column) "
                "and json "
                "(--json-columns)"
            )

    def named(self) -> list[str]:
        """Names of all columns that have to be there."""
        return [name for name in (self.key, self.image, self.text, *self.json) if name and name != "*"]


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row: its values by column, or why it has none.

    Attributes:
        line: Number of its first line, from 1; in Parquet of the row.
        values: Values by column: texts, in JSON Lines and Parquet also other values of JSON, in Parquet also bytes.
        problem: Why the row cannot be read; empty when it can.
    """

    line: int
    values: Mapping[str, object]
    problem: str = ""


def read_table(chunks: Iterable[RawBytes], *, name: str) -> Iterator[TableRow]:
    """Rows of a table, by the extension of its name.

    Args:
        chunks: The bytes of the file.
        name: Its name.

    Raises:
        ConfigError: The extension is none of ``TABLE_SUFFIXES``.
        FormatError: The file has no header line, is UTF-16, or is no UTF-8 (kind ``bad_row``).
    """
    lines, suffix = _lines(chunks, name), os.path.splitext(name)[1].lower()
    if suffix in (".jsonl", ".ndjson"):
        return _read_jsonl(lines)
    if suffix in (".csv", ".tsv"):
        return _read_csv(lines, name, "," if suffix == ".csv" else "\t")
    raise ConfigError(f"{name}: expected a folder or a table with one of the extensions {', '.join(TABLE_SUFFIXES)}")


def _lines(chunks: Iterable[RawBytes], name: str) -> Iterator[str]:
    """Lines with their ends, without the byte order mark."""
    for number, raw in enumerate(_split_lines(chunks), start=1):
        if number == 1 and raw.startswith(_UTF16_BOMS):
            raise FormatError(f"{name}: is UTF-16; save it as UTF-8", kind="bad_row", shard=name)
        try:
            line = raw.decode()
        except UnicodeDecodeError as exc:
            raise FormatError(
                f"{name} line {number}: expected UTF-8, found byte 0x{raw[exc.start]:02x} at column {exc.start + 1}; "
                f"save the file as UTF-8",
                kind="bad_row",
                shard=name,
            ) from exc
        yield line.removeprefix(_BOM) if number == 1 else line


def _split_lines(chunks: Iterable[RawBytes]) -> Iterator[bytes]:
    rest: list[bytes] = []
    for chunk in chunks:
        first, *others = bytes(chunk).split(b"\n")
        rest.append(first)
        for piece in others:
            yield b"".join(rest) + b"\n"
            rest = [piece]
    if last := b"".join(rest):
        yield last


def _read_jsonl(lines: Iterator[str]) -> Iterator[TableRow]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as exc:
            reason = f"{exc.msg} at column {exc.pos + 1}" if isinstance(exc, json.JSONDecodeError) else str(exc)
            yield TableRow(number, {}, f"is no JSON: {reason}")
            continue
        fits = isinstance(values, dict)
        yield TableRow(
            number, values if fits else {}, "" if fits else f"expected a JSON object, found {type(values).__name__}"
        )


def _read_csv(lines: Iterator[str], name: str, delimiter: str) -> Iterator[TableRow]:
    with _unlimited_fields():
        # strict: a quote that is never closed would otherwise swallow the rest of the file without a word.
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        header = _header(reader, name)
        while True:
            line = reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error as exc:
                yield TableRow(line, {}, f"is no {'CSV' if delimiter == ',' else 'TSV'}: {exc}")
                continue
            if cells is None:
                return
            if len(cells) == len(header):
                yield TableRow(line, dict(zip(header, cells, strict=True)))
            elif cells:
                yield TableRow(line, {}, f"expected {len(header)} columns as in the header, found {len(cells)}")


def _header(reader: "Iterator[list[str]]", name: str) -> list[str]:
    try:
        header = next(reader, None)
    except csv.Error as exc:
        raise FormatError(f"{name} line 1: the header cannot be read: {exc}", kind="bad_row", shard=name) from exc
    if not header:
        raise FormatError(
            f"{name}: expected a first line with the names of the columns, found none", kind="bad_row", shard=name
        )
    return header


@contextmanager
def _unlimited_fields() -> Iterator[None]:
    """Take fields of any length; the module's own limit is 131,072 characters, for all readers of the process."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def plan_table(
    rows: Iterable[TableRow],
    *,
    columns: TableColumns,
    name: str,
    stat: Callable[[str], SourceFile],
    read: Callable[[str], RawBytes] | None = None,
    unit: str = "line",
) -> SourcePlan:
    """Turn rows into samples, in the order of the table.

    Args:
        rows: Rows as read.
        columns: Which columns become what.
        name: Name of the table, for messages.
        stat: Size of a file that a row names; raises ``StorageError``.
        read: Bytes of such a file. With ``on_bad="skip"`` every picture is looked at, so that what is none is left out
            before shards are planned.
        unit: What the rows are counted by, for messages.

    Raises:
        ConfigError: A named column does not exist, or there is no row (kind ``empty_dataset``).
        FormatError: Rows cannot be packed (kind ``bad_row``): all are looked at, and the first ten are named.
    """
    planner = _Planner(columns, stat, read if columns.on_bad == "skip" else None)
    samples: list[SourceSample] = []
    problems: list[str] = []
    first_lines: dict[str, int] = {}
    seen: set[str] = set()
    for number, row in enumerate(rows):
        seen.update(row.values)
        try:
            sample = planner.sample(row, number)
            key, line = sample.key, first_lines.setdefault(sample.key, row.line)
            if line != row.line:
                raise _BadRowError(f"key {key!r} repeats {unit} {line} (duplicate_key)")
        except _BadRowError as exc:
            problems.append(f"{unit} {row.line}: {exc}")
        else:
            samples.append(sample._replace(origin=f"{name} {unit} {row.line}"))
    if samples or problems:
        _check_columns(columns, seen, name)
    warnings = _judge(problems, columns, name)
    if not samples:
        raise ConfigError(f"{name}: has no row to pack", kind="empty_dataset")
    return SourcePlan(samples=samples, warnings=warnings, skipped=problems)


class _BadRowError(Exception):
    """Why a row cannot be packed."""


def _check_columns(columns: TableColumns, seen: set[str], name: str) -> None:
    absent = [column for column in columns.named() if column not in seen]
    if absent and seen:
        raise ConfigError(
            f"{name}: found no column {', '.join(map(repr, absent))}; its columns are "
            f"{', '.join(map(repr, sorted(seen)))}",
            kind="bad_column",
        )


def _judge(problems: Sequence[str], columns: TableColumns, name: str) -> list[str]:
    if not problems:
        return []
    found = f"{name}: {counted(len(problems), 'bad row')}: {name_some(problems)}"
    if columns.on_bad == "raise":
        raise FormatError(
            f"{found}. Nothing was written; correct them, or leave them out with on_bad='skip' (--on-bad skip)",
            kind="bad_row",
            shard=name,
        )
    return [f"bad_row: left out {found.removeprefix(f'{name}: ')}"]


@dataclass(frozen=True)
class _Planner:
    """Turns one row into one sample."""

    columns: TableColumns
    stat: Callable[[str], SourceFile]
    read: Callable[[str], RawBytes] | None

    def sample(self, row: TableRow, number: int) -> SourceSample:
        if row.problem:
            raise _BadRowError(row.problem)
        columns = self.columns
        key = _key(row, number, columns)
        parts = [self._image(row, columns.image)] if columns.image else []
        if columns.text:
            data = _text(row, columns.text)
            parts.append(Part("txt", len(data), data=data))
        if columns.json:
            parts += _other_parts(row, columns)
        return SourceSample(key, tuple(parts))

    def _image(self, row: TableRow, column: str) -> Part:
        value = row.values.get(column)
        if isinstance(value, bytes):
            return _embedded_image(value, column)
        if not isinstance(value, str) or not value:
            raise _BadRowError(f"column {column!r}: expected the path of a file, found {_shown(value)} (missing_file)")
        field = value.rpartition("/")[2].rpartition(".")[2].lower()
        if "." not in value.rpartition("/")[2] or not is_image(field):
            raise _BadRowError(f"column {column!r}: expected the path of a picture such as photo.jpg, found {value!r}")
        try:
            file = self._find(value)
            if self.read is not None:
                image_size(self.read(file.name))
        except StorageError as exc:
            raise _BadRowError(f"{exc.message} (missing_file)") from exc
        except DecodeError as exc:
            raise _BadRowError(f"column {column!r}: {value!r}: {exc.message} ({exc.kind})") from exc
        return Part(field, file.size, file.name, mtime_ns=file.mtime_ns)

    def _find(self, path: str) -> SourceFile:
        """The file of this name, or of the same name with its accents composed or apart, as Macs store them."""
        try:
            return self.stat(path)
        except ObjectNotFoundError:
            for form in _UNICODE_FORMS:
                with suppress(ObjectNotFoundError):
                    return self.stat(unicodedata.normalize(form, path))
            raise


def _embedded_image(data: bytes, column: str) -> Part:
    try:
        image_size(data)
    except DecodeError as exc:
        raise _BadRowError(f"column {column!r}: {exc.message} ({exc.kind})") from exc
    name = image_format(data) or ""
    return Part({"jpeg": "jpg"}.get(name, name), len(data), data=data)


def _key(row: TableRow, number: int, columns: TableColumns) -> str:
    if not columns.key:
        return f"{number:09d}"
    value = row.values.get(columns.key)
    # An integer of JSON has one spelling; a float has many.
    key = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(key, str) or not key:
        raise _BadRowError(f"column {columns.key!r}: expected a key as text, found {_shown(value)}")
    try:
        check_key(key)
    except ConfigError as exc:
        raise _BadRowError(exc.message) from exc
    return key


def _text(row: TableRow, column: str) -> bytes:
    value = row.values.get(column)
    if value is None:
        return b""
    if not isinstance(value, str):
        raise _BadRowError(f"column {column!r}: expected text, found {_shown(value)}")
    try:
        return value.encode()
    except UnicodeEncodeError as exc:
        raise _BadRowError(f"column {column!r}: has a lone surrogate at character {exc.start + 1}") from exc


def _other_parts(row: TableRow, columns: TableColumns) -> list[Part]:
    """Binary values as fields of their own, all others together as JSON."""
    used = {columns.key, columns.image, columns.text}
    names = [name for name in row.values if name not in used] if "*" in columns.json else columns.json
    values = {name: row.values.get(name) for name in names}
    binary = {name: value for name, value in values.items() if isinstance(value, bytes)}
    parts = []
    if len(binary) < len(values):
        data = _json({name: value for name, value in values.items() if name not in binary})
        parts.append(Part("json", len(data), data=data))
    return [*parts, *(Part(_checked_field(name), len(value), data=value) for name, value in binary.items())]


def _checked_field(column: str) -> str:
    field = column.lower()
    try:
        check_field(field)
    except ConfigError as exc:
        raise _BadRowError(f"column {column!r}: its binary data cannot become a field: {exc.message}") from exc
    if field in ("txt", "json"):
        raise _BadRowError(f"column {column!r}: its binary data would become field {field!r}, which the row has")
    return field


def _json(values: Mapping[str, object]) -> bytes:
    try:
        return encode_field("json", values)
    except JanusShardsError as exc:
        guilty = [name for name, value in values.items() if not _is_json(value)]
        raise _BadRowError(f"column {', '.join(map(repr, guilty or values))}: {exc.message}") from exc


def _is_json(value: object) -> bool:
    try:
        encode_field("json", value)
    except JanusShardsError:
        return False
    return True


def _shown(value: object) -> str:
    return (
        "nothing"
        if value is None or value == ""
        else f"{value!r}"
        if isinstance(value, str | int | float)
        else type(value).__name__
    )
