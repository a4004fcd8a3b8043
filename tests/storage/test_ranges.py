import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.errors import ConfigError
from janus_shards.storage.ranges import plan_ranges

spans = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 300)), max_size=60)
limits = st.tuples(st.integers(0, 400), st.floats(0, 3))


def _columns(wanted: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    starts = np.array([start for start, _ in wanted], np.int64)
    return starts, starts + np.array([size for _, size in wanted], np.int64)


@given(spans, limits)
def test_every_span_lies_in_its_range(wanted: list[tuple[int, int]], limit: tuple[int, float]) -> None:
    """Each wanted span is covered by the range the plan names, and ranges are in order and apart."""
    starts, stops = _columns(wanted)
    plan = plan_ranges(starts, stops, max_gap=limit[0], max_waste=limit[1])
    assert np.all(plan.starts[plan.range_of] <= starts)
    assert np.all(stops <= plan.stops[plan.range_of])
    assert np.all(plan.stops[:-1] <= plan.starts[1:])
    assert set(plan.range_of.tolist()) == set(range(len(plan.starts)))


@given(spans, limits)
def test_gaps_and_waste_keep_their_limits(wanted: list[tuple[int, int]], limit: tuple[int, float]) -> None:
    """No gap above max_gap is fetched, and no range wastes more than max_waste times what it was asked for."""
    starts, stops = _columns(wanted)
    plan = plan_ranges(starts, stops, max_gap=limit[0], max_waste=limit[1])
    for number in range(len(plan.starts)):
        inside = sorted((starts[i], stops[i]) for i in np.flatnonzero(plan.range_of == number))
        reach, waste = inside[0][0], 0
        for start, stop in inside:
            assert start - reach <= limit[0]
            waste += max(start - reach, 0)
            reach = max(reach, stop)
        assert (inside[0][0], reach) == (plan.starts[number], plan.stops[number])
        assert waste <= limit[1] * (reach - inside[0][0] - waste)


@given(spans, st.randoms())
def test_plan_does_not_depend_on_the_order_of_spans(wanted: list[tuple[int, int]], random: object) -> None:
    """The same spans in another order give the same ranges."""
    shuffled = sorted(wanted, key=lambda _: random.random())  # type: ignore[attr-defined]
    plans = [plan_ranges(*_columns(each), max_gap=50, max_waste=1.0) for each in (wanted, shuffled)]
    np.testing.assert_array_equal(plans[0].starts, plans[1].starts)
    np.testing.assert_array_equal(plans[0].stops, plans[1].stops)


def test_neighbours_merge_and_far_spans_do_not() -> None:
    """Adjacent fields become one request; a gap above the limit begins another."""
    plan = plan_ranges(np.array([1024, 0, 512, 9000]), np.array([1500, 500, 1000, 9100]), max_gap=24, max_waste=1.0)
    assert plan.starts.tolist() == [0, 9000]
    assert plan.stops.tolist() == [1500, 9100]
    assert plan.range_of.tolist() == [0, 0, 0, 1]


def test_small_fields_far_apart_are_read_alone() -> None:
    """Captions between photographs are not worth the photographs."""
    starts = np.arange(100) * 75_000
    plan = plan_ranges(starts, starts + 60, max_gap=1 << 20, max_waste=1.0)
    assert len(plan.starts) == 100


def test_free_gaps_always_merge_and_are_no_waste() -> None:
    """Tiny fields between tar headers become one request; a gap above the free one still obeys the limits."""
    starts = np.array([512, 2048, 3584, 60_000])
    plan = plan_ranges(starts, starts + 10, max_gap=0, max_waste=0.0, free_gap=2048)
    assert plan.starts.tolist() == [512, 60_000]
    assert plan.range_of.tolist() == [0, 0, 0, 1]


def test_impossible_spans_are_refused() -> None:
    """A span that ends before it starts is a caller's mistake."""
    with pytest.raises(ConfigError):
        plan_ranges(np.array([5]), np.array([4]), max_gap=0, max_waste=0.0)
