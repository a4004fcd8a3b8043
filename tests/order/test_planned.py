import functools
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from janus_shards.batching.budget import TokenBudget
from janus_shards.batching.fixed import FixedSize
from janus_shards.batching.packing import Packing
from janus_shards.errors import ConfigError, FormatError
from janus_shards.order.cursor import Cursor, choose_generation
from janus_shards.order.epoch import OrderOptions, open_order
from janus_shards.order.mixture import Mixture
from janus_shards.order.mixture_order import SourceTable, open_mixture
from janus_shards.order.planned import PlannedEpoch, lane_rows
from janus_shards.order.serving import next_position, num_steps, rank_batches
from janus_shards.world import World
from tests.contracts.resume import ResumeContract
from tests.order.test_resume import Step

SHARDS = st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any)
RULES = {
    "budget": TokenBudget(column="tokens", max_tokens=100, class_ratio=1.5),
    "packing": Packing(column="tokens", max_tokens=64, open_bins=2),
    "fixed": FixedSize(column="tokens", batch_size=5, pool_batches=2),
}
OPTIONS = st.builds(
    OrderOptions,
    seed=st.integers(0, 99),
    shuffle=st.sampled_from([True, "full", None]),
    lanes=st.sampled_from([192, 6]),
    block_rows=st.integers(1, 5),
)


def lengths_of(count):
    """Long-tailed lengths from 1 to 60."""
    return 1 + (np.arange(count) * 7919 % 61) * (np.arange(count) * 104_729 % 60) // 60


class Planned:
    """An order and its plans, as a loader would keep them."""

    def __init__(self, order, rule, sizes, *, groups=None):
        self.order, self.rule, self.sizes, self.groups = order, rule, sizes, groups
        self.epoch = functools.cache(self.lay_out)

    def lay_out(self, epoch):
        """The planned order of one epoch."""
        samples = self.order.lay_out(epoch) if hasattr(self.order, "lay_out") else self.order.epoch(epoch)
        rows, borders = lane_rows(samples)
        groups = None if self.groups is None else self.groups[rows]
        plan = self.rule.plan(self.sizes[rows], borders, groups=groups)
        return PlannedEpoch(samples, rows=plan.rows, offsets=plan.offsets, lanes=plan.lanes, shapes=plan.shapes)


def planned(shard_rows, rule, options=None):
    """Plans of shards of so many samples, their lanes cut at equal weight."""
    shard_rows = np.array(shard_rows)
    sizes = rule.sizes({"tokens": lengths_of(shard_rows.sum())}).values
    order = open_order(
        shard_rows, shard_rows * 75_000, options, costs=rule.weights(sizes), batching=rule.describe(sizes)
    )
    return Planned(order, rule, sizes)


def mixed(rule, mixture=None, options=None, sizes=(90, 61)):
    """Plans of a mixture of two data sets."""
    lengths = rule.sizes({"tokens": lengths_of(sum(sizes))}).values
    tables = [SourceTable(shard_rows=np.array([size]), shard_bytes=np.array([size * 75_000])) for size in sizes]
    mixture = mixture or Mixture({"a": 0.7, "b": 0.3})
    groups = np.repeat(np.arange(len(sizes)), sizes) if mixture.one_source == "rank" else None
    order = open_mixture(mixture, tables, options, batching=rule.describe(lengths), weights=rule.weights(lengths))
    return Planned(order, rule, lengths, groups=groups)


def steps_of(epoch, world_size, **kwargs):
    """What each rank serves, rank after rank."""
    return [rank_batches(epoch, world=World(rank=rank, world_size=world_size), **kwargs) for rank in range(world_size)]


@pytest.fixture(params=RULES.values(), ids=RULES)
def rule(request):
    """One rule of each kind of state: classes, bins, pools."""
    return request.param


@settings(max_examples=25, deadline=None)
@given(SHARDS, OPTIONS, st.sampled_from(list(RULES.values())), st.integers(1, 7), st.integers(1, 3))
def test_all_ranks_together_serve_every_sample_once(shard_rows, options, rule, world_size, each):
    """The same number of steps everywhere, each micro-batch on one rank, each sample in one of them."""
    epoch = planned(shard_rows, rule, options).epoch(1)
    batch = each * world_size
    ranks = steps_of(epoch, world_size, position=0, steps=10**6, batch=batch, tail="uneven")
    assert {rank.num_steps for rank in ranks} == {num_steps(epoch.num_batches, batch=batch, tail="uneven")}
    assert sum(len(rank.shapes) for rank in ranks) == epoch.num_batches
    ids = np.concatenate([rank.slots.sample_ids for rank in ranks])
    assert np.array_equal(np.sort(ids), np.arange(sum(shard_rows)))


