"""Parquet tables as rows of JSON values and of bytes. The only module that imports pyarrow (extra ``parquet``).

Integers are exact, lists stay lists, times become ISO 8601 text and decimals text, so that nothing is rounded. A column
of a type that cannot be written is refused from the schema, before a row is read.
"""

import datetime
import importlib.util
import zoneinfo
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from janus_shards.errors import ConfigError, FormatError, JanusShardsError
from janus_shards.operations.tables import TableColumns, TableRow

if TYPE_CHECKING:
    import pyarrow

PARQUET_SUFFIX = ".parquet"

_BATCH_ROWS = 1024
_UNITS_A_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH = datetime.datetime(1970, 1, 1)

# From a scalar of pyarrow to a value of the row.
_Convert: TypeAlias = Callable[[Any], object]


def read_parquet(file: BinaryIO, *, columns: TableColumns, name: str) -> Iterator[TableRow]:
    """Rows of a Parquet file, numbered from 1, with the columns that are used.

    Args:
        file: The file, open for reading from any place.
        columns: Which columns are used.
        name: Name of the file, for messages.

    Raises:
        ConfigError: pyarrow is not installed, or a named column does not exist (``bad_column``).
        FormatError: The file is no Parquet or damaged, or a used column is of a type that cannot be written
            (``bad_row``).
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f"{name}: reading Parquet needs pyarrow: pip install 'janus-shards[parquet]'")
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file)
        used = _used_fields(table.schema_arrow, columns, name)
        converts = {each.name: _column_convert(each, columns, name) for each in used}
        number = 0
        for batch in table.iter_batches(_BATCH_ROWS, columns=list(converts), use_threads=False):
            values = [[_value(scalar, convert) for scalar in batch.column(at)] for at, convert in converts.items()]
            for cells in zip(*values, strict=True):
                number += 1
                yield _row(number, dict(zip(converts, cells, strict=True)))
    except JanusShardsError:
        raise
    except (pyarrow.ArrowException, OSError) as exc:
        raise FormatError(f"{name}: cannot be read as Parquet: {exc}", kind="bad_row", shard=name) from exc


def _used_fields(schema: "pyarrow.Schema", columns: TableColumns, name: str) -> "list[pyarrow.Field]":
    absent = [each for each in columns.named() if each not in schema.names]
    twice = [each for each in schema.names if schema.names.count(each) > 1]
    if twice or absent:
        problem = f"two columns {twice[0]!r}" if twice else f"no column {', '.join(map(repr, absent))}"
        raise ConfigError(
            f"{name}: found {problem}; its columns are {', '.join(map(repr, sorted(schema.names)))}", kind="bad_column"
        )
    return [each for each in schema if "*" in columns.json or each.name in columns.named()]


class _BadValueError(Exception):
    """Why a value cannot be written; it stands in the value's place until its row is told."""


def _value(scalar: Any, convert: _Convert) -> object:
    try:
        return convert(scalar)
    except (ValueError, ArithmeticError) as exc:
        return _BadValueError(str(exc))


def _row(number: int, values: dict[str, object]) -> TableRow:
    bad = [f"column {name!r}: {value}" for name, value in values.items() if isinstance(value, _BadValueError)]
    return TableRow(number, {} if bad else values, "; ".join(bad))


# --- types ------------------------------------------------------------------------------------------------------------


def _column_convert(column: "pyarrow.Field", columns: TableColumns, name: str) -> _Convert:
    from pyarrow import types

    kind = column.type
    if column.name == columns.image and types.is_struct(kind) and {"bytes", "path"} <= {each.name for each in kind}:
        return _embedded_or_path
    if _is_binary(kind):
        # Every sample has the same fields: where there is no value, an empty one.
        return _or_none if column.name == columns.image else lambda scalar: scalar.as_py() or b""
    convert = _convert(kind)
    if convert is None:
        raise FormatError(
            f"{name}: column {column.name!r} is of type {kind}, which cannot be written; leave it out or convert it, "
            "for example to text",
            kind="bad_row",
            shard=name,
        )
    return convert


