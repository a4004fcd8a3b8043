import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from janus_shards.reader import open_dataset

Run = Callable[..., Result]
Json = Callable[..., Any]


@pytest.fixture
def table(photos: Path) -> Path:
    """A table of the three photographs, beside them."""
    path = photos / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "path", "caption", "license"])
        for number, image in enumerate(sorted(photos.glob("*.jpg"))):
            writer.writerow([f"{number:03d}", image.name, f"caption {number}", "cc0"])
    return path


def test_pack_says_what_it_wrote(run: Run, photos: Path, tmp_path: Path) -> None:
    """One line: where, how many samples, shards and bytes."""
    result = run("pack", photos, tmp_path / "out")
    assert f"{tmp_path}/out: 3 samples in 1 shard, " in result.stdout
    assert result.stderr == ""


def test_pack_json(run_json: Json, photos: Path, tmp_path: Path) -> None:
    """The document has the counts of the data set that now lies there."""
    document = run_json("pack", photos, tmp_path / "out", "--max-samples", "2", "--prefix", "train")
    dataset = open_dataset(str(tmp_path / "out"))
    assert document["fingerprint"] == dataset.fingerprint
    assert (document["samples"], document["shards"], document["written"], document["skipped"]) == (3, 2, 2, 0)
    assert sorted(path.name for path in (tmp_path / "out").glob("*.tar")) == ["train-000000.tar", "train-000001.tar"]


def test_pack_a_table(run: Run, table: Path, tmp_path: Path) -> None:
    """Columns become keys, pictures, captions and JSON as the options say."""
    options = ["--image-column", "path", "--text-column", "caption", "--key-column", "id", "--json-columns", "license"]
    run("pack", table, tmp_path / "out", *options)
    sample = open_dataset(str(tmp_path / "out")).by_key("001")
    assert (sample["txt"], sample["json"], list(sample)) == ("caption 1", {"license": "cc0"}, ["jpg", "txt", "json"])


def test_pack_skips_bad_rows_and_counts_them(run: Run, table: Path, tmp_path: Path) -> None:
    """With ``--on-bad skip`` a row without its file is left out with a warning."""
    with table.open("a") as file:
        file.write("007,none.jpg,nothing,cc0\n")
    options = ["--image-column", "path", "--key-column", "id", "--on-bad", "skip", "--json"]
    result = run("pack", table, tmp_path / "out", *options)
    assert json.loads(result.stdout)["skipped"] == 1
    assert "warning: " in result.stderr
    assert "none.jpg" in result.stderr


def test_options_of_tables_need_a_table(error_line: Callable[..., str], photos: Path, tmp_path: Path) -> None:
    """Columns of a folder are refused, not ignored."""
    assert "no table" in error_line("pack", photos, tmp_path / "out", "--text-column", "caption", code=2)


def test_pack_refuses_then_resumes_or_overwrites(run: Run, run_json: Json, photos: Path, tmp_path: Path) -> None:
    """A root that is taken is refused with both ways out; resuming keeps what is whole, overwriting replaces it."""
    root = tmp_path / "out"
    run("pack", photos, root)
    refused = run("pack", photos, root, code=2)
    assert "--overwrite" in refused.stderr
    assert "--resume" in refused.stderr
    assert run_json("pack", photos, root, "--resume")["kept"] == 1
    assert run_json("pack", photos, root, "--overwrite")["written"] == 1


def test_inline_sizes(run: Run, photos: Path, tmp_path: Path) -> None:
    """``--inline 0`` keeps no captions in the index, which gets smaller."""
    run("pack", photos, tmp_path / "with")
    run("pack", photos, tmp_path / "without", "--inline", "0")
    with_captions, without = ((tmp_path / name / "shard-000000.idx").stat().st_size for name in ("with", "without"))
    assert without < with_captions


def test_folders_inside_themselves_are_refused(error_line: Callable[..., str], photos: Path) -> None:
    """A root inside the source would be packed by the next run."""
    assert "inside the source" in error_line("pack", photos, photos / "out", code=2)
