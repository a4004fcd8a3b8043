"""The command run in this process and in others, and data sets of real photographs."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from janus_shards.cli.main import main

PHOTOS = Path(__file__).parents[2] / "examples" / "photos"

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """``run("info", root)``: the result of a command run in this process; its exit code has to be ``code``."""

    def invoke(*arguments: object, code: int = 0) -> Result:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result

    return invoke


@pytest.fixture
def run_json(run: Run) -> Callable[..., Any]:
    """The document that a command prints with ``--json``."""

    def invoke(*arguments: object, code: int = 0) -> Any:
        return json.loads(run(*arguments, "--json", code=code).stdout)

    return invoke


@pytest.fixture
def error_line(run: Run) -> Callable[..., str]:
    """The one line on stderr of a command that fails with an exit code; nothing is on stdout."""

    def invoke(*arguments: object, code: int) -> str:
        result = run(*arguments, code=code)
        assert result.stdout == ""
        assert result.stderr.startswith("janus-shards: error: ")
        assert result.stderr.count("\n") == 1
        return result.stderr

    return invoke


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts a command as a process of its own, with pipes; what still runs after the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def popen(*arguments: object, env: Mapping[str, str] | None = None, **given: Any) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "janus_shards.cli", *map(str, arguments)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **given}
        started.append(subprocess.Popen(command, env={**os.environ, **(env or {})}, **pipes))
        return started[-1]

    yield popen
    for process in started:
        with process:  # closes its pipes and waits
            process.kill()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of three photographs with captions, to be damaged."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("chelsea", "coffee", "rocket"):
        shutil.copy(PHOTOS / f"{name}.jpg", folder)
        shutil.copy(PHOTOS / f"{name}.txt", folder)
    return folder


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All example photographs as a data set of four shards; not to be changed."""
    root = tmp_path_factory.mktemp("data") / "packed"
    result = CliRunner().invoke(main, ["pack", str(PHOTOS), str(root), "--max-samples", "4", "--workers", "1"])
    assert result.exit_code == 0, result.output
    return root


@pytest.fixture
def copied(packed: Path, tmp_path: Path) -> Path:
    """The same data set, to be damaged."""
    return Path(shutil.copytree(packed, tmp_path / "copied"))
