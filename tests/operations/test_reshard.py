"""Samples written anew are the same samples, from any tar and from data sets."""

import gzip
import io
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from janus_shards.errors import ConfigError, DecodeError, TarFormatError
from janus_shards.operations.pack import PackOptions, pack
from janus_shards.operations.progress import Progress
from janus_shards.operations.reshard import ReshardOptions, reshard
from janus_shards.reader import open_dataset
from janus_shards.writer import ShardWriter
from janus_shards.writer.shard import ShardLayout

Digests = Callable[[Path], dict[str, str]]
SKIP = ReshardOptions(on_bad="skip")


def write_tar(path: Path, members: Sequence[tuple[str, bytes]]) -> None:
    """A tar as Python's own module writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def content(root: Path) -> list[tuple[str, dict[str, bytes]]]:
    """Keys and bytes of all samples."""
    return [(sample.key, {name: sample.raw(name) for name in sample}) for sample in open_dataset(str(root))]


def test_data_set_keeps_samples_and_columns(photos: Path, tmp_path: Path) -> None:
    """Order, bytes and metadata columns stay, whatever the size of the shards."""
    pack(str(photos), str(tmp_path / "a"), options=PackOptions(layout=ShardLayout(max_samples=3), workers=1))
    told: list[Progress] = []
    options = ReshardOptions(layout=ShardLayout(max_samples=4, prefix="new"))
    report = reshard(str(tmp_path / "a"), str(tmp_path / "b"), options=options, progress=told.append)
    assert content(tmp_path / "b") == content(tmp_path / "a")
    one, two = (open_dataset(str(tmp_path / name)) for name in "ab")
    assert two.columns == one.columns
    assert two.column("width").tolist() == one.column("width").tolist()
    assert [shard.num_samples for shard in report.manifest.shards] == [4, 4, 2]
    assert [(step.done, step.total, step.num_samples) for step in told] == [(1, 4, 3), (2, 4, 6), (3, 4, 9), (4, 4, 10)]


def test_columns_of_every_type_are_kept(tmp_path: Path) -> None:
    """Numbers, texts and booleans come back with their types."""
    with ShardWriter(str(tmp_path / "a")) as writer:
        writer.write({"__key__": "k", "txt": "x"}, columns={"n": 7, "f": 0.5, "s": "é", "b": True})
    reshard(str(tmp_path / "a"), str(tmp_path / "b"))
    dataset = open_dataset(str(tmp_path / "b"))
    assert dataset.columns == {"n": "int64", "f": "float64", "s": "str", "b": "bool"}
    assert [list(dataset.column(name)) for name in "nfsb"] == [[7], [0.5], ["é"], [True]]


def test_tars_of_any_kind_are_read_in_the_order_given(tmp_path: Path) -> None:
    """Plain and compressed tars, with and without names that say so; a leading ./ goes."""
    for number, name in enumerate(("x/b.tar", "x/a.tar.gz", "x/c.tar")):
        write_tar(tmp_path / name, [(f"./k{number}.txt", b"%d" % number), (f"./k{number}.JPG", b"j")])
    for name in ("x/a.tar.gz", "x/c.tar"):
        (tmp_path / name).write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    names = [f"{tmp_path}/x/{name}" for name in ("b.tar", "a.tar.gz", "c.tar")]
    report = reshard(names, str(tmp_path / "out"))
    assert content(tmp_path / "out") == [(f"k{n}", {"txt": b"%d" % n, "jpg": b"j"}) for n in range(3)]
    assert report.warnings == ["key_renamed: 3 keys without the leading './'"]


BAD = [
    ("a.txt", b"1"),
    ("twice.txt", b"2"),
    ("twice.TXT", b"3"),
    ("apart.txt", b"4"),
    ("b.txt", b"5"),
    ("apart.jpg", b"6"),
    ("c.txt__", b"7"),
    ("d.txt", b"8"),
]


def test_bad_samples_end_the_run_or_are_left_out(tmp_path: Path) -> None:
    """A field twice, a sample in pieces and a name that cannot be written; none of a bad sample's pieces is written."""
    write_tar(tmp_path / "a.tar", BAD)
    with pytest.raises(TarFormatError, match="twice"):
        reshard(str(tmp_path / "a.tar"), str(tmp_path / "out"))
    assert not list((tmp_path / "out").glob("manifest*"))
    report = reshard(str(tmp_path / "a.tar"), str(tmp_path / "out"), options=SKIP)
    assert [key for key, _ in content(tmp_path / "out")] == ["a", "b", "d"]
    kinds = {sample.key: sample.kind for sample in report.skipped}
    assert kinds == {"twice": "duplicate_field", "apart": "interleaved_key", "c": "bad_field"}


def test_damaged_samples_of_a_data_set_are_found(tmp_path: Path) -> None:
    """Bytes that are not those that were indexed are never copied."""
    with ShardWriter(str(tmp_path / "a")) as writer:
        for key in "abc":
            writer.write({"__key__": key, "bin": key.encode() * 600})
    shard = tmp_path / "a" / "shard-000000.tar"
    shard.write_bytes(shard.read_bytes().replace(b"bbbb", b"bbxb", 1))
    with pytest.raises(DecodeError, match="'b'"):
        reshard(str(tmp_path / "a"), str(tmp_path / "out"))
    report = reshard(str(tmp_path / "a"), str(tmp_path / "out"), options=SKIP)
    assert [key for key, _ in content(tmp_path / "out")] == ["a", "c"]
    assert [sample.key for sample in report.skipped] == ["b"]


def test_an_interrupted_run_is_resumed(photos: Path, tmp_path: Path, digests: Digests) -> None:
    """Whole shards are kept, and the files are those of an undisturbed run."""
    pack(str(photos), str(tmp_path / "a"), options=PackOptions(workers=1))
    layout = ShardLayout(max_samples=3)
    reshard(str(tmp_path / "a"), str(tmp_path / "b"), options=ReshardOptions(layout=layout))
    whole = digests(tmp_path / "b")
    for name in ("manifest.msgpack", "manifest-000001.msgpack", "shard-000002.tar", "shard-000003.tar"):
        (tmp_path / "b" / name).unlink()
    with pytest.raises(ConfigError, match="--resume"):
        reshard(str(tmp_path / "a"), str(tmp_path / "b"), options=ReshardOptions(layout=layout))
    reshard(str(tmp_path / "a"), str(tmp_path / "b"), options=ReshardOptions(layout=layout, resume=True))
    assert digests(tmp_path / "b") == whole


def test_nothing_is_written_of_nothing(tmp_path: Path) -> None:
    """Shards without a sample, and keys that come twice, are errors without a manifest."""
    (tmp_path / "a.tar").write_bytes(bytes(1024))
    with pytest.raises(ConfigError) as caught:
        reshard(str(tmp_path / "a.tar"), str(tmp_path / "out"))
    assert caught.value.kind == "empty_dataset"
    for name in ("b.tar", "c.tar"):
        write_tar(tmp_path / name, [("k.txt", b"1")])
    with pytest.raises(ConfigError, match="'k' occurs twice"):
        reshard(f"{tmp_path}/{{b,c}}.tar", str(tmp_path / "out"))
    assert not list((tmp_path / "out").glob("manifest*"))
