"""Every kind of damage is found and named with what to do; what can be made again is, and nothing else."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from janus_shards.errors import ObjectNotFoundError
from janus_shards.format.index import ShardIndex
from janus_shards.operations.doctor import DoctorReport, examine
from janus_shards.operations.index import IndexOptions, index_shards
from janus_shards.operations.pack import PackOptions, pack
from janus_shards.operations.verify import verify
from janus_shards.reader import open_dataset
from janus_shards.storage.base import TEMP_PREFIX
from janus_shards.writer import ShardWriter
from janus_shards.writer.shard import ShardLayout
from tests.conftest import S3Server

Digests = Callable[[Path], dict[str, str]]


@pytest.fixture
def root(photos: Path, tmp_path: Path) -> Path:
    """Ten pictures with captions in three shards, as ``pack`` writes them."""
    pack(str(photos), str(tmp_path / "set"), options=PackOptions(layout=ShardLayout(max_samples=4), workers=1))
    return tmp_path / "set"


def flip(path: Path, at: int = -100) -> None:
    """Change one byte and keep the length."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    """Cut the second half off."""
    os.truncate(path, path.stat().st_size // 1024 * 512)


def kinds(report: DoctorReport) -> list[str]:
    """Kinds of what was found at first."""
    return [each.finding.kind for each in report.found]


@dataclass(frozen=True)
class Damage:
    """Something that happens to a data set, what is found, and whether it can be undone to the very bytes."""

    happen: Callable[[Path], object]
    kinds: tuple[str, ...]
    mends: bool = False


DAMAGES = {
    "index missing": Damage(lambda root: (root / "shard-000001.idx").unlink(), ("missing_index",), mends=True),
    "index damaged": Damage(lambda root: flip(root / "shard-000001.idx"), ("index_mismatch",), mends=True),
    "index cut": Damage(lambda root: truncate(root / "shard-000001.idx"), ("index_mismatch",), mends=True),
    "index empty": Damage(lambda root: (root / "shard-000001.idx").write_bytes(b""), ("index_mismatch",), mends=True),
    "index of another shard": Damage(
        lambda root: (root / "shard-000001.idx").write_bytes((root / "shard-000000.idx").read_bytes()),
        ("index_mismatch",),
        mends=True,
    ),
    "all indexes missing": Damage(
        lambda root: [path.unlink() for path in root.glob("*.idx")], ("missing_index",) * 3, mends=True
    ),
    "pointer missing": Damage(lambda root: (root / "manifest.msgpack").unlink(), ("bad_manifest",), mends=True),
    "pointer damaged": Damage(lambda root: flip(root / "manifest.msgpack", 40), ("bad_manifest",), mends=True),
    "generation missing": Damage(
        lambda root: (root / "manifest-000001.msgpack").unlink(), ("bad_manifest",), mends=True
    ),
    "generation damaged": Damage(lambda root: flip(root / "manifest-000001.msgpack"), ("bad_manifest",), mends=True),
    "left half-written": Damage(
        lambda root: (root / f"{TEMP_PREFIX}0123abcd-shard-000003.tar.part").write_bytes(b"half"),
        ("leftover",),
        mends=True,
    ),
    "shard missing": Damage(lambda root: (root / "shard-000001.tar").unlink(), ("missing_shard",)),
    "shard truncated": Damage(
        lambda root: truncate(root / "shard-000001.tar"), ("shard_length", "truncated_shard")
    ),
    "shard changed": Damage(lambda root: flip(root / "shard-000001.tar", 600), ("member_mismatch", "shard_digest")),
    "shard of zeros": Damage(
        lambda root: (root / "shard-000001.tar").write_bytes(bytes((root / "shard-000001.tar").stat().st_size)),
        ("missing_member",) * 8 + ("shard_digest",),
    ),
    "shard replaced by another": Damage(
        lambda root: (root / "shard-000000.tar").write_bytes((root / "shard-000002.tar").read_bytes()),
        ("shard_length", *("member_mismatch",) * 4, *("missing_member",) * 4, "shard_digest"),
    ),
    "orphan shard": Damage(
        lambda root: (root / "shard-000003.tar").write_bytes((root / "shard-000000.tar").read_bytes()),
        ("orphan_shard",),
    ),
    "orphan index": Damage(
        lambda root: (root / "old-000003.idx").write_bytes((root / "shard-000000.idx").read_bytes()), ("orphan_index",)
    ),
    "foreign index file": Damage(lambda root: (root / "names.idx").write_text("v1.0 3\n"), ()),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGES)
def test_each_damage_is_found_and_mended_or_left(case: str, root: Path, digests: Digests) -> None:
    """Damage has its kinds and a remedy; mending gives back the very bytes, or changes nothing and says so."""
    damage, before = DAMAGES[case], digests(root)
    damage.happen(root)
    damaged = digests(root)
    report = examine(str(root), workers=1)
    assert sorted(kinds(report)) == sorted(damage.kinds)
    assert all(each.remedy for each in report.found)
    assert digests(root) == damaged
    repaired = examine(str(root), repair=True, workers=1)
    assert (repaired.is_sound, bool(repaired.repaired)) == (damage.mends or not damage.kinds, damage.mends)
    assert digests(root) == (before if damage.mends else damaged)
    assert examine(str(root), workers=1).is_sound == repaired.is_sound


def test_a_sound_data_set_is_sound(root: Path, digests: Digests) -> None:
    """Nothing is found and nothing is changed."""
    before = digests(root)
    report = examine(str(root), repair=True, workers=1)
    assert (report.is_sound, report.num_shards, list(report.repaired)) == (True, 3, [])
    assert digests(root) == before


def test_quick_reads_no_shard(root: Path) -> None:
    """A quick look finds lengths and indexes, and misses what only reading tells."""
    flip(root / "shard-000001.tar", 600)
    assert examine(str(root), quick=True).is_sound
    truncate(root / "shard-000000.tar")
    assert kinds(examine(str(root), quick=True)) == ["shard_length"]


def test_no_index_is_made_for_a_shard_that_changed(root: Path, digests: Digests) -> None:
    """Where index and shard are both damaged, the index would describe other samples: it is left, and both are told."""
    (root / "shard-000001.idx").unlink()
    flip(root / "shard-000001.tar", 600)
    before = digests(root)
    for quick in (False, True):
        report = examine(str(root), repair=True, quick=quick, workers=1)
        assert not report.is_sound
        assert not report.repaired
    assert digests(root) == before


def test_columns_that_no_tar_holds_are_not_made_up(tmp_path: Path, digests: Digests) -> None:
    """An index with metadata of the user's own cannot come from the shard; no other index takes its place."""
    with ShardWriter(str(tmp_path), max_samples=2) as writer:
        for number in range(4):
            writer.write({"__key__": str(number), "txt": "x"}, columns={"tokens": number})
    (tmp_path / "shard-000000.idx").unlink()
    before = digests(tmp_path)
    report = examine(str(tmp_path), repair=True, workers=1)
    assert ([each.finding.kind for each in report.remaining], list(report.repaired)) == (["missing_index"], [])
    assert digests(tmp_path) == before


