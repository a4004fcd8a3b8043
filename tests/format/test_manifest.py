import dataclasses
import hashlib
import struct
from typing import Any

import msgpack
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.errors import FormatError, ManifestError, VersionError
from janus_shards.format.columns import pack_map
from janus_shards.format.manifest import MANIFEST_MAGIC, POINTER_MAGIC, Manifest, ManifestPointer, ShardRecord

names = st.lists(st.lists(st.text("ab-é.", min_size=1, max_size=4).map("x".__add__), min_size=1).map("/".join))
counts = st.integers(0, 2**30)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Manifests of any shards."""
    shards = [
        ShardRecord(
            name=f"{name}.tar",
            num_samples=draw(counts),
            tar_bytes=2**40,
            sha256=draw(st.binary(min_size=32, max_size=32)),
            index_bytes=draw(counts),
            index_sha256=draw(st.binary(min_size=32, max_size=32)),
            etag=draw(st.sampled_from(["", '"abc"', '"é"'])),
            version=draw(st.sampled_from(["", "v1"])),
        )
        for name in sorted(set(draw(names)))
    ]
    return Manifest(
        shards=shards,
        generation=draw(st.integers(1, 2**40)),
        writer=draw(st.sampled_from(["", "janus-shards 1.0"])),
        fields=draw(st.lists(st.sampled_from(["jpg", "txt", "caf\udce9"]), unique=True)),
        columns=draw(st.dictionaries(st.text("ab", max_size=3), st.sampled_from(["bool", "int64", "float64", "str"]))),
        base_url=draw(st.sampled_from(["", "s3://bucket/train"])),
    )


def record(name: str, **changes: Any) -> ShardRecord:
    """One row of the shard table."""
    row = ShardRecord(
        name=name, num_samples=3, tar_bytes=10240, sha256=b"s" * 32, index_bytes=300, index_sha256=b"i" * 32
    )
    return dataclasses.replace(row, **changes)


def manifest(*shards: ShardRecord, **changes: Any) -> Manifest:
    """A manifest of these shards, or of three."""
    return Manifest(shards=list(shards) or [record(f"t-{number}.tar") for number in range(3)], **changes)


def reread(data: bytes) -> Manifest:
    """The manifest as a reader gets it."""
    return Manifest.decode(data, name="manifest-000001.msgpack")


def content(data: bytes) -> dict[str, Any]:
    """The map of a manifest or pointer without its envelope, to be damaged."""
    return {key: value for key, value in msgpack.unpackb(data).items() if key not in ("magic", "version", "xxh3")}


@given(manifests())
def test_a_generation_comes_back(written: Manifest) -> None:
    """All rows and all settings, and the same bytes when written again."""
    found = reread(written.encode())
    assert found == written
    assert found.encode() == written.encode()
    assert found.shard_rows().tolist() == [shard.num_samples for shard in written.shards]
    assert found.shard_bytes().tolist() == [shard.tar_bytes for shard in written.shards]
    assert found.num_samples == sum(shard.num_samples for shard in written.shards)


def test_the_fingerprint_is_the_documented_hash() -> None:
    """SHA-256 over a fixed line and, for each shard, length of the name, name, rows, bytes and digest."""
    expected = hashlib.sha256(b"janus-shards fingerprint 1\n")
    for name in (b"a.tar", b"d/\xc3\xa9.tar"):
        expected.update(struct.pack("<I", len(name)) + name + struct.pack("<QQ", 3, 10240) + b"s" * 32)
    assert manifest(record("a.tar"), record("d/é.tar")).fingerprint() == expected.hexdigest()


@pytest.mark.parametrize("change", [{"etag": '"x"'}, {"version": "v"}, {"index_bytes": 9}, {"index_sha256": b"j" * 32}])
def test_the_fingerprint_does_not_say_where_shards_lie(change: dict[str, Any]) -> None:
    """A mirror, a renewed URL, a new index or a later generation of the same shards has the same fingerprint."""
    original = manifest()
    moved = manifest(
        *(dataclasses.replace(shard, **change) for shard in original.shards), generation=7, base_url="s3://b"
    )
    assert moved.fingerprint() == original.fingerprint()


@pytest.mark.parametrize(
    "change", [{"name": "u.tar"}, {"num_samples": 4}, {"tar_bytes": 512 * 21}, {"sha256": b"t" * 32}]
)
def test_the_fingerprint_knows_the_contents(change: dict[str, Any]) -> None:
    """Another name, number of rows, length or digest of any shard is another data set; so is another order."""
    shards = manifest().shards
    changed = [*shards[:2], dataclasses.replace(shards[2], **change)]
    assert manifest(*changed).fingerprint() != manifest().fingerprint()
    assert manifest(*reversed(shards)).fingerprint() != manifest().fingerprint()


def test_a_prefix_has_the_fingerprint_of_the_shorter_data_set() -> None:
    """Appending is recognised: the first shards of the longer one are the shorter one."""
    long, short = manifest(), manifest(record("t-0.tar"), record("t-1.tar"))
    assert long.fingerprint(2) == short.fingerprint() != long.fingerprint()
    assert long.fingerprint(3) == long.fingerprint()
    with pytest.raises(ValueError, match="-1 shards"):
        long.fingerprint(-1)


@pytest.mark.parametrize(
    "name", ["../a.tar", "/etc/passwd", "a/../../b.tar", "./b.tar", "a//b.tar", "s3://b/a.tar", "a\\b.tar"]
)
def test_paths_that_leave_the_root_are_refused(name: str) -> None:
    """Neither written nor read, by kind ``bad_path``."""
    with pytest.raises(ManifestError) as written:
        manifest(record(name)).encode()
    forged = content(manifest(record("x" * len(name))).encode())
    forged["shards"]["name"]["data"] = name.encode()
    with pytest.raises(ManifestError) as read:
        reread(pack_map(MANIFEST_MAGIC, forged))
    assert (written.value.kind, read.value.kind) == ("bad_path", "bad_path")


@pytest.mark.parametrize("second", ["a.tar", "a"])
def test_shards_do_not_share_a_name_or_an_index(second: str) -> None:
    """Two rows of one name, or two names with one index, would mix their samples."""
    with pytest.raises(ManifestError, match="another shard"):
        manifest(record("a.tar"), record(second)).encode()


def test_each_damaged_byte_and_each_cut_is_noticed() -> None:
    """In generation and pointer, every changed bit and every missing byte is an error that names the object."""
    for kind, data in (
        (Manifest, manifest(columns={"w": "int64"}, fields=["jpg"]).encode()),
        (ManifestPointer, ManifestPointer(generation=3, sha256=b"s" * 32).encode()),
    ):
        for at in range(len(data)):
            for damaged in (data[:at], data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]):
                with pytest.raises(FormatError, match=r"m\.msgpack"):
                    kind.decode(damaged, name="m.msgpack")  # type: ignore[attr-defined]


def u8(*numbers: int) -> list[object]:
    """A stored u64 array."""
    return ["<u8", np.array(numbers, "<u8").tobytes()]


CONTRADICTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "more shards than names": ("offsets", {"num_shards": 4}),
    "2**53 shards": ("offsets", {"num_shards": 2**53}),
    "generation 0": ("generation", {"generation": 0}),
    "fingerprint of another table": ("fingerprint", {"fingerprint": bytes(32)}),
    "more samples than blocks": ("num_samples", {"shards/num_samples": u8(3, 3, 21)}),
    "2**64 - 1 samples": ("num_samples", {"shards/num_samples": u8(3, 3, 2**64 - 1)}),
    "shard of 2**63 bytes": ("tar_bytes", {"shards/tar_bytes": u8(10240, 10240, 2**63)}),
    "index of 2**63 bytes": ("index_bytes", {"shards/index_bytes": u8(300, 300, 2**63)}),
    "digests too short": ("sha256", {"shards/sha256": bytes(95)}),
    "field with a slash": ("fields", {"schema/fields": ["a/b"]}),
    "fields that are bytes": ("fields", {"schema/fields": [b"jpg"]}),
    "unknown column type": ("w", {"schema/columns": {"w": "object"}}),
    "writer that is no text": ("writer", {"writer": 1}),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_entries_that_contradict_each_other_are_refused(case: str) -> None:
    """Every count is checked against the table before anything is made from it, and the message names the entry."""
    entry, changes = CONTRADICTIONS[case]
    forged = content(manifest().encode())
    for path, value in changes.items():
        *folders, name = path.split("/")
        inner = forged[folders[0]] if folders else forged
        inner[name] = value
    with pytest.raises(ManifestError, match=rf"entry '[a-z0-9_/]*{entry}'"):
        reread(pack_map(MANIFEST_MAGIC, forged))


def test_the_pointer_names_the_newest_generation() -> None:
    """A pointer has the number and the digest of one immutable object."""
    pointer = ManifestPointer(generation=12, sha256=b"s" * 32)
    assert ManifestPointer.decode(pointer.encode(), name="manifest.msgpack") == pointer
    assert pointer.target == "manifest-000012.msgpack"
    with pytest.raises(ManifestError, match="generation"):
        ManifestPointer.decode(pack_map(POINTER_MAGIC, {"generation": 0, "sha256": b"s" * 32}), name="manifest.msgpack")


def test_pointer_and_generation_are_not_taken_for_each_other() -> None:
    """Each has a magic of its own."""
    with pytest.raises(ManifestError, match="janus-shards-manifest"):
        reread(ManifestPointer(generation=1, sha256=b"s" * 32).encode())
    with pytest.raises(ManifestError, match="janus-shards-pointer"):
        ManifestPointer.decode(manifest().encode(), name="manifest.msgpack")


def test_a_later_version_is_named() -> None:
    """A manifest of format version 2 is no damage, and the message says what to do."""
    body = manifest().encode()[:-8].replace(b"version\1", b"version\2", 1)
    with pytest.raises(VersionError, match="found 2; read it with a release"):
        reread(body + xxhash.xxh3_64_digest(body))
