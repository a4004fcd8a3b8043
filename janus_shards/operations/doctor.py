"""Find what is wrong with a data set and around it, say what to do about each thing, and mend what can be mended.

``verify`` asks whether the shards of a manifest are whole. This looks at the root as well: at the manifest itself, at
what no manifest names, and at what processes left that ended in the middle of their work. Mending never touches a tar
(see ``repair``), and each object is replaced whole or not at all.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from janus_shards.catalog import load_manifest
from janus_shards.errors import FormatError, ObjectNotFoundError, VersionError
from janus_shards.format.index import INDEX_MAGIC
from janus_shards.format.manifest import Manifest, ManifestPointer
from janus_shards.format.naming import MANIFEST_NAME, generation_name, index_name
from janus_shards.operations.progress import ProgressCallback, no_progress
from janus_shards.operations.repair import inline_thresholds, rebuild_generation, rebuild_index
from janus_shards.operations.sources import counted
from janus_shards.operations.verify import Finding, check_shards
from janus_shards.storage.base import ObjectMeta, Storage, StorageOptions
from janus_shards.storage.urls import open_storage
from janus_shards.writer.publish import put_generation, put_pointer

_GENERATION = re.compile(r"manifest-(\d{6,})\.msgpack")

_RESTORE = (
    "restore the shard from a copy; if its present bytes are the right ones, make the data set anew with "
    "`janus-shards index ROOT --overwrite`"
)
_REBUILD = "--repair makes the index again from the shard"
#: What to do about each kind of finding.
REMEDIES: Mapping[str, str] = {
    "leftover": "a process ended in the middle of writing it; --repair removes it, while nobody writes here",
    "no_manifest": (
        "finish the run that wrote the shards with its --resume, or make a data set of what is here with "
        "`janus-shards index ROOT --resume`"
    ),
    "bad_manifest": (
        "take the manifest from a copy, or make the data set anew from the shards that are here with "
        "`janus-shards index ROOT --overwrite`"
    ),
    "unknown_version": "read it with a release of janus-shards that knows this version",
    "missing_index": _REBUILD,
    "index_mismatch": _REBUILD,
    "inline_mismatch": _REBUILD,
    "missing_shard": (
        "restore it from a copy, or finish the run that wrote it with its --resume; "
        "`janus-shards index ROOT --overwrite` makes a data set without it"
    ),
    "orphan_shard": (
        "no data set names it: an interrupted run left it, or it was put here; finish that run with --resume, delete "
        "it, or take it in with `janus-shards index ROOT --overwrite`"
    ),
    "orphan_index": "it belongs to no shard of the data set; delete it",
}

_INDEX_FAULTS = ("missing_index", "index_mismatch", "inline_mismatch")
# What a look at names, lengths and indexes tells, which mending may change. All else takes reading, and stays.
_TOLD_BY_A_LOOK = (*REMEDIES, "shard_length")


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """One thing that is wrong.

    Attributes:
        finding: What it is; the kinds of ``verify``, and ``leftover``, ``no_manifest``, ``orphan_shard``,
            ``orphan_index``, ``unknown_version``.
        remedy: What to do about it.
    """

    finding: Finding
    remedy: str


@dataclass(frozen=True, kw_only=True)
class DoctorReport:
    """What was found, and what became of it.

    Attributes:
        found: Everything that was wrong at first.
        repaired: What was mended, a sentence each.
        remaining: What is still wrong; equal to ``found`` where nothing was to be mended.
        num_shards: Shards that the manifest names.
        seconds: Wall time.
    """

    found: Sequence[Diagnosis]
    repaired: Sequence[str]
    remaining: Sequence[Diagnosis]
    num_shards: int
    seconds: float

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong any more."""
        return not self.remaining


def examine(
    root: str,
    *,
    repair: bool = False,
    quick: bool = False,
    workers: int | None = None,
    storage_options: Mapping[str, object] | None = None,
    progress: ProgressCallback = no_progress,
) -> DoctorReport:
    """Look at a data set and everything around it.

    Args:
        root: Root with the manifest.
        repair: Mend what can be: indexes, the manifest, and what dead processes left. Nobody may write here meanwhile.
        quick: Look at indexes and lengths only, instead of reading every shard.
        workers: Processes for reading; ``None`` takes one a core where that pays.
        storage_options: Endpoint, region, credentials and the like; see ``StorageOptions``.
        progress: Told after each shard.

    Raises:
        ObjectNotFoundError: There is neither a data set nor a part of one.
        StorageError: The store cannot be reached or refuses access.
    """
    started = time.monotonic()
    patient = _Patient(root, storage_options or {}, workers, progress)
    seen = patient.look(full=not quick)
    repaired = list(patient.mend(seen)) if repair else []
    remaining = seen.findings
    if repaired:
        by_reading = [each for each in seen.findings if each.kind not in _TOLD_BY_A_LOOK]
        remaining = [*patient.look(full=False).findings, *by_reading]
    return DoctorReport(
        found=_diagnoses(seen.findings, seen),
        repaired=repaired,
        remaining=_diagnoses(remaining, seen),
        num_shards=len(seen.manifest.shards) if seen.manifest else 0,
        seconds=time.monotonic() - started,
    )


