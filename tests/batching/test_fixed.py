import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.batching.fixed import FixedSize
from janus_shards.errors import ConfigError
from tests.batching.test_budget import plan_one_lane
from tests.batching.test_plan import batches


@given(st.lists(st.integers(0, 60), max_size=100), st.integers(1, 7), st.integers(1, 4), st.sampled_from([1, 8]))
def test_batches_are_of_one_size_and_sorted(lengths, batch_size, pool_batches, multiple):
    """All batches but the last have batch_size rows, the longest first, padded to it and the multiple."""
    rule = FixedSize(column="tokens", batch_size=batch_size, pool_batches=pool_batches, pad_multiple=multiple)
    sizes, plan = plan_one_lane(rule, lengths)
    assert all(len(batch) == batch_size for batch in batches(plan)[:-1])
    for batch, shape in zip(batches(plan), plan.shapes.tolist(), strict=True):
        assert sizes[batch].tolist() == sorted(sizes[batch], reverse=True)
        assert 0 <= shape - max(sizes[batch]) < multiple


def test_rows_are_sorted_in_pools():
    """The rows of three batches are sorted together, those of the next three apart from them."""
    lengths = [3, 9, 3, 4, 8, 3] * 2
    sizes, plan = plan_one_lane(FixedSize(column="tokens", batch_size=2, pool_batches=3), lengths)
    pools = [np.sort(plan.rows[at : at + 6]).tolist() for at in (0, 6)]
    assert pools == [[*range(6)], [*range(6, 12)]]
    assert sorted(sizes[batch].tolist() for batch in batches(plan)[:3]) == [[3, 3], [4, 3], [9, 8]]


def test_a_pool_of_one_sorts_inside_batches_only():
    """Then a batch holds neighbours of the lane."""
    _, plan = plan_one_lane(FixedSize(column="tokens", batch_size=2, pool_batches=1), [1, 2, 4, 3])
    assert batches(plan) == [[1, 0], [2, 3]]


@pytest.mark.parametrize("name", ["batch_size", "pool_batches", "pad_multiple", "max_length"])
def test_wrong_options_are_named(name):
    """An option outside its range is refused by name."""
    with pytest.raises(ConfigError, match=rf"FixedSize\({name}=0"):
        FixedSize(**{"column": "tokens", "batch_size": 2, name: 0})
