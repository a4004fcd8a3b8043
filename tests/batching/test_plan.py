import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from janus_shards.batching.buckets import Buckets
from janus_shards.batching.budget import TokenBudget
from janus_shards.batching.fixed import FixedSize
from janus_shards.batching.packing import Packing

GOLDEN = Path(__file__).parents[1] / "data" / "plans"
CLASSES = {rule.__name__: rule for rule in (TokenBudget, Buckets, Packing, FixedSize)}
LANES = st.lists(st.lists(st.integers(0, 64), max_size=60), min_size=1, max_size=5)
# The fixtures are frozen rules and a function; each property runs on six rules.
FIXTURES = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])


def batches(plan):
    """Rows of each batch."""
    return [rows.tolist() for rows in np.split(plan.rows, plan.offsets[1:-1])] if len(plan) else []


@FIXTURES
@given(lanes=LANES)
def test_every_row_lies_in_exactly_one_batch(rule, planned, lanes):
    """Whatever the rule and the lanes: no row is lost, repeated, or put into an empty batch."""
    sizes, _, plan = planned(rule, lanes)
    assert np.array_equal(np.sort(plan.rows), np.arange(len(sizes)))
    assert np.all(np.diff(plan.offsets) > 0)
    assert len(plan.shapes) == len(plan.offsets) - 1


@FIXTURES
@given(lanes=LANES)
def test_a_lane_makes_its_own_batches(rule, planned, lanes):
    """Batches of a lane hold its rows only, in the order of their last rows; they do not depend on other lanes."""
    _, borders, plan = planned(rule, lanes)
    assert len(plan.lanes) == len(lanes) + 1
    for lane, rows in enumerate(lanes):
        mine = batches(plan)[plan.lanes[lane] : plan.lanes[lane + 1]]
        alone = planned(rule, [rows])[2]
        assert [[row - borders[lane] for row in batch] for batch in mine] == batches(alone)[: alone.lanes[-1]]
        assert [max(batch) for batch in mine] == sorted(max(batch) for batch in mine)


@FIXTURES
@given(lanes=LANES, cut=st.integers(0, 60))
def test_batches_depend_on_no_later_row(rule, planned, lanes, cut):
    """A lane that goes on longer makes the same batches and more: state crosses windows, and nothing looks ahead."""
    whole = batches(planned(rule, lanes[:1])[2])
    plan = planned(rule, [lanes[0][:cut]])[2]
    closed = batches(plan)[: plan.lanes[-1]]
    assert all(batch in whole for batch in closed)


@FIXTURES
@given(lanes=LANES)
def test_lanes_leave_little_open(rule, planned, lanes):
    """The tail holds no more than what may be open at the end of each lane."""
    sizes, _, plan = planned(rule, lanes)
    open_weight = int(rule.weights(sizes)[plan.rows[plan.offsets[plan.lanes[-1]] :]].sum())
    # lane_weight is eight times what one lane leaves on average, and twice that is what it can leave.
    assert open_weight <= len(lanes) * rule.lane_weight(sizes) // 4 + len(sizes)


@FIXTURES
@given(lanes=LANES)
def test_waste_is_what_batches_hold_beside_their_rows(rule, planned, lanes):
    """Tokens and slots are those of the batches, so that 1 - tokens / slots is the padding."""
    sizes, _, plan = planned(rule, lanes)
    rows = 1 if isinstance(rule, Packing) else np.diff(plan.offsets)
    assert plan.num_tokens == sizes.sum()
    assert plan.num_slots == (rows * plan.shapes.astype(np.int64)).sum()
    assert 0 <= plan.waste < 1


@FIXTURES
@given(lanes=LANES, data=st.data())
def test_groups_are_never_mixed(rule, planned, lanes, data):
    """With a group a row, such as its source, no batch holds rows of two, and every row is still there."""
    count = sum(map(len, lanes))
    groups = np.array(data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)), np.int64)
    _, _, plan = planned(rule, lanes, groups=groups)
    assert np.array_equal(np.sort(plan.rows), np.arange(count))
    assert all(len(set(groups[batch])) == 1 for batch in batches(plan))
    assert np.all(np.diff(plan.lanes) >= 0)


@FIXTURES
@given(lanes=LANES)
def test_one_group_is_no_group(rule, planned, lanes):
    """Groups change nothing where there is one."""
    _, _, plan = planned(rule, lanes)
    _, _, grouped = planned(rule, lanes, groups=np.zeros(sum(map(len, lanes)), np.int64))
    assert batches(grouped) == batches(plan)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_frozen_plans(path, planned):
    """The plan of these lengths never changes without a new plan version."""
    golden = json.loads(path.read_text())
    options = {name: _tuples(value) for name, value in golden["options"].items()}
    sizes, _, plan = planned(CLASSES[golden["rule"]](**options), golden["lanes"])
    assert CLASSES[golden["rule"]](**options).describe(sizes) == golden["description"]
    assert batches(plan) == golden["batches"]
    assert plan.lanes.tolist() == golden["lane_batches"]
    assert plan.shapes.tolist() == golden["shapes"]


def _tuples(value):
    return tuple(value) if isinstance(value, list) else value


def test_every_rule_has_a_frozen_plan():
    """The golden files are there."""
    assert {json.loads(path.read_text())["rule"] for path in GOLDEN.glob("*")} == set(CLASSES)


def test_descriptions_name_the_rule_and_the_lengths(rule):
    """Whatever changes a plan changes the description: options by name, lengths as a digest, all of it small."""
    sizes = np.arange(1, 9, dtype=np.int32)
    described = rule.describe(sizes)
    assert described["batching"] == type(rule).__name__
    assert described["batching.column"] == "tokens"
    assert len(json.dumps(described)) < 450
    assert rule.describe(sizes[::-1]) != described