def _embedded_or_path(scalar: Any) -> object:
    """A picture as Hugging Face's data sets store it: bytes, or else a path."""
    found = scalar.as_py() or {}
    return found.get("path") if found.get("bytes") is None else found["bytes"]


def _is_binary(kind: "pyarrow.DataType") -> bool:
    from pyarrow import types

    checks = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
    return any(check(kind) for check in checks)


def _convert(kind: "pyarrow.DataType") -> _Convert | None:
    """How values of a type become values of JSON; ``None`` for types that have no exact form there."""
    import pyarrow
    from pyarrow import types

    if isinstance(kind, pyarrow.BaseExtensionType):
        return _through(_convert(kind.storage_type))
    if types.is_dictionary(kind):
        return _through(_convert(kind.value_type))
    if _is_plain(kind):
        return _or_none
    if types.is_decimal(kind):
        return _known(lambda scalar: str(scalar.as_py()))
    if types.is_date(kind):
        return _known(lambda scalar: scalar.as_py().isoformat())
    if types.is_timestamp(kind) or types.is_time(kind):
        return _known(_time_text)
    return _nested(kind)


def _is_plain(kind: "pyarrow.DataType") -> bool:
    from pyarrow import types

    checks = (types.is_null, types.is_boolean, types.is_integer, types.is_floating)
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    return any(check(kind) for check in (*checks, *texts))


def _nested(kind: "pyarrow.DataType") -> _Convert | None:
    from pyarrow import types

    if types.is_map(kind):
        key, item = _convert(kind.key_type), _convert(kind.item_type)
        if item is None or not (key is _or_none and _is_text(kind.key_type)):
            return None
        return _known(lambda scalar: {pair["key"].as_py(): item(pair["value"]) for pair in scalar.values})
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    if any(check(kind) for check in lists):
        inner = _convert(kind.value_type)
        return _known(lambda scalar: [inner(value) for value in scalar.values]) if inner else None
    if not types.is_struct(kind):
        return None
    parts = {each.name: _convert(each.type) for each in kind}
    if len(parts) < kind.num_fields or not all(parts.values()):
        return None
    return _known(lambda scalar: {name: part(scalar[name]) for name, part in parts.items() if part})


def _is_text(kind: "pyarrow.DataType") -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _or_none(scalar: Any) -> object:
    value: object = scalar.as_py()
    return value


def _known(convert: _Convert) -> _Convert:
    """The conversion for values that are there; others are null."""
    return lambda scalar: convert(scalar) if scalar.is_valid else None


def _through(convert: _Convert | None) -> _Convert | None:
    """The conversion of the value behind a dictionary's or an extension's."""
    return _known(lambda scalar: convert(scalar.value)) if convert else None


def _time_text(scalar: Any) -> str:
    """ISO 8601, with as many digits of a second as there are: none, 6 or 9."""
    second = _UNITS_A_SECOND[scalar.type.unit]
    seconds, parts = divmod(scalar.value, second)
    nanoseconds = parts * (10**9 // second)
    digits = f".{nanoseconds:09d}" if nanoseconds % 1000 else f".{nanoseconds // 1000:06d}" if nanoseconds else ""
    zone = getattr(scalar.type, "tz", None)
    try:
        moment = _EPOCH + datetime.timedelta(seconds=seconds)
        moment = moment.replace(tzinfo=datetime.UTC).astimezone(_zone(zone)) if zone else moment
    except (OverflowError, zoneinfo.ZoneInfoNotFoundError) as exc:
        raise ValueError(f"{scalar.value} of {scalar.type} is no time that ISO 8601 can say: {exc}") from exc
    # 2024-01-02T03:04:05, and behind it the offset.
    text = moment.isoformat()
    return f"{text[:19]}{digits}{text[19:]}" if hasattr(scalar.type, "tz") else f"{text[11:19]}{digits}"


def _zone(name: str) -> datetime.tzinfo:
    """The time zone of a type: a name of the tz database, or an offset such as ``+02:00``."""
    if name[:1] in "+-":
        return datetime.datetime.strptime(name, "%z").tzinfo or datetime.UTC
    return zoneinfo.ZoneInfo(name)
