import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.batching.packing import Packing, best_fit
from janus_shards.errors import ConfigError
from tests.batching import reference
from tests.batching.test_budget import plan_one_lane
from tests.batching.test_plan import batches

LENGTHS = st.lists(st.integers(1, 40), max_size=80)


@given(LENGTHS, st.integers(40, 90), st.integers(1, 5))
def test_bins_hold_what_they_can(lengths, max_tokens, open_bins):
    """The rows of a bin fit it, whatever the number of open bins."""
    sizes, plan = plan_one_lane(Packing(column="tokens", max_tokens=max_tokens, open_bins=open_bins), lengths)
    assert all(sizes[batch].sum() <= max_tokens for batch in batches(plan))


@given(LENGTHS, st.integers(40, 90), st.integers(1, 5))
def test_best_fit_is_the_documented_one(lengths, max_tokens, open_bins):
    """The loop equals the plain form: the fullest bin with room, else a new one in place of the fullest."""
    _, plan = plan_one_lane(Packing(column="tokens", max_tokens=max_tokens, open_bins=open_bins), lengths)
    expected, left = reference.best_fit(lengths, capacity=max_tokens, open_bins=open_bins)
    assert batches(plan)[: plan.lanes[-1]] == expected
    assert sorted(plan.rows[plan.offsets[plan.lanes[-1]] :].tolist()) == left


@given(LENGTHS, st.integers(1, 5))
def test_no_more_bins_are_open_than_allowed(lengths, open_bins):
    """At any time: what is left open at the end of any beginning of a lane."""
    for stop in range(0, len(lengths), 7):
        _, still_open = best_fit(lengths[:stop], capacity=64, open_bins=open_bins)
        assert len(still_open) <= open_bins


def test_captions_waste_less_than_2_percent():
    """On long-tailed lengths, in one lane of 50,000 rows."""
    lengths = np.random.default_rng(0).lognormal(4, 0.7, 50_000).clip(5, 2048).astype(np.int64)
    _, plan = plan_one_lane(Packing(column="tokens", max_tokens=8192), lengths)
    assert plan.waste < 0.02


@pytest.mark.parametrize(
    "wrong", [{"max_tokens": 0}, {"open_bins": 0}, {"max_length": 65}, {"extra_tokens": -1}], ids=str
)
def test_wrong_options_are_named(wrong):
    """An option outside its range is refused by name."""
    with pytest.raises(ConfigError, match=rf"Packing\({next(iter(wrong))}="):
        Packing(**{"column": "tokens", "max_tokens": 64, **wrong})


def test_what_does_not_fit_is_refused():
    """A row longer than a bin is an error unless it may be cut."""
    with pytest.raises(ConfigError, match=r"1 of 2 samples .* up to 70 tokens for one, and 64 fit"):
        Packing(column="tokens", max_tokens=64).sizes({"tokens": np.array([3, 70])})
