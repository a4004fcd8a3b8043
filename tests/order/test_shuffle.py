import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.order.epoch import OrderOptions, open_order
from janus_shards.order.shuffle import Bijection
from tests.order import reference

SHARDS = st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any)
SEEDS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("key", [0, 12345])
def test_the_bijection_is_one_for_every_small_size(key):
    """All sizes from 1 to 300, around powers of two and between: each value is taken once."""
    for size in range(1, 301):
        found = Bijection(size, key=key)(np.arange(size))
        assert np.array_equal(np.sort(found), np.arange(size)), size


@given(st.integers(1, 2**40), SEEDS)
def test_the_bijection_never_takes_a_value_twice(size, key):
    """In sizes too big to look at whole, any 1,000 values go to 1,000 places inside."""
    values = np.unique(np.linspace(0, size - 1, 1000).astype(np.int64))
    found = Bijection(size, key=key)(values)
    assert len(np.unique(found)) == len(values)
    assert found.min() >= 0
    assert found.max() < size


def test_the_bijection_goes_its_own_way_for_every_key():
    """Two epochs of a full shuffle agree in about one place, as two random permutations do."""
    first, second = (Bijection(10_000, key=key)(np.arange(10_000)) for key in (1, 2))
    assert np.count_nonzero(first == second) < 10


@given(SHARDS, SEEDS, st.integers(0, 1000), st.integers(1, 12), st.integers(1, 3), st.integers(1, 8))
def test_lanes_and_windows_are_the_documented_ones(shard_rows, seed, epoch, block_rows, window, lanes):
    """The vectorised order equals the plain form of the design note, row by row."""
    options = OrderOptions(seed=seed, lanes=lanes, block_rows=block_rows, window=window)
    order = open_order(np.array(shard_rows), np.zeros(len(shard_rows)), options)
    dealt = reference.deal(reference.cut_blocks(shard_rows, block_rows), seed=seed, num_lanes=order.num_lanes)
    rules = {"seed": seed, "epoch": epoch, "num_lanes": order.num_lanes, "window_rows": window * block_rows}
    served = [reference.lane_order(blocks, lane=lane, **rules) for lane, blocks in enumerate(dealt)]
    assert order.epoch(epoch).slots(0, order.num_samples).sample_ids.tolist() == reference.epoch_order(served)


def test_long_windows_are_the_documented_ones():
    """Permutations that are kept between calls give the same rows as those made at once."""
    options = OrderOptions(seed=3, block_rows=100, window=7, lanes=4)
    epoch = open_order(np.full(5, 1000), np.zeros(5), options).epoch(2)
    dealt = reference.deal(reference.cut_blocks([1000] * 5, 100), seed=3, num_lanes=4)
    rules = {"seed": 3, "epoch": 2, "num_lanes": 4, "window_rows": 700}
    served = [reference.lane_order(blocks, lane=lane, **rules) for lane, blocks in enumerate(dealt)]
    pieces = [epoch.slots(start, start + 100).sample_ids for start in range(0, 5000, 100)]
    assert np.concatenate(pieces).tolist() == reference.epoch_order(served)


def test_windows_turn_in_turn():
    """Of 192 lanes with blocks of 32 rows, each place opens about 6 windows, never those of many lanes at once."""
    epoch = open_order(np.full(200, 1024), np.zeros(200), OrderOptions(seed=1)).epoch(0)
    slots = epoch.slots(0, 192 * 96)
    first_use = np.unique(slots.turn_starts, return_index=True)[1]
    opened = np.bincount(slots.places[first_use], minlength=96)[64:]
    assert opened.max() <= 24


@given(SHARDS, SEEDS, st.integers(1, 12), st.integers(1, 3))
def test_a_block_is_open_in_two_neighbouring_windows_at_most(shard_rows, seed, block_rows, window):
    """All rows of a block are served within two windows' length of its lane, and turns are what it gives to each."""
    options = OrderOptions(seed=seed, block_rows=block_rows, window=window)
    order = open_order(np.array(shard_rows), np.zeros(len(shard_rows)), options)
    epoch = order.epoch(0)
    slots = epoch.slots(0, order.num_samples)
    starts, stops = epoch.block_span(slots.blocks)
    assert np.all((starts <= slots.turn_starts) & (slots.turn_stops <= stops))
    for block in np.unique(slots.blocks):
        mine = slots.blocks == block
        assert len(np.unique(slots.lanes[mine])) == 1
        assert np.ptp(slots.places[mine]) < 2 * window * block_rows
        assert np.array_equal(np.sort(slots.sample_ids[mine]), np.arange(starts[mine][0], stops[mine][0]))
        assert len(np.unique(slots.turn_starts[mine])) <= 2


@given(SHARDS, SEEDS, st.integers(1, 12), st.sampled_from([True, "full", None]))
def test_turns_hold_their_rows_and_no_others(shard_rows, seed, block_rows, shuffle):
    """Each row lies in exactly one turn, and a turn's rows are served within one window's length."""
    options = OrderOptions(seed=seed, block_rows=block_rows, shuffle=shuffle)
    order = open_order(np.array(shard_rows), np.zeros(len(shard_rows)), options)
    slots = order.epoch(0).slots(0, order.num_samples)
    first, stop = order.epoch(0).block_span(slots.blocks)
    assert np.all((first <= slots.turn_starts) & (slots.turn_stops <= stop))
    assert len(slots) == order.num_samples
    for start in np.unique(slots.turn_starts):
        mine = slots.turn_starts == start
        assert len(np.unique(slots.turn_stops[mine])) == 1
        assert np.array_equal(np.sort(slots.sample_ids[mine]), np.arange(start, slots.turn_stops[mine][0]))
        assert np.ptp(slots.places[mine]) < block_rows
