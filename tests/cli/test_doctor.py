from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]
Json = Callable[..., Any]


def test_a_sound_data_set(run: Run, packed: Path) -> None:
    """One line says that all is well."""
    assert f"{packed}: sound (4 shards" in run("doctor", packed, "--workers", "1").stdout


def test_findings_come_with_what_to_do(run: Run, copied: Path) -> None:
    """Each finding is two lines, the exit code is 1, and nothing is changed."""
    (copied / "shard-000001.idx").unlink()
    lines = run("doctor", copied, "--quick", code=1).stdout.splitlines()
    assert lines[0].startswith("missing_index: shard shard-000001.tar: ")
    assert "--repair" in lines[1]
    assert lines[2].startswith(f"{copied}: 1 finding (")


def test_repair_says_what_it_did(run: Run, run_json: Json, copied: Path) -> None:
    """What was mended is told, and the exit code is 0 if nothing is left."""
    before = (copied / "shard-000001.idx").read_bytes()
    (copied / "shard-000001.idx").write_bytes(b"damaged")
    document = run_json("doctor", copied, "--repair", "--workers", "1")
    assert (document["sound"], len(document["repaired"]), document["remaining"]) == (True, 1, [])
    assert document["found"][0]["kind"] == "index_mismatch"
    assert document["found"][0]["remedy"]
    assert (copied / "shard-000001.idx").read_bytes() == before
    assert "sound" in run("doctor", copied, "--quick").stdout


def test_what_cannot_be_mended_remains(run: Run, copied: Path) -> None:
    """A lost shard is still told after mending, with exit code 1."""
    (copied / "shard-000002.tar").unlink()
    assert "missing_shard" in run("doctor", copied, "--repair", "--quick", code=1).stdout


@pytest.mark.parametrize("name", ["", "missing"])
def test_where_nothing_is(error_line: Callable[..., str], tmp_path: Path, name: str) -> None:
    """A folder without a data set is a storage error in one line."""
    assert str(tmp_path) in error_line("doctor", tmp_path / name, code=3)