@pytest.mark.parametrize("inline_bytes", [0, 5, 1 << 20])
def test_indexes_elsewhere_are_made_again(inline_bytes: int, root: Path, tmp_path: Path, digests: Digests) -> None:
    """Indexes under another root, with any threshold, come back to the byte from the shards where they lie."""
    out = tmp_path / "out"
    options = IndexOptions(workers=1, inline_bytes=inline_bytes)
    index_shards(str(root / "*.tar"), output=str(out), options=options)
    before, shards = digests(out), digests(root)
    (out / "shard-000002.idx").unlink()
    assert examine(str(out), repair=True, workers=1).is_sound
    assert (digests(out), digests(root)) == (before, shards)


def test_an_index_that_says_the_same_is_published(root: Path, tmp_path: Path) -> None:
    """Where no other index tells the threshold, an index of the same samples is published in a new generation."""
    out = tmp_path / "out"
    index_shards(str(root / "*.tar"), output=str(out), options=IndexOptions(workers=1, inline_bytes=77))
    fingerprint = open_dataset(str(out)).fingerprint
    for path in out.glob("*.idx"):
        path.unlink()
    report = examine(str(out), repair=True, workers=1)
    assert (report.is_sound, "generation 2" in report.repaired[-1]) == (True, True)
    dataset = open_dataset(str(out))
    assert (dataset.fingerprint, dataset[3]["txt"]) == (fingerprint, "caption 3")
    assert verify(str(out), full=True, workers=1).is_sound


