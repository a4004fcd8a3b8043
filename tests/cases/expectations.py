"""The words of ``expect.json``, mapped once onto the library.

What the words mean stands in the README of the cases. A case says which outcomes are right for an input; here stands
how the library is asked, and what it means that an outcome holds. Nothing here knows a case by its name.
"""

import gzip
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import janus_shards as js
from janus_shards.errors import (
    ConfigError,
    DecodeError,
    FormatError,
    IndexFormatError,
    JanusShardsError,
    SampleError,
    StorageError,
    TarFormatError,
)
from janus_shards.operations.index import IndexOptions, index_shards
from janus_shards.operations.reshard import ReshardOptions, reshard
from janus_shards.operations.scan import OnBad, SkippedSample
from janus_shards.sample import RawBytes
from janus_shards.storage.urls import split_url

REPOSITORY = Path(__file__).resolve().parents[2]
COPY = REPOSITORY / "tests" / "data" / "cases"
SHARED = REPOSITORY.parent / "shared" / "cases"
FOLDER = SHARED if SHARED.is_dir() else COPY

#: Class of the error that stands for each kind. The library's ``kind`` is the same word.
ERRORS: Mapping[str, type[JanusShardsError]] = {
    "not_a_tar": TarFormatError,
    "truncated_shard": TarFormatError,
    "bad_header": TarFormatError,
    "trailing_data": TarFormatError,
    "compressed_shard": TarFormatError,
    "unsupported_member": TarFormatError,
    "duplicate_field": TarFormatError,
    "interleaved_key": TarFormatError,
    "index_mismatch": IndexFormatError,
    "empty_dataset": ConfigError,
    "image_decode": DecodeError,
    "image_too_large": DecodeError,
    "unsupported_image": DecodeError,
    "text_decode": DecodeError,
    "json_decode": DecodeError,
    "bad_row": FormatError,
    "bad_pattern": ConfigError,
    "pattern_too_large": ConfigError,
    "bad_path": StorageError,
}

#: A sample that no case has. Every input is read with it behind, so that a shard without samples is one among others.
COMPANION = "zz-companion"


@dataclass(frozen=True)
class Case:
    """One folder of the cases."""

    id: str
    kind: str
    folder: Path
    expect: Mapping[str, Any] = field(repr=False)

    def file(self, name: str, scratch: Path) -> Path:
        """A file of the case; one that the copy keeps compressed is unpacked into ``scratch`` first."""
        path = self.folder / name
        packed = path.with_name(path.name + ".gz")
        if path.exists() or not packed.exists():
            return path
        target = scratch / Path(name).name
        with gzip.open(packed) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file)
        return target


@dataclass(frozen=True)
class Input:
    """One input of a case, with all that its entry says."""

    case: Case
    entry: Mapping[str, Any] = field(repr=False)

    @property
    def name(self) -> str:
        """File name below the folder of the case."""
        return str(self.entry["path"])

    @property
    def outcomes(self) -> Sequence[Mapping[str, Any]]:
        """The outcomes that are right."""
        outcomes: Sequence[Mapping[str, Any]] = self.entry["any_of"]
        return outcomes

    def file(self, scratch: Path) -> Path:
        """The input, with the digest that the case gives."""
        path = self.case.file(self.name, scratch)
        if "sha256" in self.entry:
            assert sha256(path.read_bytes()) == self.entry["sha256"], path
        return path


def cases(family: str) -> list[Case]:
    """Cases whose id starts with these letters, in order."""
    found = []
    for path in sorted(FOLDER.glob(f"{family}*/expect.json")):
        expect = json.loads(path.read_text("utf-8"))
        found.append(Case(expect["id"], expect["kind"], path.parent, expect))
    assert found, f"no case {family}* in {FOLDER}"
    return found


