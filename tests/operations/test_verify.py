"""Checking a data set: every kind of damage becomes a finding that names shard, key and field."""

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.errors import ObjectNotFoundError
from janus_shards.operations.index import IndexOptions, index_shards
from janus_shards.operations.progress import Progress
from janus_shards.operations.verify import verify
from janus_shards.writer import ShardWriter


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three shards of two samples."""
    with ShardWriter(str(tmp_path / "set"), max_samples=2) as writer:
        for number in range(6):
            writer.write({"__key__": f"k{number}", "jpg": bytes([number]) * 3000, "txt": f"caption {number}"})
    return tmp_path / "set"


def kinds(root: Path, *, full: bool = True) -> list[tuple[str, str, str, str]]:
    """Kind, shard, key and field of what is found."""
    found = verify(str(root), full=full, workers=1).findings
    return [(finding.kind, finding.shard, finding.key, finding.field) for finding in found]


def damage(path: Path, offset: int) -> None:
    """Flip one bit."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("full", [False, True])
def test_sound_data_set_has_no_findings(root: Path, full: bool) -> None:
    """Nothing is found, and the report counts what was looked at."""
    told: list[Progress] = []
    report = verify(str(root), full=full, workers=1, progress=told.append)
    assert report.is_sound
    assert (report.num_shards, report.num_samples, len(told)) == (3, 6, 3)
    assert report.num_bytes == sum(path.stat().st_size for path in root.glob("*.tar")) * full


def test_changed_field_is_named(root: Path) -> None:
    """A flipped bit in a picture names its key and field; only a full check can see it."""
    damage(root / "shard-000001.tar", 1000)
    assert kinds(root, full=False) == []
    assert kinds(root) == [
        ("member_mismatch", "shard-000001.tar", "k2", "jpg"),
        ("shard_digest", "shard-000001.tar", "", ""),
    ]


def test_damaged_header_ends_the_scan_of_its_shard_only(root: Path) -> None:
    """A header that is none is a finding, and the other shards are checked all the same."""
    damage(root / "shard-000000.tar", 3)
    damage(root / "shard-000002.tar", 1000)
    assert [kind for kind, *_ in kinds(root)] == ["bad_header", "member_mismatch", "shard_digest"]


def test_cut_shard_is_found_by_its_length(root: Path) -> None:
    """A quick check compares lengths; a full one also says where the bytes end."""
    os.truncate(root / "shard-000001.tar", 2000)
    assert kinds(root, full=False) == [("shard_length", "shard-000001.tar", "", "")]
    assert [kind for kind, *_ in kinds(root)] == ["shard_length", "truncated_shard"]


def test_missing_files_are_findings(root: Path) -> None:
    """A shard or an index that is not there is named."""
    (root / "shard-000000.tar").unlink()
    (root / "shard-000001.idx").unlink()
    assert kinds(root, full=False) == [
        ("missing_shard", "shard-000000.tar", "", ""),
        ("missing_index", "shard-000001.tar", "", ""),
    ]


def test_damaged_index_is_a_finding_and_the_shard_is_checked_by_its_digest(root: Path) -> None:
    """Without an index a full check still knows whether the shard is the one that was written."""
    damage(root / "shard-000001.idx", 40)
    assert kinds(root) == [("index_mismatch", "shard-000001.tar", "", "")]


def test_replaced_shard_shows_extra_and_missing_members(root: Path) -> None:
    """A shard of other samples with the same length is found out, member by member."""
    with tarfile.open(root / "shard-000000.tar", "w:", format=tarfile.USTAR_FORMAT) as tar:
        for name, size in (("k0.jpg", 3000), ("k0.txt", 9), ("k9.jpg", 3000)):
            member = tarfile.TarInfo(name)
            member.size = size
            tar.addfile(member, io.BytesIO(bytes(size)))
    found = kinds(root)
    assert ("member_mismatch", "shard-000000.tar", "k1", "jpg") in found
    assert ("missing_member", "shard-000000.tar", "k1", "txt") in found
    assert ("shard_digest", "shard-000000.tar", "", "") in found


def test_samples_left_out_by_index_are_no_findings(tmp_path: Path) -> None:
    """What the index leaves out on purpose lies in bytes that are those that were indexed."""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("a.txt", "a.TXT", "b.txt"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    index_shards(str(tmp_path), options=IndexOptions(workers=1, on_bad="skip"))
    assert kinds(tmp_path) == []


@pytest.mark.parametrize("name", ["manifest.msgpack", "manifest-000001.msgpack"])
@pytest.mark.parametrize("change", [Path.unlink, lambda path: damage(path, 30), lambda path: path.write_bytes(b"")])
def test_damaged_manifest_is_a_finding(root: Path, name: str, change: Callable[[Path], object]) -> None:
    """A pointer or generation that cannot be read is damage; no manifest at all is no data set."""
    change(root / name)
    if not (root / "manifest.msgpack").exists():
        with pytest.raises(ObjectNotFoundError):
            verify(str(root))
    else:
        assert [kind for kind, *_ in kinds(root)] == ["bad_manifest"]


def test_folder_without_data_set_is_an_error(tmp_path: Path) -> None:
    """Nothing to check is the user's mistake, not a finding."""
    with pytest.raises(ObjectNotFoundError):
        verify(str(tmp_path))


@pytest.fixture(scope="module")
def small_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of one small sample."""
    root = tmp_path_factory.mktemp("small")
    with ShardWriter(str(root), max_samples=1) as writer:
        for number in range(3):
            writer.write({"__key__": f"k{number}", "jpg": bytes(600), "txt": "x" * number})
    return root


@given(place=st.integers(0, 2), offset=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_no_flipped_bit_of_a_shard_goes_unnoticed(small_root: Path, place: int, offset: int, bit: int) -> None:
    """A full check finds any change of any shard and raises nothing."""
    path = small_root / f"shard-{place:06d}.tar"
    whole = path.read_bytes()
    data = bytearray(whole)
    data[offset % len(data)] ^= 1 << bit
    path.write_bytes(data)
    assert {finding.shard for finding in verify(str(small_root), full=True, workers=1).findings} == {path.name}
    path.write_bytes(whole)
