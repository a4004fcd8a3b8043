"""Shards that broke other readers: each gives the samples of its case, or the error that says what is wrong."""

import shutil
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import janus_shards as js
from janus_shards.cli.main import main
from janus_shards.errors import ConfigError, IndexFormatError
from janus_shards.operations.index import IndexOptions, index_shards
from tests.cases import expectations
from tests.cases.expectations import Input

# Pictures, texts and JSON come in shards too; what is in them is looked at in the modules beside.
SHARDS = expectations.inputs("", "shard", "shard_digest", "images", "text", "json")
REFUSED = [each for each in SHARDS if all(outcome["outcome"] == "error" for outcome in each.values[0].outcomes)]
EMPTY = [each for each in SHARDS if any(outcome.get("count") == 0 for outcome in each.values[0].outcomes)]


def contents(samples: list[Mapping[str, Any]]) -> list[Any]:
    """Keys, fields, sizes and digests, without what only one way of reading knows."""
    return [
        (sample["key"], {name: (each["size"], each["sha256"]) for name, each in sample["fields"].items()})
        for sample in samples
    ]


@pytest.mark.parametrize("given", SHARDS)
def test_indexed_shard_is_as_its_case_says(given: Input, tmp_path: Path) -> None:
    """Index and range reads give an outcome of the case, or refuse a compressed shard for the command that reads it."""
    path = given.file(tmp_path)
    found = expectations.index(path, tmp_path)
    if found.error is not None and found.error.kind == "compressed_shard":
        assert "janus-shards reshard" in str(found.error)
        found = expectations.read_in_order(path, tmp_path)
    expectations.assert_one_holds(found, given)


@pytest.mark.parametrize("given", SHARDS)
def test_shard_read_in_order_is_as_its_case_says(given: Input, tmp_path: Path) -> None:
    """Written anew from front to back, every input gives an outcome of its case."""
    expectations.assert_one_holds(expectations.read_in_order(given.file(tmp_path), tmp_path), given)


@pytest.mark.parametrize("given", [each for each in SHARDS if each not in REFUSED])
def test_loader_delivers_what_is_indexed(given: Input, tmp_path: Path) -> None:
    """Through the loader come the same keys, fields and bytes, in the same order."""
    found = expectations.index(given.file(tmp_path), tmp_path)
    if found.samples:
        assert contents(expectations.loaded(found)) == contents(list(found.samples))


@pytest.mark.parametrize("given", REFUSED)
def test_command_refuses_with_one_line(given: Input, tmp_path: Path) -> None:
    """``janus-shards index`` ends with code 1 and one line that mentions all that the case asks for."""
    arguments = ["index", str(given.file(tmp_path)), "--output", str(tmp_path / "out"), "--workers", "1"]
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    words = [set(outcome["mentions"]) | {Path(given.name).name} for outcome in given.outcomes]
    assert any(all(word in result.stderr for word in each) for each in words)
    assert not (tmp_path / "out" / "manifest.msgpack").exists()


@pytest.mark.parametrize("given", expectations.inputs("", "shard", having="on_skip_policy"))
def test_bad_samples_are_left_out_and_listed(given: Input, tmp_path: Path) -> None:
    """With ``on_bad="skip"`` the keys of the case remain, by either way of reading; the report lists the others."""
    path = given.file(tmp_path)
    for found in (
        expectations.index(path, tmp_path, on_bad="skip"),
        expectations.read_in_order(path, tmp_path, on_bad="skip"),
    ):
        assert [sample["key"] for sample in found.samples] == given.entry["on_skip_policy"]
        assert found.skipped
        for skipped in found.skipped:
            assert Path(skipped.shard).name == path.name
            assert skipped.key not in given.entry["on_skip_policy"]
            assert skipped.kind in [outcome["kind"] for outcome in given.outcomes]


@pytest.mark.parametrize("given", expectations.inputs("", "shard", having="decode"))
def test_fields_decode_as_the_case_says(given: Input, tmp_path: Path) -> None:
    """Values are those of the case; a field that cannot be decoded names shard and key."""
    path = given.file(tmp_path)
    for sample in expectations.index(path, tmp_path).dataset:
        for name, value in given.entry["decode"].get(sample.key, {}).items():
            if not str(value).startswith("error:"):
                assert sample[name] == value
                continue
            outcome = {"kind": value.removeprefix("error:"), "mentions": [sample.key, name]}
            assert not expectations.error_problem(expectations.field_error(sample, name), outcome, path.name)


@pytest.mark.parametrize("case", expectations.cases("T"), ids=lambda case: case.id)
def test_index_of_another_shard_is_refused(case: expectations.Case, tmp_path: Path) -> None:
    """A shard replaced by one of another length is ``index_mismatch`` before the first sample, for the loader too."""
    files = [Input(case, entry).file(tmp_path) for entry in case.expect["inputs"]]
    for number, (first, second) in enumerate(permutations(files, 2)):
        folder = tmp_path / str(number)
        folder.mkdir()
        shutil.copy(first, folder / "part.tar")
        try:
            index_shards(str(folder), options=IndexOptions(workers=1))
        except js.JanusShardsError:
            continue
        if first.stat().st_size != second.stat().st_size:
            (folder / "part.tar").unlink()
            shutil.copy(second, folder / "part.tar")
            options = js.LoaderOptions(decode=False, tail="uneven", on_missing="none", threads=1)
            with pytest.raises(IndexFormatError, match=r"part\.tar") as caught:
                next(iter(js.open_loader(str(folder), batch_size=1, shuffle=None, options=options)))
            assert caught.value.kind == "index_mismatch"
            with pytest.raises(IndexFormatError, match=r"part\.tar"):
                _ = {name: js.open_dataset(str(folder))[0].raw(name) for name in js.open_dataset(str(folder))[0]}


@pytest.mark.parametrize("given", EMPTY)
def test_only_empty_shards_are_an_error_at_the_start(given: Input, tmp_path: Path) -> None:
    """A data set of nothing but empty shards is refused where it would be made."""
    path = given.file(tmp_path)
    with pytest.raises(ConfigError, match="without any sample") as caught:
        index_shards(str(path), output=str(tmp_path / "out"))
    assert caught.value.kind == "empty_dataset"
