"""Index existing webdataset shards where they lie: one pass over each, and nothing of them is changed."""

import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

from janus_shards.engine.pool import run_ordered, sensible_workers, usable_cores
from janus_shards.errors import ConfigError, FormatError, IntegrityError, StorageError
from janus_shards.format.index import DEFAULT_INLINE_BYTES, IndexBuilder, ShardIndex
from janus_shards.format.manifest import Manifest
from janus_shards.format.naming import index_name, may_inline
from janus_shards.operations.progress import Progress, ProgressCallback, no_progress
from janus_shards.operations.scan import OnBad, SampleScan, ShardNotes, SkippedSample, warnings_of
from janus_shards.operations.shard_urls import ShardSet, find_shards
from janus_shards.operations.sources import counted
from janus_shards.sample import RawBytes
from janus_shards.storage.base import ObjectMeta, Storage, StorageOptions
from janus_shards.storage.local import LocalStorage
from janus_shards.storage.urls import open_storage
from janus_shards.writer.publish import OwnNames, Publication, existing_mode
from janus_shards.writer.shard import WrittenShard, describe_shard

# A process takes about 80 MB.
_STORE_WORKERS = 32


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """How existing shards are indexed.

    Attributes:
        inline_bytes: Values shorter than this are kept in the index, media and tensors excepted; 0 keeps none.
        on_bad: Whether a sample with a field twice, or in several pieces, ends the run or is left out and reported.
        resume: Keep the indexes of an interrupted run that fit their shards.
        overwrite: Replace the indexes and the manifest that are there; shards are never touched.
        workers: Processes; ``None`` takes one a core, fewer for a few megabytes; for shards in a store, which wait for
            bytes, up to four a core.
    """

    inline_bytes: int = DEFAULT_INLINE_BYTES
    on_bad: OnBad = "raise"
    resume: bool = False
    overwrite: bool = False
    workers: int | None = None

    def __post_init__(self) -> None:
        existing_mode(resume=self.resume, overwrite=self.overwrite)
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"workers={self.workers}: expected at least 1, or None for one a core")


@dataclass(frozen=True, kw_only=True)
class IndexReport:
    """What a run of ``index_shards`` did.

    Attributes:
        manifest: The published generation.
        num_indexed: Shards read by this run.
        num_kept: Shards whose index was kept from an earlier run.
        num_bytes: Bytes read.
        num_links: Links in the tars, which are ignored.
        num_ignored: Files in the tars that belong to no sample.
        skipped: Samples left out by this run because the user asked to skip bad ones.
        seconds: Wall time.
        warnings: What the user should know, in sentences that begin with the name of their kind: ``missing_eof: …``.
    """

    manifest: Manifest
    num_indexed: int
    num_kept: int
    num_bytes: int
    num_links: int
    num_ignored: int
    skipped: Sequence[SkippedSample]
    seconds: float
    warnings: Sequence[str]

    @property
    def num_skipped(self) -> int:
        """Samples left out by this run."""
        return len(self.skipped)


def index_shards(
    shards: str | Sequence[str],
    *,
    output: str | None = None,
    options: IndexOptions = IndexOptions(),
    storage_options: Mapping[str, object] | None = None,
    progress: ProgressCallback = no_progress,
) -> IndexReport:
    """Make a data set of tars that something else wrote.

    Args:
        shards: URLs, brace patterns, globs or folders; their order becomes the order of the samples. In a folder, all
            ``.tar`` files in name order.
        output: Where indexes and manifest go; beside the shards when not given.
        options: How to index.
        storage_options: Endpoint, region, credentials and the like, for shards and output alike.
        progress: Told after each shard.

    Raises:
        ConfigError: The shards share no root, no shard has a sample, or there is a data set already (kind ``exists``).
        TarFormatError: A shard is no tar, damaged or compressed, or a sample has a field twice.
        StorageError: A shard cannot be read or an index not written.

    Whatever is raised, no manifest is published; finished indexes stay for ``resume``.
    """
    started = time.monotonic()
    storage_options = storage_options or {}
    found = find_shards(shards, StorageOptions.from_mapping(storage_options))
    tasks = _plan(found, output, options, storage_options)
    storage = open_storage(tasks[0].output, StorageOptions.from_mapping(storage_options))
    source = open_storage(found.root, StorageOptions.from_mapping(storage_options))
    base = source.url
    expected = {index_name(name) for name in found.names}
    names = OwnNames(listed="", match=expected.__contains__)
    publication = Publication(
        storage, names=names, mode=existing_mode(resume=options.resume, overwrite=options.overwrite)
    )
    publication.begin()
    for name in found.names:
        publication.withdraw_for(name)
    workers = options.workers or _sensible_workers(source, found.names)
    results = list(_run(tasks, workers, progress))
    usable = [result.shard for result in results if result.shard.record.num_samples]
    if not usable:
        raise ConfigError(f"{base}: {counted(len(tasks), 'shard')} without any sample", kind="empty_dataset")
    manifest = publication.commit(usable, base_url="" if base == storage.url else base)
    return _report(manifest, results, time.monotonic() - started)


# --- planning ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _IndexTask:
    """All that a process needs to index one shard."""

    root: str = field(repr=False)  # may carry a signature
    name: str
    output: str
    options: IndexOptions
    storage_options: Mapping[str, object] = field(repr=False)


