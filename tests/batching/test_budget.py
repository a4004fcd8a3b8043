import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.batching.budget import TokenBudget
from janus_shards.errors import ConfigError
from tests.batching import reference
from tests.batching.test_plan import batches

BUDGETS = st.builds(
    TokenBudget,
    column=st.just("tokens"),
    max_tokens=st.integers(64, 400),
    max_samples=st.sampled_from([None, 1, 3]),
    quadratic=st.sampled_from([None, 64, 500]),
    class_ratio=st.sampled_from([1, 1.1, 2.0]),
    max_length=st.sampled_from([None, 20]),
    pad_multiple=st.sampled_from([1, 8]),
).filter(lambda rule: rule.max_length or rule._limit >= 60)
LENGTHS = st.lists(st.integers(0, 60), max_size=100)


def plan_one_lane(rule, lengths):
    """Sizes and plan of a single lane."""
    sizes = rule.sizes({"tokens": np.array(lengths, np.int64)}).values
    return sizes, rule.plan(sizes, np.array([0, len(sizes)]))


@given(BUDGETS, LENGTHS)
def test_the_budget_is_kept(rule, lengths):
    """Rows times padded length, or its cost, never exceeds max_tokens, nor the rows max_samples."""
    sizes, plan = plan_one_lane(rule, lengths)
    for batch, shape in zip(batches(plan), plan.shapes.tolist(), strict=True):
        cost = shape + (shape * shape // rule.quadratic if rule.quadratic else 0)
        assert len(batch) * cost <= rule.max_tokens
        assert len(batch) <= (rule.max_samples or len(batch))
        assert shape == -(-max(sizes[batch]) // rule.pad_multiple) * rule.pad_multiple


@given(BUDGETS, LENGTHS)
def test_lengths_in_a_lane_s_batch_are_alike(rule, lengths):
    """They differ by at most the class ratio, or by the padding that is made anyway."""
    sizes, plan = plan_one_lane(rule, lengths)
    for batch in batches(plan)[: plan.lanes[-1]]:
        shortest, longest = min(sizes[batch]), max(sizes[batch])
        assert longest <= max(rule.class_ratio * (shortest + rule.pad_multiple), shortest + rule.pad_multiple)


@given(LENGTHS, st.integers(64, 300))
def test_a_lane_is_planned_row_by_row(lengths, max_tokens):
    """The vectorised plan equals one open batch a class that is closed when it is full."""
    rule = TokenBudget(column="tokens", max_tokens=max_tokens)
    sizes, plan = plan_one_lane(rule, lengths)
    bounds = rule._bounds().tolist()
    expected, left = reference.by_class(
        sizes.tolist(),
        lambda size: next(at for at, bound in enumerate(bounds) if size <= bound),
        lambda at: max_tokens // bounds[at],
    )
    assert batches(plan)[: plan.lanes[-1]] == expected
    assert sorted(plan.rows[plan.offsets[plan.lanes[-1]] :].tolist()) == left


@given(LENGTHS)
def test_only_one_batch_of_an_epoch_is_not_full(lengths):
    """What is left at the very end is filled whatever the classes: no batch but one has room for another such row."""
    rule = TokenBudget(column="tokens", max_tokens=128)
    sizes, plan = plan_one_lane(rule, lengths)
    bounds = rule._bounds()
    longest = [int(bounds[np.searchsorted(bounds, max(sizes[batch]))]) for batch in batches(plan)]
    room = [(len(batch) + 1) * bound <= 128 for batch, bound in zip(batches(plan), longest, strict=True)]
    assert sum(room) <= 1


def test_what_comes_last_is_not_always_the_shortest_or_the_longest():
    """Of the batches that are made at the very end, any may be the last one, which drop leaves out."""
    rule, last = TokenBudget(column="tokens", max_tokens=512), []
    for seed in range(30):
        lengths = np.random.default_rng(seed).integers(1, 500, 300)
        sizes, plan = plan_one_lane(rule, lengths)
        last.append(int(sizes[batches(plan)[-1]].max()))
    assert min(last) < 100
    assert max(last) > 150  # longer ones fill a batch alone


def test_captions_waste_less_than_5_percent():
    """On long-tailed lengths, in one lane of 100,000 rows."""
    lengths = np.random.default_rng(0).lognormal(4, 0.7, 100_000).clip(5, 2048).astype(np.int64)
    _, plan = plan_one_lane(TokenBudget(column="tokens", max_tokens=8192), lengths)
    assert plan.waste < 0.05


def test_what_does_not_fit_is_refused_with_both_numbers():
    """A row longer than the budget is an error that says how many, how long, and what fits; or it is cut."""
    lengths = {"tokens": np.array([5, 100, 90, 7])}
    with pytest.raises(ConfigError, match=r"2 of 4 samples .* up to 100 tokens for one, and 64 fit.*max_length=64"):
        TokenBudget(column="tokens", max_tokens=64).sizes(lengths)
    sizes = TokenBudget(column="tokens", max_tokens=64, max_length=50).sizes(lengths)
    assert sizes.values.tolist() == [5, 50, 50, 7]
    assert sizes.num_truncated == 2


@pytest.mark.parametrize("column", [np.array([1.5, 2]), np.array([3, -1])])
def test_columns_that_are_no_lengths_are_refused(column):
    """Fractions and negative numbers are no counts of tokens."""
    with pytest.raises(ConfigError, match="'tokens' should hold integers from 0 up"):
        TokenBudget(column="tokens", max_tokens=64).sizes({"tokens": column})


def test_a_missing_column_is_named():
    """The error says which columns there are and how to add one."""
    with pytest.raises(ConfigError, match=r"no column 'tokens', only \['width'\]"):
        TokenBudget(column="tokens", max_tokens=64).sizes({"width": np.array([1])})


@pytest.mark.parametrize(
    "wrong",
    [
        *({"max_tokens": 0}, {"max_samples": 0}, {"quadratic": 1.5}, {"class_ratio": 0.9}, {"pad_multiple": 128}),
        *({"max_length": 65}, {"extra_tokens": -1}, {"max_tokens": True}),
    ],
    ids=str,
)
def test_wrong_options_are_named(wrong):
    """An option outside its range is refused by name, or as the option that it leaves no room for."""
    with pytest.raises(ConfigError, match=rf"TokenBudget\((max_tokens|{next(iter(wrong))})="):
        TokenBudget(**{"column": "tokens", "max_tokens": 64, **wrong})
