from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result

Run = Callable[..., Result]


def test_ls_shows_ids_keys_and_sizes(run: Run, packed: Path) -> None:
    """A line has the sample id, the key and each field with its size."""
    line = run("ls", packed, "--limit", "1").stdout
    assert line.split() == ["0", "astronaut", "jpg", "95.5", "kB", "txt", "137", "B"]


def test_ls_pages(run: Run, packed: Path) -> None:
    """``--start`` and ``--limit`` cut the list; 0 lists all; beyond the end there is nothing."""
    every = run("ls", packed, "--limit", "0").stdout.splitlines()
    assert len(every) == 13
    page = run("ls", packed, "--start", "5", "--limit", "2").stdout.splitlines()
    assert [line.split()[:2] for line in page] == [line.split()[:2] for line in every[5:7]]
    assert run("ls", packed, "--start", "13").stdout == ""


def test_ls_json(run_json: Callable[..., Any], packed: Path) -> None:
    """The document is a list with exact sizes."""
    (last,) = run_json("ls", packed, "--start", "12")
    photo = Path(__file__).parents[2] / "examples" / "photos" / "rocket.jpg"
    assert last["key"] == "rocket"
    assert last["fields"]["jpg"] == photo.stat().st_size
    assert last["shard"] == "shard-000003.tar"
