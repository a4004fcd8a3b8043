"""Samples are checked and encoded before anything is written."""

import numpy as np
import pytest

from janus_shards.errors import ConfigError, SampleError
from janus_shards.writer.sample import encode_sample


def test_values_are_encoded_by_field_and_bytes_pass_through() -> None:
    """Fields keep the order they were given in; other ``__x__`` entries are left out."""
    sample = encode_sample({"__key__": "a/1", "txt": "two words", "jpg": b"raw", "cls": 7, "__url__": "x"})
    assert (sample.key, sample.fields) == ("a/1", (("txt", b"two words"), ("jpg", b"raw"), ("cls", b"7")))


@pytest.mark.parametrize("key", ["", "a.b", "/a", "../a", "a//b", "__a__", "a\0", "\ud800", 7, None])
def test_key_that_would_not_come_back_is_refused(key: object) -> None:
    """A key that readers could not find again is an error that names it."""
    with pytest.raises(ConfigError) as caught:
        encode_sample({"__key__": key, "jpg": b""})
    assert caught.value.kind == "bad_key"


@pytest.mark.parametrize("field", ["", "JPG", "a/b", ".jpg", "jpg__"])
def test_field_that_would_not_come_back_is_refused(field: str) -> None:
    """A field name that readers would change or skip is an error."""
    with pytest.raises(ConfigError, match="field"):
        encode_sample({"__key__": "a", field: b""})


def test_sample_without_field_is_refused() -> None:
    """A sample needs at least one field, or no reader would ever see it."""
    with pytest.raises(ConfigError, match="at least one field"):
        encode_sample({"__key__": "a", "__url__": "x"})


def test_value_without_codec_names_key_and_field() -> None:
    """What cannot be encoded is refused with the sample and the field it belongs to."""
    with pytest.raises(SampleError, match="'k1'") as caught:
        encode_sample({"__key__": "k1", "bin": object()})
    assert (caught.value.key, caught.value.field) == ("k1", "bin")


def test_column_values_become_plain() -> None:
    """NumPy scalars and Python numbers give the same column."""
    sample = encode_sample({"__key__": "a", "jpg": b""}, {"n": np.int32(3), "ok": np.bool_(True), "name": "x"})
    assert sample.columns == {"n": 3, "ok": True, "name": "x"}
    assert [type(value) for value in sample.columns.values()] == [int, bool, str]


@pytest.mark.parametrize("value", [None, b"x", 2**63, [1], np.zeros(2)])
def test_column_value_of_no_stored_type_is_refused(value: object) -> None:
    """A metadata value is a bool, 64-bit integer, float or text."""
    with pytest.raises(ConfigError, match="'n'"):
        encode_sample({"__key__": "a", "jpg": b""}, {"n": value})
