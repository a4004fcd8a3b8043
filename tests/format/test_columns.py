import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.errors import ConfigError, FormatError, IndexFormatError, VersionError
from janus_shards.format.columns import (
    MAX_ENTRIES,
    Columns,
    Strings,
    pack_array,
    pack_map,
    pack_strings,
    pack_unsigned,
    unpack_map,
)

arrays = st.one_of(
    st.lists(st.booleans(), max_size=9).map(lambda values: np.array(values, np.bool_)),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9).map(lambda values: np.array(values, np.int64)),
    st.lists(st.integers(0, 2**64 - 1), max_size=9).map(lambda values: np.array(values, np.uint64)),
    st.lists(st.floats(), max_size=9).map(lambda values: np.array(values, np.float64)),
)
ANY_DTYPE = ("|b1", "|u1", "<u4", "<u8", "<i8", "<f8")


def sealed(body: bytes) -> bytes:
    """The bytes with a right checksum behind them, whatever they say."""
    return body[:-8] + xxhash.xxh3_64_digest(body[:-8])


def raw_map(*pairs: tuple[Any, Any], magic: object = "m", version: object = 1) -> bytes:
    """A map with any keys and values in any number, and a right checksum."""
    every = [("magic", magic), ("version", version), *pairs, ("xxh3", bytes(8))]
    packed = [msgpack.packb(part, unicode_errors="surrogateescape") for pair in every for part in pair]
    return sealed(bytes([0x80 + len(every)]) + b"".join(packed))


def unpack(data: bytes) -> dict[str, Any]:
    """The map of magic "m"."""
    return unpack_map(data, magic="m", name="a.idx", error=IndexFormatError)


def columns(**content: Any) -> Columns:
    """Checked access to a map."""
    return Columns(content, name="a.idx", error=IndexFormatError)


def test_a_map_comes_back_with_its_envelope() -> None:
    """Magic and version stand in front, the checksum behind, and the content is as it was."""
    data = pack_map("m", {"a": 1, "b": b"\0\1", "caf\udce9": ["x"]})
    assert list(unpack(data)) == ["magic", "version", "a", "b", "caf\udce9", "xxh3"]
    assert data == pack_map("m", {"a": 1, "b": b"\0\1", "caf\udce9": ["x"]})
    assert unpack(data)["caf\udce9"] == ["x"]
    assert data[-8:] == xxhash.xxh3_64_digest(data[:-8])


@pytest.mark.parametrize("at", range(len(pack_map("m", {"a": 1, "b": b"\0\1"}))))
def test_each_damaged_byte_and_each_cut_is_noticed(at: int) -> None:
    """No byte can change and none can be missing without an error of the format."""
    data = pack_map("m", {"a": 1, "b": b"\0\1"})
    for damaged in (data[:at], *(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :] for flip in (1, 0x80, 0xFF))):
        with pytest.raises(FormatError, match=r"a\.idx"):
            unpack(damaged)


ODD_MAPS = {
    "empty": b"",
    "other magic": raw_map(magic="n"),
    "no map": sealed(msgpack.packb([1, bytes(8)])),
    "bytes as magic": raw_map(magic=b"m"),
    "key twice": raw_map(("a", 1), ("a", 2)),
    "key twice in an inner map": sealed(raw_map(("a", None)).replace(b"\xa1a\xc0", b"\xa1a\x82\xa1b\xc0\xa1b\xc0")),
    "bytes as key": raw_map((b"a", 1)),
    "number as key": raw_map((1, 1)),
    "extension": raw_map(("a", msgpack.ExtType(5, b"x"))),
    "timestamp": raw_map(("a", msgpack.Timestamp(1))),
    "entry behind the checksum": sealed(b"\x84" + pack_map("m", {})[1:] + msgpack.packb("z") + msgpack.packb(bytes(8))),
    "bytes behind": raw_map() + b"\0",
    "list longer than the data": sealed(raw_map(("a", None)).replace(b"\xc0", b"\xdd\xff\xff\xff\xff")),
    "map longer than the data": sealed(raw_map(("a", None)).replace(b"\xc0", b"\xdf\xff\xff\xff\xff")),
    "bin longer than the data": sealed(raw_map(("a", None)).replace(b"\xc0", b"\xc6\xff\xff\xff\xff")),
    "nested too deep": sealed(raw_map(("a", None)).replace(b"\xc0", b"\x91" * 5000 + b"\xc0")),
}


@pytest.mark.parametrize("case", ODD_MAPS)
def test_what_is_no_map_of_ours_is_refused(case: str) -> None:
    """Foreign MessagePack, repeated keys, extension types and lengths that are not there are one kind of error."""
    with pytest.raises(IndexFormatError, match=r"a\.idx: expected") as raised:
        unpack(ODD_MAPS[case])
    assert raised.value.shard == "a.idx"


@pytest.mark.parametrize("version", [2, 0, 1.0, True, "1", None])
def test_other_versions_are_named(version: object) -> None:
    """A whole map of another version is no damage: the message says which version it is."""
    with pytest.raises(VersionError, match=f"version 1, found {version!r}"):
        unpack(raw_map(version=version))


