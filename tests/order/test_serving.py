import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.errors import ConfigError
from janus_shards.order.epoch import OrderOptions, open_order
from janus_shards.order.serving import global_batch, next_position, num_steps, rank_slots
from janus_shards.world import World

SHARDS = st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any)
WORLDS = st.integers(1, 7)
TAILS = st.sampled_from(["drop", "pad", "uneven"])
OPTIONS = st.builds(
    OrderOptions,
    seed=st.integers(0, 99),
    shuffle=st.sampled_from([True, "full", None]),
    lanes=st.sampled_from([192, 6, 10]),
    block_rows=st.integers(1, 9),
)


def opened(shard_rows, options=None, **kwargs):
    """The order of shards of so many samples of 75 kB."""
    shard_rows = np.array(shard_rows)
    return open_order(shard_rows, shard_rows * 75_000, options, **kwargs)


def steps_of(epoch, world_size, **kwargs):
    """For each step, what each rank serves: [steps][ranks] -> (sample ids, valid)."""
    ranks = [rank_slots(epoch, world=World(rank=r, world_size=world_size), **kwargs) for r in range(world_size)]
    assert len({rank.num_steps for rank in ranks}) == 1
    steps = range(ranks[0].num_steps)
    return [[(rank.slots.sample_ids[rank.step(s)], rank.valid[rank.step(s)]) for rank in ranks] for s in steps]


def valid_ids(ranks):
    """Sample ids of all ranks in a step, sorted, without repeats that pad."""
    return sorted(np.concatenate([ids[valid] for ids, valid in ranks]).tolist())


