"""Which codec a field has: one table by the last dotted part of the field's name, for writing and reading alike.

``seg.png`` is a picture like ``png``. What is not in the table stays bytes; among that are pickles (``pkl``, ``pyd``,
``pt``, ``pth``), which are never opened.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from janus_shards.decode.image import decode_image, encode_image
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
from janus_shards.decode.tensor import decode_npy, encode_npy
from janus_shards.errors import DecodeError, JanusShardsError, SampleError
from janus_shards.sample import RawBytes

#: Turns the bytes of a field into a value.
Decoder = Callable[[RawBytes], object]


@dataclass(frozen=True)
class _Codec:
    decode: Decoder
    encode: Callable[[object], bytes]


def _image(format: str) -> _Codec:
    # Any picture is decoded by its content, whatever the name of the field promises.
    return _Codec(decode_image, partial(encode_image, format=format))


_TEXT = _Codec(decode_text, encode_text)
_INTEGER = _Codec(decode_integer, encode_integer)
_JSON = _Codec(decode_json, encode_json)
_MSGPACK = _Codec(decode_msgpack, encode_msgpack)

_CODECS: Mapping[str, _Codec] = {
    **dict.fromkeys(("jpg", "jpeg"), _image("JPEG")),
    **dict.fromkeys(("tif", "tiff"), _image("TIFF")),
    "png": _image("PNG"),
    "webp": _image("WEBP"),
    "gif": _image("GIF"),
    "bmp": _image("BMP"),
    "avif": _image("AVIF"),
    "ppm": _image("PPM"),
    **dict.fromkeys(("txt", "text", "caption", "transcript"), _TEXT),
    **dict.fromkeys(("json", "jsn"), _JSON),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "id", "inx"), _INTEGER),
    "npy": _Codec(decode_npy, encode_npy),
    **dict.fromkeys(("msgpack", "mp"), _MSGPACK),
}


def decode_field(field: str, data: RawBytes, decoders: Mapping[str, Decoder] | None = None) -> object:
    """Value of a field.

    Args:
        field: Name of the field; the part behind its last dot decides, unless ``decoders`` names the whole field.
        data: Its bytes.
        decoders: Decoders of the caller, by field or by last part; they win over the table. For text that may hold
            invalid bytes: ``{"txt": functools.partial(decode_text, errors="replace")}``.

    Returns:
        Pictures as uint8 ``[H, W, 3]``, text as ``str``, integers as ``int``, JSON and MessagePack as their values,
        npy as an array, everything else as ``bytes``.

    Raises:
        DecodeError: The bytes cannot be decoded. ``field`` is set; the message names no sample, which is not known
            here.
    """
    custom = decoders and (decoders.get(field) or decoders.get(_last_part(field)))
    if custom:
        return _decode_custom(custom, field, data)
    codec = _CODECS.get(_last_part(field))
    if codec is None:
        return bytes(data)
    try:
        return codec.decode(data)
    except DecodeError as exc:
        exc.field = field
        raise


def encode_field(field: str, value: object) -> bytes:
    """Bytes of a field; bytes pass through unchanged, whatever the field.

    Args:
        field: Name of the field; the part behind its last dot decides.
        value: Picture (PIL image or uint8 array, see ``encode_image``), ``str``, ``int``, JSON or MessagePack value,
            array.

    Raises:
        SampleError: Kind ``encode``, naming field and type: the field has no codec, or its codec cannot write the
            value.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    codec = _CODECS.get(_last_part(field))
    if codec is None:
        raise SampleError(
            f"field {field!r} has no codec: expected bytes, found a value of type {type(value).__name__}",
            kind="encode",
            field=field,
        )
    try:
        return codec.encode(value)
    except SampleError as exc:
        raise SampleError(f"field {field!r}: {exc.message}", kind=exc.kind, field=field) from exc


def yields_integer(field: str, decoders: Mapping[str, Decoder] | None = None) -> bool:
    """Whether values of this field are integers, such as class labels; a decoder of the caller may give anything."""
    last = _last_part(field)
    return _CODECS.get(last) is _INTEGER and not (decoders and (field in decoders or last in decoders))


def empty_value(field: str, decoders: Mapping[str, Decoder] | None = None) -> object:
    """What stands for the value of a field where there is none: empty text, no bytes, else ``None``."""
    last = _last_part(field)
    if decoders and (field in decoders or last in decoders):
        return None
    codec = _CODECS.get(last)
    return b"" if codec is None else "" if codec is _TEXT else None


def _last_part(field: str) -> str:
    return field[field.rfind(".") + 1 :].lower()


def _decode_custom(decode: Decoder, field: str, data: RawBytes) -> object:
    try:
        return decode(data)
    except JanusShardsError:
        raise
    except Exception as exc:
        raise DecodeError(f"decoder of the caller failed: {type(exc).__name__}: {exc}", field=field) from exc
