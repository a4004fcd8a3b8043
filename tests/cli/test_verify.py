from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]


@pytest.mark.parametrize("options", [[], ["--full", "--workers", "1"]], ids=["quick", "full"])
def test_sound_data_is_said_to_be_sound(run: Run, packed: Path, options: list[str]) -> None:
    """A data set without faults gives exit code 0."""
    assert f"{packed}: sound\n13 samples in 4 shards, " in run("verify", packed, *options).stdout


def test_findings_are_lines_and_exit_with_one(run: Run, run_json: Callable[..., Any], copied: Path) -> None:
    """Each fault is a line that starts with its kind; the document lists the same."""
    (copied / "shard-000001.idx").unlink()
    with (copied / "shard-000002.tar").open("ab") as shard:
        shard.write(b"x")
    lines = run("verify", copied, code=1).stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == ["missing_index", "shard_length"]
    assert lines[2] == f"{copied}: 2 findings"
    document = run_json("verify", copied, code=1)
    assert not document["sound"]
    assert [finding["shard"] for finding in document["findings"]] == ["shard-000001.tar", "shard-000002.tar"]


def test_changed_bytes_are_found_by_a_full_check(run: Run, copied: Path) -> None:
    """A flipped byte keeps the length: the quick check misses it, the full one names sample and field."""
    shard = copied / "shard-000000.tar"
    data = bytearray(shard.read_bytes())
    data[600] ^= 1
    shard.write_bytes(data)
    assert "sound" in run("verify", copied).stdout
    found = run("verify", copied, "--full", "--workers", "1", code=1).stdout
    assert "member_mismatch: " in found
    assert "'astronaut'" in found


def test_no_data_set_is_a_fault_of_storage(error_line: Callable[..., str], tmp_path: Path) -> None:
    """Where nothing lies there is nothing to verify."""
    assert "manifest.msgpack" in error_line("verify", tmp_path, code=3)
