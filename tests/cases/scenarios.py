"""Data sets of the scenarios of the cases, served and opened."""

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path

import janus_shards as js
from janus_shards.operations.index import IndexOptions, index_shards
from tests.cases.expectations import Case

#: SHA-256 by field by key.
Digests = Mapping[str, Mapping[str, str]]


def indexed(case: Case, folder: Path) -> Path:
    """A folder with the shards of a case, indexed; file names as in the case, without folders."""
    folder.mkdir(parents=True)
    for entry in case.expect["inputs"]:
        shutil.copyfile(case.file(entry["path"], folder), folder / Path(entry["path"]).name)
    index_shards(str(folder / "*.tar"), options=IndexOptions(workers=1))
    return folder


def expected_digests(case: Case) -> Digests:
    """What the samples of a case hold."""
    samples = [sample for entry in case.expect["inputs"] for sample in entry["any_of"][0]["samples"]]
    return {
        sample["key"]: {name: content["sha256"] for name, content in sample["fields"].items()} for sample in samples
    }


def dataset_digests(dataset: js.Dataset) -> Digests:
    """What a data set holds, sample by sample."""
    return {sample.key: {name: _sha256(sample.raw(name)) for name in sample} for sample in dataset}


def loader_digests(loader: js.Loader) -> Digests:
    """What a loader delivers in one epoch; its batches hold the stored bytes."""
    return {
        key: {name: _sha256(batch[name][row]) for name in batch}
        for batch in loader
        for row, key in enumerate(batch.keys)
    }


def _sha256(data: bytes | bytearray | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()
