"""Texts, JSON and tables that broke other readers: each gives the values of its case, or an error naming the place."""

import datetime
import functools
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner

import janus_shards as js
from janus_shards.cli.main import main
from janus_shards.decode.fields import decode_field, encode_field
from janus_shards.decode.structured import decode_text
from janus_shards.errors import FormatError, SampleError
from janus_shards.format.index import ShardIndex
from janus_shards.operations.index import IndexOptions, index_shards
from janus_shards.operations.pack import PackOptions, pack
from janus_shards.operations.tables import TableColumns, read_table
from tests.cases import expectations
from tests.cases.expectations import Input

TEXTS = expectations.inputs("X", "text", having="texts")
JSONS = expectations.inputs("X", "json", having="json")
TABLES = expectations.inputs("X", "table_input")
GOOD_TABLES = [each for each in TABLES if each.values[0].outcomes[0]["outcome"] == "rows"]
BAD_TABLES = [each for each in TABLES if each.values[0].outcomes[0]["outcome"] == "error"]

COLUMNS = TableColumns(key="id", image="image", text="caption")
OPTIONS = ["--key-column", "id", "--image-column", "image", "--text-column", "caption", "--workers", "1"]


# --- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", TEXTS)
def test_texts_are_as_the_case_says(given: Input, tmp_path: Path) -> None:
    """Each caption is its text, or an error that names shard and key; the bytes stay available either way."""
    for sample in expectations.index(given.file(tmp_path), tmp_path).dataset:
        wanted = given.entry["texts"][sample.key]
        assert sample.raw("txt").hex() == wanted["raw_hex"]
        error = expectations.field_error(sample, "txt")
        if error is None:
            assert sample["txt"] in (wanted["text"], wanted.get("or_text"))
        else:
            outcome = {"kind": wanted.get("error", "none"), "mentions": [sample.key, "txt"]}
            assert not expectations.error_problem(error, outcome, given.name)


@pytest.mark.parametrize("given", TEXTS)
def test_invalid_bytes_can_be_replaced(given: Input, tmp_path: Path) -> None:
    """On request a caption with invalid bytes is text all the same, and valid ones are what they were."""
    lenient = {"txt": functools.partial(decode_text, errors="replace")}
    for sample in expectations.index(given.file(tmp_path), tmp_path).dataset:
        text = decode_field("txt", sample.raw("txt"), lenient)
        wanted = given.entry["texts"][sample.key]
        assert isinstance(text, str)
        assert ("\ufffd" in text) == ("error" in wanted and "or_text" not in wanted)


@pytest.mark.parametrize("given", TEXTS)
def test_the_loader_delivers_texts(given: Input, tmp_path: Path) -> None:
    """Through the loader come the same texts, and the bad ones are skipped and counted where that is asked for."""
    dataset = expectations.index(given.file(tmp_path), tmp_path).dataset
    options = js.LoaderOptions(on_bad="skip", tail="uneven", threads=1)
    loader = js.open_loader(dataset, batch_size=5, shuffle=None, options=options)
    with pytest.warns(UserWarning, match="bad sample"):
        batches = list(loader)
    texts = {
        key: text
        for batch in batches
        for key, text, valid in zip(batch.keys, batch["txt"], batch.valid, strict=True)
        if valid
    }
    right = {sample.key: sample["txt"] for sample in dataset if expectations.field_error(sample, "txt") is None}
    assert texts == right
    assert loader.stats()["bad"]["skipped"] == len(dataset) - len(right)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252"])
