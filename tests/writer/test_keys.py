"""Keys that occur twice in a data set are found."""

from hypothesis import given
from hypothesis import strategies as st

from janus_shards.writer.keys import KeyHashes


@given(st.lists(st.sets(st.text("abcdef", min_size=1, max_size=3), max_size=30), max_size=12))
def test_repeated_keys_are_found_whatever_the_shards(shards: list[set[str]]) -> None:
    """A key is reported exactly when an earlier shard had it."""
    hashes, seen = KeyHashes(), set[str]()
    for keys in shards:
        assert set(hashes.add(sorted(keys))) == keys & seen
        seen |= keys
    assert len(hashes) == sum(len(keys) for keys in shards)


def test_few_arrays_hold_many_shards() -> None:
    """Looking up a key stays cheap: the arrays double in size."""
    hashes = KeyHashes()
    for number in range(200):
        hashes.add([f"{number}-{row}" for row in range(5)])
    assert len(hashes._runs) <= 10
