"""Look after the caches in a directory: what they hold, whether it is sound, and remove it."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from janus_shards.cache.base import CacheOptions, digest_name
from janus_shards.cache.budget import Budget
from janus_shards.cache.decoded import damaged_rows
from janus_shards.cache.entry import DECODED
from janus_shards.cache.files import Damage, EntryFiles, OpenFile
from janus_shards.cache.folder import CacheFolder, FolderFile, existing_folders
from janus_shards.cache.locks import FileLocks
from janus_shards.cache.raw import is_sound
from janus_shards.errors import ObjectNotFoundError, StorageError


@dataclass(frozen=True, kw_only=True)
class CacheStatus:
    """What one folder of a cache holds.

    Attributes:
        path: The folder.
        raw_entries: Blocks whose stored bytes are there.
        raw_bytes: Size of their files.
        decoded_entries: Blocks of which decoded rows are there.
        decoded_bytes: Size of their files.
        decoded_rows: Rows that are there.
        data_sets: Data sets that touched the entries last.
        foreign: Files with names like those of entries that are none.
        processes: Processes that use the folder now.
        free_bytes: Space on the file system.
    """

    path: str
    raw_entries: int
    raw_bytes: int
    decoded_entries: int
    decoded_bytes: int
    decoded_rows: int
    data_sets: int
    foreign: int
    processes: int
    free_bytes: int


@dataclass(frozen=True, kw_only=True)
class CacheFinding:
    """One damaged file of a cache.

    Attributes:
        kind: ``cache_damaged``, or ``not_an_entry`` for a file of somebody else under a name of ours.
        file: Its path.
        message: What was expected and what was found.
    """

    kind: str
    file: str
    message: str


@dataclass(frozen=True, kw_only=True)
class CacheVerifyReport:
    """What a check found.

    Attributes:
        findings: Damaged files; empty for a sound cache.
        entries: Files looked at.
        num_bytes: Their size.
        seconds: Wall time.
    """

    findings: Sequence[CacheFinding]
    entries: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ClearReport:
    """What was removed.

    Attributes:
        entries: Files.
        num_bytes: Their size.
        kept: Files with names of entries that are not ours to remove.
    """

    entries: int
    num_bytes: int
    kept: int


def cache_status(directory: str) -> list[CacheStatus]:
    """What the caches in a directory hold, one for each folder that this user may use.

    Raises:
        ObjectNotFoundError: There is none.
        StorageError: The disk failed.
    """
    with _translated(directory):
        return [_status(folder) for folder in _folders(directory)]


def verify_cache(directory: str) -> CacheVerifyReport:
    """Read every entry of the caches in a directory and compare all checksums.

    Nothing is changed: a damaged entry is a miss, and is removed or mended when a loader meets it.

    Raises:
        ObjectNotFoundError: There is none.
        StorageError: The disk failed.
    """
    started, findings, entries, num_bytes = time.perf_counter(), [], 0, 0
    with _translated(directory):
        for folder in _folders(directory):
            for file in _entries(folder):
                findings += _faults(folder, file)
                entries, num_bytes = entries + 1, num_bytes + file.num_bytes
    seconds = time.perf_counter() - started
    return CacheVerifyReport(findings=findings, entries=entries, num_bytes=num_bytes, seconds=seconds)


def clear_cache(directory: str) -> ClearReport:
    """Remove all entries of the caches in a directory; the folders stay, and whoever uses them now only misses.

    Raises:
        ObjectNotFoundError: There is none.
        StorageError: The disk failed.
    """
    entries, num_bytes, kept = 0, 0, 0
    with _translated(directory):
        for folder in _folders(directory):
            budget = _budget(folder)
            removed, freed = budget.clear()
            budget.close()
            entries, num_bytes = entries + removed, num_bytes + freed
            kept += len(list(_entries(folder)))
    return ClearReport(entries=entries, num_bytes=num_bytes, kept=kept)


@contextmanager
def _translated(directory: str) -> Iterator[None]:
    """What the disk does becomes an error of the library."""
    try:
        yield
    except StorageError:
        raise
    except FileNotFoundError as exc:
        raise ObjectNotFoundError(f"cache {directory}: there is no such folder", shard=directory) from exc
    except OSError as exc:
        raise StorageError(f"cache {directory}: {exc}", shard=directory) from exc


def _folders(directory: str) -> list[CacheFolder]:
    folders = existing_folders(directory)
    if not folders:
        raise ObjectNotFoundError(
            f"{directory} holds no cache of this user; give the directory that was given to the loader",
            shard=directory,
        )
    return folders


def _budget(folder: CacheFolder) -> Budget:
    return Budget(folder, FileLocks(), CacheOptions(directory=folder.path), "")


def _num_processes(folder: CacheFolder) -> int:
    try:
        budget = _budget(folder)
    except OSError:
        return 0  # a read-only disk, or one without locks: nobody writes there
    number = budget.num_processes()
    budget.close()
    return number


def _entries(folder: CacheFolder) -> list[FolderFile]:
    return [file for file in folder.scan() if file.slot is None]


def _status(folder: CacheFolder) -> CacheStatus:
    files = EntryFiles(folder)
    counts = {"raw": 0, "rows": 0, "foreign": 0}
    sizes = {"raw": 0, "rows": 0, "foreign": 0}
    rows, data_sets = 0, set()
    for file in _entries(folder):
        found = _open(files, file)
        kind = "foreign" if found is None else "rows" if found.header.kind == DECODED else "raw"
        counts[kind] += 1
        sizes[kind] += file.num_bytes
        if found is not None:
            rows += sum(check != 0 for check in found.table)
            data_sets.add(found.stamp.data_set)
    return CacheStatus(
        path=folder.path,
        raw_entries=counts["raw"],
        raw_bytes=sizes["raw"],
        decoded_entries=counts["rows"],
        decoded_bytes=sizes["rows"],
        decoded_rows=rows,
        data_sets=len(data_sets),
        foreign=counts["foreign"],
        processes=_num_processes(folder),
        free_bytes=folder.free_bytes(),
    )


def _open(files: EntryFiles, file: FolderFile) -> OpenFile | None:
    """An entry by its own word, or ``None`` when it is none of ours; one that was cut counts as well."""
    found = files.folder.peek(file.name)
    try:
        return None if found is None else files.open(file.name, found[0].identity)
    except Damage:
        return None


def _faults(folder: CacheFolder, file: FolderFile) -> list[CacheFinding]:
    path = f"{folder.path}/{file.name}"
    found = folder.peek(file.name)
    if found is None or digest_name(found[0].identity) != file.name.partition(".")[0]:
        return [CacheFinding(kind="not_an_entry", file=path, message="it has no header of an entry of this name")]
    try:
        opened = EntryFiles(folder).open(file.name, found[0].identity)
    except Damage as exc:
        return [CacheFinding(kind="cache_damaged", file=path, message=str(exc))]
    if opened is None:
        return []  # evicted meanwhile
    if opened.header.kind == DECODED:
        rows = damaged_rows(opened)
        message = f"rows {', '.join(map(str, rows))} have other checksums than the table says"
        return [CacheFinding(kind="cache_damaged", file=path, message=message)] if rows else []
    if is_sound(opened):
        return []
    return [CacheFinding(kind="cache_damaged", file=path, message="the payload has another checksum than the header")]
