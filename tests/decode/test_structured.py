import json
import math
import sys

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.decode.structured import (
    decode_integer,
    decode_json,
    decode_msgpack,
    decode_text,
    encode_integer,
    encode_json,
    encode_msgpack,
    encode_text,
)
from janus_shards.errors import DecodeError, SampleError

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b" \t\r\n", " \t\r\n"),
        (b"\xef\xbb\xbfa dog", "a dog"),
        (b"a\xef\xbb\xbfb", "a\ufeffb"),
        (b"left\x00right", "left\x00right"),
        (b"one\xe2\x80\xa8two\xc2\x85three", "one\u2028two\u0085three"),
        (b"\xff\xfei\x00n\x00k\x00", "ink"),
        (b"\xfe\xff\x00i\x00n\x00k", "ink"),
    ],
)
def test_text_is_kept_as_it_is_but_for_the_mark(data: bytes, text: str) -> None:
    """Only a byte order mark at the very start is removed; UTF-16 is read where its mark says so."""
    assert decode_text(memoryview(data)) == text


@pytest.mark.parametrize(
    "data", [b"it\x92s", b"ma\xf1ana", b"fin \xc3", b"\xed\xa0\x80 bad", b"\xff\xfei", b"\xff\xfe\0\0i\0\0\0"]
)
def test_invalid_text_names_the_place(data: bytes) -> None:
    """Bytes of another encoding are an error, or replaced on request."""
    with pytest.raises(DecodeError, match="at byte") as caught:
        decode_text(data)
    assert caught.value.kind == "text_decode"
    assert "\ufffd" in decode_text(data, errors="replace")


@given(st.text())
def test_text_round_trips(text: str) -> None:
    """Any text is read back equal, unless it begins with a byte order mark itself."""
    assert decode_text(encode_text(text)) == text.removeprefix("\ufeff")


def test_half_a_surrogate_pair_is_not_written() -> None:
    """Text that is not Unicode is refused with its place."""
    with pytest.raises(SampleError, match="character 3"):
        encode_text("abc\ud800")


@pytest.mark.parametrize(("data", "value"), [(b"7", 7), (b" -12\r\n", -12), (b"+3", 3), (b"9" * 30, int("9" * 30))])
def test_integers_are_exact(data: bytes, value: int) -> None:
    """Decimal integers of any size, with white space around them."""
    assert decode_integer(memoryview(data)) == value
    assert decode_integer(encode_integer(value)) == value


@pytest.mark.parametrize("data", [b"", b"1.0", b"0x1f", b"1_000", b"\xd9\xa3", b"1 2", b"9" * 5000])
def test_what_is_no_integer_is_an_error(data: bytes) -> None:
    """Nothing but decimal digits counts, and no number of them hangs."""
    with pytest.raises(DecodeError) as caught:
        decode_integer(data)
    assert caught.value.kind == "integer_decode"


@pytest.mark.parametrize("value", [True, 1.5, "7", None])
def test_what_is_no_integer_is_not_written(value: object) -> None:
    """Floats, text and booleans are refused by type, NumPy's integers are not."""
    with pytest.raises(SampleError, match=type(value).__name__):
        encode_integer(value)
    assert encode_integer(np.int64(-5)) == b"-5"


@given(VALUES)
def test_json_round_trips(value: object) -> None:
    """Any JSON value is read back equal."""
    assert decode_json(encode_json(value)) == value


def test_json_is_compact_and_keeps_order() -> None:
    """Names stay in the order given, text stays readable, nothing is padded."""
    assert encode_json({"b": 1, "a": ["ü", None]}) == '{"b":1,"a":["ü",null]}'.encode()


def test_json_with_nan_is_read() -> None:
    """NaN and infinities, which many tools write, are accepted."""
    value = decode_json(b'{"a": NaN, "b": Infinity, "c": -Infinity, "d": 1e999}')
    assert isinstance(value, dict)
    assert math.isnan(value["a"])
    assert [value["b"], value["c"], value["d"]] == [math.inf, -math.inf, math.inf]