@pytest.mark.parametrize("head", [b"\xdc\xff\xff", b"\xde\xff\xff\xa1a"])
def test_claims_are_bounded(head: bytes) -> None:
    """Nested headers that claim as much as is allowed stay within a known amount of memory."""
    tracemalloc.start()
    try:
        with pytest.raises(IndexFormatError):
            unpack(head * 600 + bytes(70_000))
        # Half a MiB a level, 512 levels at most; the pages are never touched.
        assert tracemalloc.get_traced_memory()[1] < 512 * 8 * (MAX_ENTRIES + 1) + (1 << 20)
    finally:
        tracemalloc.stop()


def test_more_entries_than_readers_take_are_not_written() -> None:
    """Nothing is written that could not be read."""
    with pytest.raises(ConfigError, match="65535"):
        pack_map("m", {f"{number}": 0 for number in range(MAX_ENTRIES + 1)})
    with pytest.raises(ConfigError, match="65535"):
        pack_map("m", {"a": {"b": [0] * (MAX_ENTRIES + 1)}})


@given(arrays)
def test_arrays_come_back(array: np.ndarray) -> None:
    """Values and dtype are kept, and reading copies nothing."""
    packed = pack_array(array)
    found = columns(a=packed).array("a", len(array), ANY_DTYPE)
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype
    assert not found.flags.owndata


def test_unsigned_arrays_are_as_wide_as_needed() -> None:
    """u32 while every value fits, else u64; big-endian memory is turned."""
    assert pack_unsigned(np.array([0, 2**32 - 1]))[0] == "<u4"
    assert pack_unsigned(np.array([0, 2**32]))[0] == "<u8"
    assert pack_unsigned(np.zeros(0, np.int64)) == ["<u4", b""]
    assert pack_array(np.array([1], ">u4")) == ["<u4", b"\1\0\0\0"]
    with pytest.raises(ValueError, match="<c16"):
        pack_array(np.zeros(1, np.complex128))


@given(st.lists(st.binary(max_size=20), max_size=9))
def test_strings_come_back(values: list[bytes]) -> None:
    """Any byte strings, empty ones and no UTF-8 included, one by one, all or some."""
    strings = Strings.of(values)
    found = columns(s=pack_strings(strings)).strings("s", len(values))
    assert [found[row] for row in range(len(found))] == values
    texts = [value.decode("utf-8", "surrogateescape") for value in values]
    assert found.texts() == texts
    assert found.texts(np.arange(len(values))[::2]) == texts[::2]


U8 = ["<u8", np.array([0, 5, 2**64 - 2**63 + 2, 1], "<u8").tobytes()]
DAMAGED_ARRAYS = {
    "missing": None,
    "no list": b"",
    "unknown dtype": ["|O", b""],
    "dtype of records": ["<u4,<u4", bytes(8)],
    "dtype that was not asked for": ["<f8", bytes(24)],
    "dtype that is a list": [[1], bytes(12)],
    "odd length": ["<u4", bytes(13)],
    "too short": ["<u4", bytes(8)],
    "too long": ["<u4", bytes(16)],
    "three parts": ["<u4", bytes(12), 0],
    "text": ["<u4", "x" * 12],
}


@pytest.mark.parametrize("case", DAMAGED_ARRAYS)
def test_damaged_arrays_are_named(case: str) -> None:
    """Wrong dtypes, lengths and types raise, naming file and entry."""
    with pytest.raises(IndexFormatError, match=r"a\.idx: entry 'inner/a'"):
        columns(inner={"a": DAMAGED_ARRAYS[case]}).map("inner").array("a", 3)


DAMAGED_STRINGS = {
    "offsets that do not begin at 0": (["<u4", np.array([1, 1, 1, 1], "<u4").tobytes()], b"x"),
    "offsets beyond the bytes": (["<u4", np.array([0, 1, 1, 2], "<u4").tobytes()], b"x"),
    "offsets that fall": (["<u4", np.array([0, 1, 0, 1], "<u4").tobytes()], b"x"),
    # Differences of these wrap round to positive numbers in 64 bits.
    "offsets that fall by more than 2**63": (U8, b"x"),
    "data that is text": (["<u4", bytes(16)], ""),
}


@pytest.mark.parametrize("case", DAMAGED_STRINGS)
def test_damaged_strings_are_refused(case: str) -> None:
    """Offsets begin at 0, never fall and end with the bytes."""
    offsets, data = DAMAGED_STRINGS[case]
    with pytest.raises(IndexFormatError):
        columns(s={"offsets": offsets, "data": data}).strings("s", 3)


@pytest.mark.parametrize(
    ("method", "value"),
    [
        *[("integer", value) for value in (-1, True, 1.0, 2**53 + 1, None)],
        *[("text", b"x"), ("text", "\udce9"), ("texts", "x"), ("texts", [b"x"]), ("view", "x"), ("map", [])],
    ],
)
def test_values_of_another_type_are_refused(method: str, value: object) -> None:
    """Each accessor takes its own type only, and shows what was found."""
    with pytest.raises(IndexFormatError, match="entry 'v': expected"):
        getattr(columns(v=value), method)("v")


def test_booleans_are_zero_or_one() -> None:
    """Other bytes would be true and different from True at once."""
    with pytest.raises(IndexFormatError, match="booleans"):
        columns(v=["|b1", b"\2"]).array("v", 1, ("|b1",))
