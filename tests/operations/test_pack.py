"""Packing: the same bytes for any number of processes, and nothing half-written whatever goes wrong."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from janus_shards.errors import ConfigError, DecodeError, FormatError, IntegrityError, MissingFieldError
from janus_shards.format.index import ShardIndex
from janus_shards.operations.pack import PackOptions, PackReport, pack
from janus_shards.operations.progress import Progress
from janus_shards.operations.tables import TableColumns
from janus_shards.writer import ShardWriter
from janus_shards.writer.shard import ShardLayout

Digests = Callable[[Path], dict[str, str]]
Picture = Callable[..., bytes]


def options(max_samples: int = 4, **others: object) -> PackOptions:
    """Options of a run in this process."""
    return PackOptions(layout=ShardLayout(max_samples=max_samples), **{"workers": 1, **others})


def rows(report: PackReport) -> list[int]:
    """Samples a shard."""
    return [shard.num_samples for shard in report.manifest.shards]


def inodes(folder: Path) -> dict[str, int]:
    """Which file stands under each name."""
    return {path.name: path.stat().st_ino for path in folder.iterdir()}


@pytest.mark.parametrize(("max_samples", "shards"), [(5, [5, 5]), (4, [4, 4, 2]), (10, [10]), (100, [10])])
def test_shards_have_the_planned_rows(photos: Path, tmp_path: Path, max_samples: int, shards: list[int]) -> None:
    """There is no empty shard, not even at an exact multiple."""
    report = pack(str(photos), str(tmp_path / "out"), options=options(max_samples))
    assert (rows(report), report.num_samples, report.num_written) == (shards, 10, len(shards))


def test_any_number_of_workers_gives_the_bytes_of_the_writer(photos: Path, tmp_path: Path, digests: Digests) -> None:
    """One process, three processes and ``ShardWriter`` write the same files."""
    for workers in (1, 3):
        pack(str(photos), str(tmp_path / f"w{workers}"), options=options(workers=workers))
    with ShardWriter(str(tmp_path / "writer"), max_samples=4) as writer:
        for number in range(10):
            parts = {field: (photos / f"img{number}.{field}").read_bytes() for field in ("jpg", "txt")}
            writer.write({"__key__": f"img{number}", **parts}, columns={"width": 8 + number, "height": 6})
    assert digests(tmp_path / "w1") == digests(tmp_path / "w3") == digests(tmp_path / "writer")


def test_time_mask_and_order_of_files_change_nothing(photos: Path, tmp_path: Path, digests: Digests) -> None:
    """Another process, umask, locale and order on disk give the same shards and indexes."""
    pack(str(photos), str(tmp_path / "a"), options=options())
    again = tmp_path / "again"
    again.mkdir()
    for path in sorted(photos.iterdir(), reverse=True):
        (again / path.name).write_bytes(path.read_bytes())
    script = (
        "import os; os.umask(0o077)\n"
        "from janus_shards.operations.pack import PackOptions, pack\n"
        "from janus_shards.writer.shard import ShardLayout\n"
        f"pack({str(again)!r}, {str(tmp_path / 'b')!r}, options=PackOptions(layout=ShardLayout(max_samples=4)))\n"
    )
    environment = {**os.environ, "LC_ALL": "POSIX", "TZ": "Asia/Tokyo", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_index_knows_the_size_of_the_pictures(photos: Path, tmp_path: Path) -> None:
    """Each row has width and height of its picture, read from its header."""
    pack(str(photos), str(tmp_path / "out"), options=options(100))
    index = ShardIndex.decode((tmp_path / "out" / "shard-000000.idx").read_bytes(), name="i")
    assert list(index.columns["width"]) == list(range(8, 18))
    assert set(index.columns["height"]) == {6}


def test_table_becomes_samples_in_its_order(photos: Path, tmp_path: Path) -> None:
    """Keys, captions and pictures are those of the rows; paths are relative to the table."""
    table = tmp_path / "rows.csv"
    table.write_text("id,file,text\n007,photos/img3.jpg,hi\n001,photos/img1.jpg,\n")
    columns = TableColumns(image="file", text="text", key="id")
    pack(str(table), str(tmp_path / "out"), columns=columns, options=options())
    index = ShardIndex.decode((tmp_path / "out" / "shard-000000.idx").read_bytes(), name="i")
    assert [index.key(row) for row in range(2)] == ["007", "001"]
    assert [index.inline("txt", row) for row in range(2)] == [b"hi", b""]
    assert list(index.columns["width"]) == [11, 9]


def test_progress_is_told_after_each_shard(photos: Path, tmp_path: Path) -> None:
    """The caller hears how many shards, samples and bytes are done."""
    told: list[Progress] = []
    report = pack(str(photos), str(tmp_path / "out"), options=options(), progress=told.append)
    assert [(step.stage, step.done, step.total, step.num_samples) for step in told] == [
        ("write", 1, 3, 4),
        ("write", 2, 3, 8),
        ("write", 3, 3, 10),
    ]
    assert told[-1].num_bytes == report.num_bytes


def test_file_that_is_no_picture_is_named_and_nothing_published(photos: Path, tmp_path: Path) -> None:
    """A web page called ``.jpg`` ends the run; whole shards before it wait for ``resume``, the rest does not appear."""
    (photos / "img6.jpg").write_bytes(b"<html>not found</html>")
    with pytest.raises(DecodeError, match=r"img6\.jpg.*--resume") as caught:
        pack(str(photos), str(tmp_path / "out"), options=options())
    assert (caught.value.key, caught.value.field) == ("img6", "jpg")
    assert sorted(os.listdir(tmp_path / "out")) == ["shard-000000.idx", "shard-000000.tar"]


def test_errors_of_workers_come_as_they_are(photos: Path, tmp_path: Path) -> None:
    """The error of another process is the same as that of this one."""
    (photos / "img0.jpg").write_bytes(b"")
    with pytest.raises(DecodeError, match=r"img0\.jpg"):
        pack(str(photos), str(tmp_path / "out"), options=options(workers=2))
    assert not list((tmp_path / "out").glob("*.msgpack"))


def test_missing_caption_is_refused_before_anything_is_written(photos: Path, tmp_path: Path) -> None:
    """Nothing of the target appears."""
    (photos / "img4.txt").unlink()
    with pytest.raises(MissingFieldError, match=r"'img4\.jpg' has no txt"):
        pack(str(photos), str(tmp_path / "out"), options=options())
    assert not (tmp_path / "out").exists()
    report = pack(str(photos), str(tmp_path / "out"), options=options(allow_missing=True))
    assert report.num_samples == 10


def test_bad_row_is_refused_before_anything_is_written(photos: Path, tmp_path: Path) -> None:
    """The table and the line are named, and no shard with a final name is left."""
    table = tmp_path / "rows.jsonl"
    table.write_text('{"id": "a", "image": "photos/img0.jpg"}\n{"id": \n')
    with pytest.raises(FormatError, match=r"rows\.jsonl.*line 2"):
        pack(str(table), str(tmp_path / "out"), columns=TableColumns(image="image", key="id"))
    assert not (tmp_path / "out").exists()


def test_file_that_changes_while_packing_is_noticed(photos: Path, tmp_path: Path) -> None:
    """A file that is not as long as planned would break the plan; it is named."""

    def grow_a_file(_progress: Progress) -> None:
        with (photos / "img5.txt").open("a") as file:
            file.write("more")

    with pytest.raises(IntegrityError, match=r"img5\.txt"):
        pack(str(photos), str(tmp_path / "out"), options=options(), progress=grow_a_file)


def test_target_inside_of_the_source_is_refused(photos: Path) -> None:
    """The next run would pack the shards of this one."""
    with pytest.raises(ConfigError, match="inside the source"):
        pack(str(photos), str(photos / "out"))


def test_table_without_columns_is_refused(photos: Path) -> None:
    """A table says nothing about its columns by itself."""
    (photos / "rows.csv").write_text("id\n1\n")
    with pytest.raises(ConfigError, match="--image-column"):
        pack(str(photos / "rows.csv"), str(photos.parent / "out"))


@pytest.mark.parametrize("values", [{"workers": 0}, {"resume": True, "overwrite": True}, {"dots": "keep"}])
def test_option_outside_its_range_is_refused(values: dict[str, object]) -> None:
    """A wrong option is a ``ConfigError`` when the options are made."""
    with pytest.raises(ConfigError):
        PackOptions(**values)


def test_caller_may_end_a_run_from_its_progress(photos: Path, tmp_path: Path) -> None:
    """What the callback raises ends the workers, and their open shards do not appear."""

    def stop(_progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(str(photos), str(tmp_path / "out"), options=options(2, workers=2), progress=stop)
    assert not multiprocessing.active_children()
    assert not [name for name in os.listdir(tmp_path / "out") if name.startswith((".", "manifest"))]


# --- what is already there --------------------------------------------------------------------------------------------


def test_data_set_that_is_there_is_refused_and_unchanged(photos: Path, tmp_path: Path, digests: Digests) -> None:
    """A second run refuses unless told otherwise."""
    pack(str(photos), str(tmp_path / "out"), options=options())
    before = digests(tmp_path / "out")
    with pytest.raises(ConfigError, match="--overwrite") as caught:
        pack(str(photos), str(tmp_path / "out"), options=options())
    assert caught.value.kind == "exists"
    assert digests(tmp_path / "out") == before


def test_overwrite_leaves_what_a_fresh_run_would(photos: Path, tmp_path: Path, digests: Digests) -> None:
    """Shards of the longer old data set are gone."""
    pack(str(photos), str(tmp_path / "a"), options=options(2))
    pack(str(photos), str(tmp_path / "a"), options=options(6, overwrite=True))
    pack(str(photos), str(tmp_path / "b"), options=options(6))
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_resume_keeps_whole_shards_and_writes_the_others(photos: Path, tmp_path: Path, digests: Digests) -> None:
    """After a crash between shards, the files are those of an undisturbed run, and whole shards were not touched."""
    out = tmp_path / "out"
    pack(str(photos), str(out), options=options())
    whole = digests(out)
    for name in ("shard-000001.tar", "shard-000002.idx", "manifest.msgpack", "manifest-000001.msgpack"):
        (out / name).unlink()
    before = inodes(out)
    report = pack(str(photos), str(out), options=options(resume=True))
    assert (report.num_kept, report.num_written, digests(out)) == (1, 2, whole)
    assert inodes(out)["shard-000000.tar"] == before["shard-000000.tar"]


def test_resume_of_a_finished_run_changes_nothing(photos: Path, tmp_path: Path) -> None:
    """All shards are kept, and so is the manifest."""
    pack(str(photos), str(tmp_path / "out"), options=options())
    before = inodes(tmp_path / "out")
    report = pack(str(photos), str(tmp_path / "out"), options=options(resume=True))
    assert (report.num_kept, report.num_written, inodes(tmp_path / "out")) == (3, 0, before)


def change_caption(photos: Path, out: Path) -> None:
    """A caption of the same length."""
    (photos / "img5.txt").write_text("caption !")


def replace_picture(photos: Path, out: Path) -> None:
    """Same size, later than the shards."""
    later = time.time_ns() + 10**9
    os.utime(photos / "img5.jpg", ns=(later, later))


def damage_index(photos: Path, out: Path) -> None:
    """Bytes that are no index."""
    (out / "shard-000001.idx").write_bytes(b"\x81")


def cut_shard(photos: Path, out: Path) -> None:
    """A shard without its end."""
    os.truncate(out / "shard-000001.tar", 1024)


def take_foreign_index(photos: Path, out: Path) -> None:
    """The index of another shard."""
    (out / "shard-000001.idx").write_bytes((out / "shard-000000.idx").read_bytes())


@pytest.mark.parametrize("change", [change_caption, replace_picture, damage_index, cut_shard, take_foreign_index])
def test_resume_writes_again_what_does_not_fit(
    photos: Path, tmp_path: Path, digests: Digests, change: Callable[[Path, Path], None]
) -> None:
    """A changed input, a damaged index, a cut shard or one of another run is written again, and only that."""
    out = tmp_path / "out"
    pack(str(photos), str(out), options=options())
    change(photos, out)
    report = pack(str(photos), str(out), options=options(resume=True))
    assert (report.num_kept, report.num_written) == (2, 1)
    pack(str(photos), str(tmp_path / "fresh"), options=options())
    assert digests(out) == digests(tmp_path / "fresh")


@pytest.mark.parametrize("layout", [ShardLayout(max_samples=5), ShardLayout(max_samples=4, inline_bytes=0)])
def test_resume_with_another_layout_writes_all_again(
    photos: Path, tmp_path: Path, digests: Digests, layout: ShardLayout
) -> None:
    """Shards cut elsewhere, or indexes with other inline values, are not those of this run."""
    pack(str(photos), str(tmp_path / "a"), options=options())
    pack(str(photos), str(tmp_path / "a"), options=PackOptions(layout=layout, workers=1, resume=True))
    pack(str(photos), str(tmp_path / "b"), options=PackOptions(layout=layout, workers=1))
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_kill_leaves_whole_shards_and_resume_finishes(photos: Path, tmp_path: Path, digests: Digests) -> None:
    """SIGKILL between two shards: what has a final name is whole; resuming gives the undisturbed run's files."""
    out = tmp_path / "out"
    script = (
        "import os, signal\n"
        "from janus_shards.operations.pack import PackOptions, pack\n"
        "from janus_shards.writer.shard import ShardLayout\n"
        "if __name__ == '__main__':\n"
        f"    pack({str(photos)!r}, {str(out)!r}, options=PackOptions(layout=ShardLayout(max_samples=2), workers=2),\n"
        "        progress=lambda step: os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    path = tmp_path / "main.py"
    path.write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # Workers hold the pipes too, so this also waits for the one that is finishing its shard.
    subprocess.run([sys.executable, str(path)], check=False, env=environment, capture_output=True)
    assert {p.stem for p in out.glob("shard*.tar")} == {p.stem for p in out.glob("shard*.idx")} != set()
    assert not (out / "manifest.msgpack").exists()
    pack(str(photos), str(out), options=options(2, resume=True))
    pack(str(photos), str(tmp_path / "fresh"), options=options(2))
    assert digests(out) == digests(tmp_path / "fresh")


def test_full_disk_leaves_whole_shards(photos: Path, tmp_path: Path) -> None:
    """When no byte more can be written the error names the file; what has a final name is whole."""
    (photos / "img7.txt").write_text("x" * 30_000)
    out = tmp_path / "out"
    script = (
        "import resource, signal\n"
        "from janus_shards.errors import StorageError\n"
        "from janus_shards.operations.pack import PackOptions, pack\n"
        "from janus_shards.writer.shard import ShardLayout\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try:\n"
        f"    pack({str(photos)!r}, {str(out)!r}, options=PackOptions(layout=ShardLayout(max_samples=4), workers=1))\n"
        "except StorageError as error:\n"
        "    print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment)
    assert "shard-000001.tar" in done.stdout
    assert sorted(os.listdir(out)) == ["shard-000000.idx", "shard-000000.tar"]
