import functools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from janus_shards.errors import ConfigError, ResumeError
from janus_shards.order.epoch import OrderOptions
from janus_shards.order.mixture import Mixture, continue_schedule, mixture_fingerprint
from janus_shards.order.mixture_order import SourceTable, open_mixture
from janus_shards.order.serving import rank_slots
from janus_shards.world import World
from tests.contracts.resume import ResumeContract
from tests.order.test_resume import OrderStream

GOLDEN = Path(__file__).parents[1] / "data" / "mixtures"
SIZES = st.lists(st.integers(1, 150), min_size=1, max_size=4)
OPTIONS = st.builds(
    OrderOptions,
    seed=st.integers(0, 99),
    shuffle=st.sampled_from([True, "full", None]),
    lanes=st.sampled_from([192, 6]),
    block_rows=st.integers(1, 9),
)
COLUMNS = ("sample_ids", "lanes", "places", "blocks", "turn_starts", "turn_stops", "sources", "source_epochs")


def opened(sizes, mixture=None, options=None, *, views=(), **kwargs):
    """The order of a mixture of data sets of so many samples of 75 kB, in shards of 60."""
    mixture = mixture or Mixture({str(number): 1 for number in range(len(sizes))})
    tables = []
    for number, size in enumerate(sizes):
        rows = np.array([*[60] * (size // 60), size % 60])
        view = views[number] if views else None
        tables.append(SourceTable(shard_rows=rows, shard_bytes=rows * 75_000, view=view))
    return open_mixture(mixture, tables, options, **kwargs)


def everything(order, epochs):
    """Slots of whole epochs, one array a column."""
    found = [order.epoch(epoch).slots(0, order.num_samples) for epoch in epochs]
    return {name: np.concatenate([getattr(slots, name) for slots in found]) for name in COLUMNS}


@settings(max_examples=30, deadline=None)
@given(SIZES, OPTIONS, st.data())
def test_every_source_runs_through_its_samples(sizes, options, data):
    """In each epoch of its own a source gives every sample at most once, and once all of those that are over."""
    weights = data.draw(st.lists(st.integers(0, 5), min_size=len(sizes), max_size=len(sizes)).filter(any))
    mixture = Mixture(dict(enumerate(weights)), samples_per_epoch=data.draw(st.integers(1, 300)))
    order = opened(sizes, mixture, options)
    slots = everything(order, range(3))
    served = list(zip(*(slots[name].tolist() for name in ("sources", "source_epochs", "sample_ids")), strict=True))
    assert len(set(served)) == len(served) == 3 * order.num_samples
    sources, ids = order.locate(slots["sample_ids"])
    assert np.array_equal(sources, slots["sources"])
    assert np.all((ids >= 0) & (ids < np.array(sizes)[sources]))


@settings(max_examples=30, deadline=None)
@given(SIZES, OPTIONS, st.data())
def test_a_source_is_gone_through_in_its_own_order(sizes, options, data):
    """Every lane of a source is drawn from place by place, without a gap, over all epochs."""
    weights = data.draw(st.lists(st.integers(1, 5), min_size=len(sizes), max_size=len(sizes)))
    order = opened(sizes, Mixture(dict(enumerate(weights)), samples_per_epoch=700), options)
    parts = [order.drawn_at(epoch, np.arange(700)) for epoch in range(3)]
    sources, lanes, runs = (np.concatenate(part) for part in zip(*parts, strict=True))
    for source, lane in sorted({*zip(sources.tolist(), lanes.tolist(), strict=True)}):
        mine = runs[(sources == source) & (lanes == lane)]
        assert mine.tolist() == [*range(len(mine))]


@settings(max_examples=30, deadline=None)
@given(SIZES, OPTIONS, st.data())
def test_any_positions_alone_equal_the_whole(sizes, options, data):
    """What stands at a position does not depend on what is asked for with it, before it, or how often."""
    order = opened(sizes, options=options)
    whole = everything(order, [2])
    positions = np.array(data.draw(st.lists(st.integers(0, order.num_samples - 1), max_size=20)), np.int64)
    fresh = opened(sizes, options=options)
    slots = fresh.epoch(2).slots_at(positions)
    for name in COLUMNS:
        assert np.array_equal(getattr(slots, name), whole[name][positions]), name
    ordinals = fresh.epoch(2).ordinals_at(positions)
    assert np.array_equal(fresh.sample_ids(ordinals), slots.sample_ids)


@settings(max_examples=30, deadline=None)
@given(SIZES, OPTIONS)
def test_blocks_and_turns_hold_their_rows(sizes, options):
    """A block is one of one source, and lies where it says; so does what it gives to a window."""
    order = opened(sizes, options=options)
    slots = everything(order, [0])
    starts, stops = order.epoch(0).block_span(slots["blocks"])
    ordinals = order.epoch(0).ordinals_at(np.arange(order.num_samples))
    assert np.all((starts <= slots["turn_starts"]) & (slots["turn_stops"] <= stops))
    assert np.all((slots["turn_starts"] <= ordinals) & (ordinals < slots["turn_stops"]))
    assert np.array_equal(np.searchsorted(order.row_starts, starts, side="right") - 1, slots["sources"])
    assert np.all(stops <= order.row_starts[slots["sources"] + 1])


@pytest.mark.parametrize(("lanes", "world_size"), [(192, 2), (192, 3), (192, 6), (10, 5)])
def test_a_block_is_read_by_one_rank(lanes, world_size):
    """When the world divides the lanes of a source, its blocks keep their reader over epochs and resumes."""
    sizes, readers = (3000, 1700, 900), {}
    mixture = Mixture({"a": 0.5, "b": 0.3, "c": 0.2}, samples_per_epoch=2000)
    order = opened(sizes, mixture, OrderOptions(lanes=lanes, block_rows=4))
    assert all(lanes[0] % world_size == 0 for lanes in ([s.num_lanes] for s in order.sources))
    for epoch, start in ((0, 0), (1, 0), (1, 333), (4, 0)):
        for rank in range(world_size):
            world = World(rank=rank, world_size=world_size)
            rules = {"steps": 10**6, "batch": 7 * world_size, "tail": "pad", "world": world}
            for block in rank_slots(order.epoch(epoch), position=start, **rules).slots.blocks.tolist():
                assert readers.setdefault(block, rank) == rank


def test_proportions_hold_in_every_batch():
    """Samples come in the given shares, off by at most 0.8 in a batch of 64, also where sources are small."""
    order = opened((2000, 90), Mixture({"a": 0.7, "b": 0.3}))
    assert order.num_samples == 2090
    for epoch, bound in ((0, 0.8), (1, 2)):
        batches = everything(order, [epoch])["sources"][:2048].reshape(-1, 64)
        assert np.abs((batches == 0).sum(axis=1) - 44.8).max() <= bound + 1e-9


def test_repeat_serves_each_sample_so_often():
    """An epoch holds every sample of a source about as often as asked, off by one; a fraction serves a part."""
    order = opened((300, 200, 100), Mixture({"a": 1, "b": 3, "c": 0.5}, kind="repeat"))
    assert order.num_samples == 300 + 600 + 50
    slots = everything(order, [0])
    per_source = np.bincount(slots["sources"])
    assert np.abs(per_source - [300, 600, 50]).max() <= 3
    often = Counter(slots["sample_ids"][slots["sources"] == 1].tolist())
    assert set(often.values()) <= {2, 3, 4}
    assert len(often) == 200


def test_choose_goes_on_where_it_stopped():
    """Epochs of 50 out of 300 samples are others until all were served; then they come again in another order."""
    order = opened((300, 40), Mixture({"a": 50, "b": 20}, kind="choose"))
    assert order.num_samples == 70
    slots = everything(order, range(9))
    first = slots["sample_ids"][slots["sources"] == 0]
    assert len(set(first[:240].tolist())) == 240
    assert len(set(first[:330].tolist())) == 300


def test_a_source_alone_is_a_data_set():
    """A mixture of one source serves every sample once an epoch, but for a row a lane that comes earlier or later."""
    order = opened((500,), Mixture({"a": 1}))
    for epoch in (0, 1, 5):
        assert np.count_nonzero(np.bincount(everything(order, [epoch])["sample_ids"]) == 1) >= 500 - 2 * 4
    assert order.sources[0].num_lanes == 4


def test_views_are_served_by_their_base_ids():
    """A source may be a view: its samples alone come, under their ids in the base data set."""
    order = opened((100, 50), views=(np.arange(0, 100, 7), None))
    slots = everything(order, range(2))
    assert set(slots["sample_ids"][slots["sources"] == 0].tolist()) == set(range(0, 100, 7))
    assert order.id_starts.tolist() == [0, 100, 150]
    assert order.row_starts.tolist() == [0, 15, 65]


def test_a_schedule_changes_the_shares_at_a_sample():
    """Up to the given sample of the run, over epochs, nothing changes; from it on the new shares hold."""
    weights = {"a": 0.5, "b": 0.5}
    plain = everything(opened((600, 600), Mixture(weights)), range(2))
    mixture = Mixture(weights, schedule=[(1500, {"b": 1}), (2000, {"a": 0.25, "b": 0.75})])
    changed = everything(opened((600, 600), mixture), range(2))
    for name in COLUMNS:
        assert np.array_equal(changed[name][:1500], plain[name][:1500])
    assert np.all(changed["sources"][1500:2000] == 1)
    assert abs(np.count_nonzero(changed["sources"][2000:] == 0) - 100) < 4


@pytest.mark.parametrize("position", [0, 1, 700, 1200, 1234])
def test_new_weights_at_resume_keep_what_was_served(position):
    """The schedule of the state goes on to the position and the new one from there; it may change again later."""
    old = Mixture({"a": 0.5, "b": 0.5}, schedule=[(900, {"a": 1, "b": 3})])
    saved = opened((600, 600), old).describe()
    merged = continue_schedule(Mixture({"a": 0.9, "b": 0.1}), saved, position=position)
    before, after = (everything(opened((600, 600), m), range(2))["sources"] for m in (old, merged))
    assert np.array_equal(before[:position], after[:position])
    assert merged.pieces[-1] == (position, (0.9, 0.1))
    again = continue_schedule(Mixture({"a": 0.9, "b": 0.1}), opened((600, 600), merged).describe(), position=2000)
    assert again.pieces == merged.pieces


def test_a_state_without_weights_cannot_be_continued():
    """A state of no mixture, or of another number of sources, is refused."""
    for saved in ({}, {"weights": "0:1,2,3"}, {"weights": "sha256 00"}):
        with pytest.raises(ResumeError, match="weights of 2 sources"):
            continue_schedule(Mixture({"a": 1, "b": 1}), saved, position=5)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
def test_each_rank_s_batch_is_of_one_source(world_size):
    """With one_source="rank" a rank's samples of a step are of one source, and steps hold the shares over ranks."""
    mixture = Mixture({"a": 0.6, "b": 0.4}, one_source="rank", samples_per_epoch=2405)
    order = opened((2000, 400), mixture, OrderOptions(block_rows=4), unit=8)
    assert order.num_samples == 2400
    sources = []
    for rank in range(world_size):
        rules = {
            "steps": 10**6,
            "batch": 8 * world_size,
            "tail": "pad",
            "world": World(rank=rank, world_size=world_size),
        }
        served = rank_slots(order.epoch(1), position=0, **rules)
        steps = served.slots.sources.reshape(-1, 8)
        assert np.all(steps == steps[:, :1])
        sources += steps[:, 0].tolist()
    assert abs(sources.count(0) / len(sources) - 0.6) < 0.03


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
def test_each_step_is_of_one_source(world_size):
    """With one_source="global" all ranks serve one source in a step; blocks still have one reader."""
    mixture = Mixture({"a": 0.6, "b": 0.4}, one_source="global", samples_per_epoch=2400)
    order = opened((4000, 3000), mixture, OrderOptions(block_rows=4), unit=24)
    readers, found = {}, []
    for rank in range(world_size):
        world = World(rank=rank, world_size=world_size)
        for epoch in range(3):
            served = rank_slots(order.epoch(epoch), position=0, steps=10**6, batch=24, tail="drop", world=world)
            found.append(served.slots.sources.reshape(served.num_steps, -1))
            for block in served.slots.blocks.tolist():
                assert readers.setdefault(block, rank) == rank
    steps = np.concatenate([np.stack(found[at::3], axis=1).reshape(100, 24) for at in range(3)])
    assert np.all(steps == steps[:, :1])
    assert abs(np.mean(steps[:, 0] == 0) - 0.6) < 0.02


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_frozen_mixtures(path):
    """The order of these mixtures never changes without a new version."""
    golden = json.loads(path.read_text())
    mixture = Mixture(**{**golden["mixture"], "schedule": [tuple(piece) for piece in golden["mixture"]["schedule"]]})
    order = opened(golden["sizes"], mixture, OrderOptions(**golden["options"]), unit=golden["unit"])
    assert order.describe() == golden["description"]
    assert everything(order, [golden["epoch"]])["sample_ids"].tolist() == golden["sample_ids"]


def test_there_are_frozen_mixtures():
    """The golden files are there, one a kind."""
    assert {json.loads(path.read_text())["mixture"]["kind"] for path in GOLDEN.glob("*")} == {
        *("proportion", "repeat", "choose")
    }


@pytest.mark.parametrize(
    "change",
    [
        *({"sources": {"a": 0.6, "b": 0.4}}, {"kind": "repeat"}, {"samples_per_epoch": 100}, {"one_source": "rank"}),
        {"schedule": [(50, {"a": 1})]},
    ],
    ids=str,
)
def test_whatever_changes_the_order_changes_its_hash(change):
    """Shares, kind, length, one_source and schedule are all covered, and named at resume."""
    base = {"sources": {"a": 1, "b": 1}}
    first, second = (opened((100, 100), Mixture(**{**base, **more}), unit=5) for more in ({}, change))
    assert first.order_hash != second.order_hash


def test_equal_values_are_equal_shares():
    """1 and 1.0, or a number of NumPy, are the same weight in a state."""
    hashes = {opened((60, 60), Mixture({"a": one, "b": 2})).order_hash for one in (1, 1.0, np.float64(1), np.int64(1))}
    assert len(hashes) == 1


def test_the_sources_themselves_are_covered():
    """Another size of a source, another seed, or another order of sources is another order."""
    hashes = {opened(sizes).order_hash for sizes in ((60, 61), (61, 60), (60, 62))}
    hashes.add(opened((60, 61), options=OrderOptions(seed=1)).order_hash)
    assert len(hashes) == 4
    assert mixture_fingerprint(["a", "b"]) != mixture_fingerprint(["b", "a"])


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"sources": {}}, "at least one source"),
        ({"sources": {"a": 0}}, "at least one source"),
        ({"sources": {"a": -1}}, "numbers from 0 up"),
        ({"sources": {"a": float("nan")}}, "numbers from 0 up"),
        ({"kind": "some"}, "kind='some'"),
        ({"kind": "choose", "sources": {"a": 0.5}}, "whole numbers of samples"),
        ({"one_source": "step"}, "one_source='step'"),
        ({"samples_per_epoch": 0}, "samples_per_epoch=0"),
        ({"schedule": [(5, {"b": 1})]}, "sources of the mixture only"),
        ({"schedule": [(5, {"a": 1}), (5, {"a": 2})]}, "increasing positions"),
    ],
)
def test_wrong_options_are_named(wrong, match):
    """A value outside its range is refused with its name."""
    with pytest.raises(ConfigError, match=match):
        Mixture(**{"sources": {"a": 1}, **wrong})


