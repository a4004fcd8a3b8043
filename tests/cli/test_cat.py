import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result

PHOTO = Path(__file__).parents[2] / "examples" / "photos" / "chelsea.jpg"


def test_cat_gives_the_stored_bytes(run: Callable[..., Result], packed: Path) -> None:
    """The bytes of a field arrive as they are stored, and nothing else."""
    assert run("cat", packed, "chelsea", "jpg").stdout_bytes == PHOTO.read_bytes()


def test_cat_json_carries_any_bytes(run_json: Callable[..., Any], packed: Path) -> None:
    """Text is text in the document, other bytes are base64."""
    assert "cat" in run_json("cat", packed, "chelsea", "txt")["text"]
    assert base64.b64decode(run_json("cat", packed, "chelsea", "jpg")["base64"]) == PHOTO.read_bytes()


def test_cat_names_what_there_is(error_line: Callable[..., str], packed: Path) -> None:
    """A key or field that does not exist is a mistake of the user."""
    assert "'nobody'" in error_line("cat", packed, "nobody", "jpg", code=2)
    assert "it has jpg, txt" in error_line("cat", packed, "chelsea", "png", code=2)
