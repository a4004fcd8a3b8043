import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.order import seeds
from tests.order import reference

KEYS = st.integers(0, 2**64 - 1)


def test_keys_are_the_published_splitmix64():
    """The first outputs for state 1234567 are those that other implementations publish."""
    assert seeds.keys(1234567, 5).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_long_key_arrays_continue_the_short_ones():
    """A key depends on its index only, not on how many are made at once."""
    many = seeds.keys(99, 50_000)
    assert np.array_equal(many[:1000], seeds.keys(99, 1000))
    assert int(many[-1]) == seeds.splitmix64((99 + 49_999 * 0x9E3779B97F4A7C15) % 2**64)


@given(KEYS, st.lists(KEYS, max_size=4), st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20))
def test_tags_in_arrays_give_the_same_keys(seed, tags, last):
    """One step for many tags at once equals the step for each."""
    found = seeds.derive_each(seeds.derive(seed, *tags), np.array(last))
    assert found.tolist() == [seeds.derive(seed, *tags, tag) for tag in last]


def test_the_place_of_a_tag_matters():
    """Neither swapped tags nor tags with the same sum give the same key."""
    keys = {seeds.derive(7, a, b) for a in range(100) for b in range(100)}
    assert len(keys) == 10_000


@given(KEYS, st.integers(1, 300))
def test_permutation_is_the_documented_argsort(key, count):
    """The packed sort equals a stable argsort of the keys without their low bits."""
    assert seeds.permutation(key, count).tolist() == reference.permutation(key, count)


@pytest.mark.parametrize("count", [0, 1])
def test_permutation_of_almost_nothing(count):
    """No or one element is a permutation too."""
    assert seeds.permutation(5, count).tolist() == list(range(count))


@given(st.lists(st.tuples(KEYS, st.integers(1, 70)), min_size=1, max_size=12))
def test_many_short_permutations_at_once_are_the_same_ones(cases):
    """Row i of the table is the permutation of key i, whatever the lengths beside it."""
    keys, counts = zip(*cases, strict=True)
    table = seeds.permutations(np.array(keys, np.uint64), np.array(counts))
    for row, (key, count) in zip(table, cases, strict=True):
        assert row[:count].tolist() == seeds.permutation(key, count).tolist()


def test_permutations_are_uniform_enough():
    """Each value stands at each place about equally often (chi-squared below its 0.1 % bound for 8 x 8 cells)."""
    table = seeds.permutations(seeds.keys(3, 8000), np.full(8000, 8))
    counts = np.array([np.bincount(table[:, place].astype(np.int64), minlength=8) for place in range(8)])
    assert ((counts - 1000) ** 2 / 1000).sum() < 85.4  # 49 degrees of freedom
