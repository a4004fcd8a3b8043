"""Shards that broke other readers: each gives the samples of its case, or the error that says what is wrong."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import janus_shards as js
from janus_shards.catalog import load_manifest
from janus_shards.cli.main import main
from janus_shards.errors import ConfigError, IndexFormatError
from janus_shards.format.naming import MANIFEST_NAME, index_name
from janus_shards.operations.index import IndexOptions, index_shards
from janus_shards.operations.pack import PackOptions, pack
from janus_shards.operations.sources import is_image
from janus_shards.storage.urls import open_storage
from janus_shards.writer.publish import put_generation
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


def dotted_fields(given: Input) -> list[tuple[str, str]]:
    """Keys and fields of a case whose field has a dot, pictures aside: what is in them is not looked at here."""
    samples = [sample for outcome in given.outcomes for sample in outcome.get("samples", [])]
    found = [(sample["key"], name) for sample in samples for name in sample["fields"] if "." in name]
    return [(key, name) for key, name in found if not is_image(name)]


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


@pytest.mark.parametrize("given", [each for each in SHARDS if dotted_fields(each.values[0])])
def test_packing_names_with_dots_says_what_becomes_of_them(given: Input, tmp_path: Path) -> None:
    """A dot before the extension is told with the key and the field that it makes, or becomes part of the key."""
    for number, (key, field) in enumerate(dotted_fields(given)):
        folder = tmp_path / str(number) / "in"
        (folder / key).parent.mkdir(parents=True)
        (folder / f"{key}.{field}").write_bytes(b"x")
        report = pack(str(folder), str(folder.parent / "as-is"), options=PackOptions(workers=1))
        assert any(repr(key) in text and repr(field) in text for text in report.warnings)
        assert [(sample.key, *sample) for sample in js.open_dataset(str(folder.parent / "as-is"))] == [(key, field)]
        pack(str(folder), str(folder.parent / "renamed"), options=PackOptions(workers=1, dots="replace"))
        stem, _, extension = f"{key}.{field}".rpartition(".")
        renamed = f"{key.rpartition('/')[0]}/{stem.rpartition('/')[2].replace('.', '_')}".lstrip("/")
        assert [(sample.key, *sample) for sample in js.open_dataset(str(folder.parent / "renamed"))] == [
            (renamed, extension)
        ]


# Memory of this process in bytes: resident, and what it shares with nobody.
MEASURE = """
import os, sys
import numpy as np
import janus_shards as js

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def private():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))
"""
PASSES = """
dataset = js.open_dataset(sys.argv[1])
options = js.LoaderOptions(decode=False, tail="uneven", threads=1)
loader = js.open_loader(dataset, batch_size=250, shuffle=None, options=options)
before = 0
for number in range(50):
    count = sum(len(batch) for batch in loader)
    before = before or resident()
print(count, resident() - before)
"""
WORKERS = """
def use_every_row(catalog):
    for shard in range(len(catalog.manifest.shards)):
        index = catalog.index(shard)
        rows = np.arange(index.num_samples)
        for name in index.fields:
            index.spans(name, rows), index.inline_many(name, rows)

before = resident()
catalog = js.open_dataset(sys.argv[1]).catalog
if sys.argv[2] == "before":
    use_every_row(catalog)
print(catalog.num_samples, resident() - before, flush=True)
for worker in range(8):
    if not (child := os.fork()):
        start = private()
        use_every_row(catalog)
        print(0, private() - start, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def measured(script: str, *arguments: object) -> list[tuple[int, int]]:
    """Pairs of numbers that a script of another process prints."""
    command = [sys.executable, "-c", MEASURE + script, *map(str, arguments)]
    done = subprocess.run(command, cwd=expectations.REPOSITORY, capture_output=True, text=True, check=True)
    return [(int(line.split()[0]), int(line.split()[1])) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is measured as Linux tells it")
@pytest.mark.parametrize("given", expectations.inputs("T", "shard_digest"))
def test_memory_does_not_grow_with_passes(given: Input, tmp_path: Path) -> None:
    """Fifty passes over the shard leave the process within 20 MB of what it had after the first."""
    index_shards(str(given.file(tmp_path)), output=str(tmp_path / "out"), options=IndexOptions(workers=1))
    ((count, growth),) = measured(PASSES, tmp_path / "out")
    assert count == given.outcomes[0]["count"]
    assert growth < 20e6


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is measured as Linux tells it")
@pytest.mark.parametrize("opened", ["before", "after"])
@pytest.mark.parametrize("given", expectations.inputs("T", "shard_digest"))
def test_forked_workers_share_the_indexes(given: Input, opened: str, tmp_path: Path) -> None:
    """A million rows cost the parent less than 150 MB and each of 8 workers less than 30 MB, opened there or here."""
    root = tmp_path / "million"
    root.mkdir()
    shutil.copy(given.file(tmp_path), root)
    index_shards(str(root), options=IndexOptions(workers=1))
    (record,) = load_manifest(open_storage(str(root))).shards
    copies = [replace(record, name=f"part-{number:06d}.tar") for number in range(-(-1_000_000 // record.num_samples))]
    for copy in copies:
        (root / copy.name).hardlink_to(root / record.name)
        (root / index_name(copy.name)).hardlink_to(root / index_name(record.name))
    manifest = replace(load_manifest(open_storage(str(root))), shards=copies, generation=2)
    put_generation(open_storage(str(root)), manifest, replaces=open_storage(str(root)).head(MANIFEST_NAME))
    (count, parent), *workers = measured(WORKERS, root, opened)
    assert count >= 1_000_000
    assert parent < 150e6
    assert len(workers) == 8
    assert max(growth for _, growth in workers) < 30e6


@pytest.mark.parametrize("given", EMPTY)
def test_only_empty_shards_are_an_error_at_the_start(given: Input, tmp_path: Path) -> None:
    """A data set of nothing but empty shards is refused where it would be made."""
    path = given.file(tmp_path)
    with pytest.raises(ConfigError, match="without any sample") as caught:
        index_shards(str(path), output=str(tmp_path / "out"))
    assert caught.value.kind == "empty_dataset"
