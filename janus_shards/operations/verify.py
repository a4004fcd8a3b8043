"""Check that a data set is what its manifest says. Damage becomes findings; only what stops the check is raised."""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import xxhash

from janus_shards.catalog import open_catalog
from janus_shards.engine.pool import run_ordered, sensible_workers
from janus_shards.errors import FormatError, IntegrityError, ObjectNotFoundError, TarFormatError
from janus_shards.format.index import ShardIndex
from janus_shards.format.manifest import Manifest, ShardRecord
from janus_shards.format.naming import MANIFEST_NAME, index_name, split_member
from janus_shards.format.tar import TarMember, TarScanner
from janus_shards.operations.progress import Progress, ProgressCallback, no_progress
from janus_shards.sample import RawBytes
from janus_shards.storage.base import Storage, StorageOptions
from janus_shards.storage.urls import open_storage


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fault of a data set.

    Attributes:
        kind: ``bad_manifest``, ``missing_shard``, ``missing_index``, ``index_mismatch``, ``shard_length``,
            ``shard_digest``, ``member_mismatch``, ``missing_member``, ``extra_member``, ``inline_mismatch``, or a kind
            of ``TarFormatError``.
        shard: Name of the shard; empty when the manifest itself is meant.
        key: Key of the sample, where one is meant.
        field: Field of the sample, where one is meant.
        message: What was expected and what was found.
    """

    kind: str
    message: str
    shard: str = ""
    key: str = ""
    field: str = ""


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What a check found.

    Attributes:
        findings: Faults, in the order of the shards; empty for a sound data set.
        num_shards: Shards looked at.
        num_samples: Samples that they have by the manifest.
        num_bytes: Bytes of shards read.
        seconds: Wall time.
    """

    findings: Sequence[Finding]
    num_shards: int
    num_samples: int
    num_bytes: int
    seconds: float

    @property
    def is_sound(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def verify(
    root: str,
    *,
    full: bool = False,
    workers: int | None = None,
    storage_options: Mapping[str, object] | None = None,
    progress: ProgressCallback = no_progress,
) -> VerifyReport:
    """Check a data set.

    Args:
        root: Root with the manifest.
        full: Read every shard and check its digest and each member, instead of indexes and lengths only.
        workers: Processes; ``None`` takes one a core for a full check of many bytes, else one in all.
        storage_options: Endpoint, region, credentials and the like; see ``StorageOptions``.
        progress: Told after each shard.

    Raises:
        ObjectNotFoundError: There is no data set here.
        StorageError: The store cannot be reached or refuses access.
    """
    started = time.monotonic()
    options = StorageOptions.from_mapping(storage_options)
    try:
        catalog = open_catalog(root, storage_options=storage_options)
    except FormatError as exc:
        return _unreadable(exc.message, time.monotonic() - started)
    except ObjectNotFoundError as exc:
        # The pointer may be there without its generation: that is damage, not an empty place.
        open_storage(root, options).head(MANIFEST_NAME)
        return _unreadable(exc.message, time.monotonic() - started)
    return replace(
        check_shards(
            catalog.manifest,
            root,
            full=full,
            workers=workers,
            storage_options=storage_options,
            progress=progress,
        ),
        seconds=time.monotonic() - started,
    )


def check_shards(
    manifest: Manifest,
    root: str,
    *,
    full: bool,
    workers: int | None = None,
    storage_options: Mapping[str, object] | None = None,
    progress: ProgressCallback = no_progress,
) -> VerifyReport:
    """Check the shards and indexes that a manifest names; arguments and errors as in ``verify``."""
    started = time.monotonic()
    tasks = [
        _VerifyTask(
            record=record,
            shards=manifest.base_url or root,
            indexes=root,
            full=full,
            storage_options=storage_options or {},
        )
        for record in manifest.shards
    ]
    num_bytes = sum(task.record.tar_bytes for task in tasks) if full else 0
    workers = workers or sensible_workers(len(tasks), num_bytes)
    findings = [finding for found in _run(tasks, workers, progress) for finding in found]
    return VerifyReport(
        findings=findings,
        num_shards=len(tasks),
        num_samples=manifest.num_samples,
        num_bytes=num_bytes,
        seconds=time.monotonic() - started,
    )


def _unreadable(message: str, seconds: float) -> VerifyReport:
    finding = Finding(kind="bad_manifest", message=message)
    return VerifyReport(findings=[finding], num_shards=0, num_samples=0, num_bytes=0, seconds=seconds)


def _run(tasks: Sequence["_VerifyTask"], workers: int, progress: ProgressCallback) -> Iterator[list[Finding]]:
    samples = num_bytes = 0
    workers = min(workers, max(len(tasks), 1))
    with closing(run_ordered(_verify_task, tasks, workers=workers, label=_task_name)) as results:
        for done, (task, findings) in enumerate(zip(tasks, results, strict=True), start=1):
            samples, num_bytes = samples + task.record.num_samples, num_bytes + task.record.tar_bytes * task.full
            progress(Progress(stage="verify", done=done, total=len(tasks), num_samples=samples, num_bytes=num_bytes))
            yield findings


# --- one shard --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _VerifyTask:
    record: ShardRecord
    shards: str = field(repr=False)
    indexes: str = field(repr=False)
    full: bool
    storage_options: Mapping[str, object] = field(repr=False)

    def finding(self, kind: str, message: str, *, key: str = "", field: str = "") -> Finding:
        where = (
            f"shard {self.record.name}" + (f", key {key!r}" if key else "") + (f", field {field!r}" if field else "")
        )
        return Finding(kind=kind, message=f"{where}: {message}", shard=self.record.name, key=key, field=field)


def _task_name(task: _VerifyTask) -> str:
    return task.record.name


def _verify_task(task: _VerifyTask) -> list[Finding]:
    options = StorageOptions.from_mapping(task.storage_options)
    shards, indexes = open_storage(task.shards, options), open_storage(task.indexes, options)
    index, findings = _check_index(task, indexes)
    try:
        size = shards.head(task.record.name).size
        if size != task.record.tar_bytes:
            findings.append(task.finding("shard_length", f"expected {task.record.tar_bytes} bytes, found {size}"))
        if task.full:
            findings += _check_members(task, shards, index)
    except ObjectNotFoundError:
        findings.append(task.finding("missing_shard", f"there is no {shards.url}/{task.record.name}"))
    except IntegrityError as exc:
        findings.append(task.finding(exc.kind, exc.message))
    return findings


def _check_index(task: _VerifyTask, indexes: Storage) -> tuple[ShardIndex | None, list[Finding]]:
    """The index, unless it cannot be used, and what is wrong with it."""
    record = task.record
    name = index_name(record.name)
    try:
        encoded = indexes.read(name)
        if hashlib.sha256(encoded).digest() != record.index_sha256:
            return None, [task.finding("index_mismatch", f"the SHA-256 of {name} is not the one in the manifest")]
        index = ShardIndex.decode(encoded, name=name)
    except ObjectNotFoundError:
        return None, [task.finding("missing_index", f"there is no {indexes.url}/{name}")]
    except (FormatError, IntegrityError) as exc:
        return None, [task.finding("index_mismatch", exc.message)]
    described = (index.num_samples, index.tar_bytes, index.tar_sha256)
    if described != (record.num_samples, record.tar_bytes, record.sha256):
        return None, [task.finding("index_mismatch", f"{name} describes another shard than the manifest")]
    return index, _check_inline(task, index)


def _check_inline(task: _VerifyTask, index: ShardIndex) -> list[Finding]:
    """Values kept in the index are those that their hashes say."""
    findings = []
    rows = np.arange(index.num_samples)
    for name in index.fields:
        hashes = index.spans(name, rows).xxh3.tolist()
        for row, data in enumerate(index.inline_many(name, rows)):
            if data is not None and xxhash.xxh3_64_intdigest(data) != hashes[row]:
                message = "the value kept in the index is not the one that was written"
                findings.append(task.finding("inline_mismatch", message, key=index.key(row), field=name))
    return findings


class _Expected(NamedTuple):
    """What the index says about the member whose data starts at some offset."""

    key: str
    field: str
    size: int
    xxh3: int


def _check_members(task: _VerifyTask, shards: Storage, index: ShardIndex | None) -> list[Finding]:
    expected = _expected_members(index) if index else {}
    digest, findings, extra = hashlib.sha256(), [], []
    scanner = TarScanner(_hashed(shards.stream(task.record.name), digest), shard=task.record.name)
    try:
        for member in scanner:
            names = split_member(member.name) if member.kind == "file" else None
            if names is None:
                continue
            planned = expected.pop(member.offset, None)
            if planned is None:
                extra.append(task.finding("extra_member", "it is not in the index", key=names[0], field=names[1]))
            elif (names, member.size, member.xxh3) != ((planned.key, planned.field), planned.size, planned.xxh3):
                findings.append(_mismatch(task, planned, member))
    except TarFormatError as exc:
        return [*findings, task.finding(exc.kind, exc.message)]
    findings += [
        task.finding("missing_member", f"expected its data at offset {at}", key=missing.key, field=missing.field)
        for at, missing in expected.items()
    ]
    if digest.digest() == task.record.sha256:
        # The very bytes that were indexed: what the index leaves out was left out on purpose.
        return findings
    found = task.finding("shard_digest", f"expected SHA-256 {task.record.sha256.hex()}, found {digest.hexdigest()}")
    return [*findings, *(extra if index else []), found]


def _expected_members(index: ShardIndex) -> dict[int, _Expected]:
    """Members by the offset of their data."""
    rows = np.arange(index.num_samples)
    keys = index.keys.texts()
    members = {}
    for name in index.fields:
        spans = index.spans(name, rows)
        columns = zip(keys, spans.offsets.tolist(), spans.sizes.tolist(), spans.xxh3.tolist(), strict=True)
        members.update({at: _Expected(key, name, size, xxh3) for key, at, size, xxh3 in columns if size >= 0})
    return members


def _mismatch(task: _VerifyTask, planned: _Expected, member: TarMember) -> Finding:
    return task.finding(
        "member_mismatch",
        f"expected {planned.size} bytes of XXH3 {planned.xxh3:016x} at offset {member.offset}, found member "
        f"{member.name!r} of "
        f"{member.size} bytes and XXH3 {member.xxh3:016x}",
        key=planned.key,
        field=planned.field,
    )


def _hashed(chunks: Iterator[RawBytes], digest: "hashlib._Hash") -> Iterator[RawBytes]:
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
