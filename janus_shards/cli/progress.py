"""How far a command is, on stderr: a live line on a terminal, now and then a plain line elsewhere."""

import sys
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from janus_shards.cli.terminal import seconds_text, size_text
from janus_shards.operations.progress import Progress

# Redrawing costs more than a small batch; people see no more than this.
_REDRAW_S = 0.1
# Between plain lines, so that a log stays short and yet shows life.
_PLAIN_S = 15.0


class ProgressLine(AbstractContextManager["ProgressLine"]):
    """One line that says what runs, how much of it is done and when it will be; gone when the block is left.

    Args:
        title: What runs before the first stage begins.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._stage = ""
        self._started = self._shown = self._reported = time.monotonic()
        self._task: TaskID | None = None
        self._bar = _open_bar() if sys.stderr.isatty() else None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=None, detail="")
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def is_due(self) -> bool:
        """Whether showing now would not be too often."""
        return time.monotonic() - self._shown >= (_REDRAW_S if self._bar else _PLAIN_S)

    def begin(self, stage: str, total: int, *, started: float | None = None) -> None:
        """A stage of ``total`` steps begins, or began at ``started`` on the monotonic clock."""
        self._stage, self._started = stage, time.monotonic() if started is None else started
        if self._bar is not None and self._task is not None:
            self._bar.remove_task(self._task)
            self._task = self._bar.add_task(stage, total=total, detail="")

    def show(self, done: int, total: int, detail: str) -> None:
        """So many steps are done."""
        self._shown = time.monotonic()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, detail=detail)
        elif self._bar is None:
            left = (time.monotonic() - self._started) / max(done, 1) * (total - done)
            click.echo(f"janus-shards: {self._stage} {done} of {total}, {detail}, {seconds_text(left)} left", err=True)

    def __call__(self, progress: Progress) -> None:
        """Show what an operation of the library reports after each shard."""
        if progress.stage != self._stage:
            self.begin(progress.stage, progress.total, started=self._reported)
        self._reported = time.monotonic()
        if self.is_due:
            rate = size_text(progress.num_bytes / max(self._reported - self._started, 1e-3))
            detail = f"{progress.num_samples:,} samples" + (f"  {rate}/s" if progress.num_bytes else "")
            self.show(progress.done, progress.total, detail)


def _open_bar() -> Bar:
    return Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[detail]}", markup=False),
        TimeRemainingColumn(compact=True),
        console=Console(stderr=True),
        expand=True,
        transient=True,
        # Results on stdout are not its business.
        redirect_stdout=False,
    )
