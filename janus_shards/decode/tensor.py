"""NumPy's ``.npy`` format without pickle: sizes are checked against the bytes before any memory is reserved."""

import ast
import io
import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from janus_shards.errors import DecodeError, SampleError
from janus_shards.sample import RawBytes

#: Headers are a few hundred bytes; numpy's own limit, because parsing a long literal can exhaust the interpreter.
MAX_HEADER_BYTES = 10_000

_MAGIC = b"\x93NUMPY"


def decode_npy(data: RawBytes) -> NDArray[np.generic]:
    """An array stored by ``numpy.save``.

    Returns:
        The array as stored (shape, dtype, memory order), writable, independent of ``data``.

    Raises:
        DecodeError: Kind ``npy_decode``: damaged or cut, bytes left over, Python objects inside, or an unknown version.

    Source: ``numpy.lib.format``, versions 1.0 to 3.0.
    """
    try:
        shape, dtype, order, start = _header(data)
        expected = math.prod(shape) * dtype.itemsize
        if dtype.hasobject:
            raise DecodeError("npy holds Python objects, which are never unpickled", kind="npy_decode")
        if expected != len(data) - start:
            raise DecodeError(
                f"npy of shape {shape} and dtype {dtype} needs {expected} bytes, found {len(data) - start}",
                kind="npy_decode",
            )
        return np.ndarray(shape, dtype, buffer=data, offset=start, order=order).copy(order="K")
    except DecodeError:
        raise
    except (ValueError, TypeError, SyntaxError, KeyError, OverflowError, MemoryError, RecursionError, Warning) as exc:
        raise DecodeError(f"damaged npy of {len(data)} bytes: {type(exc).__name__}: {exc}", kind="npy_decode") from exc


def encode_npy(value: object) -> bytes:
    """An array, or a number or list that ``numpy.asarray`` takes, in ``.npy`` format.

    Raises:
        SampleError: Kind ``encode``: the value is no array, or one of Python objects.
    """
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as exc:
        raise SampleError(f"cannot encode a value of type {type(value).__name__} as npy: {exc}", kind="encode") from exc
    if array.dtype.hasobject:
        raise SampleError(
            f"cannot encode a value of type {type(value).__name__} as npy: it holds Python objects", kind="encode"
        )
    target = io.BytesIO()
    np.lib.format.write_array(target, array, allow_pickle=False)
    return target.getvalue()


def _header(data: RawBytes) -> tuple[tuple[int, ...], np.dtype[np.generic], Literal["C", "F"], int]:
    """(shape, dtype, memory order, byte offset of the values)."""
    prefix = bytes(data[:12])
    if len(prefix) < 10 or not prefix.startswith(_MAGIC) or prefix[6] not in (1, 2, 3):
        raise DecodeError(f"no npy of version 1 to 3 in {len(data)} bytes", kind="npy_decode")
    start = 10 if prefix[6] == 1 else 12
    stop = start + int.from_bytes(prefix[8:start], "little")
    if stop > len(data) or stop - start > MAX_HEADER_BYTES:
        raise DecodeError(f"npy header of {stop - start} bytes in {len(data)} bytes", kind="npy_decode")
    fields = ast.literal_eval(bytes(data[start:stop]).decode("utf-8" if prefix[6] == 3 else "latin-1").strip())
    shape = fields["shape"]
    if not isinstance(shape, tuple) or not all(type(side) is int and side >= 0 for side in shape):
        raise DecodeError("npy header holds no shape", kind="npy_decode")
    dtype = np.lib.format.descr_to_dtype(fields["descr"])
    return shape, dtype, "F" if fields["fortran_order"] else "C", stop
