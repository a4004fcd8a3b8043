import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from janus_shards.format.views import unpack_views

texts = st.text(max_size=40)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    texts,
    st.binary(max_size=40),
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(texts, inner, max_size=20), max_leaves=40
)


def plain(value: Any) -> Any:
    """The value with bytes in place of views."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return (
        [plain(inner) for inner in value]
        if isinstance(value, list)
        else bytes(value)
        if isinstance(value, memoryview)
        else value
    )


def unpack(data: bytes) -> Any:
    """The value, entries limited to 100."""
    return unpack_views(data, max_entries=100)


def depth_of(value: Any) -> int:
    """Levels of lists and maps."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth_of, inner), default=0) if isinstance(value, dict | list) else 0


@settings(max_examples=40)
@given(values)
def test_values_are_those_of_msgpack(value: Any) -> None:
    """Everything that the msgpack package writes comes back as it went in."""
    if depth_of(value) < 16:
        assert plain(unpack(msgpack.packb(value))) == value


@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 65_535, 65_536])
def test_lengths_of_every_width_are_read(size: int) -> None:
    """Texts and binaries of all length forms are whole; bytes that are no UTF-8 become surrogate escapes."""
    for value in ("x" * size, "\udcff" * min(size, 9), b"\xff" * size):
        assert plain(unpack(msgpack.packb(value, unicode_errors="surrogateescape"))) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_an_error(data: bytes) -> None:
    """Nothing but ``ValueError`` is raised, and what is a value is the same one as msgpack's."""
    try:
        found = unpack(data)
    except ValueError:
        return
    assert repr(plain(found)) == repr(msgpack.unpackb(data, unicode_errors="surrogateescape", strict_map_key=False))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",  # never used
        b"\xc7\x01\x05x",  # extension
        b"\xd4\x05x",  # fixed extension
        b"\x91",  # a list without its entry
        b"\x92\x01",
        b"\xc4\x02x",
        b"\xa2x",
        b"\x01\x01",  # two values
        b"\x81\x01\x01",  # a key that is no text
        b"\x82\xa1a\x01\xa1a\x02",  # a key twice
        b"\xdc\x00\x65" + b"\x01" * 101,  # too many entries
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 1000,
    ],
)
def test_what_is_no_value_is_refused(data: bytes) -> None:
    """Damage, extensions and claims beyond the limits are errors."""
    with pytest.raises(ValueError):
        unpack(data)


def test_binary_is_not_copied() -> None:
    """A binary part lies where it came from, whatever it came in."""
    data = bytearray(msgpack.packb({"large": bytes(1 << 24)}))
    tracemalloc.start()
    try:
        found = unpack(data)["large"]  # type: ignore[arg-type]
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()
    data[-1] = 7
    assert found[-1] == 7
