"""Data sets that grow: the next generation of a manifest, written by hand."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

from janus_shards.catalog import load_manifest
from janus_shards.format.manifest import Manifest, ManifestPointer
from janus_shards.format.naming import MANIFEST_NAME, generation_name
from janus_shards.storage.local import LocalStorage


def publish(root: Path, manifest: Manifest, *, sha256: bytes | None = None) -> None:
    """Write a generation and the pointer to it, with another digest if one is given."""
    data = manifest.encode()
    (root / generation_name(manifest.generation)).write_bytes(data)
    pointer = ManifestPointer(generation=manifest.generation, sha256=sha256 or hashlib.sha256(data).digest())
    (root / MANIFEST_NAME).write_bytes(pointer.encode())


def append_shards(root: Path, extra: Path) -> None:
    """Make the shards of another data set the end of this one, in the next generation."""
    old, more = load_manifest(LocalStorage(root)), load_manifest(LocalStorage(extra))
    for path in [*extra.glob("*.tar"), *extra.glob("*.idx")]:
        shutil.copy(path, root)
    publish(root, replace(old, shards=[*old.shards, *more.shards], generation=old.generation + 1))
