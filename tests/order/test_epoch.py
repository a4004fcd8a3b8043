import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from janus_shards.errors import ConfigError
from janus_shards.order.epoch import OrderOptions, open_order

GOLDEN = Path(__file__).parents[1] / "data" / "order"
SHARDS = st.lists(st.integers(0, 90), min_size=1, max_size=20).filter(any)
OPTIONS = st.builds(
    OrderOptions,
    seed=st.integers(0, 2**64 - 1),
    shuffle=st.sampled_from([True, "full", None]),
    lanes=st.sampled_from([192, 10, 1, "mixed"]),
    block_rows=st.sampled_from([None, 1, 7]),
    window=st.integers(1, 3),
)


def opened(shard_rows, options=None, **kwargs):
    """The order of shards of so many samples of 75 kB."""
    shard_rows = np.array(shard_rows)
    return open_order(shard_rows, shard_rows * 75_000, options, **kwargs)


@given(SHARDS, OPTIONS, st.integers(0, 2**31))
def test_every_epoch_is_a_permutation(shard_rows, options, epoch):
    """Each sample once, for any shard sizes, empty shards among them, and any options."""
    order = opened(shard_rows, options)
    slots = order.epoch(epoch).slots(0, order.num_samples)
    assert np.array_equal(np.sort(slots.sample_ids), np.arange(sum(shard_rows)))


@pytest.mark.parametrize("options", [OrderOptions(seed=5), OrderOptions(shuffle="full"), OrderOptions(lanes="mixed")])
def test_a_million_samples_are_a_permutation(options):
    """The same at a size with long lanes."""
    shard_rows = 500 + np.arange(1000) % 1001
    shard_rows[-1] += 1_000_000 - shard_rows.sum()
    slots = opened(shard_rows, options).epoch(1).slots(0, 1_000_000)
    assert np.all(np.bincount(slots.sample_ids) == 1)


@given(SHARDS, OPTIONS, st.data())
def test_any_positions_alone_equal_the_whole(shard_rows, options, data):
    """What stands at a position does not depend on what is asked for with it, before it, or how often."""
    order = opened(shard_rows, options)
    whole = order.epoch(3).slots(0, order.num_samples)
    positions = data.draw(st.lists(st.integers(0, order.num_samples - 1), max_size=20))
    slots = opened(shard_rows, options).epoch(3).slots_at(np.array(positions, np.int64))
    for name in ("sample_ids", "lanes", "places", "blocks", "turn_starts", "turn_stops"):
        assert np.array_equal(getattr(slots, name), getattr(whole, name)[positions]), name


@given(SHARDS, OPTIONS, st.data())
def test_a_view_is_served_whole_and_alone(shard_rows, options, data):
    """Each wanted sample once, by its id in the base, and nothing else."""
    ids = sorted(data.draw(st.sets(st.integers(0, sum(shard_rows) - 1), min_size=1)))
    order = opened(shard_rows, options, view=np.array(ids))
    slots = order.epoch(0).slots(0, order.num_samples)
    assert np.sort(slots.sample_ids).tolist() == ids
    turn = order.sample_ids(np.arange(slots.turn_starts[0], slots.turn_stops[0]))
    assert slots.sample_ids[0] in turn


@given(SHARDS, st.data())
def test_lanes_of_equal_cost_are_a_permutation_too(shard_rows, data):
    """Lanes of very different lengths are served without holes."""
    costs = data.draw(st.lists(st.integers(0, 99), min_size=sum(shard_rows), max_size=sum(shard_rows)))
    order = opened(shard_rows, OrderOptions(block_rows=2), costs=np.array(costs))
    slots = order.epoch(0).slots(0, order.num_samples)
    assert np.array_equal(np.sort(slots.sample_ids), np.arange(sum(shard_rows)))


def test_stored_order_without_shuffle():
    """``shuffle=None`` serves samples as they lie."""
    assert opened([5, 0, 40], OrderOptions(shuffle=None)).epoch(9).slots(0, 45).sample_ids.tolist() == [*range(45)]


def test_epochs_differ_and_blocks_stay_in_their_lanes():
    """Another epoch is another order of the same blocks in the same lanes, so a node meets its blocks again."""
    order = opened([1000] * 20)
    first, second = order.epoch(0).slots(0, 20_000), order.epoch(1).slots(0, 20_000)
    assert np.count_nonzero(first.sample_ids == second.sample_ids) < 300
    by_id = np.argsort(first.sample_ids), np.argsort(second.sample_ids)
    assert np.array_equal(first.lanes[by_id[0]], second.lanes[by_id[1]])
    assert np.array_equal(first.blocks[by_id[0]], second.blocks[by_id[1]])


def test_mixed_lanes_are_dealt_anew():
    """With ``lanes="mixed"`` most samples change their lane between epochs."""
    order = opened([1000] * 20, OrderOptions(lanes="mixed"))
    lanes = [slots.lanes[np.argsort(slots.sample_ids)] for slots in (order.epoch(e).slots(0, 20_000) for e in (0, 1))]
    assert np.mean(lanes[0] == lanes[1]) < 0.1


