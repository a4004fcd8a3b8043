"""Cutting samples into shards from their sizes."""

from hypothesis import given
from hypothesis import strategies as st

from janus_shards.operations.plan import plan_shards
from janus_shards.writer.shard import TAIL_BYTES, ShardLayout

SIZES = st.lists(st.integers(1, 40).map(lambda blocks: blocks * 512), max_size=60)
LAYOUTS = st.builds(
    ShardLayout,
    max_shard_bytes=st.integers(1, 40_000),
    max_samples=st.none() | st.integers(1, 12),
)


@given(SIZES, LAYOUTS)
def test_plan_covers_all_samples_in_order_without_empty_shards(sizes: list[int], layout: ShardLayout) -> None:
    """Ranges follow each other from the first sample to the last."""
    cuts = plan_shards(sizes, layout)
    assert [start for start, _ in cuts] == [0, *(stop for _, stop in cuts[:-1])][: len(cuts)]
    assert all(start < stop for start, stop in cuts)
    assert (cuts[-1][1] if cuts else 0) == len(sizes)


@given(SIZES, LAYOUTS)
def test_shards_keep_their_limits_and_are_as_long_as_they_may(sizes: list[int], layout: ShardLayout) -> None:
    """Each shard is within both limits, and the next sample would have broken one of them."""
    for start, stop in plan_shards(sizes, layout):
        length = sum(sizes[start:stop]) + TAIL_BYTES
        assert stop - start == 1 or length <= layout.max_shard_bytes
        assert layout.max_samples is None or stop - start <= layout.max_samples
        if stop < len(sizes):
            assert stop - start == layout.max_samples or length + sizes[stop] > layout.max_shard_bytes