@pytest.mark.parametrize("given", TEXTS)
def test_locale_has_no_influence_on_packing(given: Input, encoding: str, tmp_path: Path) -> None:
    """Captions packed on a console of any encoding, from files or a table, are the same bytes."""
    (tmp_path / "in").mkdir()
    texts = {key: bytes.fromhex(entry["raw_hex"]) for key, entry in given.entry["texts"].items()}
    for key, data in texts.items():
        (tmp_path / "in" / f"{key}.txt").write_bytes(data)
    env = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "janus_shards.cli", "pack", tmp_path / "in", tmp_path / "out", "--workers", "1"]
    done = subprocess.run(command, env=env, cwd=expectations.REPOSITORY, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert {sample.key: sample.raw("txt") for sample in js.open_dataset(str(tmp_path / "out"))} == texts


# --- JSON -------------------------------------------------------------------------------------------------------------


def told(value: object) -> object:
    """A value in the words of the case: numbers by str(), strings by repr(), long ones by their length."""
    if isinstance(value, Mapping):
        return {name: told(inner) for name, inner in value.items()}
    if isinstance(value, str):
        return f"str:{len(value)}" if len(value) > 100 else repr(value)
    return str(value)


@pytest.mark.parametrize("given", JSONS)
def test_json_is_as_the_case_says(given: Input, tmp_path: Path) -> None:
    """Each document is its value, with exact integers; or an error that names shard and key."""
    for sample in expectations.index(given.file(tmp_path), tmp_path).dataset:
        wanted = given.entry["json"][sample.key]
        error = expectations.field_error(sample, "json")
        if error is None:
            assert told(sample["json"]) == wanted.get("value")
        else:
            outcome = {"kind": wanted.get("error", "none"), "mentions": [sample.key, "json"]}
            assert not expectations.error_problem(error, outcome, given.name)


@pytest.mark.parametrize("given", JSONS)
def test_index_holds_any_json(given: Input, tmp_path: Path) -> None:
    """Kept in the MessagePack index, documents of any size and content come back equal, without the shard."""
    path = given.file(tmp_path)
    index_shards(str(path), output=str(tmp_path / "out"), options=IndexOptions(workers=1, inline_bytes=1 << 24))
    index = ShardIndex.decode((tmp_path / "out" / path.name).with_suffix(".idx").read_bytes(), name="index")
    assert ShardIndex.decode(index.encode(), name="again").encode() == index.encode()
    kept = index.inline_many("json", np.arange(index.num_samples))
    assert {index.key(row): data for row, data in enumerate(kept)} == {
        sample.key: sample.raw("json") for sample in expectations.index(path, tmp_path).dataset
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, {"a": [-math.inf]}])
def test_bare_nan_is_never_written(value: object) -> None:
    """What JSON has no number for is refused."""
    with pytest.raises(SampleError, match="JSON"):
        encode_field("json", value)


# --- tables -----------------------------------------------------------------------------------------------------------


def packed_rows(root: Path) -> list[dict[str, Any]]:
    """Rows of a packed table in the words of the case; the picture is named by its file."""
    rows = []
    for sample in js.open_dataset(str(root)):
        text = sample["txt"]
        caption = {"chars": len(text), "sha256_utf8": expectations.sha256(text.encode())} if len(text) > 1000 else text
        rows.append({"id": sample.key, "image": sample.raw("png"), "caption": caption})
    return rows


def wanted_rows(given: Input) -> list[dict[str, Any]]:
    """Rows of the case with the bytes of the pictures."""
    folder = given.file(Path()).parent
    rows: Sequence[Mapping[str, Any]] = given.outcomes[0]["rows"]
    return [{**row, "image": (folder / row["image"]).read_bytes()} for row in rows]


@pytest.mark.parametrize("given", GOOD_TABLES)
def test_rows_are_packed_as_the_case_says(given: Input, tmp_path: Path) -> None:
    """Keys, pictures and captions come back as the table has them, in its order, each sample with the same fields."""
    pack(str(given.file(tmp_path)), str(tmp_path / "out"), columns=COLUMNS, options=PackOptions(workers=1))
    assert packed_rows(tmp_path / "out") == wanted_rows(given)
    assert {tuple(sample) for sample in js.open_dataset(str(tmp_path / "out"))} == {("png", "txt")}


@pytest.mark.parametrize("given", BAD_TABLES)
def test_bad_rows_end_the_run_before_it_writes(given: Input, tmp_path: Path) -> None:
    """The error has the kind of the case and names file and line; no shard with a final name is left behind."""
    source, out = str(given.file(tmp_path)), tmp_path / "out"
    with pytest.raises(FormatError) as caught:
        pack(source, str(out), columns=COLUMNS, options=PackOptions(workers=1))
    assert not expectations.error_problem(caught.value, given.outcomes[0], Path(given.name).name)
    result = CliRunner().invoke(main, ["pack", source, str(out), *OPTIONS])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert all(word in result.stderr for word in given.outcomes[0].get("mentions", []))
    assert not out.exists() or not list(out.iterdir())


