import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.cli.terminal import count_text, logs_as_warnings, print_table, printable, seconds_text, size_text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (75_123, "75.1 kB"),
        (312_278_016, "312 MB"),
        (5 * 10**15, "5.0 PB"),
    ],
)
def test_sizes_are_short(num_bytes: int, text: str) -> None:
    """A size shows three digits or fewer, in the unit that fits."""
    assert size_text(num_bytes) == text


@given(st.integers(0, 10**18))
def test_sizes_have_at_most_three_digits(num_bytes: int) -> None:
    """No size shows more than three digits before its unit, below an exabyte."""
    assert len(size_text(num_bytes).partition(" ")[0].replace(".", "")) <= 4


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (61, "61.0 s"), (100, "1 min 40 s"), (7260, "2 h 01 min")]
)
def test_durations(seconds: float, text: str) -> None:
    """Durations get coarser as they get longer."""
    assert seconds_text(seconds) == text


def test_counts() -> None:
    """One thing is singular, many are grouped by thousands."""
    assert [count_text(1, "shard"), count_text(4000, "sample")] == ["1 shard", "4,000 samples"]


@given(st.text())
def test_printable_text_is_one_harmless_line(text: str) -> None:
    """Nothing that is printed can end the line or steer the terminal."""
    assert printable(text).isprintable()


def test_tables_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    """All lines of a table have one length."""
    print_table(("a", "long name"), [("1", "2"), ("1,000", "3")])
    assert len({len(line) for line in capsys.readouterr().out.splitlines()}) == 1


def test_logged_warnings_become_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """What the library logs as a warning looks like a warning of the command, and only inside the block."""
    log = logging.getLogger("janus_shards.storage")
    with logs_as_warnings():
        log.warning("uploads of %s are left", "s3://bucket")
        log.info("nothing")
    log.warning("afterwards")
    assert capsys.readouterr().err == "janus-shards: warning: uploads of s3://bucket are left\n"
