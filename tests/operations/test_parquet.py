"""Parquet columns become keys, texts, JSON and fields without losing a digit, and what cannot is refused at once."""

import datetime
import decimal
import io
import json
import zoneinfo
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from janus_shards.errors import ConfigError, FormatError
from janus_shards.operations.pack import PackOptions, pack
from janus_shards.operations.parquet import read_parquet
from janus_shards.operations.tables import TableColumns, TableRow
from janus_shards.reader import open_dataset

NOON = datetime.datetime(2024, 1, 2, 12, 0, 0)
ALL = TableColumns(json=("*",))


def stored(table: Mapping[str, Any]) -> io.BytesIO:
    """A Parquet file with these columns."""
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(dict(table)), file)
    file.seek(0)
    return file


def rows(table: Mapping[str, Any], columns: TableColumns = ALL) -> list[TableRow]:
    """Rows of these columns, after a trip through a file."""
    return list(read_parquet(stored(table), columns=columns, name="rows.parquet"))


NS_BERLIN = pyarrow.timestamp("ns", tz="Europe/Berlin")
VALUES = {
    "int64 above 2**53": (pyarrow.array([2**53 + 1]), 2**53 + 1),
    "uint64": (pyarrow.array([2**64 - 1], pyarrow.uint64()), 2**64 - 1),
    "boolean": (pyarrow.array([True]), True),
    "null": (pyarrow.array([None]), None),
    "text": (pyarrow.array(["007"], pyarrow.large_string()), "007"),
    "dictionary": (pyarrow.array(["a"]).dictionary_encode(), "a"),
    "decimal": (pyarrow.array([decimal.Decimal("12.30")]), "12.30"),
    "date": (pyarrow.array([NOON.date()]), "2024-01-02"),
    "time": (pyarrow.array([datetime.time(1, 2, 3, 4)]), "01:02:03.000004"),
    "timestamp": (pyarrow.array([NOON], pyarrow.timestamp("ms")), "2024-01-02T12:00:00"),
    "timestamp before 1970": (pyarrow.array([-1], pyarrow.timestamp("us")), "1969-12-31T23:59:59.999999"),
    "timestamp in a zone": (pyarrow.array([1], pyarrow.timestamp("us", tz="UTC")), "1970-01-01T00:00:00.000001+00:00"),
    "timestamp in nanoseconds": (pyarrow.array([1], pyarrow.timestamp("ns")), "1970-01-01T00:00:00.000000001"),
    "timestamp with an offset": (pyarrow.array([0], pyarrow.timestamp("s", tz="+02:00")), "1970-01-01T02:00:00+02:00"),
    "list": (pyarrow.array([[1, None, 3]]), [1, None, 3]),
    "list of timestamps": (pyarrow.array([[NOON]]), ["2024-01-02T12:00:00"]),
    "struct": (pyarrow.array([{"a": 1, "b": ["x"]}]), {"a": 1, "b": ["x"]}),
    "map": (pyarrow.array([[("a", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int64())), {"a": 1}),
    "null list": (pyarrow.array([None], pyarrow.list_(pyarrow.int64())), None),
    "binary": (pyarrow.array([b"\0\xff"], pyarrow.large_binary()), b"\0\xff"),
    "null binary": (pyarrow.array([None], pyarrow.binary()), b""),
    "fixed binary": (pyarrow.array([b"ab"], pyarrow.binary(2)), b"ab"),
}  # fmt: skip


@pytest.mark.parametrize("case", VALUES)
def test_values_are_exact(case: str) -> None:
    """Each type has one form: that of JSON where there is one, text for times and decimals, bytes for binary data."""
    column, expected = VALUES[case]
    assert rows({"c": column})[0].values == {"c": expected}


def test_zones_are_those_of_the_column() -> None:
    """A time in a named zone is written with the offset it has there on that day."""
    summer = datetime.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    assert rows({"c": pyarrow.array([summer], NS_BERLIN)})[0].values == {"c": "2024-07-01T00:00:00+02:00"}


@pytest.mark.parametrize(
    "column", [pyarrow.array([1], pyarrow.duration("s")), pyarrow.array([[b"x"]]), pyarrow.array([{"a": b"x"}])]
)
def test_types_without_a_form_are_refused_by_column(column: Any) -> None:
    """A type that JSON cannot say exactly is refused from the schema, with file, column and type."""
    with pytest.raises(FormatError, match=r"rows\.parquet: column 'odd' is of type") as caught:
        rows({"odd": column})
    assert caught.value.kind == "bad_row"
    assert rows({"odd": column, "id": ["a"]}, TableColumns(text="id"))[0].values == {"id": "a"}


def test_a_time_beyond_the_calendar_is_a_bad_row() -> None:
    """A timestamp in a year that ISO 8601 cannot say marks its row, and the other rows are read."""
    first, second = rows({"c": pyarrow.array([2**62, 0], pyarrow.timestamp("ms"))})
    assert (first.line, "column 'c'" in first.problem, second.problem) == (1, True, "")


def test_columns_have_to_be_there() -> None:
    """An unknown column is refused with the names of those that exist."""
    with pytest.raises(ConfigError, match=r"no column 'txet'; its columns are 'id', 'text'"):
        rows({"id": ["a"], "text": ["b"]}, TableColumns(text="txet"))


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + bytes(100), b"id,text\n1,2\n"])
def test_what_is_no_parquet_is_refused(data: bytes) -> None:
    """Damaged files are one error that names the file."""
    with pytest.raises(FormatError, match=r"rows\.parquet: cannot be read as Parquet"):
        list(read_parquet(io.BytesIO(data), columns=ALL, name="rows.parquet"))