@pytest.mark.parametrize(("options", "bound"), [(OrderOptions(), 1.3), (OrderOptions(shuffle="full"), 1.02)])
def test_class_sorted_data_mixes(options, bound):
    """Batches of 256 of data sorted by class hold the classes about as a full shuffle does (chi2/dof 1.0)."""
    values = []
    for epoch in range(4):
        ids = opened([1000] * 200, options).epoch(epoch).slots(0, 256 * 781).sample_ids
        batches = (ids // 2000).reshape(-1, 256) + 100 * np.arange(781)[:, None]
        counts = np.bincount(batches.ravel(), minlength=78_100).reshape(781, 100)
        values.append((((counts - 2.56) ** 2 / 2.56).sum(axis=1) / 99).mean())
    assert np.mean(values) <= bound


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_frozen_orders(path):
    """The order of these seeds and epochs never changes without a new order version."""
    golden = json.loads(path.read_text())
    order = opened(golden["shard_rows"], OrderOptions(**golden["options"]))
    assert order.order_hash == golden["order_hash"]
    ids = order.epoch(golden["epoch"]).slots(0, order.num_samples).sample_ids
    assert ids.tolist() == golden["sample_ids"]


def test_there_are_three_frozen_orders():
    """The golden files are there, each of another seed and epoch."""
    assert (
        len({(g["options"]["seed"], g["epoch"]) for g in map(json.loads, map(Path.read_text, GOLDEN.glob("*")))}) == 3
    )


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"lanes": 32}, {"lanes": "mixed"}, {"block_rows": 16}, {"window": 2}, {"shuffle": "full"}],
    ids=str,
)
def test_whatever_changes_the_order_changes_its_hash(change):
    """Seed, lanes, dealing, block rows, window and shuffle are all covered."""
    assert opened([1000] * 20).order_hash != opened([1000] * 20, OrderOptions(**change)).order_hash


def test_views_and_lengths_change_the_hash():
    """The ids of a view and the samples of an epoch are covered."""
    views = (None, np.arange(19_999), np.arange(1, 20_000))
    hashes = {opened([1000] * 20, view=view).order_hash for view in views} | {opened([1000] * 21).order_hash}
    assert len(hashes) == 4


def test_what_has_no_influence_is_not_in_the_hash():
    """Without lanes, windows and blocks do not matter, and lanes that shrink to the same number are the same."""
    full = [opened([100], OrderOptions(shuffle="full", window=window)).order_hash for window in (1, 2)]
    assert full[0] == full[1]
    assert opened([100], OrderOptions(lanes=1)).order_hash == opened([100], OrderOptions(lanes=192)).order_hash


@pytest.mark.parametrize(("shard_rows", "view"), [([], None), ([0, 0], None), ([5], [])])
def test_nothing_to_serve_is_an_error(shard_rows, view):
    """A data set or view without samples is refused at once, not at the first batch."""
    with pytest.raises(ConfigError) as caught:
        opened(np.array(shard_rows, np.int64), view=None if view is None else np.array(view, np.int64))
    assert caught.value.kind == "empty_dataset"


@pytest.mark.parametrize("view", [[3, 2], [2, 2], [-1, 3], [3, 10]])
def test_a_view_must_be_sorted_and_inside(view):
    """Ids that repeat, go back or leave the data set are refused."""
    with pytest.raises(ConfigError, match="view"):
        opened([10], view=np.array(view))


@pytest.mark.parametrize(
    "wrong",
    [
        *({"seed": -1}, {"seed": 2**64}, {"shuffle": "some"}, {"shuffle": False}, {"lanes": 0}, {"window": 0}),
        *({"block_rows": 0}, {"lanes": "other"}, {"window": 1.5}, {"seed": True}),
    ],
    ids=str,
)
def test_wrong_options_are_named(wrong):
    """An option outside its range is refused with its name and value."""
    (name,) = wrong
    with pytest.raises(ConfigError, match=name):
        OrderOptions(**wrong)


@pytest.mark.parametrize("costs", [[1, 2], [1, -1, 2]])
def test_wrong_costs_are_refused(costs):
    """One cost a sample, none negative."""
    with pytest.raises(ConfigError, match="costs"):
        opened([3], costs=np.array(costs))


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 11)])
def test_positions_outside_the_epoch_are_refused(start, stop):
    """A range of positions must lie inside the epoch."""
    with pytest.raises(ConfigError, match=r"positions of this epoch are 0 \.\. 10"):
        opened([10]).epoch(0).slots(start, stop)


def test_epochs_count_from_0():
    """There is no epoch before the first."""
    with pytest.raises(ConfigError, match="epoch=-1"):
        opened([10]).epoch(-1)


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(0, 5))
def test_the_prefix_of_a_grown_data_set_keeps_its_order(shards, more):
    """An order over the first shards is the same whether or not shards were appended since."""
    rows = np.full(shards + more, 40)
    before = opened(rows[:shards])
    after = open_order(rows[: len(rows) - more], rows[:shards] * 75_000)
    assert before.order_hash == after.order_hash