@settings(max_examples=25, deadline=None)
@given(SHARDS, OPTIONS, st.sampled_from(list(RULES.values())), st.integers(1, 4), st.data())
def test_every_world_gets_the_same_global_batches(shard_rows, options, rule, world_size, data):
    """A step holds the same micro-batches for any world, from any position on, and a rank's share of each step."""
    epoch = planned(shard_rows, rule, options).epoch(0)
    if epoch.num_batches < 12:
        return
    rules = {"position": data.draw(st.integers(0, epoch.num_batches)), "steps": 10**6, "batch": 12, "tail": "drop"}
    (alone,) = steps_of(epoch, 1, **rules)
    ranks = steps_of(epoch, world_size, **rules)
    for step in range(alone.num_steps):
        assert all(rank.steps[step + 1] - rank.steps[step] == 12 // world_size for rank in ranks)
        together = [rank.slots.sample_ids[rank.step(step)].tolist() for rank in ranks]
        assert sorted(itertools.chain(*together)) == sorted(alone.slots.sample_ids[alone.step(step)].tolist())


def test_batches_are_those_of_the_plan(rule):
    """Rows, order and shapes of every micro-batch come back, and each row with the slot that it has in its order."""
    plans = planned([60, 33, 58], rule, OrderOptions(lanes=6, block_rows=4))
    epoch, samples = plans.epoch(2), plans.order.epoch(2)
    found = epoch.batches_at(np.arange(epoch.num_batches))
    slots = samples.slots_at(samples.grid.positions(found.slots.lanes, found.slots.places))
    assert np.array_equal(found.slots.sample_ids, slots.sample_ids)
    assert np.array_equal(np.sort(found.slots.sample_ids), np.arange(151))
    lanes = [np.unique(part) for part in np.split(found.slots.lanes, found.offsets[1:-1])]
    in_tail = epoch.grid.locate(np.arange(epoch.num_batches))[0] == epoch.grid.num_lanes - 1
    assert all(len(part) == 1 for part, tail in zip(lanes, in_tail, strict=True) if not tail)
    assert not np.any(np.diff(in_tail.astype(int)) < 0)


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_drop_loses_less_than_a_global_batch(rule, world_size):
    """All samples are served but those of fewer than B micro-batches, which change from epoch to epoch."""
    plans, lost = planned([600, 330, 580], rule), []
    for number in range(2):
        epoch = plans.epoch(number)
        batch = 2 * world_size
        ranks = steps_of(epoch, world_size, position=0, steps=10**6, batch=batch, tail="drop")
        served = np.concatenate([rank.slots.sample_ids for rank in ranks])
        assert len(np.unique(served)) == len(served)
        assert epoch.num_batches - sum(len(rank.shapes) for rank in ranks) < batch
        lost.append(set(range(1510)) - set(served.tolist()))
    assert not lost[0] or lost[0] != lost[1]


def test_pad_repeats_micro_batches_and_flags_them(rule):
    """Each sample is valid exactly once; the last step is filled up with micro-batches that were served before."""
    epoch = planned([60, 33, 58], rule).epoch(0)
    ranks = steps_of(epoch, 4, position=0, steps=10**6, batch=epoch.num_batches // 2 * 4 + 4, tail="pad")
    assert sorted(np.concatenate([rank.slots.sample_ids[rank.valid] for rank in ranks]).tolist()) == [*range(151)]
    assert all(rank.steps[-1] == ranks[0].steps[-1] for rank in ranks)
    for rank in ranks:
        for flags in np.split(rank.valid, rank.batches[1:-1]):
            assert flags.all() or not flags.any()


def test_steps_asked_for_alone_are_those_of_the_whole(rule):
    """How many steps are laid out at once changes nothing."""
    epoch = planned([60, 33, 58], rule).epoch(0)
    rules = {"batch": 4, "tail": "pad", "world": World(rank=1, world_size=2)}
    whole = rank_batches(epoch, position=0, steps=10**6, **rules)
    for step in range(whole.num_steps):
        alone = rank_batches(epoch, position=4 * step, steps=1, **rules)
        assert np.array_equal(alone.slots.sample_ids, whole.slots.sample_ids[whole.step(step)])
        assert alone.shapes.tolist() == whole.shapes[whole.steps[step] : whole.steps[step + 1]].tolist()
        assert np.array_equal(alone.slots.sources, np.zeros(len(alone.slots)))


def test_a_lane_is_read_by_few_ranks():
    """While all lanes last, a micro-batch of a lane goes to the same rank in every round."""
    epoch = planned([3000] * 4, RULES["packing"], OrderOptions(lanes=12, block_rows=4)).epoch(0)
    ranks = steps_of(epoch, 4, position=0, steps=60, batch=4, tail="drop")
    assert [np.unique(rank.slots.lanes).tolist() for rank in ranks] == [[at, at + 4, at + 8] for at in range(4)]


def test_lanes_are_long_enough_to_fill_batches():
    """Lanes are shrunk until what they leave open for the epoch's tail is an eighth of all, at most."""
    rule = TokenBudget(column="tokens", max_tokens=256)
    rows = np.full(20, 1000)
    sizes = rule.sizes({"tokens": lengths_of(20_000)}).values
    costs = rule.weights(sizes)
    lanes = [
        open_order(rows, rows * 75_000, costs=costs, lane_cost=cost).num_lanes for cost in (0, rule.lane_weight(sizes))
    ]
    assert lanes[0] == 96
    assert lanes[1] * rule.lane_weight(sizes) <= costs.sum() < 4 * lanes[1] * rule.lane_weight(sizes)
    for count, bound in zip(lanes, (1.0, 0.126), strict=True):
        order = open_order(rows, rows * 75_000, OrderOptions(lanes=count), costs=costs)
        ordinals, borders = lane_rows(order.epoch(0))
        plan = rule.plan(sizes[ordinals], borders)
        in_tail = ordinals[plan.rows[plan.offsets[plan.lanes[-1]] :]]
        assert costs[in_tail].sum() / costs.sum() < bound


def test_the_plan_of_another_order_is_refused(rule):
    """A plan of other rows or lanes is not served by mistake."""
    plans = planned([60, 33, 58], rule)
    rows, borders = lane_rows(plans.order.epoch(0))
    plan = rule.plan(plans.sizes[rows][:-1], borders - np.append(np.zeros(len(borders) - 1, int), 1))
    with pytest.raises(FormatError, match="expected 151 rows in"):
        PlannedEpoch(plans.order.epoch(0), rows=plan.rows, offsets=plan.offsets, lanes=plan.lanes, shapes=plan.shapes)


def test_batches_of_one_source_are_not_planned_again():
    """An order whose units were drawn as whole batches has no rows left to choose from."""
    tables = [SourceTable(shard_rows=np.array([60]), shard_bytes=np.array([60]))]
    order = open_mixture(Mixture({"a": 1}, one_source="rank"), tables, unit=4)
    with pytest.raises(ConfigError, match="is planned already"):
        lane_rows(order.epoch(0))


def test_too_few_micro_batches_are_counted_as_such():
    """An epoch without a step is an error that speaks of micro-batches."""
    with pytest.raises(ConfigError, match=r"global batch of 8 micro-batches .* only 5 micro-batches"):
        num_steps(5, batch=8, tail="drop", what="micro-batches")


@pytest.mark.parametrize("change", [{"max_tokens": 65}, {"open_bins": 3}, {"column": "words"}], ids=str)
def test_rules_and_lengths_are_compared_at_resume(change):
    """Another rule, or another tokenizer's lengths, is refused by name."""
    sizes = np.full(151, 7, np.int32)
    rows = np.array([151])
    cursors = []
    for rule, lengths in (
        (RULES["packing"], sizes),
        (replace(RULES["packing"], **change), sizes),
        (RULES["packing"], sizes + 1),
    ):
        order = open_order(rows, rows, batching=rule.describe(lengths))
        cursors.append(Cursor.at_start(order, fingerprint="f", num_shards=1))
    for other, name in ((1, f"batching.{next(iter(change))}"), (2, "batching.sizes")):
        with pytest.raises(Exception, match=name):
            choose_generation(cursors[0], cursors[other])


def test_states_stay_small():
    """Below 1 KB with a mixture, a schedule, a rule with all options, and the largest numbers."""
    mixture = Mixture(
        dict.fromkeys("abcdefgh", 0.123456789),
        one_source="rank",
        schedule=[(10**9 * at, dict.fromkeys("abcdefgh", 0.123456789)) for at in range(1, 9)],
    )
    rule = TokenBudget(
        column="tokens", max_tokens=131_072, max_length=65_536, max_samples=1000, quadratic=65_536, pad_multiple=64
    )
    sizes = np.full(480, 7, np.int32)
    tables = [SourceTable(shard_rows=np.array([60]), shard_bytes=np.array([60]))] * 8
    order = open_mixture(mixture, tables, OrderOptions(seed=2**64 - 1), batching=rule.describe(sizes))
    cursor = replace(Cursor.at_start(order, fingerprint="f" * 64, num_shards=10**6), epoch=10**6, position=10**12)
    assert len(json.dumps(cursor.to_dict())) < 1024


class PlannedStream:
    """The planned order alone, with the manners of a loader."""

    def __init__(self, plans, world, *, batch, tail):
        self.plans = plans
        self.cursor = Cursor.at_start(plans.order, fingerprint="f", num_shards=3)
        self.rules = {"batch": batch, "tail": tail}
        self.world = world

    def __iter__(self):
        number = self.cursor.epoch
        epoch = self.plans.epoch(number)
        while self.cursor.epoch == number:
            place = {"position": self.cursor.position, "world": self.world}
            served = rank_batches(epoch, steps=1, **place, **self.rules)
            following = next_position(epoch.num_batches, epoch=number, position=self.cursor.position, **self.rules)
            self.cursor = replace(self.cursor, epoch=following[0], position=following[1])
            yield Step(served.slots.sample_ids, served.valid)

    def state_dict(self):
        """The cursor."""
        return self.cursor.to_dict()

    def load_state_dict(self, state):
        """Go there, if it fits."""
        cursor = Cursor.from_dict(state)
        choose_generation(cursor, self.cursor)
        self.cursor = cursor


class PlannedContract(ResumeContract):
    plans: Planned
    tail = "drop"
    num_steps = 9
    world_sizes = (1, 2, 3, 4, 6)

    def open_stream(self, world):
        """A stream of this class's plans."""
        return PlannedStream(self.plans, world, batch=12, tail=self.tail)

    def test_an_epoch_ends_within_the_run(self):
        """The steps reach into a second epoch."""
        assert num_steps(self.plans.epoch(0).num_batches, batch=12, tail=self.tail) < self.num_steps


class TestTokenBudget(PlannedContract):
    plans = planned([100, 0, 133, 98], RULES["budget"], OrderOptions(lanes=6, block_rows=4))


class TestPacking(PlannedContract):
    plans = planned([100, 0, 133, 98], RULES["packing"], OrderOptions(lanes=6, block_rows=4))
    num_steps = 12


class TestFixedSizePadded(PlannedContract):
    plans = planned([100, 0, 133, 98], RULES["fixed"], OrderOptions(shuffle="full"))
    tail = "pad"


class TestMixtureWithTokenBudget(PlannedContract):
    plans = mixed(RULES["budget"], options=OrderOptions(lanes=6, block_rows=4))
    tail = "uneven"


class TestMixtureWithPacking(PlannedContract):
    plans = mixed(RULES["packing"], Mixture({"a": 80, "b": 200}, kind="choose"), OrderOptions(lanes=12, block_rows=4))
    num_steps = 12


class TestMixtureWithPackingOfOneSource(PlannedContract):
    plans = mixed(RULES["packing"], Mixture({"a": 2, "b": 1}, kind="repeat", one_source="rank"))
    num_steps = 12

    def test_micro_batches_are_of_one_source(self):
        """Rows of two sources are never packed together."""
        epoch = self.plans.epoch(1)
        found = epoch.batches_at(np.arange(epoch.num_batches))
        assert all(len(set(part)) == 1 for part in np.split(found.slots.sources, found.offsets[1:-1]))
        assert set(found.slots.sources.tolist()) == {0, 1}
