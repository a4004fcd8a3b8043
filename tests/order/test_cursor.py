import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.errors import ConfigError, ResumeError
from janus_shards.order.cursor import Cursor, choose_generation
from janus_shards.order.epoch import OrderOptions, open_order

FINGERPRINTS = {20: "a" * 64, 30: "b" * 64}


def cursor_of(shards=20, options=None, *, epoch=0, position=0, view=None):
    """A place in the order of a data set of so many shards of 100 rows."""
    order = open_order(np.full(shards, 100), np.full(shards, 7_500_000), options, view=view)
    start = Cursor.at_start(order, fingerprint=FINGERPRINTS[shards], num_shards=shards)
    return replace(start, epoch=epoch, position=position)


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**64 - 1))
def test_a_state_survives_json(epoch, position, seed):
    """Written as JSON and read again it is the same cursor."""
    cursor = cursor_of(options=OrderOptions(seed=seed), epoch=epoch, position=position)
    text = json.dumps(cursor.to_dict())
    assert Cursor.from_dict(json.loads(text)) == cursor


def test_a_state_is_small():
    """Below 1 KB, also with a view and the largest numbers."""
    options = OrderOptions(seed=2**64 - 1, lanes="mixed")
    cursor = cursor_of(options=options, epoch=10**6, position=10**12, view=np.arange(1000))
    assert len(json.dumps(cursor.to_dict())) < 1024


def test_the_same_order_resumes():
    """A state fits the order it was taken from, at any place of it."""
    saved = cursor_of(epoch=3, position=17)
    assert choose_generation(saved, cursor_of()) == "current"


def test_every_difference_is_named():
    """All that differs stands in one error, old value first."""
    saved = cursor_of(options=OrderOptions(seed=7))
    current = cursor_of(30, OrderOptions(seed=8, window=2, lanes=4))
    with pytest.raises(ResumeError) as caught:
        choose_generation(saved, current)
    for part in ("seed: 7 -> 8", "window: 1 -> 2", "lanes: 16 -> 4", "num_shards: 20 -> 30", "samples: 2000 -> 3000"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"shuffle": None}, "shuffle: True -> None"),
        ({"lanes": "mixed"}, "deal: fixed -> mixed"),
        ({"block_rows": 16}, "block_rows: 32 -> 16"),
    ],
)
def test_each_option_is_compared(options, name):
    """An option that changes the order refuses the state, by name."""
    with pytest.raises(ResumeError, match=name):
        choose_generation(cursor_of(), cursor_of(options=OrderOptions(**options)))


def test_a_view_is_compared():
    """A state of a view does not resume on the whole, nor the other way round."""
    with pytest.raises(ResumeError, match="view: None -> "):
        choose_generation(cursor_of(), cursor_of(view=np.arange(2000)))


def test_a_named_difference_can_be_allowed():
    """What the user names is accepted, the rest still refuses."""
    saved, current = cursor_of(), cursor_of(options=OrderOptions(seed=1, window=2))
    assert choose_generation(saved, current, allow=("seed", "window")) == "current"
    with pytest.raises(ResumeError, match=r"\(window: 1 -> 2\)"):
        choose_generation(saved, current, allow=("seed",))


@pytest.mark.parametrize("allow", ["append", ("appended",), ("seed", "sead")])
def test_unknown_names_are_refused(allow):
    """A misspelt name would otherwise allow nothing without a word."""
    with pytest.raises(ConfigError, match="allow="):
        choose_generation(cursor_of(), cursor_of(), allow=allow)


def test_appended_shards_are_refused_with_advice():
    """Growth is a difference like any other, and the error says how to accept it."""
    with pytest.raises(ResumeError, match=r'fingerprint: aaa.* -> bbb.*allow=\("append",\)'):
        choose_generation(cursor_of(), cursor_of(30))


def test_appended_shards_can_be_accepted():
    """The epoch of the state is finished on the shards it began with; one not begun starts with all of them."""
    append = {"prefix": cursor_of(20), "allow": ("append",)}
    assert choose_generation(cursor_of(20, position=96), cursor_of(30), **append) == "prefix"
    assert choose_generation(cursor_of(20, epoch=2), cursor_of(30), **append) == "current"
    assert choose_generation(cursor_of(30, position=96), cursor_of(30), **append) == "current"


def test_a_rewritten_data_set_is_not_an_appended_one():
    """If the first shards are others, ``append`` does not help, and the error says so."""
    prefix = replace(cursor_of(20), fingerprint="c" * 64)
    with pytest.raises(ResumeError, match="has not only grown"):
        choose_generation(cursor_of(20, position=5), cursor_of(30), prefix=prefix, allow=("append",))


def test_append_accepts_no_other_change():
    """A changed seed is named also when growth is accepted."""
    prefix = cursor_of(20, OrderOptions(seed=1))
    with pytest.raises(ResumeError, match="seed: 0 -> 1"):
        choose_generation(
            cursor_of(20, position=5), cursor_of(30, OrderOptions(seed=1)), prefix=prefix, allow=("append",)
        )


def test_a_position_past_the_epoch_is_refused():
    """A state changed by hand, or allowed onto a shorter epoch, does not serve nonsense."""
    with pytest.raises(ResumeError, match="position 2001"):
        choose_generation(cursor_of(position=2001), cursor_of())


@pytest.mark.parametrize(
    "change",
    [
        *({"version": 2}, {"epoch": -1}, {"position": "5"}, {"seed": None}, {"order": []}, {"order_hash": "0"}),
        *({"fingerprint": 5}, {"num_shards": True}, {"order": {"lanes": [1]}}, {"seed": 1}),
    ],
    ids=str,
)
def test_damaged_states_are_refused(change):
    """A state of another version, or one that was changed, is a ``ResumeError`` and nothing else."""
    with pytest.raises(ResumeError, match="loader state"):
        Cursor.from_dict({**cursor_of().to_dict(), **change})


@pytest.mark.parametrize("state", [None, {}, {"epoch": 3}, [1], "state"], ids=str)
def test_what_is_no_state_is_refused(state):
    """Another object's state is refused as such."""
    with pytest.raises(ResumeError, match="state_dict"):
        Cursor.from_dict(state)
