"""Write the samples of existing shards anew: other sizes, plain instead of compressed, with indexes and a manifest.

Reads from front to back, so that any tar will do, also one that allows no random access.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from janus_shards.catalog import open_catalog
from janus_shards.errors import ConfigError, JanusShardsError, ObjectNotFoundError, SampleError
from janus_shards.format.columns import Strings
from janus_shards.format.compression import decompressed
from janus_shards.format.index import ColumnValue, ShardIndex
from janus_shards.format.manifest import Manifest
from janus_shards.format.naming import check_field
from janus_shards.operations.progress import Progress, ProgressCallback, no_progress
from janus_shards.operations.scan import OnBad, SampleScan, ShardNotes, SkippedSample, warnings_of
from janus_shards.operations.shard_urls import find_shards
from janus_shards.operations.sources import counted
from janus_shards.reader import Dataset
from janus_shards.storage.base import Storage, StorageOptions
from janus_shards.storage.urls import open_storage
from janus_shards.writer.publish import existing_mode
from janus_shards.writer.sample import KEY_ENTRY
from janus_shards.writer.shard import ShardLayout
from janus_shards.writer.writer import ShardWriter

_NAMES_TARS = re.compile(r"[*{}]|::|\.(tar|tgz|tbz2?|txz)(\.\w+)?(\?.*)?$", re.IGNORECASE)
# Longer fields do not fit into memory anywhere.
_KEEP_BYTES = 1 << 62
# Samples of a data set are read this many bytes at a time.
_READ_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class ReshardOptions:
    """How shards are written anew.

    Attributes:
        layout: How samples are cut into shards.
        on_bad: Whether a sample with a field twice, in several pieces, with other bytes than were indexed, or with a
            name that cannot be written ends the run or is left out and reported.
        resume: Keep the whole shards of an interrupted run; their samples are only compared.
        overwrite: Replace what is there.
    """

    layout: ShardLayout = field(default_factory=ShardLayout)
    on_bad: OnBad = "raise"
    resume: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        existing_mode(resume=self.resume, overwrite=self.overwrite)


@dataclass(frozen=True, kw_only=True)
class ReshardReport:
    """What a run of ``reshard`` did.

    Attributes:
        manifest: The published generation.
        num_read: Shards read.
        skipped: Samples left out because the user asked to skip bad ones.
        seconds: Wall time.
        warnings: What the user should know, in sentences that begin with the name of their kind.
    """

    manifest: Manifest
    num_read: int
    skipped: Sequence[SkippedSample]
    seconds: float
    warnings: Sequence[str]

    @property
    def num_skipped(self) -> int:
        """Samples left out."""
        return len(self.skipped)


class _Sample(NamedTuple):
    """One sample on its way."""

    key: str
    fields: Mapping[str, object]
    columns: Mapping[str, ColumnValue]


def reshard(
    shards: str | Sequence[str],
    root: str,
    *,
    options: ReshardOptions = ReshardOptions(),
    storage_options: Mapping[str, object] | None = None,
    progress: ProgressCallback = no_progress,
) -> ReshardReport:
    """Write the samples of shards into new shards, in the same order.

    Args:
        shards: Root of a data set, whose metadata columns are kept; or URLs, patterns or folders of tars, plain or
            compressed, with or without an index.
        root: Folder or object-store URL to write to.
        options: How to write.
        storage_options: Endpoint, region, credentials and the like, for both sides.
        progress: Told after each shard read.

    Raises:
        ConfigError: There is no sample, a key comes twice or cannot be written, or the root holds a data set already.
        TarFormatError: A shard is no tar or damaged, or a sample has a field twice.
        StorageError: A shard cannot be read or written.

    Whatever is raised, no manifest is published; whole shards stay for ``resume``.
    """
    started = time.monotonic()
    given = StorageOptions.from_mapping(storage_options)
    with _open_writer(root, options, storage_options) as writer:
        sources = _find_sources(shards, given, options.on_bad)
        num_samples = num_bytes = 0
        for done, source in enumerate(sources, start=1):
            num_samples += _write_all(source, writer)
            num_bytes += source.num_bytes
            told = Progress(stage="copy", done=done, total=len(sources), num_samples=num_samples, num_bytes=num_bytes)
            progress(told)
    manifest = writer.manifest
    if manifest is None:
        raise ConfigError(f"{root}: nothing was published", kind="bad_state")
    notes = [source.notes() for source in sources]
    return ReshardReport(
        manifest=manifest,
        num_read=len(sources),
        skipped=[sample for each in notes for sample in each.skipped],
        seconds=time.monotonic() - started,
        warnings=[*warnings_of(notes), *_rename_warning(sources)],
    )


def _open_writer(root: str, options: ReshardOptions, storage_options: Mapping[str, object] | None) -> ShardWriter:
    layout = options.layout
    return ShardWriter(
        root,
        prefix=layout.prefix,
        max_shard_bytes=layout.max_shard_bytes,
        max_samples=layout.max_samples,
        inline_bytes=layout.inline_bytes,
        resume=options.resume,
        overwrite=options.overwrite,
        storage_options=storage_options,
    )


def _write_all(source: "_Source", writer: ShardWriter) -> int:
    """Write the samples of one shard; how many there were."""
    count = 0
    for sample in source:
        key = _plain_key(sample.key)
        source.num_renamed += key != sample.key
        try:
            for name in sample.fields:
                check_field(name)
            writer.write({KEY_ENTRY: key, **sample.fields}, columns=sample.columns)
            count += 1
        except ConfigError as exc:
            if source.on_bad == "raise" or exc.kind not in ("bad_key", "bad_field"):
                raise
            source.skip(sample.key, exc)
    return count


def _plain_key(key: str) -> str:
    """The key without the ``./`` that ``tar cf x.tar .`` puts in front."""
    while key.startswith("./"):
        key = key[2:]
    return key


def _rename_warning(sources: "Sequence[_Source]") -> list[str]:
    renamed = sum(source.num_renamed for source in sources)
    return [f"key_renamed: {counted(renamed, 'key')} without the leading './'"] if renamed else []


# --- where samples come from ------------------------------------------------------------------------------------------


def _find_sources(shards: str | Sequence[str], options: StorageOptions, on_bad: OnBad) -> "Sequence[_Source]":
    given = [shards] if isinstance(shards, str) else list(shards)
    # Asking for a manifest behind the name of a tar could be refused, where listing is not allowed.
    if len(given) == 1 and not _NAMES_TARS.search(given[0]):
        try:
            dataset = Dataset(open_catalog(given[0], storage_options=options))
        except ObjectNotFoundError:
            pass  # no data set here, but perhaps tars
        else:
            return [_IndexedShard(dataset, number, on_bad) for number in range(len(dataset.catalog.manifest.shards))]
    found = find_shards(given, options)
    storage = open_storage(found.root, options)
    return [_Tar(storage, name, on_bad) for name in found.names]


class _Source:
    """Samples of one shard, in stored order; iterated once.

    Attributes:
        name: Name of the shard.
        on_bad: What becomes of a bad sample.
        num_bytes: Bytes of the shard.
        num_renamed: Keys that were written under another name.
    """

    def __init__(self, name: str, url: str, on_bad: OnBad, num_bytes: int) -> None:
        self.name = name
        self.on_bad = on_bad
        self.num_bytes = num_bytes
        self.num_renamed = 0
        self._url = url
        self._skipped: list[SkippedSample] = []

    def __iter__(self) -> Iterator[_Sample]:
        raise NotImplementedError

    def skip(self, key: str, error: JanusShardsError) -> None:
        """Note a sample that is left out."""
        self._skipped.append(SkippedSample(self._url, key, error.field or "", error.kind, error.message))

    def notes(self) -> ShardNotes:
        """What was odd about the shard."""
        return ShardNotes(shard=self.name, skipped=tuple(self._skipped))


class _Tar(_Source):
    """A tar without an index, read from front to back."""

    def __init__(self, storage: Storage, name: str, on_bad: OnBad) -> None:
        super().__init__(name, f"{storage.url}/{name}", on_bad, storage.head(name).size)
        self._storage = storage
        self._scan: SampleScan | None = None

    def __iter__(self) -> Iterator[_Sample]:
        self._scan = self._open(keep_bytes=_KEEP_BYTES, leave_out=self._bad_keys())
        for key, spans in self._scan:
            yield _Sample(key, {span.field: span.data for span in spans}, {})

    def _bad_keys(self) -> frozenset[str]:
        """Keys of samples that come in pieces: what was written cannot be taken back, so they are looked for first."""
        if self.on_bad == "raise":
            return frozenset()
        scan = self._open(keep_bytes=0)
        for _ in scan:
            pass
        return scan.delivered_in_part

    def _open(self, *, keep_bytes: int, leave_out: frozenset[str] = frozenset()) -> SampleScan:
        chunks = decompressed(self._storage.stream(self.name), shard=self._url)
        return SampleScan(chunks, shard=self._url, keep_bytes=keep_bytes, on_bad=self.on_bad, leave_out=leave_out)

    def notes(self) -> ShardNotes:
        """What was odd about the shard."""
        found = self._scan.notes(self.name) if self._scan else ShardNotes(shard=self.name)
        return replace(found, skipped=(*found.skipped, *self._skipped))


class _IndexedShard(_Source):
    """A shard of a data set, whose bytes are compared with its index."""

    def __init__(self, dataset: Dataset, number: int, on_bad: OnBad) -> None:
        record = dataset.catalog.shard(number)
        super().__init__(record.name, dataset.catalog.shard_url(number), on_bad, record.tar_bytes)
        self._dataset = dataset
        self._number = number

    def __iter__(self) -> Iterator[_Sample]:
        catalog = self._dataset.catalog
        index, first = catalog.index(self._number), int(catalog.row_starts[self._number])
        step = max(1, _READ_BYTES * index.num_samples // index.tar_bytes)
        for start in range(0, index.num_samples, step):
            stop = min(start + step, index.num_samples)
            for row, sample in enumerate(self._dataset.read(range(first + start, first + stop)), start=start):
                try:
                    fields = {name: sample.raw(name) for name in sample}
                except SampleError as exc:
                    if self.on_bad == "raise":
                        raise
                    self.skip(sample.key, exc)
                    continue
                yield _Sample(sample.key, fields, _columns_of(index, row))


def _columns_of(index: ShardIndex, row: int) -> dict[str, ColumnValue]:
    return {
        name: values[row].decode() if isinstance(values, Strings) else values[row].item()
        for name, values in index.columns.items()
    }
