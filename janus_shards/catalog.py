"""Catalog: the manifest, shards and indexes of one data set, opened lazily and shared by everything that reads it.

Knows where bytes lie and that they are still the bytes that were indexed. Decoding, order and user-facing samples are
elsewhere.
"""

import functools
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from janus_shards.errors import (
    ConfigError,
    IndexFormatError,
    IntegrityError,
    ManifestError,
    ObjectNotFoundError,
)
from janus_shards.format.index import ShardIndex
from janus_shards.format.manifest import Manifest, ManifestPointer, ShardRecord
from janus_shards.format.naming import MANIFEST_NAME, generation_name, index_name
from janus_shards.sample import RawBytes
from janus_shards.storage.base import Storage, StorageOptions
from janus_shards.storage.local import LocalStorage
from janus_shards.storage.urls import open_storage

# Decoded indexes kept in memory. 48 bytes a sample: 256 MiB hold about five million rows.
_INDEX_MEMORY_BYTES = 256 << 20
# Indexes of a data set up to this length in all are copied: nobody can take away the bytes under a copy.
_COPY_INDEX_BYTES = 16 << 20


def load_manifest(storage: Storage, *, generation: int | None = None, fingerprint: str | None = None) -> Manifest:
    """The newest generation under a root, or a pinned one.

    Args:
        storage: Storage opened at the root.
        generation: Read this generation instead of the newest.
        fingerprint: Refuse any other contents than these.

    Raises:
        ObjectNotFoundError: There is no manifest, or no such generation.
        ManifestError: The manifest is damaged.
        ConfigError: The contents have another fingerprint than the one pinned.
    """
    if generation is None:
        manifest = _load_newest(storage)
    else:
        manifest = _load_generation(storage, generation, _read(storage, generation_name(generation)))
    if fingerprint is not None and manifest.fingerprint() != fingerprint:
        raise ConfigError(
            f"{storage.url}: expected fingerprint {fingerprint}, found {manifest.fingerprint()} in generation "
            f"{manifest.generation}; the data set is another one than was pinned",
            kind="state_mismatch",
        )
    return manifest


def _load_newest(storage: Storage) -> Manifest:
    where = f"{storage.url}/{MANIFEST_NAME}"
    pointer = ManifestPointer.decode(_read(storage, MANIFEST_NAME), name=where)
    try:
        data = storage.read(pointer.target)
    except ObjectNotFoundError as exc:
        raise ManifestError(
            f"{where} names {pointer.target}, which does not exist; copy the data set again, or pass an older "
            "generation that is there",
            shard=storage.url,
        ) from exc
    if hashlib.sha256(data).digest() != pointer.sha256:
        raise ManifestError(
            f"{storage.url}/{pointer.target}: expected the SHA-256 that {MANIFEST_NAME} names, found other bytes",
            shard=storage.url,
        )
    return _load_generation(storage, pointer.generation, data)


def _load_generation(storage: Storage, generation: int, data: RawBytes) -> Manifest:
    where = f"{storage.url}/{generation_name(generation)}"
    manifest = Manifest.decode(data, name=where)
    if manifest.generation != generation:
        raise ManifestError(
            f"{where}: expected generation {generation}, found {manifest.generation}: it was renamed",
            shard=storage.url,
        )
    return manifest


def _read(storage: Storage, name: str) -> RawBytes:
    try:
        return storage.read(name)
    except ObjectNotFoundError as exc:
        is_folder = not storage.is_local or os.path.isdir(storage.url)
        raise ObjectNotFoundError(
            f"{storage.url}: {f'found no {name}' if is_folder else 'there is no such folder'}, so this is no data set "
            "written by janus-shards; write one with `janus-shards pack`, or index existing tar shards with "
            "`janus-shards index`",
            kind="no_manifest",
            shard=storage.url,
        ) from exc


