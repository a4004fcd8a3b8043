"""Typed columns inside MessagePack maps: arrays as ``[dtype, bin]``, strings as offsets and bytes, and the envelope around them.

Every column is one little-endian ``bin`` that ``numpy.frombuffer`` reads in place; lists of objects are never used.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgpack
import numpy as np
from numpy.typing import NDArray

from janus_shards.errors import FormatError, VersionError
from janus_shards.sample import RawBytes

FORMAT_VERSION = 1

# What may stand before a bin. Anything else in a file is damage: numpy would also parse object and record dtypes.
_DTYPES = {name: np.dtype(name) for name in ("|b1", "|u1", "<u4", "<u8", "<i8", "<f8")}

#: A decoded MessagePack map; values are checked by the ``take_*`` functions.
PackedMap: TypeAlias = dict[str, Any]


def pack_map(magic: str, content: Mapping[str, Any]) -> bytes:
    """One MessagePack map that starts with its magic and the format version; the same bytes for the same content."""
    packed: bytes = msgpack.packb({"magic": magic, "version": FORMAT_VERSION, **content}, use_bin_type=True)
    return packed


def unpack_map(data: RawBytes, *, magic: str, name: str, error: type[FormatError]) -> PackedMap:
    """The map that ``pack_map`` made.

    Args:
        data: Bytes of the whole object.
        magic: What the map must start with.
        name: Name of the object, for messages.
        error: Raised when the bytes are no such map.

    Raises:
        VersionError: The magic is right and the version is not.
    """
    try:
        content = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as exc:
        raise error(
            f"{name}: expected one MessagePack map of {magic}, found damaged bytes ({_reason(exc)})", shard=name
        ) from exc
    if not isinstance(content, dict) or content.get("magic") != magic:
        raise error(f"{name}: expected a MessagePack map with magic {magic!r}, found something else", shard=name)
    if content.get("version") != FORMAT_VERSION:
        raise VersionError(
            f"{name}: expected format version {FORMAT_VERSION}, found {content.get('version')!r}; "
            "read it with a release of janus-shards that knows this version",
            shard=name,
        )
    return content


def _reason(exc: BaseException) -> str:
    return str(exc) or type(exc).__name__


class Columns:
    """Checked access to a decoded map: each method returns the value of one key or raises ``error`` naming it."""

    def __init__(self, content: PackedMap, *, name: str, error: type[FormatError]) -> None:
        self._content = content
        self._name = name
        self._error = error

    def integer(self, key: str) -> int:
        value = self._content.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.damaged(key, "a count", value)
        return value

    def text(self, key: str) -> str:
        value = self._content.get(key)
        if not isinstance(value, str):
            raise self.damaged(key, "text", value)
        return value

    def binary(self, key: str, length: int | None = None) -> bytes:
        value = self._content.get(key)
        if not isinstance(value, bytes) or (length is not None and len(value) != length):
            raise self.damaged(key, "bytes" if length is None else f"{length} bytes", value)
        return value

    def array(self, key: str, length: int, kinds: str = "u") -> NDArray[Any]:
        """A 1-D array of ``length`` values whose dtype kind is one of ``kinds``; a view of the file's bytes."""
        array = self.optional_array(key, kinds)
        if array is None or len(array) != length:
            found = "nothing" if array is None else f"{len(array)} values"
            raise self.damaged(key, f"an array of {length} values", found)
        return array

    def optional_array(self, key: str, kinds: str = "u") -> NDArray[Any] | None:
        value = self._content.get(key)
        if value is None:
            return None
        dtype = (
            _DTYPES.get(value[0]) if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) else None
        )
        if (
            dtype is None
            or dtype.kind not in kinds
            or not isinstance(value[1], bytes)
            or len(value[1]) % dtype.itemsize
        ):
            raise self.damaged(key, "an array", value)
        return np.frombuffer(value[1], dtype=dtype)

    def strings(self, key: str, length: int) -> "Strings":
        inner = self.map(key)
        offsets = inner.array("offsets", length + 1)
        data = inner.binary("data")
        if offsets[0] != 0 or offsets[-1] != len(data) or (np.diff(offsets.astype(np.int64)) < 0).any():
            raise self.damaged(key, f"{length} strings", "offsets that do not fit their bytes")
        return Strings(data, offsets)

    def map(self, key: str) -> "Columns":
        value = self._content.get(key)
        if not isinstance(value, dict):
            raise self.damaged(key, "a map", value)
        return Columns(value, name=f"{self._name}: {key}", error=self._error)

    def names(self) -> list[str]:
        """Keys of this map, in stored order."""
        return list(self._content)

    def damaged(self, key: str, expected: str, found: object) -> FormatError:
        shown = found if isinstance(found, str) else type(found).__name__ if not isinstance(found, int) else repr(found)
        return self._error(f"{self._name}: entry {key!r}: expected {expected}, found {shown}", shard=self._name)


class Strings:
    """An immutable column of byte strings: all bytes in one piece, and where each one starts.

    Args:
        data: The strings, one after the other.
        offsets: Shape ``(n + 1,)``; string ``i`` is ``data[offsets[i]:offsets[i + 1]]``.
    """

    __slots__ = ("data", "offsets")

    def __init__(self, data: bytes, offsets: NDArray[Any]) -> None:
        self.data = data
        self.offsets = offsets

    @classmethod
    def of(cls, values: list[bytes]) -> "Strings":
        offsets = np.zeros(len(values) + 1, dtype=np.int64)
        np.cumsum([len(value) for value in values], out=offsets[1:])
        return cls(b"".join(values), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> bytes:
        return self.data[self.offsets[row] : self.offsets[row + 1]]

    def texts(self, rows: NDArray[np.int64] | None = None) -> list[str]:
        """The strings of some rows, or of all, decoded as UTF-8 with surrogate escapes."""
        starts = self.offsets[:-1] if rows is None else self.offsets[rows]
        stops = self.offsets[1:] if rows is None else self.offsets[rows + 1]
        data = self.data
        return [
            data[a:b].decode("utf-8", "surrogateescape") for a, b in zip(starts.tolist(), stops.tolist(), strict=True)
        ]


def pack_array(array: NDArray[Any]) -> list[Any]:
    """``[dtype, bin]`` for a 1-D array of one of the stored dtypes."""
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    name = little.dtype.str
    if name not in _DTYPES:
        raise ValueError(f"dtype {name} is not one of the stored dtypes {', '.join(_DTYPES)}")
    return [name, little.tobytes()]


def pack_unsigned(values: NDArray[Any]) -> list[Any]:
    """``[dtype, bin]`` with u32 where every value fits, else u64."""
    small = len(values) == 0 or int(values.max()) <= 0xFFFFFFFF
    return pack_array(values.astype(np.uint32 if small else np.uint64))


def pack_strings(strings: Strings) -> dict[str, Any]:
    """A map of ``offsets`` (u32, or u64 when needed) and ``data``."""
    return {"offsets": pack_unsigned(strings.offsets), "data": strings.data}