def inputs(family: str, *kinds: str, having: str = "path") -> list[Any]:
    """Parameters for pytest: the inputs of the cases of some kinds whose entry has a certain word."""
    found = [
        Input(case, entry) for case in cases(family) if case.kind in kinds for entry in case.expect.get("inputs", [])
    ]
    return [pytest.param(each, id=f"{each.case.id}-{each.name}") for each in found if having in each.entry]


def sha256(data: RawBytes) -> str:
    """Digest as in ``expect.json``."""
    return hashlib.sha256(data).hexdigest()


# --- what the library makes of a shard -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What came out of one input.

    Attributes:
        root: The data set, if one was made; the companion is in it.
        samples: Key, and for each field ``size``, ``sha256`` and ``offset``, without the companion.
        warnings: What the report warned of.
        skipped: Samples that the report lists as left out.
        error: What was raised instead, or after the samples.
    """

    root: Path
    samples: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[str] = ()
    skipped: Sequence[SkippedSample] = ()
    error: JanusShardsError | None = None

    @cached_property
    def dataset(self) -> js.Dataset:
        """The samples of the input, companion excluded."""
        dataset = js.open_dataset(str(self.root))
        keys = np.array(list(dataset.keys()))
        return dataset.where(keys != COMPANION)


def companion(folder: Path) -> Path:
    """The tar with the companion sample alone."""
    path = folder / "companion" / "shard-000000.tar"
    if not path.exists():
        with js.ShardWriter(str(path.parent)) as writer:
            writer.write({"__key__": COMPANION, "txt": "companion"})
    return path


def index(path: Path, scratch: Path, *, on_bad: OnBad = "raise") -> Found:
    """Index a shard where it lies, and read every field by range reads."""
    root = scratch / f"{path.name}-{on_bad}.indexed"
    options = IndexOptions(workers=1, on_bad=on_bad)
    try:
        report = index_shards([str(path), str(companion(scratch))], output=str(root), options=options)
    except JanusShardsError as exc:
        return Found(root, error=exc)
    found = Found(root, warnings=report.warnings, skipped=report.skipped)
    return Found(root, _read(found, path), report.warnings, report.skipped)


def _read(found: Found, path: Path) -> list[Mapping[str, Any]]:
    """All fields by the library, each compared with the bytes of the tar at the offset in the index."""
    samples, tar = [], path.read_bytes()
    catalog = found.dataset.catalog
    for sample in found.dataset:
        (shard,), (row,) = catalog.locate(np.array([sample.sample_id]))
        fields = {}
        for span in catalog.index(int(shard)).fields_of(int(row)):
            data = sample.raw(span.field)
            assert data == tar[span.offset : span.offset + span.size], (sample.key, span.field)
            fields[span.field] = {"size": len(data), "sha256": sha256(data), "offset": span.offset}
        samples.append({"key": sample.key, "fields": fields})
    return samples


def read_in_order(path: Path, scratch: Path, *, on_bad: OnBad = "raise") -> Found:
    """Write the samples of a shard anew, which reads it from front to back, compressed or not."""
    root = scratch / f"{path.name}-{on_bad}.resharded"
    try:
        report = reshard([str(path), str(companion(scratch))], str(root), options=ReshardOptions(on_bad=on_bad))
    except JanusShardsError as exc:
        return Found(root, error=exc)
    found = Found(root, warnings=report.warnings, skipped=report.skipped)
    samples = [
        {
            "key": sample.key,
            "fields": {
                name: {"size": len(sample.raw(name)), "sha256": sha256(sample.raw(name)), "offset": None}
                for name in sample
            },
        }
        for sample in found.dataset
    ]
    return Found(root, samples, report.warnings, report.skipped)


def loaded(found: Found) -> list[Mapping[str, Any]]:
    """The same samples through the loader: stored order, one a batch, bytes as stored."""
    options = js.LoaderOptions(decode=False, tail="uneven", on_missing="none", threads=1)
    samples = []
    for batch in js.open_loader(found.dataset, batch_size=1, shuffle=None, options=options):
        fields = {
            name: {"size": len(batch[name][0]), "sha256": sha256(batch[name][0])}
            for name in batch
            if batch.present[name][0]
        }
        samples.append({"key": batch.keys[0], "fields": fields})
    return samples


# --- whether an outcome holds ----------------------------------------------------------------------------------------


def problems(found: Found, outcome: Mapping[str, Any], name: str) -> str:
    """Why an outcome does not hold for what was found in input ``name``; empty where it holds."""
    if outcome["outcome"] == "error":
        return error_problem(found.error, outcome, name) or _order_problem(found, outcome.get("delivered_before", []))
    if found.error is not None:
        return f"expected samples, found {found.error!r}"
    warned = {text.partition(": ")[0] for text in found.warnings}
    if not warned.issuperset(outcome.get("must_warn", [])):
        return f"expected the warnings {outcome['must_warn']}, found {found.warnings}"
    if outcome["outcome"] == "digest":
        return _digest_problem(found.samples, outcome)
    if len(found.samples) != outcome["count"]:
        return f"expected {outcome['count']} samples, found {[sample['key'] for sample in found.samples]}"
    return _samples_problem(found.samples, outcome["samples"])


def error_problem(error: JanusShardsError | None, outcome: Mapping[str, Any], name: str) -> str:
    """Why an error is not the one of an outcome: class, kind, what it mentions, and the name of the shard."""
    if error is None:
        return f"expected {outcome['kind']}, found no error"
    if not isinstance(error, ERRORS[outcome["kind"]]) or error.kind != outcome["kind"]:
        return f"expected {outcome['kind']}, found {error.kind}: {error!r}"
    silent = [word for word in (*outcome.get("mentions", []), name) if word not in str(error)]
    return f"expected {silent} in: {error}" if silent else ""


def _order_problem(found: Found, before: Sequence[Mapping[str, Any]]) -> str:
    if len(found.samples) > len(before):
        return f"expected at most {len(before)} samples before the error, found {len(found.samples)}"
    return _samples_problem(found.samples, before[: len(found.samples)])


def _samples_problem(samples: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> str:
    for sample, wanted in zip(samples, expected, strict=True):
        if sample["key"] != wanted["key"] or sample["fields"].keys() != wanted["fields"].keys():
            return f"expected {wanted['key']!r} {list(wanted['fields'])}, found {sample}"
        for name, content in wanted["fields"].items():
            # What is not given, or cannot be told by this way of reading, is not compared.
            have = sample["fields"][name]
            if any(have.get(word) not in (None, value) for word, value in content.items() if value is not None):
                return f"{wanted['key']!r} {name!r}: expected {content}, found {have}"
    return ""


def _digest_problem(samples: Sequence[Mapping[str, Any]], outcome: Mapping[str, Any]) -> str:
    named = ((sample["key"], name, each["sha256"]) for sample in samples for name, each in sample["fields"].items())
    digest = sha256("".join(f"{key}\0{name}\0{value}\n" for key, name, value in named).encode())
    ends = [samples[at]["key"] for at in (0, -1)] if samples else []
    have = (len(samples), *ends, digest)
    wanted = (outcome["count"], outcome["first"], outcome["last"], outcome["digest"])
    return "" if have == wanted else f"expected {wanted}, found {have}"


def assert_one_holds(found: Found, given: Input) -> None:
    """One of the outcomes of an input holds."""
    name = Path(given.name).name
    reasons = [problems(found, outcome, name) for outcome in given.outcomes]
    assert "" in reasons, reasons


def field_error(sample: js.Sample, name: str) -> SampleError | None:
    """What decoding a field raises, if anything."""
    try:
        _ = sample[name]
    except SampleError as exc:
        return exc
    return None


def bucket_and_key(url: str) -> tuple[str, str]:
    """Bucket and key that the library reads for a URL of one object."""
    root, name = split_url(url)
    bucket, _, prefix = root.partition("://")[2].partition("/")
    return bucket, f"{prefix}/{name}" if prefix else name