@given(SHARDS, OPTIONS, WORLDS, st.integers(1, 5), st.data())
def test_every_world_gets_the_same_global_batches(shard_rows, options, world_size, each, data):
    """Step t serves positions q + tB .. q + (t + 1)B - 1, disjointly over the ranks, for any world and any q."""
    order = opened(shard_rows, options)
    batch = each * world_size
    start = data.draw(st.integers(0, order.num_samples))
    epoch = order.epoch(1)
    whole = epoch.slots(0, order.num_samples).sample_ids
    rest = {"position": start, "steps": 10**6, "batch": batch, "tail": "uneven"}
    steps = steps_of(epoch, world_size, **rest)
    assert len(steps) == -(-(order.num_samples - start) // batch)
    for step, ranks in enumerate(steps):
        first = start + step * batch
        assert valid_ids(ranks) == sorted(whole[first : first + batch].tolist())


@given(SHARDS, OPTIONS, WORLDS, st.integers(1, 5), TAILS)
def test_ranks_are_equal_in_every_full_step(shard_rows, options, world_size, each, tail):
    """Each rank serves B / W samples a step; with ``uneven`` the last step may have fewer, alike up to one sample."""
    order = opened(shard_rows, options)
    batch = each * world_size
    if tail == "drop" and batch > order.num_samples:
        return
    steps = steps_of(order.epoch(0), world_size, position=0, steps=10**6, batch=batch, tail=tail)
    for ranks in steps if tail != "uneven" else steps[:-1]:
        assert all(len(ids) == each for ids, _ in ranks)
    sizes = [len(ids) for ids, _ in steps[-1]]
    assert max(sizes) - min(sizes) <= 1


@given(SHARDS, OPTIONS, WORLDS, st.integers(1, 5))
def test_drop_loses_less_than_a_batch(shard_rows, options, world_size, each):
    """All samples but fewer than B are served, once."""
    order = opened(shard_rows, options)
    batch = each * world_size
    if batch > order.num_samples:
        return
    steps = steps_of(order.epoch(0), world_size, position=0, steps=10**6, batch=batch, tail="drop")
    served = list(itertools.chain(*map(valid_ids, steps)))
    assert len(set(served)) == len(served) == order.num_samples // batch * batch


@given(SHARDS, OPTIONS, WORLDS, st.integers(1, 40), st.data())
def test_pad_serves_all_and_flags_the_repeats(shard_rows, options, world_size, each, data):
    """Every sample is valid exactly once; the last batch is filled up with samples of the epoch."""
    order = opened(shard_rows, options)
    start = data.draw(st.integers(0, order.num_samples - 1))
    epoch = order.epoch(0)
    steps = steps_of(epoch, world_size, position=start, steps=10**6, batch=each * world_size, tail="pad")
    whole = epoch.slots(0, order.num_samples).sample_ids
    assert sorted(itertools.chain(*map(valid_ids, steps))) == sorted(whole[start:].tolist())
    assert all(np.isin(ids, whole).all() for ranks in steps for ids, _ in ranks)


def test_pad_repeats_different_samples_of_open_blocks():
    """The repeats are the latest samples of the same lanes, each once."""
    epoch = opened([1000] * 20).epoch(0)  # 96 lanes
    served = rank_slots(epoch, position=19_968, steps=1, batch=256, tail="pad", world=World())
    repeats = served.slots.sample_ids[~served.valid]
    assert len(repeats) == 224
    assert np.array_equal(repeats, epoch.slots(20_000 - 288, 20_000 - 288 + 224).sample_ids)


@given(SHARDS, st.sampled_from([(192, 2), (192, 3), (192, 4), (10, 5), (10, 2), (6, 6)]), st.integers(1, 9), st.data())
def test_a_block_is_read_by_one_rank(shard_rows, lanes_and_world, each, data):
    """When the world divides the lanes, no two ranks read the same block, also resumed in the middle of a batch."""
    lanes, world_size = lanes_and_world
    order = opened(shard_rows, OrderOptions(lanes=lanes, block_rows=2))
    if order.num_lanes % world_size:
        return
    stops = sorted(data.draw(st.lists(st.integers(0, order.num_samples), max_size=3)))
    readers = {}
    for start in [0, *stops]:
        for rank in range(world_size):
            world = World(rank=rank, world_size=world_size)
            rest = {"position": start, "steps": 10**6, "batch": each * world_size, "tail": "pad"}
            for block in rank_slots(order.epoch(0), world=world, **rest).slots.blocks.tolist():
                assert readers.setdefault(block, rank) == rank


def test_another_world_reads_most_lanes_once():
    """When the world does not divide the lanes, a lane has little more than one reader in a step."""
    epoch = opened([1000] * 200, OrderOptions(lanes=64)).epoch(0)
    for position in (0, 12_345):
        lanes = [
            np.unique(rank_slots(epoch, position=position, steps=1, batch=258, tail="drop", world=world).slots.lanes)
            for world in (World(rank=rank, world_size=6) for rank in range(6))
        ]
        assert sum(map(len, lanes)) / 64 < 1.1


@given(SHARDS, WORLDS, st.integers(1, 4), st.data())
def test_lanes_of_equal_cost_are_divided_too(shard_rows, world_size, each, data):
    """With lanes of different lengths every sample is served once, for any world."""
    costs = data.draw(st.lists(st.integers(0, 9), min_size=sum(shard_rows), max_size=sum(shard_rows)))
    order = opened(shard_rows, OrderOptions(block_rows=2), costs=np.array(costs))
    for tail in ("uneven", "pad"):
        steps = steps_of(order.epoch(0), world_size, position=0, steps=10**6, batch=each * world_size, tail=tail)
        assert sorted(itertools.chain(*map(valid_ids, steps))) == list(range(sum(shard_rows)))


@given(SHARDS, OPTIONS, WORLDS, st.integers(1, 5), TAILS, st.data())
def test_steps_asked_for_in_pieces_are_the_same_ones(shard_rows, options, world_size, each, tail, data):
    """How many steps are laid out at once changes nothing."""
    order = opened(shard_rows, options)
    batch = each * world_size
    if tail == "drop" and batch > order.num_samples:
        return
    world = World(rank=data.draw(st.integers(0, world_size - 1)), world_size=world_size)
    rules = {"batch": batch, "tail": tail, "world": world}
    whole = rank_slots(order.epoch(0), position=0, steps=10**6, **rules)
    step = data.draw(st.integers(0, whole.num_steps - 1))
    alone = rank_slots(order.epoch(0), position=step * batch, steps=1, **rules)
    assert np.array_equal(alone.slots.sample_ids, whole.slots.sample_ids[whole.step(step)])
    assert np.array_equal(alone.valid, whole.valid[whole.step(step)])


@given(st.integers(1, 200), st.integers(1, 40), TAILS, st.integers(1, 60))
def test_the_next_position_ends_with_the_steps(num_samples, batch, tail, start):
    """From any position, as many steps as are counted lead to the start of the next epoch."""
    if (tail == "drop" and batch > num_samples) or start >= num_samples:
        return
    steps = num_steps(num_samples, batch=batch, tail=tail, position=start)
    place = (4, start)
    for _ in range(steps):
        assert place[0] == 4
        place = next_position(num_samples, batch=batch, tail=tail, epoch=place[0], position=place[1])
    assert place == (5, 0) or steps == 0


@pytest.mark.parametrize(("tail", "steps"), [("drop", 3), ("pad", 4), ("uneven", 4)])
def test_steps_of_an_epoch(tail, steps):
    """100 samples in batches of 32."""
    assert num_steps(100, batch=32, tail=tail) == steps
    assert num_steps(100, batch=32, tail=tail, position=100) == 0


def test_an_epoch_without_a_step_is_an_error():
    """Fewer samples than a global batch under ``drop`` would never deliver anything."""
    with pytest.raises(ConfigError, match="only 10 samples"):
        num_steps(10, batch=11, tail="drop")
    assert num_steps(10, batch=11, tail="pad") == 1


def test_a_wrong_tail_is_named():
    """An unknown tail is refused with the three that exist."""
    with pytest.raises(ConfigError, match="'drop', 'pad' or 'uneven'"):
        num_steps(10, batch=2, tail="keep")


def test_a_batch_is_given_for_a_rank_or_for_all():
    """Both ways to say it give the samples of one step over all ranks."""
    world = World(rank=1, world_size=4)
    assert global_batch(batch_size=8, global_batch_size=None, world=world) == 32
    assert global_batch(batch_size=None, global_batch_size=32, world=world) == 32


@pytest.mark.parametrize(
    ("batch_size", "global_size", "message"),
    [
        *((None, None, "found neither"), (8, 32, "found both"), (0, None, "batch_size=0")),
        *((None, 0, "global_batch_size=0"), (True, None, "batch_size=True")),
        *((None, 33, "multiple of the 4 ranks; the next is 36"), (None, 3, "the next is 4")),
    ],
)
def test_a_batch_that_cannot_be_divided_is_refused(batch_size, global_size, message):
    """Exactly one size, at least 1, and a multiple of the ranks; otherwise the next multiple is named."""
    with pytest.raises(ConfigError, match=message):
        global_batch(batch_size=batch_size, global_batch_size=global_size, world=World(world_size=4))


def test_positions_outside_the_epoch_are_refused():
    """A state of a longer epoch does not serve nonsense."""
    with pytest.raises(ConfigError, match="position=11"):
        rank_slots(opened([10]).epoch(0), position=11, steps=1, batch=2, tail="drop", world=World())