@pytest.mark.parametrize("value", [math.nan, [math.inf], {"a": np.float32("nan")}])
def test_json_with_nan_is_never_written(value: object) -> None:
    """The bare words NaN and Infinity, which strict readers refuse, are never produced."""
    with pytest.raises(SampleError, match="JSON"):
        encode_json(value)


def test_json_keeps_huge_integers_and_lone_surrogates() -> None:
    """Integers beyond 64 bits are exact, and half a surrogate pair survives in its escaped form."""
    value = {"id": 2**70, "negative": -(2**63) - 1, "text": "\ud800"}
    assert decode_json(encode_json(value)) == value


def test_numpy_values_are_written_as_json() -> None:
    """NumPy numbers and arrays become numbers and lists."""
    value = {"a": np.float64(0.5), "b": np.arange(3), "c": np.bool_(True)}
    assert json.loads(encode_json(value)) == {"a": 0.5, "b": [0, 1, 2], "c": True}


@pytest.mark.parametrize(
    "data", [b"", b'{"a": 1', b'{"a":1,}', b"{'a':1}", b"1 2", b"\xff", b"[" * 100_000, b"9" * 5000]
)
def test_bad_json_is_an_error(data: bytes) -> None:
    """Anything but one JSON value, too deep nesting and too long numbers included, is ``json_decode``."""
    with pytest.raises(DecodeError) as caught:
        decode_json(memoryview(data))
    assert caught.value.kind == "json_decode"


@pytest.mark.parametrize("value", [object(), {1j: 1}, b"bytes", {"a": {1, 2}}])
def test_values_without_a_json_form_are_refused(value: object) -> None:
    """The error says JSON and the type."""
    with pytest.raises(SampleError, match="cannot be written as JSON"):
        encode_json(value)


@given(VALUES | st.binary())
def test_msgpack_round_trips(value: object) -> None:
    """Any value of 64-bit integers, floats, text, bytes, lists and maps is read back equal."""
    assert decode_msgpack(encode_msgpack(value)) == value


@given(st.binary(max_size=100))
def test_any_bytes_as_msgpack_give_a_value_or_an_error(data: bytes) -> None:
    """No bytes raise anything but ``DecodeError``."""
    kind = "msgpack_decode"
    try:
        decode_msgpack(data)
    except DecodeError as error:
        kind = error.kind
    assert kind == "msgpack_decode"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x01\x02",
        b"\x81\x80\x00",
        b"\xd9\x01\xff",
    ],
    ids=["empty", "huge array", "huge binary", "deep", "two values", "map as key", "not UTF-8"],
)
def test_hostile_msgpack_is_refused(data: bytes) -> None:
    """Claimed lengths beyond the input, deep nesting and left-over bytes are errors that cost no memory."""
    with pytest.raises(DecodeError) as caught:
        decode_msgpack(memoryview(data))
    assert caught.value.kind == "msgpack_decode"


@pytest.mark.parametrize("value", [2**64, object(), "\ud800"])
def test_values_without_a_msgpack_form_are_refused(value: object) -> None:
    """The error says MessagePack and the type."""
    with pytest.raises(SampleError, match="cannot be written as MessagePack"):
        encode_msgpack(value)


def test_msgpack_from_other_writers_is_read() -> None:
    """Maps with integer keys and timestamps, as other languages write them, are values."""
    packed = msgpack.packb({1: "a", "time": msgpack.Timestamp(5)})
    assert decode_msgpack(packed) == {1: "a", "time": msgpack.Timestamp(5)}


def test_recursion_limit_is_left_alone() -> None:
    """Deep input changes no setting of the interpreter."""
    before = sys.getrecursionlimit()
    with pytest.raises(DecodeError):
        decode_json(b'{"a":' * 50_000)
    assert sys.getrecursionlimit() == before
