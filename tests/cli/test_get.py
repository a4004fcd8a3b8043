from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result

PHOTOS = Path(__file__).parents[2] / "examples" / "photos"


def test_get_saves_every_field(run: Callable[..., Result], packed: Path, tmp_path: Path) -> None:
    """Each field becomes a file with the stored bytes, and its path is printed."""
    result = run("get", packed, "chelsea", "-o", tmp_path / "new" / "folder")
    saved = sorted((tmp_path / "new" / "folder").iterdir())
    assert [path.read_bytes() for path in saved] == [(PHOTOS / path.name).read_bytes() for path in saved]
    assert [line.split()[0] for line in result.stdout.splitlines()] == [str(path) for path in saved]


def test_get_keeps_files_that_are_there(
    run: Callable[..., Result], error_line: Callable[..., str], packed: Path, tmp_path: Path
) -> None:
    """Without ``--overwrite`` nothing is written where one of the files exists."""
    (tmp_path / "chelsea.txt").write_text("mine")
    assert "--overwrite" in error_line("get", packed, "chelsea", "-o", tmp_path, code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["chelsea.txt"]
    run("get", packed, "chelsea", "-o", tmp_path, "--overwrite")
    assert "cat" in (tmp_path / "chelsea.txt").read_text()


def test_get_some_fields(
    run_json: Callable[..., Any], error_line: Callable[..., str], packed: Path, tmp_path: Path
) -> None:
    """``--fields`` chooses, and an unknown one is refused before anything is written."""
    assert "it has jpg, txt" in error_line("get", packed, "chelsea", "-o", tmp_path / "a", "--fields", "png", code=2)
    assert not (tmp_path / "a").exists()
    (file,) = run_json("get", packed, "chelsea", "-o", tmp_path / "a", "--fields", "txt")["files"]
    assert Path(file["path"]).stat().st_size == file["bytes"]
