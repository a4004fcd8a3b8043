"""The command as a process: signals, pipes, exit codes and terminals."""

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

PHOTOS = Path(__file__).parents[2] / "examples" / "photos"
Start = Callable[..., "subprocess.Popen[str]"]

# Of exit after Ctrl-C; the library promises two seconds, a busy machine may need some more.
PATIENCE_S = 8.0


@pytest.fixture
def silent_server() -> Iterator[str]:
    """An endpoint that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something has happened, at most 30 s."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        select.select([], [], [], 0.01)


def interrupt(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """Send Ctrl-C; the output, once the process has ended in time."""
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=30)
    assert time.monotonic() - begun < PATIENCE_S
    assert process.returncode == 130
    return output


def test_results_go_to_stdout_and_errors_to_stderr(start: Start, packed: Path) -> None:
    """A script can parse stdout, and sees mistakes by the exit code."""
    good, bad = start("info", packed, "--json"), start("info", packed / "none", "--json")
    assert json.loads(good.communicate()[0])["samples"] == 13
    assert good.returncode == 0
    assert bad.communicate()[0] == ""
    assert bad.returncode == 3


def test_a_reader_that_leaves_is_no_error(start: Start, packed: Path) -> None:
    """``… | head`` ends the command without a word."""
    read, write = os.pipe()
    os.close(read)
    process = start("ls", packed, stdout=write)
    os.close(write)
    assert process.communicate()[1] == ""
    assert process.returncode == 141


def test_a_full_disk_is_one_line(start: Start, packed: Path) -> None:
    """Output that cannot be written is an error of storage."""
    with open("/dev/full", "w") as full:
        process = start("ls", packed, stdout=full)
    assert "No space left" in process.communicate()[1]
    assert process.returncode == 3


def test_any_encoding_of_stdout(start: Start, packed: Path) -> None:
    """A terminal that knows only ASCII gets escapes, not an error."""
    process = start("stream", packed, "--batch-size", "4", env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert "keys sha256" in process.communicate()[0]
    assert process.returncode == 0


def test_interrupt_while_a_store_does_not_answer(start: Start, silent_server: str) -> None:
    """Ctrl-C works while native code waits for the network."""
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    process = start("info", "s3://bucket/data", "--endpoint-url", silent_server, env=keys)
    wait_for(lambda: is_connected(process.pid))
    assert interrupt(process) == ("", "janus-shards: interrupted\n")


def open_files(pid: int) -> list[str]:
    """What a process has open, as the kernel names it: paths, ``socket:[inode]``."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(path))
        except FileNotFoundError:  # closed meanwhile
            pass
    return found


def is_connected(pid: int) -> bool:
    """Whether a process holds a TCP socket that is connected."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    connected = {f"socket:[{row[9]}]" for row in rows if row[3] == "01"}
    return not connected.isdisjoint(open_files(pid))


def test_interrupt_while_packing(start: Start, tmp_path: Path) -> None:
    """Ctrl-C ends packing and its processes; whole shards stay for ``--resume``, and nothing else is there."""
    source, root = tmp_path / "texts", tmp_path / "out"
    source.mkdir()
    for number in range(1500):
        (source / f"{number}.txt").write_bytes(b"x" * 5000)
    process = start("pack", source, root, "--max-samples", "1", "--workers", "2")
    wait_for(lambda: root.exists() and any(root.glob("*.idx")))
    interrupt(process)
    names = {path.name for path in root.iterdir()}
    assert "manifest.msgpack" not in names
    assert all(name.removesuffix(".idx") + ".tar" in names for name in names if name.endswith(".idx"))
    assert not [name for name in names if not name.endswith((".tar", ".idx"))]


def test_interrupt_while_streaming(start: Start, packed: Path) -> None:
    """Ctrl-C ends a stream in the middle."""
    process = start("stream", packed, "--batch-size", "1", "--epochs", "1000000")
    wait_for(lambda: any(name.endswith(".tar") for name in open_files(process.pid)))
    assert interrupt(process)[0] == ""


def in_terminal(*arguments: object) -> str:
    """Everything that a command shows on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    command = [sys.executable, "-m", "janus_shards.cli", *map(str, arguments)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux says EIO when the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert process.wait() == 0
    return shown.decode()


def test_a_terminal_shows_progress(packed: Path) -> None:
    """On a terminal there is a live line with the epoch and the steps, which is gone at the end."""
    shown = in_terminal("stream", packed, "--batch-size", "1", "--epochs", "3")
    assert "epoch 1/3" in shown
    assert "\x1b[?25h" in shown
    assert shown.rstrip().splitlines()[-1].startswith("total")


def test_text_ends_its_line_on_a_terminal(packed: Path) -> None:
    """Text without a line end gets one on a terminal, and only there."""
    shown, stored = in_terminal("cat", packed, "chelsea", "txt"), (PHOTOS / "chelsea.txt").read_text()
    assert shown.splitlines() == stored.splitlines()
    assert shown.endswith("\n")
