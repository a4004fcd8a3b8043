import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def repository_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of one who types the README's lines: examples/ is there, and what is written stays here."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run_example(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs ``examples/name`` as a script with arguments."""

    def run(name: str, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")

    return run


def test_readme_lines_write_and_read(repository_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The README's Python runs as it stands and prints three batches of four pictures."""
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.count("torch.Size([4, 3, 384, 384])") == 3
    assert list((repository_copy / "shards").glob("*.tar"))


def test_write_and_read_example(run_example: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    """The example writes thirteen photographs and shows the cat's caption."""
    run_example("write_and_read.py")
    out = capsys.readouterr().out
    assert "13 samples" in out
    assert "tabby cat" in out


@pytest.mark.usefixtures("repository_copy")
def test_stream_example(run_example: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    """The example streams two epochs and finds the batch that follows a saved state."""
    run_example("write_and_read.py", "shards")
    run_example("stream_photos.py", "shards", "--batch-size", "4")
    out = capsys.readouterr().out
    assert "epoch 1: 3 steps, 12 samples" in out
    assert "the same next batch" in out
