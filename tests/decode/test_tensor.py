import io
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from janus_shards.decode.tensor import decode_npy, encode_npy
from janus_shards.errors import DecodeError, SampleError

DTYPES = npst.scalar_dtypes() | npst.unicode_string_dtypes(max_len=5) | npst.byte_string_dtypes(max_len=5)


def saved(array: np.ndarray, **options: object) -> bytes:
    """What ``numpy.save`` writes."""
    target = io.BytesIO()
    np.save(target, array, **options)
    return target.getvalue()


def forged(header: str, body: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """An npy file with a header of our own."""
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header.encode() + body


@given(npst.arrays(DTYPES, npst.array_shapes(min_dims=0, min_side=0, max_dims=4)))
def test_arrays_round_trip_and_agree_with_numpy(array: np.ndarray) -> None:
    """Shape, dtype, byte order and every bit are kept, both ways with NumPy's own reader and writer."""
    data = encode_npy(array)
    for read in (decode_npy(memoryview(data)), np.load(io.BytesIO(data)), decode_npy(saved(array))):
        assert (read.shape, read.dtype) == (array.shape, array.dtype)
        assert read.tobytes() == array.tobytes()


def test_arrays_are_writable_and_independent() -> None:
    """The array neither shares memory with the bytes nor loses its memory order."""
    array = np.asfortranarray(np.arange(6).reshape(2, 3))
    data = bytearray(saved(array))
    read = decode_npy(memoryview(data))
    data[-8:] = bytes(8)
    read[0, 0] = 9
    assert read.flags.f_contiguous
    assert read[1, 2] == 5


def test_structured_arrays_with_unicode_names_are_read() -> None:
    """Versions 2 and 3 of the format are read as NumPy reads them."""
    array = np.zeros(2, [("größe", "<i4"), ("b", "<f8", (2,))])
    named = np.zeros(2, [("名", "<i4")])
    with pytest.warns(UserWarning, match="format 3.0"):
        data = saved(named)
    assert decode_npy(data).dtype == named.dtype
    assert decode_npy(saved(array)).dtype == array.dtype


def test_python_objects_are_never_unpickled() -> None:
    """An array of objects is refused when reading and when writing."""
    array = np.array([{"a": 1}], dtype=object)
    with pytest.raises(DecodeError, match="never unpickled"):
        decode_npy(saved(array, allow_pickle=True))
    with pytest.raises(SampleError, match="Python objects"):
        encode_npy(array)


def test_size_is_checked_before_memory_is_reserved() -> None:
    """A header that claims a terabyte is refused at no cost."""
    data = forged("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 131072)}", bytes(64))
    tracemalloc.start()
    with pytest.raises(DecodeError, match="needs 1048576000000 bytes, found 64"):
        decode_npy(data)
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY",
        saved(np.arange(9))[:-1],
        saved(np.arange(9)) + b"x",
        b"\x93NUMPY\x09\x00" + saved(np.arange(9))[8:],
        forged("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}"),
        forged("{'descr': '<f8', 'fortran_order': False, 'shape': (True,)}", bytes(8)),
        forged("{'descr': '<U0', 'fortran_order': False, 'shape': (10000000000000000000000,)}"),
        forged("{'descr': 'nonsense', 'fortran_order': False, 'shape': (1,)}"),
        forged("{'descr': '<f8', 'shape': (0,)}"),
        forged("[1, 2]"),
        forged("print('hello')"),
        forged("(" * 5000),
        forged("{'descr': '<f8', 'fortran_order': False, 'shape': (0,)}" + " " * 20000),
    ],
)
def test_damaged_npy_is_an_error(data: bytes) -> None:
    """Cut, extended, forged or foreign bytes raise ``DecodeError`` and nothing else."""
    with pytest.raises(DecodeError) as caught:
        decode_npy(data)
    assert caught.value.kind == "npy_decode"


@given(st.binary(max_size=80))
def test_any_header_is_answered(header: bytes) -> None:
    """No header makes the reader raise anything but ``DecodeError``."""
    with pytest.raises(DecodeError):
        decode_npy(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


def test_numbers_and_lists_are_written() -> None:
    """What NumPy takes for an array is written as one; ragged lists are refused."""
    assert decode_npy(encode_npy([[1, 2], [3, 4]])).tolist() == [[1, 2], [3, 4]]
    assert decode_npy(encode_npy(np.float32(0.5))).dtype == np.float32
    with pytest.raises(SampleError, match="list"):
        encode_npy([[1], [2, 3]])
