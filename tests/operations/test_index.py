"""Indexing what others wrote: every field is found where it lies, and no shard is changed."""

import gc
import io
import os
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import webdataset

from janus_shards.errors import ConfigError, TarFormatError
from janus_shards.format.index import ShardIndex
from janus_shards.format.manifest import Manifest, ManifestPointer
from janus_shards.operations.index import IndexOptions, index_shards
from janus_shards.operations.progress import Progress
from janus_shards.writer import ShardWriter

Digests = Callable[[Path], dict[str, str]]
HERE = IndexOptions(workers=1)


def write_tar(path: Path, members: Mapping[str, bytes], *, format: int = tarfile.PAX_FORMAT) -> None:
    """A tar as Python's own module writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), 1_700_000_000.5
            tar.addfile(member, io.BytesIO(data))


def samples_of(root: Path, shard: str, tar: Path) -> dict[str, dict[str, bytes]]:
    """All fields of a shard, cut from the tar where the index says."""
    index = ShardIndex.decode((root / shard).with_suffix(".idx").read_bytes(), name=shard)
    data = tar.read_bytes()
    return {
        index.key(row): {span.field: data[span.offset : span.offset + span.size] for span in index.fields_of(row)}
        for row in range(index.num_samples)
    }


def newest(root: Path) -> Manifest:
    """The manifest that the pointer names."""
    pointer = ManifestPointer.decode((root / "manifest.msgpack").read_bytes(), name="pointer")
    return Manifest.decode((root / pointer.target).read_bytes(), name=pointer.target)


def test_all_fields_of_webdataset_shards_are_found(tmp_path: Path) -> None:
    """What ``webdataset.ShardWriter`` wrote is indexed in place with every key and every field."""
    wanted = [{"__key__": f"{n:04d}", "jpg": os.urandom(700), "txt": f"caption {n}", "cls": n} for n in range(10)]
    with webdataset.ShardWriter(str(tmp_path / "wds-%06d.tar"), maxcount=4, verbose=0) as writer:
        for sample in wanted:
            writer.write(sample)
    report = index_shards(str(tmp_path), options=HERE)
    found: dict[str, dict[str, bytes]] = {}
    for shard in report.manifest.shards:
        found |= samples_of(tmp_path, shard.name, tmp_path / shard.name)
    assert found == {
        sample["__key__"]: {"jpg": sample["jpg"], "txt": sample["txt"].encode(), "cls": b"%d" % sample["cls"]}
        for sample in wanted
    }
    assert (report.num_indexed, report.manifest.num_samples) == (3, 10)
    assert list(report.manifest.fields) == ["cls", "jpg", "txt"]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_reads_what_the_writer_wrote(tmp_path: Path) -> None:
    """All keys and all fields, in order, long names and upper case included."""
    keys = ["a", "v1.0/Ä", "x" * 120, "deep/" * 30 + "end"]
    with ShardWriter(str(tmp_path), max_samples=3) as writer:
        for key in keys:
            writer.write({"__key__": key, "jpg": key.encode(), "seg.png": b"2", "txt": key})
    shards = sorted(str(path) for path in tmp_path.glob("*.tar"))
    found = list(webdataset.WebDataset(shards, shardshuffle=False))
    gc.collect()  # webdataset leaves its files open; their warnings belong to this test
    assert [sample["__key__"] for sample in found] == keys
    assert [(s["jpg"], s["seg.png"], s["txt"]) for s in found] == [(key.encode(), b"2", key.encode()) for key in keys]


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_offsets_point_behind_extra_headers(tmp_path: Path, format: int) -> None:
    """Long names and pax headers move the data; the index points at it."""
    members = {"d" * 60 + "/" + "n" * 80 + f"{n}.txt": b"%d" % n for n in range(3)}
    write_tar(tmp_path / "a.tar", members, format=format)
    index_shards(str(tmp_path / "a.tar"), options=HERE)
    found = samples_of(tmp_path, "a.tar", tmp_path / "a.tar")
    assert found == {name.removesuffix(".txt"): {"txt": data} for name, data in members.items()}


def test_indexes_can_lie_elsewhere(tmp_path: Path, digests: Digests) -> None:
    """With ``output`` nothing is written beside the shards, and the manifest says where they are."""
    for name in ("x/1.tar", "y/1.tar"):
        write_tar(tmp_path / "foreign" / name, {"a.txt": b"1", "b.txt": b"2"})
    before = [digests(tmp_path / "foreign" / folder) for folder in "xy"]
    index_shards([f"{tmp_path}/foreign/{{y,x}}/1.tar"], output=str(tmp_path / "out"), options=HERE)
    manifest = newest(tmp_path / "out")
    assert manifest.base_url == str(tmp_path / "foreign")
    assert [shard.name for shard in manifest.shards] == ["y/1.tar", "x/1.tar"]
    assert (tmp_path / "out" / "x" / "1.idx").exists()
    assert [digests(tmp_path / "foreign" / folder) for folder in "xy"] == before


def test_any_number_of_workers_gives_the_same_files(tmp_path: Path, digests: Digests) -> None:
    """Indexes and manifest do not depend on who scanned what."""
    for number in range(5):
        write_tar(tmp_path / "in" / f"{number}.tar", {f"{number}-{n}.txt": b"x" * n for n in range(number + 1)})
    told: list[Progress] = []
    for workers in (1, 2):
        options = IndexOptions(workers=workers)
        index_shards(f"{tmp_path}/in/", output=str(tmp_path / f"w{workers}"), options=options, progress=told.append)
    assert digests(tmp_path / "w1") == digests(tmp_path / "w2")
    assert [(step.done, step.num_samples) for step in told[:5]] == [(1, 1), (2, 3), (3, 6), (4, 10), (5, 15)]


def test_what_is_no_sample_is_counted(tmp_path: Path) -> None:
    """Links and junk are ignored with a word in the report; a missing end is a warning."""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("a.txt", "._a.txt", "LICENSE"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
        link = tarfile.TarInfo("b.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    os.truncate(tmp_path / "a.tar", 4 * 512)
    report = index_shards(str(tmp_path), options=HERE)
    assert (report.manifest.num_samples, report.num_links, report.num_ignored) == (1, 1, 2)
    assert "missing_eof: 1 shard without end blocks, perhaps cut: a.tar" in report.warnings
    assert "link_skipped: 1 link ignored" in report.warnings


def test_shards_without_samples_are_left_out(tmp_path: Path) -> None:
    """An empty shard among others is a warning; nothing but empty shards is an error."""
    (tmp_path / "a.tar").write_bytes(bytes(1024))
    with pytest.raises(ConfigError, match="without any sample") as caught:
        index_shards(str(tmp_path), options=HERE)
    assert caught.value.kind == "empty_dataset"
    write_tar(tmp_path / "b.tar", {"a.txt": b""})
    report = index_shards(str(tmp_path), options=IndexOptions(workers=1, resume=True))
    assert [shard.name for shard in report.manifest.shards] == ["b.tar"]
    assert "a.tar" in report.warnings[0]


@pytest.mark.parametrize(
    ("data", "kind"),
    [(b"\x1f\x8b" + bytes(600), "compressed_shard"), (b"no tar" * 200, "not_a_tar"), (b"", "truncated_shard")],
)
def test_shard_that_cannot_be_indexed_is_named(tmp_path: Path, data: bytes, kind: str) -> None:
    """What is no plain tar ends the run with its path, and no manifest appears."""
    write_tar(tmp_path / "a.tar", {"a.txt": b""})
    (tmp_path / "b.tar").write_bytes(data)
    with pytest.raises(TarFormatError, match=r"b\.tar") as caught:
        index_shards(str(tmp_path), options=HERE)
    assert caught.value.kind == kind
    assert not (tmp_path / "manifest.msgpack").exists()


def test_bad_samples_can_be_left_out(tmp_path: Path) -> None:
    """A field that comes twice is an error, or with ``skip`` a warning and one sample less."""
    write_tar(tmp_path / "a.tar", {"a.txt": b"1", "a.TXT": b"2", "b.txt": b"3"})
    with pytest.raises(TarFormatError, match="'a'") as caught:
        index_shards(str(tmp_path), options=HERE)
    assert caught.value.kind == "duplicate_field"
    report = index_shards(str(tmp_path), options=IndexOptions(workers=1, on_bad="skip"))
    assert (report.num_skipped, report.manifest.num_samples) == (1, 1)


def test_no_piece_of_a_sample_in_pieces_is_kept(tmp_path: Path) -> None:
    """A key that comes back is an error, or with ``skip`` none of its members is indexed, nor those in front."""
    names = ["a.jpg", "b.jpg", "a.txt", "c.txt", "b.txt", "a.json", "d.txt"]
    write_tar(tmp_path / "a.tar", {name: name.encode() for name in names})
    with pytest.raises(TarFormatError, match="'a'") as caught:
        index_shards(str(tmp_path), options=HERE)
    assert caught.value.kind == "interleaved_key"
    report = index_shards(str(tmp_path), options=IndexOptions(workers=1, on_bad="skip"))
    assert samples_of(tmp_path, "a.tar", tmp_path / "a.tar") == {"c": {"txt": b"c.txt"}, "d": {"txt": b"d.txt"}}
    assert [(each.key, each.kind) for each in report.skipped] == [("a", "interleaved_key"), ("b", "interleaved_key")]
    assert report.warnings[0].startswith("bad_sample: 2 bad samples left out: ")


def test_data_set_that_is_there_is_refused(tmp_path: Path, digests: Digests) -> None:
    """An index or manifest that exists is not overwritten unless told so; shards never are."""
    write_tar(tmp_path / "a.tar", {"a.txt": b"1"})
    index_shards(str(tmp_path), options=HERE)
    before = digests(tmp_path)
    with pytest.raises(ConfigError, match="--overwrite"):
        index_shards(str(tmp_path), options=HERE)
    index_shards(str(tmp_path), options=IndexOptions(workers=1, overwrite=True))
    assert digests(tmp_path) == before


@pytest.mark.parametrize("changed", [None, "index", "shard", "length", "inline"])
def test_resume_scans_only_what_does_not_fit(tmp_path: Path, changed: str | None) -> None:
    """A damaged index, a shard that is younger or has another length, or another option is scanned again."""
    for name in ("a.tar", "b.tar"):
        write_tar(tmp_path / name, {"k.txt": b"1"})
    index_shards(str(tmp_path), options=HERE)
    if changed == "index":
        (tmp_path / "b.idx").write_bytes(b"")
    elif changed == "shard":
        os.utime(tmp_path / "b.tar")
    elif changed == "length":
        write_tar(tmp_path / "b.tar", {"k.txt": b"1" * 20_000})
    inline_bytes = 0 if changed == "inline" else 4096
    report = index_shards(str(tmp_path), options=IndexOptions(workers=1, resume=True, inline_bytes=inline_bytes))
    assert report.num_indexed == {None: 0, "inline": 2}.get(changed, 1)


def test_web_shards_need_an_output() -> None:
    """A web server takes no files, so the user has to say where they go."""
    with pytest.raises(ConfigError, match="--output"):
        index_shards("https://host.invalid/d/{0..3}.tar")
