import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.order.blocks import cut_blocks
from janus_shards.order.lanes import LaneGrid, choose_num_lanes, deal, row_cuts
from janus_shards.order.seeds import Tag, derive
from tests.order import reference

SHARDS = st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any)


@pytest.mark.parametrize(
    ("num_blocks", "lanes"), [(1, 1), (7, 1), (8, 2), (125, 24), (767, 96), (768, 192), (4_000_000, 192)]
)
def test_lanes_shrink_through_the_divisors(num_blocks, lanes):
    """The number of lanes is the largest divisor of 192 that leaves four blocks a lane."""
    assert choose_num_lanes(num_blocks) == lanes


def test_any_number_of_lanes_shrinks_through_its_own_divisors():
    """A user's number is divided, never rounded to another."""
    assert [choose_num_lanes(n, 10) for n in (3, 8, 20, 39, 40)] == [1, 2, 5, 5, 10]


@given(st.integers(1, 10**12), st.integers(1, 200))
def test_cuts_differ_by_one_row_with_the_longer_first(num_rows, num_lanes):
    """Then position p lies in lane p mod L even where the rows are no multiple of the lanes."""
    lengths = np.diff(row_cuts(num_rows, num_lanes))
    assert lengths.sum() == num_rows
    assert lengths.max() - lengths.min() <= 1
    assert LaneGrid(lengths).round_robin


@given(SHARDS, st.integers(1, 20), st.integers(0, 2**32), st.integers(1, 8))
def test_deal_is_the_documented_one(shard_rows, block_rows, seed, num_lanes):
    """Blocks and pieces of every lane equal those of the plain form."""
    num_lanes = min(num_lanes, sum(shard_rows))
    dealt = deal(cut_blocks(np.array(shard_rows), block_rows), key=derive(seed, Tag.DEAL), num_lanes=num_lanes)
    blocks = [list(range(f, f + r)) for f, r in zip(dealt.first.tolist(), dealt.rows.tolist(), strict=True)]
    found = [blocks[start:stop] for start, stop in zip(dealt.blocks, dealt.blocks[1:], strict=False)]
    expected = reference.deal(reference.cut_blocks(shard_rows, block_rows), seed=seed, num_lanes=num_lanes)
    assert found == expected
    assert np.diff(dealt.borders).tolist() == [sum(map(len, lane)) for lane in expected]


@given(st.lists(st.integers(0, 30), min_size=20, max_size=120), st.integers(0, 2**32), st.integers(1, 5))
def test_lanes_of_equal_cost(costs, seed, num_lanes):
    """Cut by cost, a lane ends with the row that reaches its share, so no lane is off by more than a row's cost."""
    borders = cut_blocks(np.array([len(costs)]), 4)
    dealt = deal(borders, key=derive(seed, Tag.DEAL), num_lanes=num_lanes, costs=np.array(costs))
    rows = np.concatenate([np.arange(f, f + r) for f, r in zip(dealt.first, dealt.rows, strict=True)])
    assert np.array_equal(np.sort(rows), np.arange(len(costs)))
    reached = np.append(0, np.cumsum(np.array(costs)[rows]))[dealt.borders[1:-1]]
    shares = sum(costs) * np.arange(1, num_lanes) / num_lanes
    if any(costs):
        assert np.all((shares <= reached) & (reached < shares + max(costs) + 1))


@given(st.lists(st.integers(0, 12), min_size=1, max_size=9).filter(any))
def test_global_order_sorts_places_then_lanes(lengths):
    """Lanes of any lengths are merged by place, then lane, without holes; and back."""
    pairs = sorted((place, lane) for lane, length in enumerate(lengths) for place in range(length))
    grid = LaneGrid(np.array(lengths))
    assert grid.num_positions == len(pairs)
    positions = np.arange(len(pairs))
    lanes, places = grid.locate(positions)
    assert list(zip(places.tolist(), lanes.tolist(), strict=True)) == pairs
    assert np.array_equal(grid.positions(lanes, places), positions)
    assert grid.round_robin == all(lane == p % len(lengths) for p, (_, lane) in enumerate(pairs))
