"""Tables are read as texts, exactly as they stand, and bad rows are named together."""

import json

import numpy as np
import pytest

from janus_shards.decode.image import encode_image
from janus_shards.errors import ConfigError, FormatError, ObjectNotFoundError
from janus_shards.operations.folders import SourceFile
from janus_shards.operations.sources import SourcePlan
from janus_shards.operations.tables import TableColumns, TableRow, plan_table, read_table

COLUMNS = TableColumns(image="image", text="caption", key="id")


def rows(data: bytes, *, name: str = "rows.csv", chunk_bytes: int = 7) -> list[TableRow]:
    """Read a table from small chunks, which cut lines and characters anywhere."""
    chunks = [data[start : start + chunk_bytes] for start in range(0, len(data), chunk_bytes)]
    return list(read_table(chunks, name=name))


def stat(path: str) -> SourceFile:
    """A file of 100 bytes, unless its name says that it is gone."""
    if path.startswith("gone"):
        raise ObjectNotFoundError(f"'{path}': there is no such file")
    return SourceFile(path, 100)


def plan(data: bytes, *, name: str = "rows.csv", columns: TableColumns = COLUMNS) -> SourcePlan:
    """Read and plan a table."""
    return plan_table(rows(data, name=name), columns=columns, name=name, stat=stat)


def captions(plan: SourcePlan) -> dict[str, bytes | None]:
    """Bytes of the last field by key."""
    return {sample.key: sample.parts[-1].data for sample in plan.samples}


def test_csv_keeps_texts_as_they_stand() -> None:
    """A BOM, CR LF, line breaks in quotes, and texts that look like numbers or nothing change no value."""
    data = (
        "\ufeffid,image,caption\r\n"
        '000001,a.png,"two lines\nin ""one"" field"\r\n'
        "1e5,b.png,NA\r\n"
        "nan,c.png,\r\n"
        "\r\n"
        "007,d.png,emoji \U0001f600 and \u2028 inside\r\n"
    ).encode()
    assert captions(plan(data)) == {
        "000001": b'two lines\nin "one" field',
        "1e5": b"NA",
        "nan": b"",
        "007": "emoji \U0001f600 and \u2028 inside".encode(),
    }


def test_jsonl_splits_at_line_feeds_only() -> None:
    """U+2028 and U+0085 inside of a text do not end a row; null and absent captions are empty; integers are keys."""
    lines = [
        {"id": "01", "image": "a.png", "caption": "raw \u2028 and \u0085"},
        {"id": 17, "image": "b.png", "caption": None},
        {"id": "x", "image": "c.png"},
    ]
    data = "\r\n\r\n".join(json.dumps(line, ensure_ascii=False) for line in lines).encode()
    found = plan(b"\xef\xbb\xbf" + data, name="rows.jsonl")
    assert captions(found) == {"01": "raw \u2028 and \u0085".encode(), "17": b"", "x": b""}


def test_fields_of_any_length_are_read() -> None:
    """The csv module's limit of 131,072 characters does not hold here."""
    found = plan(b"id,image,caption\n1,a.png," + b"word " * 40_000 + b"\n")
    assert found.samples[0].parts[-1].size == 200_000


def test_tsv_is_separated_by_tabs() -> None:
    """Commas in a TSV are text."""
    assert captions(plan(b"id\timage\tcaption\n1\ta.png\tone, two\n", name="rows.tsv")) == {"1": b"one, two"}


def test_picture_is_named_after_its_extension() -> None:
    """The field of a picture is the extension of its file in lower case; the size is the file's."""
    part = plan(b"id,image,caption\n1,sub.dir/A.x.JPEG,hi\n").samples[0].parts[0]
    assert (part.field, part.path, part.size) == ("jpeg", "sub.dir/A.x.JPEG", 100)


@pytest.mark.parametrize(("named", "there"), [("caf\u00e9.png", "cafe\u0301.png"), ("cafe\u0301.png", "caf\u00e9.png")])
def test_files_are_found_in_either_unicode_form(named: str, there: str) -> None:
    """A table and a file system may write accents in different ways; the file of the other form is taken."""

    def stat_one(path: str) -> SourceFile:
        if path != there:
            raise ObjectNotFoundError(f"{path!r}: there is no such file")
        return SourceFile(path, 100)

    table = rows(f"id,image,caption\n1,{named},x\n".encode())
    (sample,) = plan_table(table, columns=COLUMNS, name="r.csv", stat=stat_one).samples
    assert sample.parts[0].path == there


def test_rows_without_key_column_are_numbered() -> None:
    """Without ids, rows count from nine zeros."""
    found = plan(b"caption\na\nb\n", columns=TableColumns(text="caption"))
    assert captions(found) == {"000000000": b"a", "000000001": b"b"}