@pytest.mark.parametrize(
    ("mixture", "kwargs", "match"),
    [
        (Mixture({"a": 1}), {}, "a table for each of 1 sources, found 2"),
        (Mixture({"a": 1, "b": 1}, one_source="rank", samples_per_epoch=9), {"unit": 10}, "holds no batch of 10"),
        (Mixture({"a": 1, "b": 1}, one_source="global"), {"batching": {"batching": "Packing"}}, "one_source='rank'"),
        (Mixture({"a": 0.001, "b": 0}, kind="repeat"), {}, "an epoch of none"),
        (Mixture({"a": 1, "b": 1}), {"options": OrderOptions(lanes="mixed")}, "lanes='mixed'"),
    ],
)
def test_what_does_not_work_together_is_refused(mixture, kwargs, match):
    """Options that contradict each other are errors with advice, at opening."""
    with pytest.raises(ConfigError, match=match):
        opened((60, 60), mixture, **kwargs)


def test_an_empty_source_is_refused():
    """A source without samples could never give one."""
    with pytest.raises(ConfigError, match="source 1 of 2 holds no sample") as caught:
        opened((60, 0))
    assert caught.value.kind == "empty_dataset"


def test_positions_outside_the_epoch_are_refused():
    """A range of positions must lie inside the epoch."""
    with pytest.raises(ConfigError, match=r"positions of this epoch are 0 \.\. 120"):
        opened((60, 60)).epoch(0).slots(0, 121)
    with pytest.raises(ConfigError, match="epoch=-1"):
        opened((60, 60)).epoch(-1)