def test_an_interrupted_overwrite_is_not_taken_back(root: Path, photos: Path, digests: Digests) -> None:
    """An old generation whose shards were partly replaced is not named again: it would look whole and is not."""
    (root / "manifest.msgpack").unlink()
    flip(root / "shard-000000.tar", 600)
    before = digests(root)
    report = examine(str(root), repair=True, workers=1)
    assert "bad_manifest" in [each.finding.kind for each in report.remaining]
    assert digests(root) == before


def test_a_lost_append_is_not_taken_back(root: Path, digests: Digests) -> None:
    """With a damaged newest generation and a lost pointer, the one before is not named the newest."""
    (root / "manifest.msgpack").unlink()
    (root / "manifest-000002.msgpack").write_bytes(b"damaged")
    before = digests(root)
    assert kinds(examine(str(root), repair=True, workers=1)) == ["bad_manifest"]
    assert digests(root) == before


def test_shards_without_a_manifest_are_told(root: Path, digests: Digests) -> None:
    """An interrupted run is no data set: the way to finish it is named, and no manifest is made up."""
    for path in root.glob("manifest*"):
        path.unlink()
    before = digests(root)
    report = examine(str(root), repair=True, workers=1)
    assert kinds(report) == ["no_manifest"]
    assert "--resume" in report.remaining[0].remedy
    assert digests(root) == before


def test_where_nothing_is_nothing_is_found(tmp_path: Path) -> None:
    """A folder without a data set is not damaged, it is the wrong folder."""
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ObjectNotFoundError):
            examine(str(path))


def test_what_a_living_writer_writes_is_left(tmp_path: Path) -> None:
    """The temporary file of a process that still runs is neither reported nor removed."""
    with ShardWriter(str(tmp_path)) as writer:
        writer.write({"__key__": "a", "txt": "x"})
        with pytest.raises(ObjectNotFoundError):
            examine(str(tmp_path), repair=True)
        assert list(tmp_path.glob(".*"))
    assert examine(str(tmp_path)).is_sound


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    """Temporary files of a killed process go, and its whole shards are told as a run to be finished."""
    script = (
        "import os, sys, janus_shards as js\n"
        "with js.ShardWriter(sys.argv[1], max_samples=1) as writer:\n"
        "    [writer.write({'__key__': key, 'txt': key}) for key in 'ab']\n"
        "    os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert sorted(kinds(examine(str(tmp_path)))) == ["leftover", "no_manifest"]
    report = examine(str(tmp_path), repair=True)
    assert [each.finding.kind for each in report.remaining] == ["no_manifest"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard-000000.idx", "shard-000000.tar"]


@pytest.mark.s3
def test_indexes_in_a_store_are_made_again(s3_env: S3Server, photos: Path) -> None:
    """The same on S3: a lost index comes back, and an unfinished upload is aborted."""
    from janus_shards.storage.urls import open_storage

    root = f"{s3_env.create_bucket()}/set"
    pack(str(photos), root, options=PackOptions(workers=1))
    storage = open_storage(root)
    before = bytes(storage.read("shard-000000.idx"))
    storage.delete("shard-000000.idx")
    upload = storage.open_upload("shard-000001.tar")
    upload.write(bytes(9 << 20))
    assert sorted(kinds(examine(root, workers=1))) == ["leftover", "missing_index"]
    assert examine(root, repair=True, workers=1).is_sound
    assert bytes(storage.read("shard-000000.idx")) == before
    assert ShardIndex.decode(before, name="index").num_samples == 10
