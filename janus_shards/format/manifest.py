"""The manifest: which shards make up a data set, in which order, and how to know that they are still the same.

``manifest.msgpack`` is a small pointer to the newest generation, ``manifest-<n>.msgpack`` an immutable generation. Byte
layout: ``docs/format.md``.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from janus_shards.errors import ManifestError
from janus_shards.format.columns import Columns, Strings, pack_map, pack_strings, pack_unsigned, unpack_map
from janus_shards.format.naming import check_relative, generation_name, index_name, is_field
from janus_shards.format.tar import BLOCK_BYTES, MAX_TAR_BYTES
from janus_shards.sample import RawBytes

MANIFEST_MAGIC = "janus-shards-manifest"
POINTER_MAGIC = "janus-shards-pointer"

# Far above any index; what a reader fetches is limited by it.
_MAX_INDEX_BYTES = 1 << 36
_COLUMN_TYPES = ("bool", "int64", "float64", "str")


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """One row of the shard table.

    Attributes:
        name: Path relative to the root of the shards; never absolute, never with ``..``.
        num_samples: Rows of the shard.
        tar_bytes: Length of the shard.
        sha256: SHA-256 of the shard, 32 bytes.
        index_bytes: Length of its index.
        index_sha256: SHA-256 of its index, 32 bytes.
        etag: ETag that the object store reported at writing, or ``""``.
        version: Version id that the object store reported, or ``""``.
    """

    name: str
    num_samples: int
    tar_bytes: int
    sha256: bytes
    index_bytes: int
    index_sha256: bytes
    etag: str = ""
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One generation of a data set.

    Attributes:
        shards: The shard table, in the order of sample ids.
        generation: 1 for the first; each append is the next.
        writer: Program and version that wrote it.
        fields: All field names that occur, sorted.
        columns: Dtype name by metadata column: ``bool``, ``int64``, ``float64`` or ``str``.
        base_url: Where the shards lie when not beside the manifest, else ``""``. Written by ``index`` only.
    """

    shards: Sequence[ShardRecord]
    generation: int = 1
    writer: str = ""
    fields: Sequence[str] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    base_url: str = ""

    @property
    def num_samples(self) -> int:
        """Rows of all shards."""
        return sum(shard.num_samples for shard in self.shards)

    def shard_rows(self) -> NDArray[np.int64]:
        """Samples a shard, shape ``(num_shards,)``."""
        return np.array([shard.num_samples for shard in self.shards], dtype=np.int64)

    def shard_bytes(self) -> NDArray[np.int64]:
        """Bytes a shard, shape ``(num_shards,)``."""
        return np.array([shard.tar_bytes for shard in self.shards], dtype=np.int64)

    def fingerprint(self, num_shards: int | None = None) -> str:
        """Identity of the contents of the first ``num_shards`` shards (default all), as 64 hex digits.

        SHA-256 over (name, num_samples, tar_bytes, sha256) of each shard; a copy elsewhere has the same fingerprint.
        Every prefix has one of its own, so a longer data set can be told to begin with a shorter one.
        """
        if num_shards is not None and num_shards < 0:
            raise ValueError(f"fingerprint of {num_shards} shards: expected at least 0")
        digest = hashlib.sha256(b"janus-shards fingerprint 1\n")
        for shard in self.shards[:num_shards]:
            name = _bytes(shard.name)
            digest.update(struct.pack("<I", len(name)) + name + struct.pack("<QQ", shard.num_samples, shard.tar_bytes))
            digest.update(shard.sha256)
        return digest.hexdigest()

    def encode(self) -> bytes:
        """The generation as stored; the same bytes for the same content.

        Raises:
            ManifestError: A shard path leaves its root (``bad_path``) or two shards would share a name or an index.
        """
        shards = self.shards
        _check_names([shard.name for shard in shards], "manifest to be written")
        table = {
            "name": pack_strings(Strings.of([_bytes(shard.name) for shard in shards])),
            "num_samples": _counts([shard.num_samples for shard in shards]),
            "tar_bytes": _counts([shard.tar_bytes for shard in shards]),
            "sha256": b"".join(shard.sha256 for shard in shards),
            "index_bytes": _counts([shard.index_bytes for shard in shards]),
            "index_sha256": b"".join(shard.index_sha256 for shard in shards),
            "etag": pack_strings(Strings.of([_bytes(shard.etag) for shard in shards])),
            "version_id": pack_strings(Strings.of([_bytes(shard.version) for shard in shards])),
        }
        content = {
            "generation": self.generation,
            "writer": self.writer,
            "fingerprint": bytes.fromhex(self.fingerprint()),
            "base_url": self.base_url,
            "schema": {"fields": list(self.fields), "columns": dict(self.columns)},
            "num_shards": len(shards),
            "shards": table,
        }
        return pack_map(MANIFEST_MAGIC, content)

    @classmethod
    def decode(cls, data: RawBytes, *, name: str) -> "Manifest":
        """Read a generation and check it.

        Raises:
            ManifestError: The bytes are damaged, a shard path leaves its root (``bad_path``), or the fingerprint does
                not fit the table.
            VersionError: A later format wrote them.
        """
        content = unpack_map(data, magic=MANIFEST_MAGIC, name=name, error=ManifestError)
        top = Columns(content, name=name, error=ManifestError)
        schema = top.map("schema")
        manifest = cls(
            shards=_unpack_shards(top, name),
            generation=_unpack_generation(top),
            writer=top.text("writer"),
            fields=_unpack_fields(schema),
            columns=_unpack_columns(schema.map("columns")),
            base_url=top.text("base_url"),
        )
        found = top.binary("fingerprint", 32).hex()
        if found != manifest.fingerprint():
            raise top.damaged("fingerprint", manifest.fingerprint(), found)
        return manifest


