import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.errors import ConfigError
from janus_shards.order.blocks import MAX_BLOCKS, choose_block_rows, cut_blocks, restrict_blocks
from tests.order import reference

SHARDS = st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any)


@pytest.mark.parametrize(
    ("mean_bytes", "rows"),
    [(1, 32), (75_000, 32), (131_072, 32), (131_073, 16), (2**20, 4), (2**21 + 1, 1), (2**30, 1)],
)
def test_block_rows_keep_to_4_mib(mean_bytes, rows):
    """A block has the largest power of two of rows, up to 32, that takes at most 4 MiB on average."""
    assert choose_block_rows(np.array([100, 900]), 1000 * mean_bytes) == rows


def test_block_rows_grow_with_the_data_set():
    """1e9 samples in 100,000 shards make blocks of 256 rows, so that there are no more than 2**22."""
    shard_rows = np.full(100_000, 10_000)
    assert choose_block_rows(shard_rows, 75_000 * 10**9) == 256
    assert len(cut_blocks(shard_rows, 256)) - 1 <= MAX_BLOCKS


def test_more_shards_than_blocks_allowed_end_the_doubling():
    """Blocks longer than the longest shard are of no use: the doubling stops there."""
    assert choose_block_rows(np.ones(MAX_BLOCKS + 1, np.int64), 100) == 32


@given(SHARDS, st.integers(1, 40))
def test_blocks_cover_every_shard_and_cross_none(shard_rows, block_rows):
    """Blocks are the runs of ``block_rows`` rows of each shard, the last one shorter."""
    borders = cut_blocks(np.array(shard_rows), block_rows).tolist()
    found = [list(range(start, stop)) for start, stop in itertools.pairwise(borders)]
    assert found == reference.cut_blocks(shard_rows, block_rows)


def test_too_many_blocks_are_refused_with_a_number_that_works():
    """A block size that would need gigabytes to lay out is an error that names a possible one."""
    with pytest.raises(ConfigError, match=r"block_rows=1: .* at least 256"):
        cut_blocks(np.full(1000, 1_000_000), 1)


@given(SHARDS, st.integers(1, 20), st.data())
def test_blocks_of_a_view_are_whole_base_blocks_joined(shard_rows, block_rows, data):
    """A view's block is made of all wanted rows of neighbouring base blocks of one shard, as many as fit."""
    num_rows = sum(shard_rows)
    view = np.array(sorted(data.draw(st.sets(st.integers(0, num_rows - 1), min_size=1))))
    base = cut_blocks(np.array(shard_rows), block_rows)
    borders = restrict_blocks(base, view, shard_rows=np.array(shard_rows), block_rows=block_rows)
    assert borders[0] == 0
    assert borders[-1] == len(view)
    shard_of = np.repeat(np.arange(len(shard_rows)), shard_rows)[view]
    base_of = np.searchsorted(base, view, side="right") - 1
    groups = np.split(np.arange(len(view)), borders[1:-1])
    for group, following in zip(groups, [*groups[1:], None], strict=True):
        assert 1 <= len(group) <= block_rows
        assert len(set(shard_of[group])) == 1
        if following is not None:
            assert base_of[group[-1]] != base_of[following[0]]
            if shard_of[group[0]] == shard_of[following[0]]:
                next_block = np.count_nonzero(base_of == base_of[following[0]])
                assert len(group) + next_block > block_rows
