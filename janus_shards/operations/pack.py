"""Pack files into a data set: plan, then write shard by shard, with the same bytes for any number of processes.

The plan knows every size before a file is opened. So a wrong row or name is refused before anything is written, and
each shard can be written, checked and written again apart from the others.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TypeVar

from janus_shards.engine.pool import run_ordered, sensible_workers
from janus_shards.errors import ConfigError
from janus_shards.format.manifest import Manifest
from janus_shards.operations.folders import SourceFolder, open_folder
from janus_shards.operations.parquet import PARQUET_SUFFIX, read_parquet
from janus_shards.operations.plan import plan_shards
from janus_shards.operations.progress import Progress, ProgressCallback, no_progress
from janus_shards.operations.shard_tasks import ShardTask, find_written, write_task
from janus_shards.operations.sources import DotRule, SourcePlan, is_image, plan_folder
from janus_shards.operations.tables import TABLE_SUFFIXES, TableColumns, plan_table, read_table
from janus_shards.storage.base import StorageOptions
from janus_shards.storage.urls import open_storage
from janus_shards.writer.publish import Publication, existing_mode, numbered_names
from janus_shards.writer.shard import ShardLayout, WrittenShard

_ShardT = TypeVar("_ShardT", bound=WrittenShard | None)


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """How files become a data set.

    Attributes:
        layout: How samples are cut into shards.
        resume: Keep the whole shards of an interrupted run and write the others.
        overwrite: Replace what is there.
        allow_missing: Folders only: whether samples may have different fields.
        dots: Folders only: what a dot before the extension means, see ``plan_folder``.
        workers: Processes; ``None`` takes one a core, fewer for a few shards or a few megabytes.
    """

    layout: ShardLayout = field(default_factory=ShardLayout)
    resume: bool = False
    overwrite: bool = False
    allow_missing: bool = False
    dots: DotRule = "field"
    workers: int | None = None

    def __post_init__(self) -> None:
        existing_mode(resume=self.resume, overwrite=self.overwrite)
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"workers={self.workers}: expected at least 1, or None for one a core")
        if self.dots not in ("field", "replace"):
            raise ConfigError(f"dots={self.dots!r}: expected 'field' or 'replace'")


@dataclass(frozen=True, kw_only=True)
class PackReport:
    """What a run of ``pack`` did.

    Attributes:
        manifest: The published generation.
        num_written: Shards written by this run.
        num_kept: Shards kept from an earlier run.
        skipped: Rows of the table left out as bad: where each stands, and why.
        seconds: Wall time.
        warnings: What the user should know, in sentences.
    """

    manifest: Manifest
    num_written: int
    num_kept: int
    skipped: Sequence[str]
    seconds: float
    warnings: Sequence[str]

    @property
    def num_skipped(self) -> int:
        """Rows of the table left out as bad."""
        return len(self.skipped)

    @property
    def num_samples(self) -> int:
        """Samples of the data set."""
        return self.manifest.num_samples

    @property
    def num_bytes(self) -> int:
        """Bytes of all its shards."""
        return sum(shard.tar_bytes for shard in self.manifest.shards)


def pack(
    source: str,
    root: str,
    *,
    columns: TableColumns | None = None,
    options: PackOptions = PackOptions(),
    storage_options: Mapping[str, object] | None = None,
    progress: ProgressCallback = no_progress,
) -> PackReport:
    """Pack a folder, or the rows of a table, into shards with indexes and a manifest.

    Where samples have pictures, each row gets the columns ``width`` and ``height`` of its first one, as it stands
    upright.

    Args:
        source: Folder, or ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet`` file; local or in a store.
        root: Folder or object-store URL to write to; created when missing.
        columns: Which columns of a table become what; needed for tables.
        options: How to pack.
        storage_options: Endpoint, region, credentials and the like, for source and root alike.
        progress: Told after each shard.

    Raises:
        ConfigError: There is nothing to pack, an option does not fit, or the root already holds a data set
            (``exists``).
        FormatError: Rows of the table are bad (``bad_row``), or two files are one field (``duplicate_field``).
        MissingFieldError: Fields differ between the samples of a folder.
        DecodeError: A file that should be a picture is none.
        StorageError: A file cannot be read or a shard not written.

    Whatever is raised, no manifest is published; whole shards stay for ``resume``.
    """
    started = time.monotonic()
    source, root, storage_options = os.fspath(source), os.fspath(root), storage_options or {}
    storage = open_storage(root, StorageOptions.from_mapping(storage_options))
    mode = existing_mode(resume=options.resume, overwrite=options.overwrite)
    publication = Publication(storage, names=numbered_names(options.layout.prefix), mode=mode)
    publication.begin()
    plan, folder_url = _plan_source(source, root, columns, options, storage_options)
    tasks = _shard_tasks(plan, folder_url, root, options, storage_options)
    num_bytes = sum(sample.tar_bytes() for sample in plan.samples)
    workers = options.workers or sensible_workers(len(tasks), num_bytes)
    kept = _find_kept(tasks, publication, workers, progress) if mode == "resume" else {}
    missing = [task for task in tasks if task.name not in kept]
    for task in missing:
        publication.withdraw_for(task.name)
    written = {shard.record.name: shard for shard in _run("write", write_task, missing, workers, progress)}
    manifest = publication.commit([(kept.get(task.name) or written[task.name]) for task in tasks])
    storage.close()
    return PackReport(
        manifest=manifest,
        num_written=len(missing),
        num_kept=len(kept),
        skipped=plan.skipped,
        seconds=time.monotonic() - started,
        warnings=plan.warnings,
    )


def _plan_source(
    source: str,
    root: str,
    columns: TableColumns | None,
    options: PackOptions,
    storage_options: Mapping[str, object],
) -> tuple[SourcePlan, str]:
    """The samples, and the folder that their paths are relative to."""
    if not source.lower().endswith(TABLE_SUFFIXES):
        _check_apart(source, root)
        folder = open_folder(source, storage_options)
        files = folder.files()
        plan = plan_folder(files, folder=folder.url, allow_missing=options.allow_missing, dots=options.dots)
        return plan, source
    if columns is None:
        raise ConfigError(
            f"{source} is a table: say what its columns become, with columns=TableColumns(image=..., text=..., "
            f"key=...) "
            "(--image-column, --text-column, --key-column)"
        )
    parent, slash, name = source.rpartition("/")
    parent = (parent or "/") if slash else "."
    return _plan_rows(open_folder(parent, storage_options), name, columns), parent


def _plan_rows(folder: SourceFolder, name: str, columns: TableColumns) -> SourcePlan:
    if not name.lower().endswith(PARQUET_SUFFIX):
        rows = read_table(folder.stream(name), name=name)
        return plan_table(rows, columns=columns, name=name, stat=folder.stat, read=folder.read)
    with folder.open(name) as file:
        rows = read_parquet(file, columns=columns, name=name)
        return plan_table(rows, columns=columns, name=name, stat=folder.stat, read=folder.read, unit="row")


def _check_apart(source: str, root: str) -> None:
    """Refuse to pack a folder into itself: the next run would pack the shards of this one."""
    inside, outside = (os.path.realpath(url.removeprefix("file://")) for url in (root, source))
    if "://" not in root.removeprefix("file://") and (inside + "/").startswith(outside.rstrip("/") + "/"):
        raise ConfigError(f"the shards would go to {root}, which is inside the source {source}; choose another folder")


def _shard_tasks(
    plan: SourcePlan, source: str, root: str, options: PackOptions, storage_options: Mapping[str, object]
) -> list[ShardTask]:
    has_sizes = any(is_image(part.field) for sample in plan.samples for part in sample.parts)
    cuts = plan_shards((sample.tar_bytes() for sample in plan.samples), options.layout)
    return [
        ShardTask(
            name=options.layout.shard_name(number),
            samples=plan.samples[start:stop],
            source=source,
            root=root,
            inline_bytes=options.layout.inline_bytes,
            has_sizes=has_sizes,
            storage_options=storage_options,
        )
        for number, (start, stop) in enumerate(cuts)
    ]


def _find_kept(
    tasks: Sequence[ShardTask], publication: Publication, workers: int, progress: ProgressCallback
) -> dict[str, WrittenShard]:
    """Shards of an interrupted run that this run would write again just so, by name."""
    there = [task for task in tasks if task.name in publication.before.own]
    found = _run("compare", find_written, there, workers, progress)
    return {shard.record.name: shard for shard in found if shard is not None}


def _run(
    stage: str,
    function: Callable[[ShardTask], _ShardT],
    tasks: Sequence[ShardTask],
    workers: int,
    progress: ProgressCallback,
) -> Iterator[_ShardT]:
    """Results in task order, with a word to the caller after each."""
    samples = num_bytes = 0
    workers = min(workers, max(len(tasks), 1))
    with closing(run_ordered(function, tasks, workers=workers, label=_task_name)) as results:
        for done, shard in enumerate(results, start=1):
            if shard is not None:
                samples, num_bytes = samples + shard.record.num_samples, num_bytes + shard.record.tar_bytes
            progress(Progress(stage=stage, done=done, total=len(tasks), num_samples=samples, num_bytes=num_bytes))
            yield shard


def _task_name(task: ShardTask) -> str:
    return task.name