def test_pack_writes_parquet_as_samples(tmp_path: Path, picture: Callable[..., bytes]) -> None:
    """Keys keep their zeros, pictures come from bytes or paths, binary columns are fields, and JSON is exact."""
    (tmp_path / "b.png").write_bytes(picture(2, "PNG"))
    image = [{"bytes": picture(1), "path": None}, {"bytes": None, "path": "b.png"}]
    table = {"id": ["001", "1e5"], "image": image, "text": ["a", None], "n": [2**53 + 1, 2], "Mask": [b"\0", b"\1"]}
    (tmp_path / "rows.parquet").write_bytes(stored(table).getvalue())
    columns = TableColumns(key="id", image="image", text="text", json=("*",))
    pack(str(tmp_path / "rows.parquet"), str(tmp_path / "out"), columns=columns, options=PackOptions(workers=1))
    first, second = open_dataset(str(tmp_path / "out"))
    assert [first.key, *first] == ["001", "jpg", "txt", "json", "mask"]
    assert (first["txt"], first["json"], first["mask"]) == ("a", {"n": 2**53 + 1}, b"\0")
    assert [second.key, *second] == ["1e5", "png", "txt", "json", "mask"]
    assert (second["png"].shape, second["txt"]) == ((6, 10, 3), "")


def test_nothing_is_left_of_a_bad_parquet(tmp_path: Path) -> None:
    """A value that cannot be written names its row and column, and no shard appears; ``skip`` leaves the row out."""
    table = {"id": ["a", "b"], "score": [0.5, float("nan")]}
    (tmp_path / "rows.parquet").write_bytes(stored(table).getvalue())
    source, out = str(tmp_path / "rows.parquet"), str(tmp_path / "out")
    with pytest.raises(FormatError, match=r"rows\.parquet: 1 bad row: row 2: column 'score'"):
        pack(source, out, columns=TableColumns(key="id", json=("score",)))
    assert not list(tmp_path.rglob("*.tar"))
    report = pack(source, out, columns=TableColumns(key="id", json=("score",), on_bad="skip"))
    assert (report.num_samples, report.num_skipped, json.dumps(report.skipped)[:7]) == (1, 1, '["row 2')