def _diagnoses(findings: Sequence[Finding], seen: "_Seen") -> list[Diagnosis]:
    """Findings with what to do about them."""
    broken = {each.shard for each in findings if each.shard and each.kind not in REMEDIES}
    found = []
    for each in findings:
        remedy = REMEDIES.get(each.kind, _RESTORE)
        if each.kind == "bad_manifest" and seen.recovered:
            remedy = "--repair writes it again"
        elif each.kind in _INDEX_FAULTS and each.shard in broken:
            remedy = "--repair makes the index again once the shard itself is restored"
        found.append(Diagnosis(finding=each, remedy=remedy))
    return found


# --- looking ----------------------------------------------------------------------------------------------------------


class _Recovered(NamedTuple):
    """A generation that can be made the newest again."""

    manifest: Manifest
    encoded: bytes
    is_there: bool  # the generation is whole, and only the pointer to it is not


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What one look at a root told.

    Attributes:
        manifest: The newest generation, or the one that can be made so again.
        recovered: That one, where the manifest is damaged or lost.
        leftovers: What dead processes left, by name.
        findings: What is wrong.
    """

    manifest: Manifest | None
    recovered: _Recovered | None
    leftovers: Sequence[str]
    findings: Sequence[Finding]


@dataclass(frozen=True)
class _Patient:
    """One root, to be looked at and mended."""

    root: str
    storage_options: Mapping[str, object] = field(repr=False)
    workers: int | None
    progress: ProgressCallback

    @cached_property
    def storage(self) -> Storage:
        return open_storage(self.root, StorageOptions.from_mapping(self.storage_options))

    def look(self, *, full: bool) -> _Seen:
        objects = {meta.name: meta for meta in self.storage.list()}
        manifest, recovered, findings = self._look_at_manifest(objects)
        leftovers = [name for folder in _folders(manifest) for name in self.storage.stale_uploads(folder)]
        findings += [Finding(kind="leftover", message=f"{name} was never finished") for name in leftovers]
        if manifest is None and not findings:
            raise ObjectNotFoundError(
                f"{self.storage.url}: found neither a manifest nor shards; write a data set with `janus-shards pack`",
                kind="no_manifest",
                shard=self.storage.url,
            )
        if manifest is not None:
            findings += self.check(manifest, full=full)
            findings += self._orphans(manifest, objects)
        return _Seen(manifest=manifest, recovered=recovered, leftovers=leftovers, findings=findings)

    def check(self, manifest: Manifest, *, full: bool) -> Sequence[Finding]:
        """What ``verify`` finds."""
        return check_shards(
            manifest,
            self.root,
            full=full,
            workers=self.workers,
            storage_options=self.storage_options,
            progress=self.progress,
        ).findings

    def _look_at_manifest(
        self, objects: Mapping[str, ObjectMeta]
    ) -> tuple[Manifest | None, _Recovered | None, list[Finding]]:
        generations = sorted((name for name in objects if _GENERATION.fullmatch(name)), reverse=True)
        if MANIFEST_NAME not in objects and not generations:
            shards = [name for name in objects if name.endswith(".tar")]
            found = [Finding(kind="no_manifest", message=f"{counted(len(shards), 'shard')} and no manifest")]
            return None, None, found if shards else []
        try:
            return load_manifest(self.storage), None, []
        except VersionError as exc:
            return None, None, [Finding(kind="unknown_version", message=exc.message)]
        except (FormatError, ObjectNotFoundError) as exc:
            recovered = self._recover(objects, generations)
            lost = f"{self.storage.url}: {', '.join(generations)} is here, and no {MANIFEST_NAME} that names it"
            message = exc.message if MANIFEST_NAME in objects else lost
            found = [Finding(kind="bad_manifest", message=message)]
            return recovered.manifest if recovered else None, recovered, found

    def _recover(self, objects: Mapping[str, ObjectMeta], generations: Sequence[str]) -> _Recovered | None:
        """The generation that the pointer names, if the pointer is whole; else the newest, if none is damaged."""
        whole = {name: found for name in generations if (found := self._generation(name))}
        pointer = self._pointer() if MANIFEST_NAME in objects else None
        if pointer is None:
            newest = whole.get(generations[0]) if generations else None
            return _Recovered(*newest, is_there=True) if newest else None
        sizes = {name: meta.size for name, meta in objects.items()}
        writers = [manifest.writer for manifest, _ in whole.values()]
        encoded = rebuild_generation(self.storage, pointer, sizes, writers)
        if encoded is None:
            return None
        return _Recovered(Manifest.decode(encoded, name=pointer.target), encoded, is_there=False)

    def _generation(self, name: str) -> tuple[Manifest, bytes] | None:
        try:
            encoded = bytes(self.storage.read(name))
            return Manifest.decode(encoded, name=name), encoded
        except FormatError:
            return None

    def _pointer(self) -> ManifestPointer | None:
        try:
            return ManifestPointer.decode(self.storage.read(MANIFEST_NAME), name=MANIFEST_NAME)
        except FormatError:
            return None

    def _orphans(self, manifest: Manifest, objects: Mapping[str, ObjectMeta]) -> list[Finding]:
        """Shards and indexes that the manifest does not name."""
        shards = {record.name for record in manifest.shards}
        indexes = {index_name(name) for name in shards}
        tars = [name for name in objects if name.endswith(".tar") and name not in shards and not manifest.base_url]
        others = [name for name in objects if name.endswith(".idx") and name not in indexes]
        return [
            *(
                Finding(kind="orphan_shard", shard=name, message=f"shard {name}: the manifest has none of this name")
                for name in tars
            ),
            *(
                Finding(kind="orphan_index", message=f"index {name}: the manifest has no shard for it")
                for name in others
                if name.removesuffix(".idx") + ".tar" not in tars and self._is_ours(objects[name])
            ),
        ]

    def _is_ours(self, meta: ObjectMeta) -> bool:
        """Whether an index begins like ours; other programs call theirs ``.idx`` too."""
        return INDEX_MAGIC.encode() in bytes(self.storage.read(meta.name, 0, min(meta.size, 64)))

    # --- mending ------------------------------------------------------------------------------------------------------

    def mend(self, seen: _Seen) -> Iterator[str]:
        """Mend what can be; a sentence for each thing that was."""
        if seen.leftovers:
            removed = sum(self.storage.abort_stale_uploads(folder) for folder in _folders(seen.manifest))
            yield f"removed {counted(removed, 'unfinished file')}"
        if seen.recovered and self._is_proven(seen.recovered, seen):
            yield self._publish(seen.recovered)
        elif seen.recovered:
            return
        if seen.manifest:
            yield from self._mend_indexes(seen.manifest, seen.findings)

    def _is_proven(self, recovered: _Recovered, seen: _Seen) -> bool:
        """Whether a generation is the newest there was: named by the pointer, or all that is here and whole.

        An interrupted run that replaces a data set leaves the old generation without a pointer and some other shards.
        """
        if not recovered.is_there:
            return True
        others = [each for each in seen.findings if each.kind not in ("bad_manifest", "leftover")]
        return not others and not self.check(recovered.manifest, full=True)

    def _publish(self, recovered: _Recovered) -> str:
        generation = recovered.manifest.generation
        if not recovered.is_there:
            self.storage.put(generation_name(generation), recovered.encoded)
            return f"wrote generation {generation} of the manifest again"
        put_pointer(self.storage, generation, recovered.encoded, replaces=self._pointer_meta())
        return f"named generation {generation} of the manifest as the newest again"

    def _pointer_meta(self) -> ObjectMeta | None:
        try:
            return self.storage.head(MANIFEST_NAME)
        except ObjectNotFoundError:
            return None

    def _mend_indexes(self, manifest: Manifest, findings: Sequence[Finding]) -> Iterator[str]:
        faulty = {each.shard for each in findings if each.kind in _INDEX_FAULTS}
        broken = {each.shard for each in findings if each.shard and each.kind not in REMEDIES}
        absent = {each.shard for each in findings if each.kind == "missing_shard"}
        shards = open_storage(manifest.base_url or self.root, StorageOptions.from_mapping(self.storage_options))
        records = list(manifest.shards)
        thresholds = inline_thresholds(self.storage, manifest)
        for number, record in enumerate(records):
            if record.name not in faulty - broken - absent:
                continue
            try:
                rebuilt = rebuild_index(shards, record, manifest, inline_bytes=thresholds)
            except FormatError:
                continue  # the finding stays
            self.storage.put(index_name(record.name), rebuilt.encoded)
            records[number] = rebuilt.record
            yield f"made the index of {record.name} again from the shard"
        if records != list(manifest.shards):
            newer = replace(manifest, shards=records, generation=manifest.generation + 1)
            put_generation(self.storage, newer, replaces=self._pointer_meta())
            yield f"published generation {newer.generation} of the manifest, with the same shards and these indexes"


def _folders(manifest: Manifest | None) -> list[str]:
    """The root and every folder below it that holds indexes, as the start of a name."""
    names = [record.name for record in manifest.shards] if manifest else []
    return sorted({"", *(name[: name.rfind("/") + 1] for name in names)})