def _plan(
    found: ShardSet, output: str | None, options: IndexOptions, storage_options: Mapping[str, object]
) -> list[_IndexTask]:
    if output is None and found.root.startswith(("http://", "https://")):
        raise ConfigError(
            "a web server takes no indexes: say where they go with output=... (--output), such as a local folder"
        )
    return [
        _IndexTask(
            root=found.root,
            name=name,
            output=output or found.root,
            options=options,
            storage_options=storage_options,
        )
        for name in found.names
    ]


# --- one shard --------------------------------------------------------------------------------------------------------


class _Indexed(NamedTuple):
    """One shard after its task."""

    shard: WrittenShard
    notes: ShardNotes
    is_kept: bool = False


def _index_task(task: _IndexTask) -> _Indexed:
    options = StorageOptions.from_mapping(task.storage_options)
    source, output = open_storage(task.root, options), open_storage(task.output, options)
    meta = source.head(task.name)
    kept = _find_index(task, source, output, meta) if task.options.resume else None
    if kept is not None:
        return _Indexed(kept, ShardNotes(shard=task.name, is_empty=not kept.record.num_samples), is_kept=True)
    index, notes = _scan(task, source, meta)
    encoded = index.encode()
    output.put(index_name(task.name), encoded)
    return _Indexed(describe_shard(task.name, index, encoded, meta=None if source.is_local else meta), notes)


def _scan(
    task: _IndexTask, source: Storage, meta: ObjectMeta, leave_out: frozenset[str] = frozenset()
) -> tuple[ShardIndex, ShardNotes]:
    url = f"{source.url}/{task.name}"
    digest = hashlib.sha256()
    scan = SampleScan(
        _hashed(source.stream(task.name), digest),
        shard=url,
        keep_bytes=max(task.options.inline_bytes - 1, 0),
        on_bad=task.options.on_bad,
        leave_out=leave_out,
    )
    builder = IndexBuilder(url, inline_bytes=task.options.inline_bytes)
    for key, spans in scan:
        builder.add(key, spans)
    if scan.position != meta.size:
        raise IntegrityError(
            f"{url}: expected {meta.size} bytes, read {scan.position}; it changed while it was read", shard=url
        )
    if scan.delivered_in_part:
        # The index has pieces of samples that turned out to be bad: once more, without them.
        return _scan(task, source, meta, leave_out | scan.delivered_in_part)
    return builder.build(tar_bytes=scan.position, tar_sha256=digest.digest()), scan.notes(task.name)


def _hashed(chunks: Iterator[RawBytes], digest: "hashlib._Hash") -> Iterator[RawBytes]:
    for chunk in chunks:
        digest.update(chunk)
        yield chunk


def _find_index(task: _IndexTask, source: Storage, output: Storage, meta: ObjectMeta) -> WrittenShard | None:
    """The index of an interrupted run where it fits: made with these options, for a shard of this length, not older."""
    name = index_name(task.name)
    try:
        encoded = bytes(output.read(name))
        index = ShardIndex.decode(encoded, name=name)
    except (StorageError, FormatError):
        return None
    inline_bytes = task.options.inline_bytes
    fits = all(column.inline_bytes == (inline_bytes if may_inline(at) else 0) for at, column in index.fields.items())
    if not fits or index.tar_bytes != meta.size or _is_older(output, name, source, task.name):
        return None
    return describe_shard(task.name, index, encoded, meta=None if source.is_local else meta)


def _is_older(output: Storage, index: str, source: Storage, shard: str) -> bool:
    if not (isinstance(output, LocalStorage) and isinstance(source, LocalStorage)):
        return False
    written, changed = (os.stat(os.path.join(at.root, name)) for at, name in ((output, index), (source, shard)))
    return changed.st_mtime_ns > written.st_mtime_ns


# --- all shards -------------------------------------------------------------------------------------------------------


def _sensible_workers(source: Storage, names: Sequence[str]) -> int:
    """By bytes for local shards; more than cores for a store, within the memory of some tens of processes."""
    if source.is_local:
        return sensible_workers(len(names), sum(source.head(name).size for name in names))
    return max(usable_cores(), min(4 * usable_cores(), _STORE_WORKERS))


def _run(tasks: Sequence[_IndexTask], workers: int, progress: ProgressCallback) -> Iterator[_Indexed]:
    samples = num_bytes = 0
    workers = min(workers, len(tasks))
    with closing(run_ordered(_index_task, tasks, workers=workers, label=_task_name)) as results:
        for done, result in enumerate(results, start=1):
            record = result.shard.record
            samples, num_bytes = samples + record.num_samples, num_bytes + record.tar_bytes
            progress(Progress(stage="scan", done=done, total=len(tasks), num_samples=samples, num_bytes=num_bytes))
            yield result


def _task_name(task: _IndexTask) -> str:
    return task.name


def _report(manifest: Manifest, results: Sequence[_Indexed], seconds: float) -> IndexReport:
    scanned = [result for result in results if not result.is_kept]
    notes = [result.notes for result in results]
    return IndexReport(
        manifest=manifest,
        num_indexed=len(scanned),
        num_kept=len(results) - len(scanned),
        num_bytes=sum(result.shard.record.tar_bytes for result in scanned),
        num_links=sum(each.num_links for each in notes),
        num_ignored=sum(each.num_ignored for each in notes),
        skipped=[sample for each in notes for sample in each.skipped],
        seconds=seconds,
        warnings=warnings_of(notes),
    )
