"""Rebuild indexes and manifests from the shards they describe. No tar is touched, and nothing is guessed.

What is rebuilt has to prove itself: a shard by the digest in the manifest, an index by the digest of its bytes or by
describing the same samples, a generation by the digest in the pointer. What cannot is left as it is, so that a data set
that is not whole never looks as if it were.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from janus_shards.decode.image import image_size
from janus_shards.errors import ConfigError, DecodeError, FormatError, StorageError
from janus_shards.format.index import DEFAULT_INLINE_BYTES, ColumnValue, FieldSpan, IndexBuilder, ShardIndex
from janus_shards.format.manifest import Manifest, ManifestPointer, ShardRecord
from janus_shards.format.naming import index_name, may_inline
from janus_shards.operations.scan import SampleScan
from janus_shards.operations.sources import is_image
from janus_shards.sample import RawBytes
from janus_shards.storage.base import Storage
from janus_shards.writer.publish import make_manifest, writer_name
from janus_shards.writer.shard import WrittenShard, describe_shard

# The columns that ``pack`` takes from the pictures themselves.
_SIZE_COLUMNS = {"width": "int64", "height": "int64"}
# Longer fields do not fit into memory anywhere.
_KEEP_BYTES = 1 << 62


@dataclass(frozen=True, kw_only=True)
class RebuiltIndex:
    """An index made anew.

    Attributes:
        encoded: Its bytes.
        record: The shard table's row that describes them; the old row where the bytes are the old ones.
    """

    encoded: bytes
    record: ShardRecord


def rebuild_index(
    shards: Storage, record: ShardRecord, manifest: Manifest, *, inline_bytes: Iterable[int]
) -> RebuiltIndex:
    """Scan a shard and make its index again.

    Args:
        shards: Where the shard lies.
        record: Its row of the shard table.
        manifest: The generation, which says what metadata columns the data set has.
        inline_bytes: Thresholds of inlined values to try, as the indexes of other shards have them.

    Raises:
        FormatError: The shard is not the one that the manifest names, or its index had metadata columns that no tar
            holds (kind ``not_rebuilt``).
    """
    url = f"{shards.url}/{record.name}"
    digest = hashlib.sha256()
    columns = (False, True) if manifest.columns == _SIZE_COLUMNS else (False,)
    builders = {
        wanted: IndexBuilder(url, inline_bytes=wanted[0])
        for wanted in product(dict.fromkeys((*inline_bytes, DEFAULT_INLINE_BYTES, 0)), columns)
    }
    scan = SampleScan(_hashed(shards.stream(record.name), digest), shard=url, keep_bytes=_KEEP_BYTES, on_bad="skip")
    for key, spans in scan:
        for (_, has_sizes), builder in builders.items():
            builder.add(key, spans, _sizes(spans) if has_sizes else {})
    if (scan.position, digest.digest()) != (record.tar_bytes, record.sha256):
        raise _refused(f"{url}: its bytes are not those that the manifest names, so no index was made for it", record)
    indexes = [builder.build(tar_bytes=scan.position, tar_sha256=digest.digest()) for builder in builders.values()]
    return _chosen(indexes, record, manifest, url)


def _chosen(indexes: Sequence[ShardIndex], record: ShardRecord, manifest: Manifest, url: str) -> RebuiltIndex:
    """The index with the bytes that the manifest names, or else one that says the same about the same samples."""
    for index in indexes:
        encoded = index.encode()
        if hashlib.sha256(encoded).digest() == record.index_sha256:
            return RebuiltIndex(encoded=encoded, record=record)
    for index in indexes:
        if index.columns.keys() == manifest.columns.keys() and index.num_samples == record.num_samples:
            encoded = index.encode()
            digest = hashlib.sha256(encoded).digest()
            return RebuiltIndex(encoded=encoded, record=replace(record, index_bytes=len(encoded), index_sha256=digest))
    raise _refused(
        f"{url}: its index had the metadata columns {', '.join(manifest.columns) or 'none'} for {record.num_samples} "
        "samples, which the tar alone does not give: write the data set anew, or take the index from a copy",
        record,
    )


def _sizes(spans: Sequence[FieldSpan]) -> dict[str, ColumnValue]:
    """Width and height of the first picture of a sample, as ``pack`` records them."""
    for span in spans:
        if is_image(span.field) and span.data is not None:
            try:
                width, height = image_size(span.data)
            except DecodeError:
                continue
            if (width, height) != (0, 0):
                return {"width": width, "height": height}
    return {"width": 0, "height": 0}


def _refused(message: str, record: ShardRecord) -> FormatError:
    return FormatError(message, kind="not_rebuilt", shard=record.name)


def _hashed(chunks: Iterator[RawBytes], digest: "hashlib._Hash") -> Iterator[RawBytes]:
    for chunk in chunks:
        digest.update(chunk)
        yield chunk


def inline_thresholds(indexes: Storage, manifest: Manifest) -> list[int]:
    """Thresholds of inlined values in the indexes that can be read; those of one data set agree."""
    found: set[int] = set()
    for record in manifest.shards:
        try:
            index = ShardIndex.decode(indexes.read(index_name(record.name)), name=record.name)
        except (StorageError, FormatError):
            continue
        found |= {column.inline_bytes for name, column in index.fields.items() if may_inline(name)}
        if found:
            break
    return sorted(found)


def rebuild_generation(
    storage: Storage, pointer: ManifestPointer, sizes: Mapping[str, int], writers: Iterable[str]
) -> bytes | None:
    """The bytes of the generation that a pointer names, from the shards and indexes that lie under a root.

    Args:
        storage: The root.
        pointer: Says the digest that the bytes must have.
        sizes: Lengths of the objects under the root, by name.
        writers: Writers of the manifest to try besides this program.

    Returns:
        ``None`` where what lies there does not give exactly these bytes: shards are missing, or lie elsewhere.
    """
    shards = [found for name in sizes if name.endswith(".tar") and (found := _described(storage, name, sizes))]
    if not shards:
        return None
    try:
        made = make_manifest(shards, generation=pointer.generation)
    except ConfigError:  # indexes of several data sets
        return None
    for writer in dict.fromkeys((writer_name(), *writers)):
        encoded = replace(made, writer=writer).encode()
        if hashlib.sha256(encoded).digest() == pointer.sha256:
            return encoded
    return None


def _described(storage: Storage, name: str, sizes: Mapping[str, int]) -> WrittenShard | None:
    """What the manifest has to know about a shard, where its index is whole and fits its length."""
    try:
        encoded = bytes(storage.read(index_name(name)))
        index = ShardIndex.decode(encoded, name=index_name(name))
    except (StorageError, FormatError):
        return None
    if index.tar_bytes != sizes[name] or not index.num_samples:
        return None
    return describe_shard(name, index, encoded, meta=None if storage.is_local else storage.head(name))
