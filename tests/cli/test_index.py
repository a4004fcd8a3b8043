import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]
Json = Callable[..., Any]


@pytest.fixture
def tars(packed: Path, tmp_path: Path) -> Path:
    """A folder with the tars of a data set and nothing else."""
    folder = tmp_path / "tars"
    folder.mkdir()
    for tar in packed.glob("*.tar"):
        shutil.copy(tar, folder)
    return folder


def test_index_beside_the_shards(run: Run, run_json: Json, tars: Path, packed: Path) -> None:
    """Indexed tars are the data set that was packed: same fingerprint, same samples."""
    assert "13 samples in 4 shards" in run("index", tars, "--workers", "1").stdout
    assert run_json("info", tars)["fingerprint"] == run_json("info", packed)["fingerprint"]
    assert run_json("ls", tars, "--limit", "0") == run_json("ls", packed, "--limit", "0")


def test_index_elsewhere_by_pattern(run_json: Json, tars: Path, tmp_path: Path) -> None:
    """Indexes may lie under another root, which reads the shards where they are."""
    before = sorted(tars.iterdir())
    document = run_json("index", f"{tars}/shard-{{000000..000001}}.tar", "--output", tmp_path / "ix", "--workers", "1")
    assert (document["samples"], document["shards"], document["indexed"]) == (8, 2, 2)
    assert sorted(tars.iterdir()) == before
    assert run_json("info", tmp_path / "ix")["shards_url"] == str(tars)
    assert run_json("cat", tmp_path / "ix", "astronaut", "txt")["text"]


def test_index_refuses_then_resumes(run_json: Json, error_line: Callable[..., str], tars: Path) -> None:
    """Indexes that are there are kept unless the user says otherwise."""
    run_json("index", "--workers", "1", tars)
    assert "already holds" in error_line("index", tars, code=2)
    assert run_json("index", "--workers", "1", tars, "--resume")["kept"] == 4
    assert run_json("index", "--workers", "1", tars, "--overwrite")["indexed"] == 4


def test_bad_samples_can_be_skipped(run_json: Json, error_line: Callable[..., str], tmp_path: Path) -> None:
    """A sample with a field twice ends the run without a manifest, or is left out and counted."""
    with tarfile.open(tmp_path / "twice.tar", "w") as tar:
        for name in ("a.txt", "b.txt", "b.TXT"):
            tar.addfile(tarfile.TarInfo(name))
    assert "twice.tar" in error_line("index", tmp_path / "twice.tar", code=1)
    assert not (tmp_path / "manifest.msgpack").exists()
    document = run_json("index", tmp_path / "twice.tar", "--on-bad", "skip")
    assert (document["samples"], document["skipped"]) == (1, 1)
    (skipped,) = document["skipped_samples"]
    assert (skipped["key"], skipped["field"], skipped["kind"]) == ("b", "txt", "duplicate_field")


@pytest.mark.parametrize("name", ["nothing.tar", "*.tar", "{a,b}.tar"])
def test_missing_shards(run: Run, tmp_path: Path, name: str) -> None:
    """A tar or pattern that names nothing is an error, and nothing is written."""
    assert run("index", tmp_path / name, code=3 if name == "nothing.tar" else 2).stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
