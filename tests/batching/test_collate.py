import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.batching.collate import mask, pack, pad, place_tokens, truncate
from janus_shards.batching.lengths import fit_length
from janus_shards.errors import ConfigError, SampleError

ROWS = st.lists(st.lists(st.integers(1, 9), max_size=6), max_size=6)


def flat(rows):
    """Values and lengths of rows."""
    return np.array([v for row in rows for v in row], np.int64), np.array([len(row) for row in rows], np.int64)


@given(ROWS, st.integers(6, 8), st.sampled_from(["left", "right"]))
def test_padding_stands_on_one_side(rows, width, side):
    """Rows keep their values, the rest is the fill, and the mask tells them apart."""
    values, lengths = flat(rows)
    found = pad(values, lengths, width=width, fill=-100, side=side)
    expected = [
        row + [-100] * (width - len(row)) if side == "right" else [-100] * (width - len(row)) + row for row in rows
    ]
    assert found.tolist() == expected
    assert np.array_equal(mask(lengths, width=width, side=side), found != -100)


@given(ROWS, st.integers(0, 6))
def test_truncation_keeps_the_first_values_and_counts(rows, most):
    """Each row is cut behind its first values, and the rows that lost some are counted."""
    values, lengths, num_cut = truncate(*flat(rows), max_lengths=most)
    assert values.tolist() == [v for row in rows for v in row[:most]]
    assert lengths.tolist() == [min(len(row), most) for row in rows]
    assert num_cut == sum(len(row) > most for row in rows)


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_packed_rows_stand_one_behind_the_other(bins):
    """Tokens, segment ids and restarting position ids of every bin, and the starts of all rows without padding."""
    rows = [row for some in bins for row in some]
    values, lengths = flat(rows)
    layout = pack(lengths, counts=np.array([len(some) for some in bins]), width=40)
    tokens = place_tokens(values, layout)
    for at, some in enumerate(bins):
        fill = [0] * (40 - sum(map(len, some)))
        assert tokens[at].tolist() == [v for row in some for v in row] + fill
        assert layout.segment_ids[at].tolist() == [n for n, row in enumerate(some, 1) for _ in row] + fill
        assert layout.position_ids[at].tolist() == [n for row in some for n in range(len(row))] + fill
    assert layout.cu_seqlens.tolist() == np.append(0, np.cumsum(lengths)).tolist()
    assert layout.max_seqlen == max(map(len, rows), default=0)
    assert layout.cu_seqlens.dtype == layout.segment_ids.dtype == layout.position_ids.dtype == np.int32


def test_a_mask_for_packed_rows_takes_four_lines():
    """The recipe of the design note: tokens see earlier tokens of their own row and nothing else."""
    layout = pack(np.array([2, 3]), counts=np.array([2]), width=6)
    segments = layout.segment_ids
    same = segments[:, None, :, None] == segments[:, None, None, :]
    causal = np.tri(segments.shape[1], dtype=bool)
    seen = same & causal & (segments != 0)[:, None, :, None]
    assert seen.shape == (1, 1, 6, 6)
    assert seen[0, 0].sum(axis=1).tolist() == [1, 2, 1, 2, 3, 0]


def test_rows_that_are_too_long_are_refused():
    """Nothing is cut in silence: neither by padding nor by packing."""
    with pytest.raises(ConfigError, match="a row of 3 values cannot be padded to 2"):
        pad(np.arange(3), np.array([3]), width=2)
    with pytest.raises(ConfigError, match="take 5 tokens, and it holds 4"):
        pack(np.array([2, 3]), counts=np.array([2]), width=4)
    with pytest.raises(ConfigError, match="side='up'"):
        mask(np.array([1]), width=2, side="up")


def test_a_row_longer_than_planned_is_cut_or_raises_with_both_numbers():
    """The policy decides, and shorter rows are always fine."""
    assert fit_length(5, planned=7, truncate=False) == 5
    assert fit_length(9, planned=7, truncate=True) == 7
    with pytest.raises(SampleError, match="9 tokens, planned with 7"):
        fit_length(9, planned=7, truncate=False)
