"""Typed columns inside MessagePack maps: arrays as ``[dtype, bin]``, strings as offsets and bytes, and their envelope.

Every column is one little-endian ``bin`` that ``numpy.frombuffer`` reads in place; lists of objects are never used. The
envelope is a map that starts with ``magic`` and ``version`` and ends with ``xxh3``, a checksum of everything before its
value, so that damage is found before a single number is believed.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgpack
import numpy as np
import xxhash
from numpy.typing import NDArray

from janus_shards.errors import ConfigError, FormatError, VersionError
from janus_shards.format.naming import is_unicode
from janus_shards.format.views import unpack_views
from janus_shards.sample import RawBytes

FORMAT_VERSION = 1

#: Most entries that a map or list may have: no map is as long as the data, and a header may not claim so.
MAX_ENTRIES = 65_535

_CHECKSUM = "xxh3"
_CHECKSUM_BYTES = 8

# What may stand before a bin. Anything else in a file is damage: numpy would also parse object and record dtypes.
_DTYPES = {name: np.dtype(name) for name in ("|b1", "|u1", "<u4", "<u8", "<i8", "<f8")}
_UNSIGNED = ("<u4", "<u8")
_BINARY = (bytes, memoryview)

#: A decoded MessagePack map; values are checked by the methods of ``Columns``.
PackedMap: TypeAlias = dict[str, Any]


def pack_map(magic: str, content: Mapping[str, Any]) -> bytes:
    """One MessagePack map with magic, format version and checksum around the content.

    The same bytes for the same content. Text that came from a tar may hold surrogate escapes; they are stored as the
    bytes that they stand for.

    Raises:
        ConfigError: The content is larger than MessagePack or this format can say.
    """
    envelope = {"magic": magic, "version": FORMAT_VERSION, **content, _CHECKSUM: bytes(_CHECKSUM_BYTES)}
    _check_entries(magic, envelope)
    try:
        packed: bytes = msgpack.packb(envelope, use_bin_type=True, unicode_errors="surrogateescape")
    except (ValueError, OverflowError) as exc:
        raise ConfigError(f"{magic}: {exc}; write smaller shards or keep less inline", kind="index_too_large") from exc
    body = packed[:-_CHECKSUM_BYTES]
    return body + _checksum(body)


def _check_entries(magic: str, value: object) -> None:
    if not isinstance(value, dict | list):
        return
    if len(value) > MAX_ENTRIES:
        raise ConfigError(
            f"{magic}: {len(value)} names, and at most {MAX_ENTRIES} can be stored", kind="index_too_large"
        )
    for inner in value.values() if isinstance(value, dict) else value:
        _check_entries(magic, inner)


def unpack_map(data: RawBytes, *, magic: str, name: str, error: type[FormatError]) -> PackedMap:
    """The map that ``pack_map`` made; binary entries are views of ``data``.

    Args:
        data: Bytes of the whole object.
        magic: What the map must start with.
        name: Name of the object, for messages.
        error: Raised when the bytes are no such map.

    Raises:
        VersionError: The magic and the checksum are right and the version is not.
    """
    try:
        content = unpack_views(data, max_entries=MAX_ENTRIES)
    except ValueError as exc:
        raise error(
            f"{name}: expected one MessagePack map of {magic}, found damaged bytes ({exc})", shard=name
        ) from exc
    if not isinstance(content, dict) or content.get("magic") != magic:
        raise error(f"{name}: expected a MessagePack map with magic {magic!r}, found something else", shard=name)
    view = memoryview(data)
    if list(content)[-1] != _CHECKSUM or view[-_CHECKSUM_BYTES:] != _checksum(view[:-_CHECKSUM_BYTES]):
        raise error(f"{name}: expected {len(view)} bytes of {magic} with a right checksum, found damage", shard=name)
    version = content.get("version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise VersionError(
            f"{name}: expected format version {FORMAT_VERSION}, found {version!r}; "
            "read it with a release of janus-shards that knows this version",
            shard=name,
        )
    return content


def _checksum(body: RawBytes) -> bytes:
    return xxhash.xxh3_64_digest(body)


class Columns:
    """Checked access to a decoded map: each method returns the value of one key or raises ``error`` naming it.

    Keys that nobody asks for are ignored, so that a later release can add some.

    Args:
        content: The map.
        name: Name of the object that holds it, for messages.
        error: What to raise.
        path: Where in the object the map stands, for messages.
    """

    def __init__(self, content: PackedMap, *, name: str, error: type[FormatError], path: str = "") -> None:
        self._content = content
        self._name = name
        self._error = error
        self._path = path

    def integer(self, key: str, maximum: int = 2**53) -> int:
        """A count between 0 and ``maximum``."""
        value = self._content.get(key)
        if type(value) is not int or not 0 <= value <= maximum:
            raise self.damaged(key, f"a count of at most {maximum}", value)
        return value

    def text(self, key: str) -> str:
        """Valid Unicode text."""
        value = self._content.get(key)
        # Only names from a tar may be other bytes than UTF-8, and those are read by `names` and `strings`.
        if not isinstance(value, str) or not is_unicode(value):
            raise self.damaged(key, "text", value)
        return value

    def texts(self, key: str) -> list[str]:
        """A list of names, which may hold surrogate escapes."""
        value = self._content.get(key)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self.damaged(key, "a list of texts", value)
        return value

    def binary(self, key: str, length: int) -> bytes:
        """A copy of exactly ``length`` bytes."""
        value = self._content.get(key)
        if not isinstance(value, _BINARY) or len(value) != length:
            raise self.damaged(key, f"{length} bytes", value)
        return bytes(value)

    def view(self, key: str) -> RawBytes:
        """Bytes of any length, where they lie."""
        value = self._content.get(key)
        if not isinstance(value, _BINARY):
            raise self.damaged(key, "bytes", value)
        return value

    def array(self, key: str, length: int, dtypes: tuple[str, ...] = _UNSIGNED) -> NDArray[Any]:
        """A 1-D array of ``length`` values of one of ``dtypes``; a view of the file's bytes."""
        array = self.optional_array(key, dtypes)
        if array is None or len(array) != length:
            found = "nothing" if array is None else f"{len(array)} values"
            raise self.damaged(key, f"an array of {length} values", found)
        return array

    def optional_array(self, key: str, dtypes: tuple[str, ...] = _UNSIGNED) -> NDArray[Any] | None:
        """As ``array``, of any length; ``None`` where the key is missing."""
        value = self._content.get(key)
        if value is None:
            return None
        dtype, data = value if isinstance(value, list) and len(value) == 2 else (None, None)
        if dtype not in dtypes or not isinstance(data, _BINARY) or len(data) % _DTYPES[dtype].itemsize:
            raise self.damaged(key, f"an array of {' or '.join(dtypes)}", value)
        array = np.frombuffer(data, dtype=_DTYPES[dtype])
        if dtype == "|b1" and len(array) and array.view(np.uint8).max() > 1:
            raise self.damaged(key, "booleans of 0 and 1", "other bytes")
        return array

    def strings(self, key: str, length: int) -> "Strings":
        """A column of ``length`` strings."""
        inner = self.map(key)
        offsets, data = inner.array("offsets", length + 1), inner.view("data")
        # Compared, not subtracted: differences of unsigned numbers wrap round.
        if offsets[0] != 0 or offsets[-1] != len(data) or (offsets[1:] < offsets[:-1]).any():
            raise self.damaged(key, f"{length} strings", "offsets that do not fit their bytes")
        return Strings(data, offsets)

    def map(self, key: str) -> "Columns":
        """A map inside this one."""
        value = self._content.get(key)
        if not isinstance(value, dict):
            raise self.damaged(key, "a map", value)
        return Columns(value, name=self._name, error=self._error, path=f"{self._path}{key}/")

    def names(self) -> list[str]:
        """Keys of this map, in stored order."""
        return list(self._content)

    def damaged(self, key: str, expected: str, found: object) -> FormatError:
        """The error for an entry that is not as expected; ``found`` is shown if it is text or a number."""
        shown = repr(found) if isinstance(found, int) else found if isinstance(found, str) else type(found).__name__
        return self._error(
            f"{self._name}: entry {self._path + key!r}: expected {expected}, found {shown[:200]}", shard=self._name
        )


