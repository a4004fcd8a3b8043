import pytest

from janus_shards.cli.progress import ProgressLine
from janus_shards.operations.progress import Progress


def test_a_short_run_is_silent_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """Where nobody watches, a run of a few seconds says nothing about progress."""
    with ProgressLine("pack") as line:
        for done in range(1, 100):
            line(Progress(stage="write", done=done, total=100, num_samples=done, num_bytes=done))
    assert capsys.readouterr() == ("", "")


def test_a_long_run_writes_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """What a long run writes to a log is one plain line on stderr with what is done and what is left."""
    with ProgressLine("pack") as line:
        line.begin("write", 40)
        line.show(10, 40, "1,000 samples  85.0 MB/s")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "janus-shards: write 10 of 40, 1,000 samples  85.0 MB/s, 0.0 s left\n"
