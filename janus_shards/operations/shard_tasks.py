"""One planned shard as a task for any process: write it, or find that an earlier run already did.

Everything that decides the bytes of a shard travels in its task, so it does not matter where and when the task runs.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import xxhash

from janus_shards.decode.image import image_size
from janus_shards.errors import DecodeError, FormatError, IntegrityError, StorageError
from janus_shards.format.columns import Strings
from janus_shards.format.index import ColumnValue, FieldColumn, ShardIndex
from janus_shards.format.naming import index_name, may_inline
from janus_shards.format.tar import BLOCK_BYTES, encode_header, padding
from janus_shards.operations.folders import SourceFolder, open_folder
from janus_shards.operations.sources import Part, SourceSample, is_image
from janus_shards.sample import RawBytes
from janus_shards.storage.base import Storage, StorageOptions
from janus_shards.storage.local import LocalStorage
from janus_shards.storage.urls import open_storage
from janus_shards.writer.sample import EncodedSample
from janus_shards.writer.shard import TAIL_BYTES, ShardStream, WrittenShard, describe_shard


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """All that a process needs to write one shard.

    Attributes:
        name: Name of the shard.
        samples: Its samples, in order.
        source: Folder that the paths of the samples are relative to.
        root: Where the shard goes.
        inline_bytes: See ``ShardLayout``.
        has_sizes: Whether each row gets the columns ``width`` and ``height``; 0 for a sample without a picture.
        storage_options: Settings of both stores. They may hold keys, which go through the pipe to a worker and nowhere
            else.
    """

    name: str
    samples: Sequence[SourceSample]
    source: str
    root: str
    inline_bytes: int
    has_sizes: bool
    storage_options: Mapping[str, object] = field(repr=False)

    def open_root(self) -> Storage:
        """The storage that the shard goes to."""
        return open_storage(self.root, StorageOptions.from_mapping(self.storage_options))


def write_task(task: ShardTask) -> WrittenShard:
    """Read the files of one shard, check them, and publish shard and index.

    Raises:
        DecodeError: A file that should be a picture is none.
        StorageError: A file cannot be read, or changed since it was planned (``IntegrityError``), or the shard cannot
            be written. Nothing of the shard is left.
    """
    storage = task.open_root()
    folder = open_folder(task.source, task.storage_options)
    upload = storage.open_upload(task.name)
    with ShardStream(storage, task.name, inline_bytes=task.inline_bytes, upload=upload) as stream:
        for sample in task.samples:
            stream.add(_load(folder, sample, has_sizes=task.has_sizes))
        written = stream.publish(stream.finish())
    storage.close()
    return written


def _load(folder: SourceFolder, sample: SourceSample, *, has_sizes: bool) -> EncodedSample:
    fields, size = [], (0, 0)
    for part in sample.parts:
        data = _read_part(folder, part)
        if is_image(part.field):
            found = _checked_size(folder, sample, part, data)
            size = found if size == (0, 0) else size
        fields.append((part.field, data))
    columns: dict[str, ColumnValue] = {"width": size[0], "height": size[1]} if has_sizes else {}
    return EncodedSample(sample.key, tuple(fields), columns)


def _read_part(folder: SourceFolder, part: Part) -> RawBytes:
    if part.data is not None:
        return part.data
    data = folder.read(part.path)
    if len(data) != part.size:
        raise IntegrityError(
            f"{_file_url(folder, part)}: expected the {part.size} bytes it had when packing began, found {len(data)}; "
            "pack it when nobody writes to it",
            kind="source_changed",
            shard=_file_url(folder, part),
        )
    return data


def _checked_size(folder: SourceFolder, sample: SourceSample, part: Part, data: RawBytes) -> tuple[int, int]:
    """Width and height of a picture, which also shows that it is one."""
    try:
        return image_size(data)
    except DecodeError as exc:
        raise DecodeError(
            f"{_file_url(folder, part)} (key {sample.key!r}): {exc.message}; correct or remove this file, then pack "
            f"again with "
            "resume=True (--resume) to keep the shards already written",
            kind=exc.kind,
            shard=_file_url(folder, part),
            key=sample.key,
            field=part.field,
        ) from exc


def _file_url(folder: SourceFolder, part: Part) -> str:
    return os.path.join(folder.url, part.path)


# --- what an earlier run left -----------------------------------------------------------------------------------------


def find_written(task: ShardTask) -> WrittenShard | None:
    """The shard of an interrupted run, when it is whole and is what this task would write; else ``None``.

    Its index has to be valid and to hold exactly the planned keys, fields, places and sizes, and the planned bytes
    where the plan has them. Files are trusted by size; where both sides are local, also to be no younger than the
    shard.
    """
    storage = task.open_root()
    try:
        meta = storage.head(task.name)
        encoded = bytes(storage.read(index_name(task.name)))
        index = ShardIndex.decode(encoded, name=task.name)
    except (StorageError, FormatError):
        return None
    if meta.size != index.tar_bytes or not _fits(index, task) or _has_younger_file(storage, task):
        return None
    return describe_shard(task.name, index, encoded, meta=None if storage.is_local else meta)


def _has_younger_file(storage: Storage, task: ShardTask) -> bool:
    if not isinstance(storage, LocalStorage):
        return False
    written_ns = os.stat(os.path.join(storage.root, task.name)).st_mtime_ns
    return any(part.mtime_ns > written_ns for sample in task.samples for part in sample.parts)


@dataclass
class _PlannedField:
    """What the index has to say about one field."""

    rows: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    known: list[tuple[int, bytes]] = field(default_factory=list)  # places whose bytes are in the plan


def _fits(index: ShardIndex, task: ShardTask) -> bool:
    planned, tar_bytes = _planned_fields(task.samples)
    keys = Strings.of([sample.key.encode() for sample in task.samples])
    return (
        index.tar_bytes == tar_bytes + TAIL_BYTES
        and len(index.keys) == len(keys)
        and index.keys.data == keys.data
        and np.array_equal(index.keys.offsets, keys.offsets)
        and set(index.columns) == ({"width", "height"} if task.has_sizes else set())
        and list(index.fields) == list(planned)
        and all(_field_fits(name, column, planned[name], task) for name, column in index.fields.items())
    )


def _planned_fields(samples: Sequence[SourceSample]) -> tuple[dict[str, _PlannedField], int]:
    """Fields in order of first appearance, and the length of all members."""
    fields: dict[str, _PlannedField] = {}
    position = 0
    for row, sample in enumerate(samples):
        for part in sample.parts:
            planned = fields.setdefault(part.field, _PlannedField())
            position += len(encode_header(f"{sample.key}.{part.field}", part.size))
            planned.rows.append(row)
            planned.offsets.append(position)
            planned.sizes.append(part.size)
            if part.data is not None:
                planned.known.append((len(planned.rows) - 1, part.data))
            position += part.size + len(padding(part.size))
    return fields, position


def _field_fits(name: str, column: FieldColumn, planned: _PlannedField, task: ShardTask) -> bool:
    rows = column.rows if column.rows is not None else np.arange(len(task.samples))
    return (
        column.inline_bytes == (task.inline_bytes if may_inline(name) else 0)
        and np.array_equal(rows, planned.rows)
        and np.array_equal(column.units.astype(np.int64) * BLOCK_BYTES, planned.offsets)
        and np.array_equal(column.sizes, planned.sizes)
        and all(int(column.xxh3[place]) == xxhash.xxh3_64_intdigest(data) for place, data in planned.known)
    )
