"""The manifest: which shards make up a data set, in which order, and how to know that they are still the same.

``manifest.msgpack`` is a small pointer to the newest generation, ``manifest-<n>.msgpack`` an immutable generation. Byte layout:
``docs/format.md``.
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
from janus_shards.format.naming import check_relative, generation_name
from janus_shards.sample import RawBytes

MANIFEST_MAGIC = "janus-shards-manifest"
POINTER_MAGIC = "janus-shards-pointer"


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
        """
        digest = hashlib.sha256(b"janus-shards fingerprint 1\n")
        for shard in self.shards[:num_shards]:
            name = shard.name.encode("utf-8", "surrogateescape")
            digest.update(struct.pack("<I", len(name)) + name + struct.pack("<QQ", shard.num_samples, shard.tar_bytes))
            digest.update(shard.sha256)
        return digest.hexdigest()

    def encode(self) -> bytes:
        """The generation as stored; the same bytes for the same content."""
        shards = self.shards
        table = {
            "name": pack_strings(Strings.of([shard.name.encode("utf-8", "surrogateescape") for shard in shards])),
            "num_samples": _counts([shard.num_samples for shard in shards]),
            "tar_bytes": _counts([shard.tar_bytes for shard in shards]),
            "sha256": b"".join(shard.sha256 for shard in shards),
            "index_bytes": _counts([shard.index_bytes for shard in shards]),
            "index_sha256": b"".join(shard.index_sha256 for shard in shards),
            "etag": pack_strings(Strings.of([shard.etag.encode() for shard in shards])),
            "version_id": pack_strings(Strings.of([shard.version.encode() for shard in shards])),
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
            ManifestError: The bytes are damaged, a shard path leaves its root, or the fingerprint does not fit the table.
            VersionError: A later format wrote them.
        """
        content = unpack_map(data, magic=MANIFEST_MAGIC, name=name, error=ManifestError)
        top = Columns(content, name=name, error=ManifestError)
        schema = top.map("schema")
        manifest = cls(
            shards=_unpack_shards(top, name),
            generation=top.integer("generation"),
            writer=top.text("writer"),
            fields=_texts(content["schema"].get("fields"), schema, "fields"),
            columns={key: schema.map("columns").text(key) for key in schema.map("columns").names()},
            base_url=top.text("base_url"),
        )
        found = top.binary("fingerprint", 32).hex()
        if found != manifest.fingerprint():
            raise top.damaged("fingerprint", manifest.fingerprint(), found)
        return manifest


def _counts(values: list[int]) -> list[Any]:
    return pack_unsigned(np.array(values, dtype=np.uint64))


def _texts(value: object, schema: Columns, key: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise schema.damaged(key, "a list of texts", type(value).__name__)
    return value


def _unpack_shards(top: Columns, name: str) -> list[ShardRecord]:
    count, table = top.integer("num_shards"), top.map("shards")
    names = table.strings("name", count).texts()
    for shard in names:
        if not check_relative(shard):
            raise ManifestError(
                f"{name}: shard path {shard!r}: expected a relative path that stays under the root",
                kind="bad_path",
                shard=shard,
            )
    sha256, index_sha256 = table.binary("sha256", 32 * count), table.binary("index_sha256", 32 * count)
    columns = [table.array(key, count).tolist() for key in ("num_samples", "tar_bytes", "index_bytes")]
    etags, versions = table.strings("etag", count).texts(), table.strings("version_id", count).texts()
    rows = zip(names, *columns, etags, versions, strict=True)
    return [
        ShardRecord(
            name=shard,
            num_samples=num_samples,
            tar_bytes=tar_bytes,
            sha256=sha256[32 * at : 32 * at + 32],
            index_bytes=index_bytes,
            index_sha256=index_sha256[32 * at : 32 * at + 32],
            etag=etag,
            version=version,
        )
        for at, (shard, num_samples, tar_bytes, index_bytes, etag, version) in enumerate(rows)
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
        return pack_map(POINTER_MAGIC, {"generation": self.generation, "sha256": self.sha256})

    @classmethod
    def decode(cls, data: RawBytes, *, name: str) -> "ManifestPointer":
        """Read the pointer.

        Raises:
            ManifestError: The bytes are damaged.
            VersionError: A later format wrote them.
        """
        top = Columns(
            unpack_map(data, magic=POINTER_MAGIC, name=name, error=ManifestError), name=name, error=ManifestError
        )
        return cls(generation=top.integer("generation"), sha256=top.binary("sha256", 32))
