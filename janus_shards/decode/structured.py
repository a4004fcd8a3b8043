"""Text, integers, JSON and MessagePack: bytes to values and back. Every fault of the bytes is a ``DecodeError``.

Writing is strict where reading is tolerant: JSON with NaN is read, never written.
"""

import codecs
import json
import re
from typing import Literal

import msgpack
import numpy as np

from janus_shards.errors import DecodeError, SampleError
from janus_shards.sample import RawBytes

#: Structured fields above this size are refused: their values take up to 20 times the memory of their bytes.
MAX_STRUCTURED_BYTES = 256 * 2**20

_INTEGER = re.compile(rb"\s*([+-]?[0-9]+)\s*")


def decode_text(data: RawBytes, *, errors: Literal["strict", "replace"] = "strict") -> str:
    """UTF-8 text, or UTF-16 where a byte order mark says so. The mark is removed, nothing else is changed.

    Args:
        data: The bytes.
        errors: ``replace`` puts U+FFFD where bytes are invalid, instead of raising.

    Raises:
        DecodeError: Kind ``text_decode``, naming the first invalid byte.
    """
    raw = bytes(data)
    utf32 = raw.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE))
    utf16 = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and not utf32
    try:
        return raw.decode("utf-16" if utf16 else "utf-8-sig", errors)
    except UnicodeDecodeError as exc:
        raise DecodeError(
            f"invalid {exc.encoding} at byte {exc.start} of {len(raw)}: {exc.reason}", kind="text_decode"
        ) from exc


def encode_text(value: object) -> bytes:
    """A ``str`` as UTF-8 without a byte order mark.

    Raises:
        SampleError: Kind ``encode``: no ``str``, or one with half a surrogate pair.
    """
    if not isinstance(value, str):
        raise _unencodable(value, "str")
    try:
        return value.encode()
    except UnicodeEncodeError as exc:
        raise SampleError(f"text has half a surrogate pair at character {exc.start}", kind="encode") from exc


def decode_integer(data: RawBytes) -> int:
    """A decimal integer; white space around it is ignored.

    Raises:
        DecodeError: Kind ``integer_decode``.
    """
    match = _INTEGER.fullmatch(data)
    try:
        if match is not None:
            return int(match[1])
    except ValueError as exc:  # beyond the interpreter's limit of digits
        raise DecodeError(f"integer of {len(data)} digits is too long", kind="integer_decode") from exc
    raise DecodeError(f"expected a decimal integer in {len(data)} bytes", kind="integer_decode")


def encode_integer(value: object) -> bytes:
    """An integer in decimal digits.

    Raises:
        SampleError: Kind ``encode``: no integer.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise _unencodable(value, "int")
    return str(int(value)).encode()


def decode_json(data: RawBytes) -> object:
    """A JSON value. NaN and infinities are accepted, integers are exact, the last of equal names wins.

    Raises:
        DecodeError: Kind ``json_decode``: not one JSON value, not text, or nested too deeply.
    """
    _check_size(data, "json_decode")
    try:
        return json.loads(decode_text(data))
    except RecursionError as exc:
        raise DecodeError(f"JSON of {len(data)} bytes is nested too deeply", kind="json_decode") from exc
    except (ValueError, DecodeError) as exc:
        raise DecodeError(f"invalid JSON in {len(data)} bytes: {exc}", kind="json_decode") from exc


def encode_json(value: object) -> bytes:
    """Compact JSON in UTF-8, names in the order given. NumPy numbers and arrays become numbers and lists.

    Raises:
        SampleError: Kind ``encode``: a value JSON has no form for, NaN and infinities among them.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
        try:
            return text.encode()
        except UnicodeEncodeError:  # half a surrogate pair can only be written escaped
            return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise SampleError(f"{type(value).__name__} cannot be written as JSON: {exc}", kind="encode") from exc


def decode_msgpack(data: RawBytes) -> object:
    """A MessagePack value; text as ``str``, binary as ``bytes``, arrays as ``list``.

    Raises:
        DecodeError: Kind ``msgpack_decode``.
    """
    _check_size(data, "msgpack_decode")
    try:
        # No length inside can exceed the bytes there are: unpackb derives its limits from the size of its input.
        return msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError, msgpack.UnpackException) as exc:
        reason = str(exc) or type(exc).__name__
        raise DecodeError(f"invalid MessagePack in {len(data)} bytes: {reason}", kind="msgpack_decode") from exc


def encode_msgpack(value: object) -> bytes:
    """A value as MessagePack. NumPy numbers and arrays become numbers and lists.

    Raises:
        SampleError: Kind ``encode``: a value MessagePack has no form for, such as an integer beyond 64 bits.
    """
    try:
        packed: bytes = msgpack.packb(value, default=_plain)
        return packed
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise SampleError(f"{type(value).__name__} cannot be written as MessagePack: {exc}", kind="encode") from exc


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.tolist()
    raise TypeError(f"no form for a value of type {type(value).__name__}")


def _check_size(data: RawBytes, kind: str) -> None:
    if len(data) > MAX_STRUCTURED_BYTES:
        raise DecodeError(f"{len(data)} bytes; at most {MAX_STRUCTURED_BYTES} are decoded to values", kind=kind)


def _unencodable(value: object, expected: str) -> SampleError:
    return SampleError(
        f"cannot encode a value of type {type(value).__name__}: expected {expected} or bytes", kind="encode"
    )
