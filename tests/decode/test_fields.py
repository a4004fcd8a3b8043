import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from janus_shards.decode.fields import decode_field, encode_field, yields_integer
from janus_shards.errors import DecodeError, SampleError, TransientError

FIELDS = ["jpg", "png", "txt", "json", "cls", "npy", "msgpack", "wav", "seg.png", "no_suffix"]


@pytest.mark.parametrize(
    ("field", "value", "data"),
    [
        ("txt", "ü", b"\xc3\xbc"),
        ("left.caption", "ü", b"\xc3\xbc"),
        ("json", {"a": [1, None]}, b'{"a":[1,null]}'),
        ("cls", 7, b"7"),
        ("x.index", -1, b"-1"),
        ("mp", [1, "a"], b"\x92\x01\xa1a"),
    ],
)
def test_last_part_of_the_name_decides(field: str, value: object, data: bytes) -> None:
    """The part behind the last dot chooses the codec, for writing and for reading."""
    assert encode_field(field, value) == data
    assert decode_field(field, data) == value


@pytest.mark.parametrize("field", ["png", "seg.png", "bmp", "tif", "tiff", "ppm"])
def test_pictures_and_arrays_round_trip(field: str) -> None:
    """Lossless pictures and arrays come back as they were given."""
    pixels = np.random.default_rng(0).integers(0, 255, (9, 7, 3), dtype=np.uint8)
    assert np.array_equal(decode_field(field, encode_field(field, pixels)), pixels)
    assert np.array_equal(decode_field(field, encode_field(field, Image.fromarray(pixels))), pixels)
    assert np.array_equal(decode_field("npy", encode_field("npy", pixels)), pixels)


@given(st.sampled_from(FIELDS), st.binary(max_size=50))
def test_bytes_pass_through(field: str, data: bytes) -> None:
    """Bytes are stored as they are, whatever the field promises."""
    assert (
        encode_field(field, data)
        == encode_field(field, memoryview(data))
        == encode_field(field, bytearray(data))
        == data
    )


@given(st.sampled_from(FIELDS), st.binary(max_size=50))
def test_decoding_any_bytes_gives_a_value_or_a_decode_error(field: str, data: bytes) -> None:
    """Damaged bytes raise ``DecodeError`` with the field, and nothing else."""
    fault = None
    try:
        decode_field(field, memoryview(data))
    except DecodeError as error:
        fault = error
    assert fault is None or fault.field == field


@pytest.mark.parametrize("field", ["wav", "pkl", "pyd", "pt", "pth", "no_suffix"])
def test_fields_without_a_codec_stay_bytes(field: str) -> None:
    """Unknown fields and pickles come as bytes, and only bytes are written to them."""
    assert decode_field(field, memoryview(b"\x80\x04N.")) == b"\x80\x04N."
    with pytest.raises(SampleError, match=f"'{field}' has no codec: expected bytes, found a value of type list"):
        encode_field(field, [1])


@pytest.mark.parametrize(
    ("field", "value"), [("jpg", "x"), ("txt", 5), ("json", {1, 2}), ("cls", 1.5), ("npy", [object()])]
)
def test_encode_errors_name_field_and_type(field: str, value: object) -> None:
    """A value that the field's codec cannot write is refused with both names."""
    with pytest.raises(SampleError, match=f"field '{field}'.*{type(value).__name__}") as caught:
        encode_field(field, value)
    assert (caught.value.kind, caught.value.field) == ("encode", field)


def test_decoders_of_the_caller_win() -> None:
    """A decoder may be given for a whole field or for a last part; the whole field wins, then the last part."""
    decoders = {"wav": len, "seg.png": lambda data: "whole", "txt": bytes.upper}
    assert decode_field("wav", b"abc", decoders) == 3
    assert decode_field("take2.wav", b"abcd", decoders) == 4
    assert decode_field("seg.png", b"", decoders) == "whole"
    assert decode_field("txt", b"ab", decoders) == b"AB"
    assert decode_field("json", b"1", decoders) == 1


def test_failing_decoder_of_the_caller_is_a_decode_error() -> None:
    """What a caller's decoder raises on bad bytes counts as a bad sample; the library's own errors pass."""

    def broken_store(data: object) -> object:
        raise TransientError("slow down")

    with pytest.raises(DecodeError, match="ValueError: invalid literal") as caught:
        decode_field("num", b"x", {"num": int})
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(TransientError):
        decode_field("num", b"x", {"num": broken_store})


def test_integer_fields_are_known() -> None:
    """A batch can learn which fields are integers."""
    assert yields_integer("cls")
    assert yields_integer("a.index")
    assert not yields_integer("txt")
