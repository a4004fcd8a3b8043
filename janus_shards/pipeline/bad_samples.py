"""What becomes of samples whose bytes are bad: options, the record of each one, and the log that counts and reports.

Bad are faults of the bytes: undecodable, missing a field, or not the bytes that were indexed. Faults of the storage
always raise.
"""

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from janus_shards.errors import ConfigError, SampleBudgetError, SampleError, StorageError
from janus_shards.world import World

Policy = Literal["raise", "skip", "substitute"]


@dataclass(frozen=True, kw_only=True)
class BadSamples:
    """What a loader does with bad samples, and how many of them it accepts.

    Attributes:
        policy: ``raise``; ``skip``: the slot stays, with zeros and ``valid`` False; ``substitute``: the next good row
            of the same block takes its place, and if there is none the slot is skipped.
        max_total: Bad samples that one rank accepts; ``None`` for any number.
        max_consecutive: Bad samples in a row that one rank accepts: a broken shard or decoder, not a broken sample.
        report: File that gets one line of JSON for each: shard, key, field, kind, message. Each rank of several, and
            each ``DataLoader`` worker, writes its own, named after it.
    """

    policy: Policy = "raise"
    max_total: int | None = None
    max_consecutive: int = 100
    report: str | Path | None = None

    def __post_init__(self) -> None:
        if self.policy not in ("raise", "skip", "substitute"):
            raise ConfigError(f"on_bad={self.policy!r}: expected 'raise', 'skip' or 'substitute'")
        if (self.max_total is not None and self.max_total < 0) or self.max_consecutive < 1:
            raise ConfigError(
                f"BadSamples(max_total={self.max_total}, max_consecutive={self.max_consecutive}): expected at least 0 "
                "and 1"
            )


@dataclass(frozen=True, kw_only=True)
class BadSample:
    """One bad sample that was met.

    Attributes:
        row: Its slot in the batch.
        sample_id: Id in the base data set.
        key: Its key.
        error: What is wrong with it; says shard and field.
        substitute: Key of the sample delivered in its place, or ``None`` when the slot was skipped.
    """

    row: int
    sample_id: int
    key: str
    error: SampleError
    substitute: str | None

    def line(self) -> str:
        """The record as one line of JSON."""
        error = self.error
        content = {
            "shard": error.shard,
            "sample_id": self.sample_id,
            "key": self.key,
            "field": error.field,
            "kind": error.kind,
            "message": error.message,
            "substitute": self.substitute,
        }
        return json.dumps(content, ensure_ascii=True) + "\n"


class BadSampleLog:
    """Counts the bad samples of one rank in delivery order, writes the report, and ends the pass when there are too
    many.

    Attributes:
        num_skipped: Slots delivered without a sample.
        num_substituted: Slots delivered with another sample.
    """

    def __init__(self, options: BadSamples, *, world: World, share: tuple[int, int]) -> None:
        self._options = options
        self._path = _report_path(options.report, world, share)
        self._in_a_row = 0
        self.num_skipped = 0
        self.num_substituted = 0

    def add(self, found: Sequence[BadSample], num_rows: int) -> None:
        """Count and report the bad samples of one batch.

        Args:
            found: Sorted by row.
            num_rows: Rows of the batch.

        Raises:
            SampleBudgetError: One more than allowed was met; names it.
        """
        start = 0
        for bad in found:
            self._in_a_row = self._in_a_row + 1 if bad.row == start else 1
            start = bad.row + 1
            self._count(bad)
        if start < num_rows:
            self._in_a_row = 0

    def _count(self, bad: BadSample) -> None:
        if not self.num_skipped + self.num_substituted:
            warnings.warn(f"bad sample, on_bad={self._options.policy!r}: {bad.error}", stacklevel=6)
        if bad.substitute is None:
            self.num_skipped += 1
        else:
            self.num_substituted += 1
        self._write(bad)
        total, limit = self.num_skipped + self.num_substituted, self._options.max_total
        if limit is not None and total > limit:
            raise self._over(f"max_total={limit}", bad)
        if self._in_a_row > self._options.max_consecutive:
            raise self._over(f"max_consecutive={self._options.max_consecutive}", bad)

    def _over(self, option: str, bad: BadSample) -> SampleBudgetError:
        error = bad.error
        return SampleBudgetError(
            f"more bad samples than BadSamples({option}) allows; the last one: {error}; look at the report, run "
            "`janus-shards verify --full`, or raise the limit",
            shard=error.shard,
            key=bad.key,
            field=error.field,
        )

    def _write(self, bad: BadSample) -> None:
        if self._path is None:
            return
        try:
            # Appended to, since a resumed job adds to what it found before; opened anew, since bad samples are rare and
            # jobs are killed.
            with self._path.open("a", encoding="utf-8") as file:
                file.write(bad.line())
        except OSError as exc:
            raise StorageError(f"cannot write the report of bad samples {self._path}: {exc.strerror}") from exc


def _report_path(report: str | Path | None, world: World, share: tuple[int, int]) -> Path | None:
    if report is None:
        return None
    path, suffix = Path(report), ""
    if world.world_size > 1:
        suffix += f".rank{world.rank}"
    if share[1] > 1:
        suffix += f".worker{share[0]}"
    return path.with_name(f"{path.stem}{suffix}{path.suffix}")
