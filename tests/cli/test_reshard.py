import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result

Run = Callable[..., Result]
Json = Callable[..., Any]


def test_a_data_set_in_other_shards(run: Run, run_json: Json, packed: Path, tmp_path: Path) -> None:
    """The same samples and columns lie in shards of another size."""
    result = run("reshard", packed, tmp_path / "out", "--max-samples", "5", "--prefix", "train")
    assert f"{tmp_path}/out: 13 samples in 3 shards from 4 shards" in result.stdout
    one, two = (run_json("ls", root, "--limit", "0") for root in (packed, tmp_path / "out"))
    assert [(s["key"], s["fields"]) for s in one] == [(s["key"], s["fields"]) for s in two]
    assert run_json("info", tmp_path / "out")["columns"] == run_json("info", packed)["columns"]


def test_compressed_tars_become_a_data_set(run_json: Json, packed: Path, tmp_path: Path) -> None:
    """What ``index`` refuses and names this command for is read here, whatever it is called."""
    tar = (packed / "shard-000001.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(gzip.compress(tar))
    document = run_json("reshard", tmp_path / "a.tar", packed / "shard-000000.tar", tmp_path / "out")
    assert (document["samples"], document["shards"], document["read"], document["skipped"]) == (8, 1, 2, 0)


def test_a_root_that_is_taken_is_refused(error_line: Callable[..., str], packed: Path) -> None:
    """Shards are not written over a data set unless that is asked for."""
    assert "--overwrite" in error_line("reshard", packed, packed, code=2)
