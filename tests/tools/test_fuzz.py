import random
import warnings
from pathlib import Path

import pytest

from janus_shards.errors import TarFormatError
from tools.fuzz import KEPT, TARGETS, Target, mutate, problem_of

FOUND = sorted(path for path in KEPT.glob("*.bin"))


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_inputs_are_taken_or_refused(name: str) -> None:
    """The seeds of each target, inputs once found, and a few hundred random changes bring results or our errors."""
    target, rng = TARGETS[name], random.Random(7)
    seeds = target.seeds()
    assert len(seeds) >= 2
    found = [path.read_bytes() for path in FOUND if path.name.startswith(f"{name}-")]
    changed = [mutate(seeds, rng) for _ in range(300)]
    for data in (*seeds, *found, *changed, *map(target.repair, changed)):
        assert not problem_of(target, data), data.hex()


def test_seeds_reach_the_end_of_their_target() -> None:
    """A target whose every seed is refused would test nothing but its first line."""
    for target in TARGETS.values():
        target.run(target.seeds()[0])


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        (lambda _: _raise(TarFormatError("ours")), ""),
        (lambda _: _raise(ValueError("not ours")), "ValueError: not ours"),
        (lambda _: warnings.warn("careful", stacklevel=1), "UserWarning: careful"),
        (lambda _: _raise(RecursionError("deep")), "RecursionError: deep"),
    ],
)
def test_what_counts_as_a_problem(run: object, problem: str) -> None:
    """Errors of the library are right; every other exception, and a warning, is told."""
    assert problem in problem_of(Target(run, list), b"")  # type: ignore[arg-type]


def test_inputs_stay_small_and_repeatable() -> None:
    """The same number gives the same changes, and no input outgrows its bound."""
    seeds = [Path(__file__).read_bytes(), b""]
    one, two = ([mutate(seeds, random.Random(seed)) for seed in range(100)] for _ in range(2))
    assert one == two
    assert max(map(len, one)) <= 1 << 16