@pytest.mark.parametrize("given", BAD_TABLES)
def test_bad_rows_are_left_out_and_listed(given: Input, tmp_path: Path) -> None:
    """With ``--on-bad skip`` the good rows are packed, and every other one is listed with its line and reason."""
    result = CliRunner().invoke(
        main, ["pack", str(given.file(tmp_path)), str(tmp_path / "out"), *OPTIONS, "--on-bad", "skip", "--json"]
    )
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    note = given.outcomes[0]["note"]
    promised = re.search(r"with a skip policy (\d+) rows", note)
    assert promised is None or document["samples"] == int(promised[1])
    assert document["skipped"] == len(document["skipped_rows"]) > 0
    for reason in re.findall(r"\((\w+)\)", note):
        assert any(reason in text for text in document["skipped_rows"])
    assert len(js.open_dataset(str(tmp_path / "out"))) == document["samples"]


# --- Parquet: the scenario of the README, from the rows of the tables -------------------------------------------------


MOMENT = datetime.datetime(2024, 2, 29, 23, 59, 59, 123456)


def parquet_of(given: Input, folder: Path, **more: Any) -> Path:
    """The rows of a table as a Parquet file beside its pictures, with further columns."""
    folder.mkdir()
    source = given.file(folder).parent
    rows: Sequence[Mapping[str, Any]] = given.outcomes[0]["rows"]
    captions = [row.get("caption") for row in rows_as_read(given)]
    for row in rows:
        (folder / row["image"]).write_bytes((source / row["image"]).read_bytes())
    columns = {"id": [row["id"] for row in rows], "image": [row["image"] for row in rows], "caption": captions}
    path = folder / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({**columns, **more}), path)
    return path


def rows_as_read(given: Input) -> list[dict[str, Any]]:
    """The rows with whole captions, which the case gives by their length and digest only."""
    path = given.file(Path())
    return [dict(row.values) for row in read_table([path.read_bytes()], name=path.name)]


@pytest.mark.parametrize("given", GOOD_TABLES)
def test_parquet_is_packed_like_the_other_tables(given: Input, tmp_path: Path) -> None:
    """The same samples; lists are JSON lists, times ISO 8601, integers exact, and binary columns their own fields."""
    count = given.outcomes[0]["count"]
    more = {
        "tags": [["a", str(row)] for row in range(count)],
        "taken": pyarrow.array([MOMENT] * count, pyarrow.timestamp("us")),
        "serial": pyarrow.array([2**53 + 1 + row for row in range(count)], pyarrow.int64()),
        "mask": pyarrow.array([bytes([row, 0, 255]) for row in range(count)], pyarrow.binary()),
    }
    path = parquet_of(given, tmp_path / "in", **more)
    columns = TableColumns(key="id", image="image", text="caption", json=("*",))
    pack(str(path), str(tmp_path / "out"), columns=columns, options=PackOptions(workers=1))
    assert packed_rows(tmp_path / "out") == wanted_rows(given)
    for row, sample in enumerate(js.open_dataset(str(tmp_path / "out"))):
        assert sample["json"] == {"tags": ["a", str(row)], "taken": MOMENT.isoformat(), "serial": 2**53 + 1 + row}
        assert sample["mask"] == bytes([row, 0, 255])


@pytest.mark.parametrize("given", GOOD_TABLES)
def test_parquet_type_that_cannot_be_written_names_its_column(given: Input, tmp_path: Path) -> None:
    """A column without a form is ``bad_row`` with file and column, before any shard is final."""
    odd = pyarrow.array([1] * given.outcomes[0]["count"], pyarrow.duration("s"))
    path = parquet_of(given, tmp_path / "in", lasted=odd)
    outcome = {"kind": "bad_row", "mentions": ["lasted"]}
    columns = TableColumns(key="id", image="image", text="caption", json=("*",))
    with pytest.raises(FormatError) as caught:
        pack(str(path), str(tmp_path / "out"), columns=columns)
    assert not expectations.error_problem(caught.value, outcome, "rows.parquet")
    assert not list(tmp_path.rglob("*.tar"))
