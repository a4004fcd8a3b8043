"""What commands print: text for people, JSON for programs, warnings on stderr."""

import json
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import click

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def tolerate_any_text() -> None:
    """Let stdout write what its encoding cannot say, such as keys that are no Unicode, as escapes."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


class _LogLines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage())


@contextmanager
def logs_as_warnings() -> Iterator[None]:
    """Print what the library logs or warns of inside the block like warnings of commands."""
    log, handler = logging.getLogger("janus_shards"), _LogLines(logging.WARNING)
    log.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: warn(str(message))
            yield
    finally:
        log.removeHandler(handler)


def warn(message: str) -> None:
    """One line on stderr."""
    click.echo(f"janus-shards: warning: {printable(message)}", err=True)


def print_json(document: object) -> None:
    """The one document that a command prints with ``--json``; ASCII, so that every encoding can carry it."""
    click.echo(json.dumps(document, indent=2))


def print_pairs(title: str, pairs: Iterable[tuple[str, str]]) -> None:
    """A title and named values below it."""
    pairs = list(pairs)
    width = max(len(name) for name, _ in pairs)
    click.echo(click.style(printable(title), bold=True))
    for name, value in pairs:
        click.echo(f"  {click.style(name.ljust(width), dim=True)}  {printable(value)}")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns of numbers, aligned to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for number, row in enumerate([header, *rows]):
        text = "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(click.style(text, dim=True) if number == 0 else text)


def printable(text: str) -> str:
    """Text without what would steer a terminal or break a line; such characters become escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def size_text(num_bytes: float) -> str:
    """Bytes in the largest unit that leaves at least 1: ``75.1 kB``."""
    power = 0
    while num_bytes >= 999.5 and power < len(_UNITS) - 1:
        num_bytes, power = num_bytes / 1000, power + 1
    return (
        f"{num_bytes:.0f} {_UNITS[power]}" if power == 0 or num_bytes >= 99.95 else f"{num_bytes:.1f} {_UNITS[power]}"
    )


def range_text(values: Sequence[str]) -> str:
    """``a`` where both ends read the same, else ``a to b``."""
    return values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def seconds_text(seconds: float) -> str:
    """Seconds with one decimal, or minutes and seconds."""
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def count_text(number: int, noun: str) -> str:
    """``1 shard``, ``4,000 samples``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