class Strings:
    """An immutable column of byte strings: all bytes in one piece, and where each one starts.

    Args:
        data: The strings, one after the other.
        offsets: Shape ``(n + 1,)``; string ``i`` is ``data[offsets[i]:offsets[i + 1]]``.
    """

    __slots__ = ("data", "offsets")

    def __init__(self, data: RawBytes, offsets: NDArray[Any]) -> None:
        self.data = data
        self.offsets = offsets

    @classmethod
    def of(cls, values: list[bytes]) -> "Strings":
        """The column of these strings."""
        offsets = np.zeros(len(values) + 1, dtype=np.int64)
        np.cumsum([len(value) for value in values], out=offsets[1:])
        return cls(b"".join(values), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> bytes:
        return bytes(self.data[self.offsets[row] : self.offsets[row + 1]])

    def texts(self, rows: NDArray[np.int64] | None = None) -> list[str]:
        """The strings of some rows, or of all, decoded as UTF-8 with surrogate escapes."""
        starts = self.offsets[:-1] if rows is None else self.offsets[rows]
        stops = self.offsets[1:] if rows is None else self.offsets[rows + 1]
        data = self.data
        return [
            str(data[a:b], "utf-8", "surrogateescape") for a, b in zip(starts.tolist(), stops.tolist(), strict=True)
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
