"""One shard while it is written: tar bytes out, index rows beside them, both published together.

``ShardWriter`` and ``pack`` both write through ``ShardStream``, so that the same samples give the same bytes on either
way.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import xxhash

from janus_shards.errors import ConfigError, StorageError
from janus_shards.format.columns import Strings
from janus_shards.format.index import DEFAULT_INLINE_BYTES, MAX_INLINE_BYTES, FieldSpan, IndexBuilder, ShardIndex
from janus_shards.format.manifest import ShardRecord
from janus_shards.format.naming import check_prefix, index_name, shard_name
from janus_shards.format.tar import BLOCK_BYTES, END_BLOCKS, encode_header, padding
from janus_shards.sample import RawBytes
from janus_shards.storage.base import ObjectMeta, Storage, Upload
from janus_shards.writer.sample import EncodedSample

#: The end blocks that every shard has.
TAIL_BYTES = len(END_BLOCKS)

# Offsets in an index are u32 counts of 512 bytes.
_MAX_SHARD_BYTES = 2**32 * BLOCK_BYTES

# A sample up to this length is joined and written as one piece: fewer system calls and hash updates.
_JOIN_BYTES = 4 << 20

_COLUMN_KINDS = {"b": "bool", "i": "int64", "f": "float64"}


@dataclass(frozen=True, kw_only=True)
class ShardLayout:
    """How samples are cut into shards.

    Attributes:
        prefix: Shards are called ``<prefix>-000000.tar`` and so on.
        max_shard_bytes: Length that a shard stays within, unless its only sample is longer.
        max_samples: Samples that a shard has at most; ``None`` sets no limit.
        inline_bytes: Values shorter than this are kept in the index, media and tensors excepted; 0 keeps none.

    Raises:
        ConfigError: A value is outside its range.
    """

    prefix: str = "shard"
    max_shard_bytes: int = 256 << 20
    max_samples: int | None = None
    inline_bytes: int = DEFAULT_INLINE_BYTES

    def __post_init__(self) -> None:
        check_prefix(self.prefix)
        if not 0 < self.max_shard_bytes <= _MAX_SHARD_BYTES:
            raise ConfigError(f"max_shard_bytes={self.max_shard_bytes}: expected 1 to {_MAX_SHARD_BYTES} (2 TiB)")
        if self.max_samples is not None and self.max_samples < 1:
            raise ConfigError(f"max_samples={self.max_samples}: expected at least 1, or None for no limit")
        if not 0 <= self.inline_bytes <= MAX_INLINE_BYTES:
            raise ConfigError(
                f"inline_bytes={self.inline_bytes}: expected 0 (keep none) to {MAX_INLINE_BYTES} (16 MiB)"
            )

    def is_full(self, num_samples: int, num_bytes: int, next_bytes: int) -> bool:
        """Whether the next sample belongs into the next shard.

        Args:
            num_samples: Samples of this shard so far.
            num_bytes: Their length in the tar.
            next_bytes: Length of the next sample in the tar.
        """
        if not num_samples:
            return False
        return num_samples == self.max_samples or num_bytes + next_bytes + TAIL_BYTES > self.max_shard_bytes

    def shard_name(self, number: int) -> str:
        """Name of shard ``number``."""
        return shard_name(self.prefix, number)


@dataclass(frozen=True, kw_only=True)
class WrittenShard:
    """What the manifest has to know about one shard.

    Attributes:
        record: Its row of the shard table.
        fields: Names of its fields.
        columns: Type names of its metadata columns: ``bool``, ``int64``, ``float64`` or ``str``.
    """

    record: ShardRecord
    fields: Sequence[str]
    columns: Mapping[str, str] = field(default_factory=dict)


class ShardStream:
    """Writes the members of one shard in order. Nothing is visible before ``publish``.

    As a context manager it takes back what it uploaded unless ``publish`` was reached.

    Args:
        storage: Where the shard goes.
        name: Name of the shard under that root.
        inline_bytes: See ``ShardLayout``.
        upload: Takes the bytes of the shard; ``None`` only computes what they would be.
    """

    def __init__(self, storage: Storage, name: str, *, inline_bytes: int, upload: Upload | None) -> None:
        self.name = name
        self.num_bytes = 0
        self._storage = storage
        self._upload = upload
        self._sha256 = hashlib.sha256()
        self._index = IndexBuilder(name, inline_bytes=inline_bytes)
        self._keys: set[str] = set()

    @property
    def num_samples(self) -> int:
        """Samples written so far."""
        return self._index.num_samples

    def add(self, sample: EncodedSample) -> None:
        """Write one sample behind the others.

        Raises:
            ConfigError: The shard already has this key, or the metadata columns differ from the rows before.
            StorageError: The bytes could not be written.
        """
        if sample.key in self._keys:
            raise duplicate_key(sample.key, self.name)
        pieces: list[RawBytes] = []
        spans: list[FieldSpan] = []
        position = self.num_bytes
        for name, data in sample.fields:
            size = len(data)
            header, fill = encode_header(f"{sample.key}.{name}", size), padding(size)
            position += len(header)
            kept = bytes(data) if self._index.keeps_inline(name, size) else None
            spans.append(FieldSpan(name, position, size, xxhash.xxh3_64_intdigest(data), kept))
            pieces += [header, data, fill]
            position += size + len(fill)
        self._index.add(sample.key, spans, sample.columns)
        self._keys.add(sample.key)
        for piece in pieces if position - self.num_bytes > _JOIN_BYTES else [b"".join(pieces)]:
            self._write(piece)
        self.num_bytes = position

    def _write(self, data: RawBytes) -> None:
        self._sha256.update(data)
        if self._upload is not None:
            self._upload.write(data)

    def finish(self) -> ShardIndex:
        """Write the end blocks and build the index; nothing is visible yet."""
        self._write(END_BLOCKS)
        self.num_bytes += TAIL_BYTES
        return self._index.build(tar_bytes=self.num_bytes, tar_sha256=self._sha256.digest())

    def publish(self, index: ShardIndex) -> WrittenShard:
        """Make the finished shard and its index visible, one right after the other.

        Raises:
            StorageError: One of them could not be written; neither is left behind.
        """
        if self._upload is None:
            raise ValueError(f"shard {self.name} was only computed, not written")
        encoded = index.encode()
        # The index is complete on its way before the shard appears, so that a full disk or a kill between the two is
        # unlikely.
        with self._storage.open_upload(index_name(self.name)) as index_upload:
            index_upload.write(encoded)
            meta = self._upload.finish()
            self._upload = None
            try:
                index_upload.finish()
            except StorageError:
                self._storage.delete(self.name)
                raise
        return describe_shard(self.name, index, encoded, meta=None if self._storage.is_local else meta)

    def abort(self) -> None:
        """Take back what was uploaded."""
        if self._upload is not None:
            self._upload.abort()
            self._upload = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.abort()


def describe_shard(name: str, index: ShardIndex, encoded: bytes, *, meta: ObjectMeta | None) -> WrittenShard:
    """What the manifest keeps of a shard.

    Args:
        name: Path of the shard under its root.
        index: Its index.
        encoded: The index as stored.
        meta: What the object store said about the shard; ``None`` for local files, whose times would make manifests
            differ.
    """
    record = ShardRecord(
        name=name,
        num_samples=index.num_samples,
        tar_bytes=index.tar_bytes,
        sha256=index.tar_sha256,
        index_bytes=len(encoded),
        index_sha256=hashlib.sha256(encoded).digest(),
        etag=(meta.etag or "") if meta else "",
        version=(meta.version or "") if meta else "",
    )
    columns = {
        column: "str" if isinstance(values, Strings) else _COLUMN_KINDS[values.dtype.kind]
        for column, values in index.columns.items()
    }
    return WrittenShard(record=record, fields=list(index.fields), columns=columns)


def duplicate_key(key: str, shard: str) -> ConfigError:
    """The error for a key that occurs twice in a data set."""
    return ConfigError(
        f"shard {shard}: key {key!r} occurs twice in the data set; give every sample a key of its own",
        kind="duplicate_key",
        shard=shard,
        key=key,
    )