def _counts(values: list[int]) -> list[Any]:
    return pack_unsigned(np.array(values, dtype=np.uint64))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _unpack_generation(top: Columns) -> int:
    generation = top.integer("generation")
    if generation < 1:
        raise top.damaged("generation", "1 or more", generation)
    return generation


def _unpack_fields(schema: Columns) -> list[str]:
    fields = schema.texts("fields")
    if not all(is_field(name) for name in fields):
        raise schema.damaged("fields", "field names", "an empty one, or one with a slash or NUL")
    return fields


def _unpack_columns(columns: Columns) -> dict[str, str]:
    types = {name: columns.text(name) for name in columns.names()}
    for name, kind in types.items():
        if kind not in _COLUMN_TYPES:
            raise columns.damaged(name, f"one of {', '.join(_COLUMN_TYPES)}", kind)
    return types


def _check_names(names: list[str], where: str) -> None:
    indexes: set[str] = set()
    for name in names:
        if not check_relative(name):
            raise ManifestError(
                f"{where}: shard path {name!r}: expected a relative path that stays under the root",
                kind="bad_path",
                shard=name,
            )
        if index_name(name) in indexes:
            raise ManifestError(f"{where}: shard {name!r}: another shard has this name or its index", shard=name)
        indexes.add(index_name(name))


def _unpack_shards(top: Columns, name: str) -> list[ShardRecord]:
    count, table = top.integer("num_shards"), top.map("shards")
    names = table.strings("name", count).texts()
    _check_names(names, name)
    num_samples, tar_bytes, index_bytes = (
        table.array(key, count) for key in ("num_samples", "tar_bytes", "index_bytes")
    )
    if count and int(tar_bytes.max()) > MAX_TAR_BYTES:
        raise table.damaged("tar_bytes", f"lengths of at most {MAX_TAR_BYTES}", "a longer shard")
    if (num_samples > tar_bytes // BLOCK_BYTES).any():
        raise table.damaged("num_samples", "at most one sample for every 512 bytes of a shard", "more")
    if count and int(index_bytes.max()) > _MAX_INDEX_BYTES:
        raise table.damaged("index_bytes", f"lengths of at most {_MAX_INDEX_BYTES}", "a longer index")
    sha256, index_sha256 = table.binary("sha256", 32 * count), table.binary("index_sha256", 32 * count)
    columns = [column.tolist() for column in (num_samples, tar_bytes, index_bytes)]
    etags, versions = table.strings("etag", count).texts(), table.strings("version_id", count).texts()
    table_rows = zip(names, *columns, etags, versions, strict=True)
    return [
        ShardRecord(
            name=shard,
            num_samples=rows,
            tar_bytes=length,
            sha256=sha256[32 * at : 32 * at + 32],
            index_bytes=index_length,
            index_sha256=index_sha256[32 * at : 32 * at + 32],
            etag=etag,
            version=version,
        )
        for at, (shard, rows, length, index_length, etag, version) in enumerate(table_rows)
    ]


@dataclass(frozen=True, kw_only=True)
class ManifestPointer:
    """Which generation is the newest, and the digest of its bytes."""

    generation: int
    sha256: bytes

    @property
    def target(self) -> str:
        """Name of the generation object."""
        return generation_name(self.generation)

    def encode(self) -> bytes:
        """The pointer as stored."""
        return pack_map(POINTER_MAGIC, {"generation": self.generation, "sha256": self.sha256})

    @classmethod
    def decode(cls, data: RawBytes, *, name: str) -> "ManifestPointer":
        """Read the pointer.

        Raises:
            ManifestError: The bytes are damaged.
            VersionError: A later format wrote them.
        """
        content = unpack_map(data, magic=POINTER_MAGIC, name=name, error=ManifestError)
        top = Columns(content, name=name, error=ManifestError)
        return cls(generation=_unpack_generation(top), sha256=top.binary("sha256", 32))