@pytest.mark.parametrize(("names", "expected"), [(("n",), {"n": "1"}), (("*",), {"n": "1", "m": "2"})])
def test_other_columns_become_json_when_asked(names: tuple[str, ...], expected: dict[str, str]) -> None:
    """Named columns, or all that are used for nothing else, become one json field."""
    found = plan(b"id,n,m\nk,1,2\n", columns=TableColumns(key="id", json=names))
    assert json.loads(found.samples[0].parts[0].data or b"") == expected


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("r.csv", b"id,image,caption\na,a.png,x\na,b.png,y\n", "line 3: key 'a' repeats line 2 (duplicate_key)"),
        ("r.csv", b"id,image,caption\na,gone.png,x\n", "line 2: 'gone.png': there is no such file (missing_file)"),
        ("r.csv", b"id,image,caption\na,,x\n", "line 2: column 'image': expected the path of a file, found nothing"),
        ("r.csv", b"id,image,caption\na,notes.pdf,x\n", "line 2: column 'image': expected the path of a picture"),
        (
            "r.csv",
            b'id,image,caption\na,a.png,"x\ny"\nb,b.png\n',
            "line 4: expected 3 columns as in the header, found 2",
        ),
        ("r.csv", b'id,image,caption\na,a.png,"never closed\nb,b.png,x\n', "line 2: is no CSV"),
        ("r.csv", b"id,image,caption\na.b,a.png,x\n", "line 2: key 'a.b': the last component has a dot"),
        ("r.csv", b"id,image,caption\n,a.png,x\n", "line 2: column 'id': expected a key as text, found nothing"),
        ("r.jsonl", b'{"id": "a", "image": "a.png", "caption": ""}\n{"id": \n', "line 2: is no JSON"),
        (
            "r.jsonl",
            b'{"id": "a", "image": "a.png", "caption": ""}\n[1]\n',
            "line 2: expected a JSON object, found list",
        ),
        ("r.jsonl", b"[" * 100_000, "line 1: is no JSON"),
        (
            "r.jsonl",
            b'{"id": 1.5, "image": "a.png", "caption": ""}\n',
            "line 1: column 'id': expected a key as text, found 1.5",
        ),
        (
            "r.jsonl",
            b'{"id": "a", "image": "a.png", "caption": 7}\n',
            "line 1: column 'caption': expected text, found 7",
        ),
        (
            "r.jsonl",
            b'{"id": "a", "image": "a.png", "caption": "\\ud800"}\n',
            "line 1: column 'caption': has a lone surrog",
        ),
    ],
)
def test_bad_row_is_named_with_file_and_line(name: str, data: bytes, problem: str) -> None:
    """What is wrong with a row is said with the table and the line that it starts on."""
    with pytest.raises(FormatError) as caught:
        plan(data, name=name)
    assert caught.value.kind == "bad_row"
    assert f"{name}: 1 bad row: {problem}" in str(caught.value)


def test_all_bad_rows_are_named_in_one_go() -> None:
    """The first ten problems and the number of the others come together, so one look mends the table."""
    lines = b"".join(b"%d,gone%d.png,x\n" % (n, n) for n in range(13))
    with pytest.raises(FormatError, match=r"13 bad rows: .*gone9\.png.*; and 3 more") as caught:
        plan(b"id,image,caption\n" + lines)
    assert "gone10.png" not in str(caught.value)


def test_bad_rows_can_be_left_out_and_are_counted() -> None:
    """With ``skip`` the good rows remain, and the report says what is missing."""
    columns = TableColumns(image="image", text="caption", key="id", on_bad="skip")
    found = plan(b"id,image,caption\na,a.png,x\nb,gone.png,y\na,c.png,z\n", columns=columns)
    assert (list(captions(found)), len(found.skipped)) == (["a"], 2)
    assert "2 bad rows" in found.warnings[0]
    assert [text.partition(":")[0] for text in found.skipped] == ["line 3", "line 4"]


def test_a_file_that_is_no_picture_is_a_bad_row_to_be_left_out() -> None:
    """With ``skip`` pictures are looked at while planning, so that what is none never leaves a hole in a shard."""
    columns = TableColumns(image="image", text="caption", key="id", on_bad="skip")
    table = rows(b"id,image,caption\na,a.png,x\nb,b.png,y\n")
    files = {"a.png": b"<html>", "b.png": encode_image(np.zeros((2, 3, 3), np.uint8), "PNG")}
    found = plan_table(table, columns=columns, name="r.csv", stat=stat, read=files.__getitem__)
    assert [sample.key for sample in found.samples] == ["b"]
    assert "line 2: column 'image': 'a.png': no picture" in found.skipped[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("id,image,caption\n".encode("utf-16"), "is UTF-16"),
        (b"id,image,caption\n1,a.png,caf\xe9\n", "line 2: expected UTF-8, found byte 0xe9 at column 12"),
        (b"", "first line with the names of the columns"),
    ],
)
def test_file_that_is_no_table_is_refused(data: bytes, message: str) -> None:
    """Another encoding, or no header, is one clear error with the file."""
    with pytest.raises(FormatError, match=message) as caught:
        plan(data)
    assert caught.value.kind == "bad_row"


def test_column_that_is_not_there_is_named_with_those_that_are() -> None:
    """A misspelt column is a mistake of the command, not of every row."""
    with pytest.raises(ConfigError, match=r"'text'.*'caption', 'id', 'image'"):
        plan(b"id,image,caption\n1,a.png,x\n", columns=TableColumns(image="image", text="text", key="id"))


def test_table_without_rows_is_refused() -> None:
    """A header alone is an empty data set."""
    with pytest.raises(ConfigError, match="no row"):
        plan(b"id,image,caption\n")


def test_table_needs_columns_and_a_known_extension() -> None:
    """What no field can come from, or no reader knows, is refused."""
    with pytest.raises(ConfigError, match="--image-column"):
        TableColumns(key="id")
    with pytest.raises(ConfigError, match=r"\.jsonl"):
        rows(b"x", name="rows.xlsx")
