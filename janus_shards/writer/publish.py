"""What stands under a root before and after writing: refusing, clearing, and publishing generations of the manifest.

Shared by ``ShardWriter``, ``pack`` and ``index``. Shards come first, then an immutable generation, then the pointer to
it: until the pointer is there, nothing of the new generation exists for a reader.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from janus_shards.errors import ConfigError, FormatError, ObjectNotFoundError, StorageError
from janus_shards.format.manifest import Manifest, ManifestPointer, ShardRecord
from janus_shards.format.naming import MANIFEST_NAME, generation_name, index_name
from janus_shards.storage.base import ObjectMeta, Storage
from janus_shards.writer.shard import WrittenShard

#: What to do when the root already holds something: refuse, replace it, or go on where an earlier run stopped.
ExistingMode = Literal["refuse", "overwrite", "resume"]

_GENERATION = re.compile(r"manifest-\d{6,}\.msgpack")


def existing_mode(*, resume: bool, overwrite: bool) -> ExistingMode:
    """The mode that two switches ask for.

    Raises:
        ConfigError: Both are on.
    """
    if resume and overwrite:
        raise ConfigError(
            "resume=True and overwrite=True: choose one; resume keeps whole shards, overwrite replaces them"
        )
    return "resume" if resume else "overwrite" if overwrite else "refuse"


@dataclass(frozen=True, kw_only=True)
class OwnNames:
    """Which objects under a root one run writes, besides the manifest.

    Attributes:
        listed: What all of their names start with.
        match: Whether a name that starts so is one of them.
    """

    listed: str
    match: Callable[[str], bool]


def numbered_names(prefix: str) -> OwnNames:
    """The numbered shards of a prefix and their indexes."""
    numbered = re.compile(re.escape(prefix) + r"-\d{6,}\.(tar|idx)")
    return OwnNames(listed=f"{prefix}-", match=lambda name: numbered.fullmatch(name) is not None)


@dataclass(frozen=True, kw_only=True)
class RootContents:
    """What lay under a root when it was looked at.

    Attributes:
        pointer: The pointer object, if there is one.
        manifest: The newest generation, if it could be read.
        own: Objects that this run would write, by name.
        generations: Names of generation objects.
    """

    pointer: ObjectMeta | None = None
    manifest: Manifest | None = None
    own: Mapping[str, ObjectMeta] = field(default_factory=dict)
    generations: Sequence[str] = ()

    @cached_property
    def named(self) -> Set[str]:
        """Shards that the newest generation names."""
        return {shard.name for shard in self.manifest.shards} if self.manifest else set()


def look_at_root(storage: Storage, names: OwnNames) -> RootContents:
    """List what a run that writes these names would meet.

    A damaged manifest counts as a pointer without a manifest, so that overwriting can mend it.
    """
    try:
        own = {meta.name: meta for meta in storage.list(names.listed) if names.match(meta.name)}
        manifests = {meta.name: meta for meta in storage.list("manifest")}
    except ObjectNotFoundError:
        return RootContents()  # a folder that is still to be made
    pointer = manifests.get(MANIFEST_NAME)
    return RootContents(
        pointer=pointer,
        manifest=_read_manifest(storage, pointer),
        own=own,
        generations=[name for name in manifests if _GENERATION.fullmatch(name)],
    )


def _read_manifest(storage: Storage, pointer: ObjectMeta | None) -> Manifest | None:
    if pointer is None:
        return None
    try:
        target = ManifestPointer.decode(storage.read(MANIFEST_NAME), name=MANIFEST_NAME).target
        return Manifest.decode(storage.read(target), name=target)
    except (FormatError, ObjectNotFoundError):
        return None


class Publication:
    """Takes a root from what it holds to a new generation.

    Args:
        storage: The root.
        names: What this run writes.
        mode: What to do with what is already there.
    """

    def __init__(self, storage: Storage, *, names: OwnNames, mode: ExistingMode) -> None:
        self.before = RootContents()
        self._storage = storage
        self._names = names
        self._mode = mode
        self._withdrawn = False

    def begin(self) -> None:
        """Look at the root and remove what earlier runs left half-written.

        Raises:
            ConfigError: The root already holds a data set, or objects that this run writes, and the mode is ``refuse``;
                or it holds a data set of other shards, and the mode is ``resume``.
        """
        self.before = look_at_root(self._storage, self._names)
        found = MANIFEST_NAME if self.before.pointer else next(iter(self.before.own), None)
        if found and self._mode == "refuse":
            raise ConfigError(
                f"{self._storage.url} already holds {found}: nothing was written. Write elsewhere, replace it with "
                f"overwrite=True "
                "(--overwrite), or finish an interrupted run of the same input with resume=True (--resume)",
                kind="exists",
            )
        if self._mode == "resume":
            self._refuse_other_set()
        for prefix in (self._names.listed, "manifest"):
            self._storage.abort_stale_uploads(prefix)

    def _refuse_other_set(self) -> None:
        """Resuming replaces the manifest, so it must be one of an earlier run of the same input."""
        others = sorted(name for name in self.before.named if not self._names.match(index_name(name)))
        if others:
            raise ConfigError(
                f"{self._storage.url} holds a data set with shard {others[0]}, which is none of this run: nothing was "
                "written. Write elsewhere, or replace it with overwrite=True (--overwrite)",
                kind="exists",
            )

    def withdraw_for(self, name: str) -> None:
        """Take back the pointer before a shard is written that it may name; one behind all others of it is new."""
        if self._mode != "resume" or self.before.manifest is None or name in self.before.named:
            self._withdraw()

    def _withdraw(self) -> None:
        if self.before.pointer and not self._withdrawn:
            self._storage.delete(MANIFEST_NAME)
            self._withdrawn = True

    def commit(self, shards: Sequence[WrittenShard], *, base_url: str = "") -> Manifest:
        """Publish a generation that consists of these shards.

        Where the newest generation already says the same, nothing is written.

        Raises:
            ConfigError: There is no shard, or the shards disagree about a metadata column.
            StorageError: Another writer published in the meantime (kind ``conflict``), or writing failed.
        """
        if not shards:
            raise ConfigError(
                f"{self._storage.url}: there was no sample to write, so no shard and no manifest was made",
                kind="empty_dataset",
            )
        if self.before.pointer and self.before.manifest is None:
            self._withdraw()  # it names a generation that is damaged or lost
        records = [shard.record for shard in shards]
        made = make_manifest(shards, base_url=base_url)  # shards that contradict each other end the run here
        old = None if self._withdrawn else self.before.manifest
        if old is not None and _same_table(old, records, base_url):
            return old
        # A generation whose pointer stays may be pinned by readers, so it and its shards stay too.
        replaces = self.before.pointer is None or self._withdrawn
        if replaces:
            self._delete(self.before.generations)
        manifest = replace(made, generation=old.generation + 1 if old else 1)
        put_generation(self._storage, manifest, replaces=None if self._withdrawn else self.before.pointer)
        if replaces:
            self._delete(self._stale_shards(records))
        return manifest

    def _stale_shards(self, records: Iterable[ShardRecord]) -> list[str]:
        """Shards and indexes of an earlier run that the new generation does not name."""
        kept = {record.name.removesuffix(".tar") for record in records}
        return [name for name in self.before.own if name.rpartition(".")[0] not in kept]

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._storage.delete(name)


def make_manifest(shards: Sequence[WrittenShard], *, generation: int = 1, base_url: str = "") -> Manifest:
    """The generation that consists of these shards.

    Raises:
        ConfigError: The shards disagree about a metadata column.
    """
    return Manifest(
        shards=[shard.record for shard in shards],
        generation=generation,
        writer=writer_name(),
        fields=sorted({name for shard in shards for name in shard.fields}),
        columns=_merge_columns(shards),
        base_url=base_url,
    )


def put_generation(storage: Storage, manifest: Manifest, *, replaces: ObjectMeta | None) -> None:
    """Write a generation, then the pointer to it.

    Args:
        storage: The root.
        manifest: The generation.
        replaces: The pointer that is there; ``None`` where there must be none.

    Raises:
        StorageError: Another writer published in the meantime (kind ``conflict``), or writing failed.
    """
    encoded = manifest.encode()
    try:
        storage.put(generation_name(manifest.generation), encoded, if_absent=True)
        put_pointer(storage, manifest.generation, encoded, replaces=replaces)
    except StorageError as exc:
        if exc.kind != "conflict":
            raise
        raise StorageError(
            f"{storage.url}: another writer published generation {manifest.generation} while this one wrote its "
            "shards; check both, then run one of them again with overwrite=True (--overwrite)",
            kind="conflict",
        ) from exc


def put_pointer(storage: Storage, generation: int, encoded: bytes, *, replaces: ObjectMeta | None) -> None:
    """Name a generation as the newest one; arguments and errors as in ``put_generation``."""
    pointer = ManifestPointer(generation=generation, sha256=hashlib.sha256(encoded).digest()).encode()
    if replaces is None:
        storage.put(MANIFEST_NAME, pointer, if_absent=True)
    else:
        storage.put(MANIFEST_NAME, pointer, if_match=replaces.etag)


def _same_table(manifest: Manifest, records: Sequence[ShardRecord], base_url: str) -> bool:
    return manifest.base_url == base_url and list(manifest.shards) == list(records)


def _merge_columns(shards: Sequence[WrittenShard]) -> dict[str, str]:
    """Type name of each metadata column over all shards; integers and floats together are ``float64``."""
    merged = dict(shards[0].columns)
    for shard in shards[1:]:
        if shard.columns.keys() != merged.keys():
            raise _column_error(shard, f"expected metadata columns {sorted(merged)}, found {sorted(shard.columns)}")
        for name, kind in shard.columns.items():
            if kind != merged[name]:
                if {kind, merged[name]} != {"int64", "float64"}:
                    raise _column_error(
                        shard, f"column {name!r}: expected {merged[name]} as in shards before, found {kind}"
                    )
                merged[name] = "float64"
    return merged


def _column_error(shard: WrittenShard, problem: str) -> ConfigError:
    return ConfigError(f"shard {shard.record.name}: {problem}", kind="bad_column", shard=shard.record.name)


def writer_name() -> str:
    """Program and version, as kept in manifests."""
    try:
        return f"janus-shards {version('janus-shards')}"
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "janus-shards"
