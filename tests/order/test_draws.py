from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from janus_shards.order.draws import CIRCLE, PHI, Draws, Share, floor_sum, lane_start

WEIGHTS = st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any)


def share(start, weights):
    """Shares from a unit on."""
    return Share(start=start, weights=[Fraction(weight) for weight in weights])


def opened(num_lanes, shares, source_lanes=None):
    """Draws from sources that have as many lanes as the mixture."""
    sources = len(shares[0].weights)
    return Draws(num_lanes=num_lanes, source_lanes=source_lanes or [num_lanes] * sources, shares=shares)


def sources_of(weights, num_lanes, count):
    """Sources of the first units of a mixture."""
    return opened(num_lanes, [share(0, weights)]).at(np.arange(count))[0]


def off_by(sources, weights, batch):
    """Most samples that any source has too many or too few in a batch."""
    counts = np.stack([np.bincount(part, minlength=len(weights)) for part in sources.reshape(-1, batch)])
    return float(np.abs(counts - batch * np.array(weights) / sum(weights)).max())


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([1, 2, 6, 12, 60, 192]),
    WEIGHTS,
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 3)), max_size=3),
    st.data(),
)
def test_draws_are_the_documented_ones(num_lanes, weights, changes, data):
    """Sources and counts equal the plain form, unit after unit, whatever is asked for, and in any order."""
    shares = [share(0, weights), *(share(start, weights[by:] + weights[:by]) for start, by in sorted(changes))]
    divisors = st.sampled_from([d for d in range(1, num_lanes + 1) if num_lanes % d == 0])
    source_lanes = data.draw(st.lists(divisors, min_size=len(weights), max_size=len(weights)))
    counts, expected = {}, []
    for unit in range(400):
        place, lane = divmod(unit, num_lanes)
        point = (place * PHI + lane_start(lane, num_lanes)) % CIRCLE
        borders = [s for s in shares if s.start <= unit][-1].borders
        source = next(at for at, border in enumerate(borders) if point < border)
        of_source = (source, lane % source_lanes[source])
        expected.append((source, counts.get(of_source, 0)))
        counts[of_source] = expected[-1][1] + 1
    draws = opened(num_lanes, shares, source_lanes)
    for _ in range(2):
        units = data.draw(st.lists(st.integers(0, 399), max_size=30))
        found = draws.at(np.array(units, np.int64))
        assert list(zip(*(values.tolist() for values in found), strict=True)) == [expected[unit] for unit in units]


@given(st.integers(0, 200), st.integers(1, 50), st.integers(0, 60), st.integers(-60, 60))
def test_sums_of_floors(count, divisor, factor, start):
    """The logarithmic sum equals the one taken term by term, also from a negative start."""
    assert floor_sum(count, divisor, factor, start) == sum((factor * i + start) // divisor for i in range(count))


def test_70_and_30_percent():
    """With 192 lanes, batches of 64 are off by at most 0.8 samples and those of 1,024 by at most 2.2."""
    sources = sources_of([7, 3], 192, 64 * 1024 * 3)
    assert off_by(sources, [7, 3], 64) <= 0.8 + 1e-9
    assert off_by(sources, [7, 3], 1024) <= 2.2 + 1e-9


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=2, max_size=6), st.sampled_from([192, 64]))
def test_any_shares_hold_in_small_and_large_batches(weights, num_lanes):
    """Whatever the shares, a batch of 64 is off by less than one sample, and one of 1,024 by less than three."""
    sources = sources_of(weights, num_lanes, 1024 * 192)
    assert off_by(sources, weights, 64) < 1
    assert off_by(sources, weights, 1024) < 3


@pytest.mark.parametrize("num_lanes", [1, 2, 3, 8, 12, 48, 96, 192])
def test_shares_hold_for_any_number_of_lanes(num_lanes):
    """A batch of 1,024 is off by less than 8 samples, a tenth of what chance would be off by now and then."""
    assert off_by(sources_of([7, 3], num_lanes, 1024 * 96), [7, 3], 1024) < 8


def test_a_lane_alone_holds_the_shares_too():
    """Any 100 neighbouring places of one lane, as a planned batch takes them, are off by at most three samples."""
    draws = opened(192, [share(0, [7, 3])])
    for lane in (0, 77, 191):
        assert off_by(draws.at(np.arange(5000) * 192 + lane)[0], [7, 3], 100) <= 3


@pytest.mark.parametrize("start", [1, 37, 100, 191, 12345])
def test_batches_from_anywhere_hold_the_shares(start):
    """Batches that begin at no multiple of 64, as after resuming with another size: off by at most 2, and by 5.2."""
    sources = sources_of([7, 3], 192, start + 64 * 1024)[start:]
    assert off_by(sources, [7, 3], 64) <= 2
    assert off_by(sources, [7, 3], 1024) <= 5.2 + 1e-9


def test_a_seek_counts_without_looking():
    """The counts before a unit deep in a run are exact: they add up to it, and hold the shares."""
    draws = opened(192, [share(0, [7, 2, 1])])
    place = 10**7
    sources, before = draws.at(np.arange(place, place + 200) * 192 + 5)
    first = [int(before[sources == source][0]) for source in range(3)]
    assert sum(first) == place
    assert np.allclose(np.array(first) / place, [0.7, 0.2, 0.1], atol=1e-6)


def test_stretches_in_a_row_equal_seeks():
    """Counts carried from one stretch to the next are those counted anew."""
    shares = [share(0, [7, 2, 1]), share(150_000, [1, 0, 1])]
    whole = opened(192, shares, [192, 6, 1]).at(np.arange(250_000))
    for start in (60_000, 149_990, 200_000):
        alone = opened(192, shares, [192, 6, 1]).at(np.arange(start, start + 50))
        assert all(np.array_equal(a, w[start : start + 50]) for a, w in zip(alone, whole, strict=True))
