"""What ``ShardWriter`` leaves on disk: whole shards, one manifest, the same bytes each time."""

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest

from janus_shards.errors import ConfigError, ResumeError, StorageError
from janus_shards.format.index import ShardIndex
from janus_shards.format.manifest import Manifest
from janus_shards.writer import ShardWriter

Digests = Callable[[Path], dict[str, str]]
Sample = Mapping[str, object]

PYTHONPATH = {"PYTHONPATH": os.pathsep.join(sys.path)}


class StopWritingError(Exception):
    """Raised by a test in the middle of a run."""


def samples(count: int, *, size: int = 700) -> list[Sample]:
    """Pictures by name only, and captions."""
    return [{"__key__": f"{n:06d}", "jpg": bytes([n % 251]) * size, "txt": f"caption {n}"} for n in range(count)]


def write(root: Path, wanted: Iterable[Sample], **options: object) -> Manifest:
    """Write all samples and close."""
    with ShardWriter(str(root), **options) as writer:
        for sample in wanted:
            writer.write(sample)
    assert writer.manifest is not None
    return writer.manifest


def write_and_stop(root: Path, wanted: Iterable[Sample], **options: object) -> None:
    """Write samples, then leave the block by an exception."""
    with pytest.raises(StopWritingError):  # noqa: PT012, SIM117  # the exception has to cross the writer
        with ShardWriter(str(root), **options) as writer:
            for sample in wanted:
                writer.write(sample)
            raise StopWritingError


def rows(manifest: Manifest) -> list[int]:
    """Samples a shard."""
    return [shard.num_samples for shard in manifest.shards]


@pytest.mark.parametrize(
    ("max_samples", "shards"), [(5, [5, 5]), (4, [4, 4, 2]), (10, [10]), (100, [10]), (1, [1] * 10)]
)
def test_shards_roll_by_samples_and_none_is_empty(tmp_path: Path, max_samples: int, shards: list[int]) -> None:
    """An exact multiple ends with a full shard, not with an empty one."""
    assert rows(write(tmp_path, samples(10), max_samples=max_samples)) == shards
    assert len(list(tmp_path.glob("*.tar"))) == len(list(tmp_path.glob("*.idx"))) == len(shards)


@pytest.mark.parametrize(("limit", "shards"), [(6144, [2, 2, 1]), (6143, [1] * 5), (1, [1] * 5), (10**6, [5])])
def test_shards_stay_within_their_bytes_unless_one_sample_is_longer(
    tmp_path: Path, limit: int, shards: list[int]
) -> None:
    """A sample of 2,560 bytes in the tar fits twice into 6,144 with the end blocks."""
    manifest = write(tmp_path, samples(5), max_shard_bytes=limit)
    assert rows(manifest) == shards
    assert all((tmp_path / shard.name).stat().st_size == shard.tar_bytes for shard in manifest.shards)


def test_index_tells_what_tarfile_finds(tmp_path: Path) -> None:
    """Offsets, sizes, inline captions and columns of the index are those of the tar."""
    with ShardWriter(str(tmp_path), prefix="train") as writer:
        for number, sample in enumerate(samples(3)):
            writer.write(sample, columns={"tokens": number, "name": f"n{number}"})
    index = ShardIndex.decode((tmp_path / "train-000000.idx").read_bytes(), name="train-000000.idx")
    with tarfile.open(tmp_path / "train-000000.tar") as tar:
        members = [(member.name, member.offset_data, member.size) for member in tar]
    spans = [(row, span) for row in range(3) for span in index.fields_of(row)]
    assert members == [(f"{index.key(row)}.{span.field}", span.offset, span.size) for row, span in spans]
    assert index.inline("txt", 2) == b"caption 2"
    assert index.inline("jpg", 2) is None
    assert np.array_equal(index.columns["tokens"], [0, 1, 2])
    assert writer.manifest is not None
    assert writer.manifest.columns == {"tokens": "int64", "name": "str"}


def test_every_header_is_reproducible(tmp_path: Path) -> None:
    """No time, owner or mode of the machine reaches the tar."""
    write(tmp_path, samples(2))
    with tarfile.open(tmp_path / "shard-000000.tar") as tar:
        assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in tar} == {(0, 0, 0, "", "", 0o644)}


