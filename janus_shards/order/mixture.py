"""What a mixture is: sources, shares, and shares over time. How it becomes an order stands in ``mixture_order``.

Source: docs/design/0002-batches-and-mixtures.md.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from numbers import Real
from typing import Any, Literal, TypeAlias

from janus_shards.errors import ConfigError, ResumeError

# Characters of a schedule in a state, which stays below 1 KB; a longer one is represented by a digest.
_MAX_SCHEDULE_TEXT = 240

#: Value by source, such as 0.7 of the samples.
Shares: TypeAlias = Mapping[Any, float]


@dataclass(frozen=True)
class Mixture:
    """Data sets that are served together.

    Args:
        sources: URL or data set -> its value, in an order that belongs to the mixture.
        kind: What a value means. ``proportion``: share of the samples. ``repeat``: how often each sample of the source
            comes in an epoch, on average. ``choose``: samples of the source in an epoch; the next epoch goes on with
            others.
        samples_per_epoch: Length of an epoch. By default the samples of all sources, or times or choices added up.
        one_source: ``off``: samples are mixed one by one. ``rank``: all samples of a rank's batch are of one source.
            ``global``: all samples of a step are, on all ranks.
        schedule: ``(position, values)`` by increasing position: from this sample of the run on, over all epochs, other
            values hold; before the first one those of ``sources``. Sources that are not named are not drawn.

    Raises:
        ConfigError: A value outside its range, or a schedule that names unknown sources.
    """

    sources: Shares
    kind: Literal["proportion", "repeat", "choose"] = "proportion"
    samples_per_epoch: int | None = None
    one_source: Literal["off", "rank", "global"] = "off"
    schedule: Sequence[tuple[int, Shares]] = ()

    def __post_init__(self) -> None:
        _check("kind", self.kind, self.kind in ("proportion", "repeat", "choose"), "proportion, repeat or choose")
        _check("one_source", self.one_source, self.one_source in ("off", "rank", "global"), "off, rank or global")
        wanted = self.samples_per_epoch
        _check("samples_per_epoch", wanted, wanted is None or _is_count(wanted), "an integer from 1 up")
        starts = [start for start, _ in self.schedule]
        increasing = all(isinstance(s, int) and s >= 0 for s in starts) and starts == sorted(set(starts))
        _check("schedule", starts, increasing, "increasing positions from 0 up")
        for shares in (self.sources, *(shares for _, shares in self.schedule)):
            unknown = [name for name in shares if name not in self.sources]
            _check("schedule", unknown, not unknown, "sources of the mixture only")
            self._check_values(list(shares.values()))

    @property
    def pieces(self) -> list[tuple[int, tuple[float, ...]]]:
        """The whole schedule: first sample of the run, and the value of every source from there on."""
        schedule = list(self.schedule)
        if not schedule or schedule[0][0] > 0:
            schedule.insert(0, (0, self.sources))
        return [(start, tuple(_plain(shares.get(name, 0)) for name in self.sources)) for start, shares in schedule]

    def samples_of(self, sizes: Sequence[int]) -> int:
        """Samples of an epoch.

        Args:
            sizes: Samples of each source.

        Raises:
            ConfigError: There would be none.
        """
        if self.samples_per_epoch is not None:
            return self.samples_per_epoch
        if self.kind == "proportion":
            return sum(sizes)
        values = list(self.sources.values())
        found = int(sum(self.weights(values, sizes)))
        if not found:
            raise ConfigError(f"Mixture(kind={self.kind!r}): {values} of {list(sizes)} samples make an epoch of none")
        return found

    def weights(self, values: Sequence[float], sizes: Sequence[int]) -> list[Fraction]:
        """Exact shares of given values: with ``repeat`` a source weighs its size times its value."""
        factors = sizes if self.kind == "repeat" else [1] * len(sizes)
        return [Fraction(_plain(value)) * factor for value, factor in zip(values, factors, strict=True)]

    def describe_weights(self) -> str:
        """The whole schedule as text, for a state: ``"0:0.7,0.3;200000:1,1"``; a digest where that is long."""
        text = ";".join(f"{start}:{','.join(map(repr, values))}" for start, values in self.pieces)
        return text if len(text) <= _MAX_SCHEDULE_TEXT else f"sha256 {hashlib.sha256(text.encode()).hexdigest()}"

    def _check_values(self, values: list[float]) -> None:
        for value in values:
            number = isinstance(value, Real) and not isinstance(value, bool)
            sane = number and math.isfinite(value) and value >= 0
            _check("sources", value, sane and (self.kind != "choose" or value == int(value)), self._expected())
        _check("sources", values, any(values), "at least one source with a value above 0")

    def _expected(self) -> str:
        return "whole numbers of samples from 0 up" if self.kind == "choose" else "numbers from 0 up"


def mixture_fingerprint(fingerprints: Sequence[str]) -> str:
    """64 hex digits over the fingerprints of all sources, in the mixture's order."""
    return hashlib.sha256("\n".join(fingerprints).encode()).hexdigest()


def continue_schedule(mixture: Mixture, saved: Mapping[str, object], *, position: int) -> Mixture:
    """The mixture with the schedule of a saved state up to a position, and its own from there on.

    For ``allow=("weights",)``: what was served keeps its weights, and the result is what further states hold.

    Args:
        mixture: As the caller gives it now.
        saved: What fixed the order when the state was saved.
        position: Samples of the run, over all epochs, before the change: ``epoch * samples + position`` of the state;
            with planned batches, whose epoch is finished as planned, ``(epoch + 1) * samples`` unless it has not begun.

    Raises:
        ResumeError: The state holds no schedule of as many sources.
    """
    before = [piece for piece in _parse_schedule(saved.get("weights"), len(mixture.sources)) if piece[0] < position]
    pieces = mixture.pieces
    current = max(at for at, (start, _) in enumerate(pieces) if start <= position)
    after = [(max(start, position), values) for start, values in pieces[current:]]
    if before and after[0][1] == before[-1][1]:
        after = after[1:]
    schedule = [(start, dict(zip(mixture.sources, values, strict=True))) for start, values in [*before, *after]]
    return replace(mixture, schedule=tuple(schedule))


def _parse_schedule(text: object, num_sources: int) -> list[tuple[int, tuple[float, ...]]]:
    """Pieces of a schedule as a state holds it."""
    try:
        parts = [part.partition(":") for part in str(text).split(";")]
        pieces = [(int(start), tuple(map(_number, values.split(",")))) for start, _, values in parts]
    except ValueError:
        pieces = []
    if not pieces or any(len(values) != num_sources for _, values in pieces):
        raise ResumeError(
            f'allow=("weights",): the state holds no weights of {num_sources} sources that could be continued, but '
            f"{str(text)[:60]!r}; give the whole schedule instead"
        )
    return pieces


def _number(text: str) -> float:
    return int(text) if text.isdigit() else float(text)


def _plain(value: float) -> float:
    """One Python number for equal values of any type: states compare them as text."""
    return int(value) if value == int(value) else float(value)


def _check(name: str, value: object, holds: bool, expected: str) -> None:
    if not holds:
        raise ConfigError(f"Mixture({name}={value!r}): expected {expected}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