class MixtureContract(ResumeContract):
    mixture = Mixture({"a": 0.7, "b": 0.3})
    options = OrderOptions(seed=3, lanes=12, block_rows=2)
    unit = 1
    tail = "drop"
    num_steps = 18
    world_sizes = (1, 2, 3, 4, 6)

    @classmethod
    @functools.cache
    def order(cls):
        """The order of this class's mixture."""
        return opened((130, 61), cls.mixture, cls.options, unit=cls.unit)

    def open_stream(self, world):
        """A stream of this class's mixture."""
        return OrderStream(self.order(), world, batch=12, tail=self.tail)


class TestProportion(MixtureContract):
    tail = "pad"


class TestChoose(MixtureContract):
    mixture = Mixture({"a": 70, "b": 40}, kind="choose")


class TestRepeatFully(MixtureContract):
    mixture = Mixture({"a": 0.5, "b": 2}, kind="repeat")
    options = OrderOptions(shuffle="full")
    tail = "uneven"


class TestSchedule(MixtureContract):
    mixture = Mixture({"a": 0.7, "b": 0.3}, schedule=[(100, {"b": 1}), (200, {"a": 1, "b": 1})])


class TestOneSourceInAStep(MixtureContract):
    mixture = Mixture({"a": 0.7, "b": 0.3}, one_source="global")
    unit = 12


class TestOneSourceOnARank(MixtureContract):
    mixture = Mixture({"a": 0.7, "b": 0.3}, one_source="rank", samples_per_epoch=120)
    unit = 2
