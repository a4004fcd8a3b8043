"""``ShardWriter``: samples in, shards with indexes and a manifest out."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from janus_shards.errors import ConfigError, FormatError, ObjectNotFoundError, ResumeError
from janus_shards.format.index import DEFAULT_INLINE_BYTES, ColumnValue, ShardIndex
from janus_shards.format.manifest import Manifest
from janus_shards.format.naming import index_name
from janus_shards.storage.base import Storage, StorageOptions
from janus_shards.storage.urls import open_storage
from janus_shards.writer.keys import KeyHashes
from janus_shards.writer.publish import Publication, existing_mode, numbered_names
from janus_shards.writer.sample import EncodedSample, encode_sample
from janus_shards.writer.shard import ShardLayout, ShardStream, WrittenShard, describe_shard, duplicate_key


class ShardWriter:
    """Writes a data set, sample by sample, as a context manager.

    Shards roll before they would exceed ``max_shard_bytes`` or ``max_samples``. On leaving the ``with`` block the
    manifest is published; when the block raises, no manifest is, and only whole shards with their indexes stay behind,
    for ``resume``.

    Args:
        root: Folder or object-store URL; created when missing.
        prefix: Shards are called ``<prefix>-000000.tar`` and so on.
        max_shard_bytes: Length that a shard stays within, unless its only sample is longer.
        max_samples: Samples that a shard has at most; ``None`` sets no limit.
        inline_bytes: Values shorter than this are kept in the index, media and tensors excepted; 0 keeps none.
        resume: Finish an interrupted run. The same samples are written again: those of whole shards are only compared.
        overwrite: Replace what is there. The old manifest goes when the first new shard is begun.
        storage_options: Endpoint, region, credentials and the like; see ``StorageOptions``.

    Raises:
        ConfigError: An option is outside its range; on entering, the root already holds a data set (kind ``exists``).

    Attributes:
        manifest: What was published; ``None`` before.
    """

    def __init__(
        self,
        root: str,
        *,
        prefix: str = "shard",
        max_shard_bytes: int = 256 << 20,
        max_samples: int | None = None,
        inline_bytes: int = DEFAULT_INLINE_BYTES,
        resume: bool = False,
        overwrite: bool = False,
        storage_options: Mapping[str, object] | None = None,
    ) -> None:
        self.manifest: Manifest | None = None
        self._root = str(root)
        self._layout = ShardLayout(
            prefix=prefix, max_shard_bytes=max_shard_bytes, max_samples=max_samples, inline_bytes=inline_bytes
        )
        self._mode = existing_mode(resume=resume, overwrite=overwrite)
        self._options = StorageOptions.from_mapping(storage_options)
        self._run: _Run | None = None

    def __enter__(self) -> Self:
        if self._run is not None or self.manifest is not None:
            raise ConfigError(f"ShardWriter({self._root!r}) was already used; make a new one", kind="bad_state")
        storage = open_storage(self._root, self._options)
        publication = Publication(storage, names=numbered_names(self._layout.prefix), mode=self._mode)
        publication.begin()
        self._run = _Run(storage, self._layout, publication, resume=self._mode == "resume")
        return self

    def __exit__(self, kind: type[BaseException] | None, _exc: BaseException | None, _tb: TracebackType | None) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        try:
            if kind is None:
                self.manifest = run.publish()
        finally:
            run.close()

    def write(self, sample: Mapping[str, object], *, columns: Mapping[str, ColumnValue] | None = None) -> None:
        """Append one sample. It is checked and encoded first; a sample that is refused leaves no trace.

        Args:
            sample: ``__key__`` and the fields by name, as bytes or as values that ``decode.fields`` can encode. Other
                names of the form ``__x__`` are ignored.
            columns: Typed metadata, the same names in every sample.

        Raises:
            ConfigError: Key, field, value or column cannot be stored, or the key occurs twice.
            ResumeError: With ``resume``, the samples are not those of the interrupted run.
            StorageError: The bytes could not be written; the data set cannot be finished by this writer.
        """
        if self._run is None:
            raise ConfigError(
                "ShardWriter is used as a context manager: `with ShardWriter(...) as writer:`", kind="bad_state"
            )
        self._run.write(encode_sample(sample, columns))


class _Run:
    """One pass from the first sample to the manifest."""

    def __init__(self, storage: Storage, layout: ShardLayout, publication: Publication, *, resume: bool) -> None:
        self._storage = storage
        self._layout = layout
        self._publication = publication
        self._resume = resume
        self._hashes = KeyHashes()
        self._kinds: dict[str, str] | None = None
        self._written: list[WrittenShard] = []
        self._keys: dict[str, None] = {}
        self._open: ShardStream | None = None
        self._expected: ShardIndex | None = None
        self._failed = False

    def write(self, sample: EncodedSample) -> None:
        if self._failed:
            raise ConfigError(
                "an earlier write to this ShardWriter failed, so its data set cannot be finished; start again with "
                "resume=True",
                kind="bad_state",
            )
        kinds = self._checked_kinds(sample)
        if sample.key in self._keys:
            raise duplicate_key(sample.key, self._layout.shard_name(len(self._written)))
        try:
            if self._open and self._layout.is_full(len(self._keys), self._open.num_bytes, sample.tar_bytes()):
                self._roll()
            if self._open is None:
                self._open, self._expected = self._next_shard()
            self._open.add(sample)
        except BaseException:
            self._failed = True
            raise
        self._keys[sample.key] = None
        self._kinds = kinds

    def _checked_kinds(self, sample: EncodedSample) -> dict[str, str]:
        """Kinds of the metadata columns after this sample."""
        found = {name: _kind(value) for name, value in sample.columns.items()}
        if self._kinds is not None and found != self._kinds:
            raise ConfigError(
                f"sample {sample.key!r}: expected metadata columns {self._kinds} as in the samples before, found "
                f"{found}",
                kind="bad_column",
                key=sample.key,
            )
        return found

    def _next_shard(self) -> tuple[ShardStream, ShardIndex | None]:
        name = self._layout.shard_name(len(self._written))
        expected = self._whole_shard(name) if self._resume else None
        if not expected:
            self._publication.withdraw_for(name)
        upload = None if expected else self._storage.open_upload(name)
        return ShardStream(self._storage, name, inline_bytes=self._layout.inline_bytes, upload=upload), expected

    def _whole_shard(self, name: str) -> ShardIndex | None:
        """Index of a shard that an earlier run finished; ``None`` when shard or index is missing or damaged."""
        tar = self._publication.before.own.get(name)
        if tar is None:
            return None
        try:
            index = ShardIndex.decode(self._storage.read(index_name(name)), name=index_name(name))
        except (ObjectNotFoundError, FormatError):
            return None
        return index if index.tar_bytes == tar.size else None

    def _roll(self) -> None:
        """Close the open shard: compare it with the earlier run's, or publish it."""
        stream, self._open = self._open, None
        if stream is None:
            return
        with stream:
            self._refuse_duplicates(stream.name)
            index = stream.finish()
            self._written.append(self._keep(stream.name, index) if self._expected else stream.publish(index))
        self._keys = {}

    def _keep(self, name: str, index: ShardIndex) -> WrittenShard:
        expected = self._expected
        if expected is None or (index.tar_bytes, index.tar_sha256) != (expected.tar_bytes, expected.tar_sha256):
            raise ResumeError(
                f"shard {self._storage.url}/{name}: expected the bytes of the interrupted run (SHA-256 "
                f"{expected.tar_sha256.hex() if expected else ''}), found {index.tar_bytes} bytes of SHA-256 "
                f"{index.tar_sha256.hex()} from the samples written now; resume with the same samples and options, or "
                f"start anew "
                "with overwrite=True (--overwrite)",
                shard=name,
            )
        encoded = index.encode()
        if encoded != self._storage.read(index_name(name)):
            # Other inline_bytes or columns; the shard itself is the same.
            self._publication.withdraw_for(name)
            self._storage.put(index_name(name), encoded)
        meta = None if self._storage.is_local else self._storage.head(name)
        return describe_shard(name, index, encoded, meta=meta)

    def _refuse_duplicates(self, shard: str) -> None:
        for key in self._hashes.add(self._keys):
            for written in self._written:
                name = index_name(written.record.name)
                keys = ShardIndex.decode(self._storage.read(name), name=name).keys
                if key in keys.texts():
                    raise duplicate_key(key, shard)

    def publish(self) -> Manifest:
        """Close the last shard and publish the manifest."""
        if self._failed:
            raise ConfigError(
                "an earlier write failed, so no manifest was published; start again with resume=True", kind="bad_state"
            )
        self._roll()
        if self._resume:
            self._refuse_surplus()
        return self._publication.commit(self._written)

    def _refuse_surplus(self) -> None:
        surplus = self._layout.shard_name(len(self._written))
        if surplus in self._publication.before.own:
            raise ResumeError(
                f"shard {self._storage.url}/{surplus}: the interrupted run wrote it, but the samples written now "
                f"ended before; "
                "resume with the same samples and options, or start anew with overwrite=True (--overwrite)",
                shard=surplus,
            )

    def close(self) -> None:
        """Take back the shard that is still open."""
        if self._open is not None:
            self._open.abort()
            self._open = None
        self._storage.close()


def _kind(value: ColumnValue) -> str:
    """What has to agree within a column: integers and floats mix, as they become float64."""
    return "bool" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"