class Catalog:
    """Shards and indexes behind a manifest. Safe to use from many threads; pickles without indexes and open handles.

    Attributes:
        manifest: The generation that was opened.
        row_starts: Shape ``(num_shards + 1,)``, int64, first sample id of each shard.
        storage: Where the shards lie.
    """

    def __init__(self, manifest: Manifest, *, storage: Storage, index_storage: Storage) -> None:
        self.manifest = manifest
        self.storage = storage
        self._index_storage = index_storage
        self.row_starts = np.concatenate([[0], np.cumsum(manifest.shard_rows())]).astype(np.int64)
        # Large indexes are pages of their files, which the workers of a loader share instead of having a copy each.
        self._maps_indexes = sum(shard.index_bytes for shard in manifest.shards) > _COPY_INDEX_BYTES
        self._indexes: OrderedDict[int, ShardIndex] = OrderedDict()
        self._index_bytes = 0
        self._etags: dict[int, str | None] = {}
        self._pid, self._lock = os.getpid(), threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"manifest": self.manifest, "storage": self.storage, "index_storage": self._index_storage}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Catalog.__init__(self, state["manifest"], storage=state["storage"], index_storage=state["index_storage"])

    @property
    def num_samples(self) -> int:
        """Rows across the whole manifest."""
        return int(self.row_starts[-1])

    def shard(self, number: int) -> ShardRecord:
        """Row ``number`` of the shard table."""
        return self.manifest.shards[number]

    def shard_url(self, number: int) -> str:
        """URL of a shard, for messages; holds no credentials."""
        return f"{self.storage.url}/{self.shard(number).name}"

    def locate(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Shard numbers and rows in those shards. Shapes as ``sample_ids``."""
        shards = np.searchsorted(self.row_starts, sample_ids, side="right") - 1
        return shards, sample_ids - self.row_starts[shards]

    def index(self, number: int) -> ShardIndex:
        """Index of a shard, read at first use and checked against the manifest.

        Raises:
            IndexFormatError: The index is missing, damaged or belongs to another shard.
        """
        if self._pid != os.getpid():
            # Another thread of the parent may have held the lock at the moment of the fork.
            self._pid, self._lock = os.getpid(), threading.Lock()
        with self._lock:
            found = self._indexes.get(number)
            if found is not None:
                self._indexes.move_to_end(number)
                return found
        loaded = self._load_index(number)
        with self._lock:
            if number not in self._indexes:
                self._indexes[number] = loaded
                self._index_bytes += self.shard(number).index_bytes
            while self._index_bytes > _INDEX_MEMORY_BYTES and len(self._indexes) > 1:
                evicted, _ = self._indexes.popitem(last=False)
                self._index_bytes -= self.shard(evicted).index_bytes
        return loaded

    def _load_index(self, number: int) -> ShardIndex:
        record = self.shard(number)
        name = index_name(record.name)
        where = f"{self._index_storage.url}/{name}"
        try:
            data = self._read_index(name, record.index_bytes)
        except (ObjectNotFoundError, IntegrityError) as exc:
            raise self._index_error(where, record, f"could not read its {record.index_bytes} bytes: {exc}") from exc
        if hashlib.sha256(data).digest() != record.index_sha256:
            raise self._index_error(where, record, "its SHA-256 is not the one in the manifest")
        index = ShardIndex.decode(data, name=where)
        if index.tar_bytes != record.tar_bytes or index.num_samples != record.num_samples:
            raise self._index_error(where, record, "it describes another shard")
        if self.storage.is_local:
            # Costs nothing here, and keeps a cut shard from giving the fields that its index holds. A shard that is
            # not there is told when it is read.
            with suppress(ObjectNotFoundError):
                self.etag(number)
        return index

    def _read_index(self, name: str, num_bytes: int) -> RawBytes:
        if isinstance(self._index_storage, LocalStorage) and self._maps_indexes:
            return self._index_storage.map(name, num_bytes)
        return self._index_storage.read(name, 0, num_bytes)

    def _index_error(self, where: str, record: ShardRecord, problem: str) -> IndexFormatError:
        return IndexFormatError(
            f"index {where} of shard {record.name}: {problem}; run `janus-shards verify`, and write the index again "
            "with `janus-shards index --overwrite` if the shard is whole",
            shard=record.name,
        )

    def read(self, number: int, start: int, stop: int) -> RawBytes:
        """Bytes ``[start, stop)`` of a shard, all from the version that the first read of this shard met.

        Raises:
            IndexFormatError: The shard has another length than when it was indexed.
            IntegrityError: The shard was replaced after its first read.
        """
        return self.storage.read(self.shard(number).name, start, stop, etag=self.etag(number))

    def reader(self, number: int) -> Callable[[int, int], RawBytes]:
        """``read`` of one shard, for many reads."""
        return functools.partial(self.storage.read, self.shard(number).name, etag=self.etag(number))

    def etag(self, number: int) -> str | None:
        """ETag that every read of this shard must meet; asked for once a shard, together with its length."""
        try:
            return self._etags[number]
        except KeyError:
            pass
        record = self.shard(number)
        meta = self.storage.head(record.name)
        if meta.size != record.tar_bytes:
            raise IndexFormatError(
                f"shard {self.shard_url(number)}: expected {record.tar_bytes} bytes as when it was indexed, found "
                f"{meta.size}; it was cut or replaced: restore it, or write its index again with `janus-shards index`",
                shard=record.name,
            )
        # Two threads may ask at once; the first answer counts, so that all reads meet one version.
        return self._etags.setdefault(number, meta.etag)


def open_catalog(
    url: str,
    *,
    storage_options: Mapping[str, Any] | StorageOptions | None = None,
    index_url: str | None = None,
    generation: int | None = None,
    fingerprint: str | None = None,
) -> Catalog:
    """Open the data set under a root.

    Args:
        url: Root with the shards, and with the manifest unless ``index_url`` is given.
        storage_options: Endpoint, region, credentials and the like; see ``StorageOptions``.
        index_url: Root of manifest and indexes when they are kept elsewhere.
        generation: Pin a generation of the manifest.
        fingerprint: Refuse other contents than these.

    Raises:
        ObjectNotFoundError: There is no data set here.
        ManifestError: The manifest is damaged, or points to a place it may not point to.
    """
    options = (
        storage_options if isinstance(storage_options, StorageOptions) else StorageOptions.from_mapping(storage_options)
    )
    index_storage = open_storage(index_url or url, options)
    manifest = load_manifest(index_storage, generation=generation, fingerprint=fingerprint)
    root = url if index_url else _shard_root(manifest, index_storage)
    storage = index_storage if root is None else open_storage(root, options)
    return Catalog(manifest, storage=storage, index_storage=index_storage)


def _shard_root(manifest: Manifest, index_storage: Storage) -> str | None:
    """Where the manifest says its shards lie; ``None`` is beside it.

    A manifest is untrusted input: one that lies on a remote store may not send its readers to local files or another
    host.
    """
    if not manifest.base_url:
        return None
    if not index_storage.is_local and not _is_same_origin(manifest.base_url, index_storage.url):
        raise ManifestError(
            f"{index_storage.url}: the manifest says that its shards lie at {manifest.base_url}, which is another "
            "scheme or host; pass both yourself: open_dataset(SHARDS, index_url=INDEXES)",
            kind="bad_path",
        )
    return manifest.base_url


def _is_same_origin(one: str, other: str) -> bool:
    """Whether two URLs have one scheme and, on the web, one host; a bucket is no host, but a name on one endpoint."""
    a, b = urlsplit(one), urlsplit(other)
    return a.scheme == b.scheme and (a.scheme not in ("http", "https") or a.netloc == b.netloc)