def test_second_run_gives_the_same_bytes(tmp_path: Path, digests: Digests) -> None:
    """Another process with another umask and locale writes the same files."""
    write(tmp_path / "here", samples(10), max_samples=4)
    script = (
        "import os; os.umask(0o077)\n"
        "from janus_shards.writer import ShardWriter\n"
        f"with ShardWriter({str(tmp_path / 'there')!r}, max_samples=4) as writer:\n"
        "    for n in range(10):\n"
        "        writer.write({'__key__': f'{n:06d}', 'jpg': bytes([n]) * 700, 'txt': f'caption {n}'})\n"
    )
    environment = {**os.environ, "LC_ALL": "POSIX", "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", script], check=True, env={**environment, **PYTHONPATH})
    assert digests(tmp_path / "here") == digests(tmp_path / "there")


def test_nothing_to_write_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    """No sample gives no shard, no manifest and a message."""
    with pytest.raises(ConfigError, match="no sample") as caught, ShardWriter(str(tmp_path / "out")):
        pass
    assert caught.value.kind == "empty_dataset"
    assert not (tmp_path / "out").exists()


def test_exception_inside_the_block_publishes_nothing(tmp_path: Path) -> None:
    """Whole shards stay for resuming; the open one and the manifest do not appear."""
    write_and_stop(tmp_path, samples(4), max_samples=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard-000000.idx", "shard-000000.tar"]


def test_refused_sample_leaves_no_trace(tmp_path: Path, digests: Digests) -> None:
    """After a refused sample the writer goes on as if it had not been given."""
    with ShardWriter(str(tmp_path / "a")) as writer:
        for sample in samples(4):
            writer.write(sample)
            with pytest.raises(ConfigError):
                writer.write({**sample, "__key__": "a.b"})
            with pytest.raises(ConfigError, match="twice"):
                writer.write(sample)
            with pytest.raises(ConfigError, match="columns"):
                writer.write({**sample, "__key__": "other"}, columns={"n": 1})
    write(tmp_path / "b", samples(4))
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_column_of_another_kind_is_refused(tmp_path: Path) -> None:
    """A column is text in all rows or in none; whole numbers and fractions mix and become float64."""
    with ShardWriter(str(tmp_path), max_samples=1) as writer:
        writer.write({"__key__": "a", "txt": ""}, columns={"score": 1})
        with pytest.raises(ConfigError, match="score"):
            writer.write({"__key__": "b", "txt": ""}, columns={"score": "1"})
        writer.write({"__key__": "c", "txt": ""}, columns={"score": 0.5})
    assert writer.manifest is not None
    assert writer.manifest.columns == {"score": "float64"}


def test_key_of_an_earlier_shard_is_refused_and_not_published(tmp_path: Path) -> None:
    """A key occurs once in a data set, however many shards lie between."""
    with pytest.raises(ConfigError, match="'000001'") as caught:
        write(tmp_path, [*samples(5), samples(2)[1]], max_samples=2)
    assert caught.value.kind == "duplicate_key"
    assert not (tmp_path / "manifest.msgpack").exists()
    assert not (tmp_path / "shard-000002.tar").exists()


@pytest.mark.parametrize("left", ["manifest.msgpack", "shard-000000.tar"])
def test_data_set_that_is_there_is_not_overwritten(tmp_path: Path, digests: Digests, left: str) -> None:
    """A second run into the same folder refuses, also when only a part is there, and changes nothing."""
    write(tmp_path, samples(3))
    for path in tmp_path.iterdir():
        if path.name != left:
            path.unlink()
    before = digests(tmp_path)
    with pytest.raises(ConfigError, match="overwrite=True") as caught:
        write(tmp_path, samples(3))
    assert caught.value.kind == "exists"
    assert digests(tmp_path) == before


def test_overwrite_leaves_what_a_fresh_run_would(tmp_path: Path, digests: Digests) -> None:
    """Shards of a longer old data set do not linger; files of others stay."""
    write(tmp_path / "a", samples(10), max_samples=2)
    (tmp_path / "a" / "notes.md").write_text("mine")
    write(tmp_path / "a", samples(3, size=9), max_samples=2, overwrite=True)
    write(tmp_path / "b", samples(3, size=9), max_samples=2)
    (tmp_path / "b" / "notes.md").write_text("mine")
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_overwrite_withdraws_the_old_manifest_before_the_first_shard(tmp_path: Path) -> None:
    """A run that dies while it overwrites leaves no manifest that names replaced shards."""
    write(tmp_path, samples(3))
    write_and_stop(tmp_path, [], overwrite=True)
    assert (tmp_path / "manifest.msgpack").exists()
    write_and_stop(tmp_path, samples(1), overwrite=True)
    assert not (tmp_path / "manifest.msgpack").exists()


@pytest.mark.parametrize("stopped_after", [0, 1, 3, 5, 9, 10])
def test_resume_ends_with_the_bytes_of_an_undisturbed_run(tmp_path: Path, digests: Digests, stopped_after: int) -> None:
    """Wherever the first run stopped, resuming gives the same files, without gaps."""
    write_and_stop(tmp_path / "a", samples(10)[:stopped_after], max_samples=3)
    write(tmp_path / "a", samples(10), max_samples=3, resume=True)
    write(tmp_path / "b", samples(10), max_samples=3)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_resume_of_a_finished_run_changes_nothing(tmp_path: Path, digests: Digests) -> None:
    """Whole shards are compared, not written, and the manifest stays as it is."""
    write(tmp_path, samples(10), max_samples=4)
    before = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    write(tmp_path, samples(10), max_samples=4, resume=True)
    assert {path.name: path.stat().st_ino for path in tmp_path.iterdir()} == before


def test_resume_goes_on_where_a_finished_run_ended_on_a_full_shard(tmp_path: Path) -> None:
    """More samples behind full shards become the next generation; the old one stays readable."""
    write(tmp_path, samples(4), max_samples=2)
    manifest = write(tmp_path, samples(6), max_samples=2, resume=True)
    assert (manifest.generation, rows(manifest)) == (2, [2, 2, 2])
    assert (tmp_path / "manifest-000001.msgpack").exists()


@pytest.mark.parametrize("damage", ["missing index", "damaged index", "cut shard"])
def test_resume_writes_a_shard_again_that_is_not_whole(tmp_path: Path, digests: Digests, damage: str) -> None:
    """A shard counts as whole only with a valid index and its length."""
    write(tmp_path, samples(4), max_samples=2)
    before = digests(tmp_path)
    if damage == "missing index":
        (tmp_path / "shard-000001.idx").unlink()
    elif damage == "damaged index":
        (tmp_path / "shard-000001.idx").write_bytes(b"\x80")
    else:
        os.truncate(tmp_path / "shard-000001.tar", 3000)
    write(tmp_path, samples(4), max_samples=2, resume=True)
    assert digests(tmp_path) == before


def test_resume_in_another_data_set_is_refused(tmp_path: Path, digests: Digests) -> None:
    """The manifest of shards with another prefix is never replaced by resuming."""
    write(tmp_path, samples(2), prefix="train")
    before = digests(tmp_path)
    with pytest.raises(ConfigError, match=r"train-000000\.tar") as caught:
        write(tmp_path, samples(2), prefix="val", resume=True)
    assert (caught.value.kind, digests(tmp_path)) == ("exists", before)


def test_resume_with_other_inline_values_rewrites_the_indexes(tmp_path: Path, digests: Digests) -> None:
    """The shards stay, and the indexes are those of an undisturbed run with the new option."""
    write(tmp_path / "a", samples(4), max_samples=2)
    before = (tmp_path / "a" / "shard-000001.tar").stat().st_ino
    write(tmp_path / "a", samples(4), max_samples=2, inline_bytes=0, resume=True)
    write(tmp_path / "b", samples(4), max_samples=2, inline_bytes=0)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert (tmp_path / "a" / "shard-000001.tar").stat().st_ino == before


def test_resume_with_other_samples_names_the_shard(tmp_path: Path) -> None:
    """Samples that are not those of the interrupted run are refused at the first shard that differs."""
    write(tmp_path, samples(4), max_samples=2)
    changed = [*samples(3), {"__key__": "000003", "jpg": b"", "txt": "another"}]
    with pytest.raises(ResumeError, match=r"shard-000001\.tar"):
        write(tmp_path, changed, max_samples=2, resume=True)


def test_resume_with_fewer_samples_is_refused(tmp_path: Path) -> None:
    """A replay that ends before the interrupted run had got to is not the same data."""
    write(tmp_path, samples(6), max_samples=2)
    with pytest.raises(ResumeError, match=r"shard-000002\.tar"):
        write(tmp_path, samples(4), max_samples=2, resume=True)


def test_kill_leaves_whole_shards_and_resume_finishes(tmp_path: Path, digests: Digests) -> None:
    """SIGKILL in the middle of a shard: what has a final name is whole, the rest is removed by the next run."""
    script = (
        "import os, signal\n"
        "from janus_shards.writer import ShardWriter\n"
        f"with ShardWriter({str(tmp_path / 'a')!r}, max_samples=4) as writer:\n"
        "    for n in range(10):\n"
        "        writer.write({'__key__': f'{n:06d}', 'jpg': bytes([n]) * 700, 'txt': f'caption {n}'})\n"
        "        if n == 5: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=False, env={**os.environ, **PYTHONPATH})
    assert [path.name for path in sorted((tmp_path / "a").glob("shard*"))] == ["shard-000000.idx", "shard-000000.tar"]
    assert list((tmp_path / "a").glob(".janus-tmp-*"))
    write(tmp_path / "a", samples(10), max_samples=4, resume=True)
    write(tmp_path / "b", samples(10), max_samples=4)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_full_disk_is_a_clear_error_and_leaves_whole_shards(tmp_path: Path) -> None:
    """A file that may not grow ends the run with the path; nothing half-written keeps a final name."""
    script = (
        "import resource, signal\n"
        "from janus_shards.errors import StorageError\n"
        "from janus_shards.writer import ShardWriter\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try:\n"
        f"    with ShardWriter({str(tmp_path)!r}, max_samples=2) as writer:\n"
        "        for n in range(6): writer.write({'__key__': f'{n}', 'bin': bytes(2_000 if n < 2 else 15_000)})\n"
        "except StorageError as error:\n"
        "    print(error)\n"
    )
    environment = {**os.environ, **PYTHONPATH}
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment)
    assert "shard-000001.tar" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard-000000.idx", "shard-000000.tar"]


def test_failed_write_ends_the_writer(tmp_path: Path) -> None:
    """After a storage failure no further sample is taken and no manifest is published."""
    (tmp_path / "shard-000001.tar").mkdir()
    first, second, third = samples(3)
    with pytest.raises(ConfigError, match="resume=True"):  # noqa: PT012, SIM117  # closing the writer raises
        with ShardWriter(str(tmp_path), max_samples=1) as writer:
            writer.write(first)
            writer.write(second)
            with pytest.raises(StorageError):
                writer.write(third)
    assert not (tmp_path / "manifest.msgpack").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"max_shard_bytes": 0},
        {"max_samples": 0},
        {"inline_bytes": -1},
        {"prefix": "a/b"},
        {"resume": True, "overwrite": True},
    ],
)
def test_option_outside_its_range_is_refused_before_any_io(tmp_path: Path, options: dict[str, object]) -> None:
    """A wrong option is a ``ConfigError`` when the writer is made."""
    with pytest.raises(ConfigError):
        ShardWriter(str(tmp_path), **options)


def test_writer_is_used_as_a_context_manager_once(tmp_path: Path) -> None:
    """Writing outside of the block, or entering it again, says what to do."""
    writer = ShardWriter(str(tmp_path / "a"))
    with pytest.raises(ConfigError, match="with ShardWriter"):
        writer.write(samples(1)[0])
    with writer:
        writer.write(samples(1)[0])
    with pytest.raises(ConfigError, match="already used"), writer:
        pass
