"""A MessagePack value whose binary parts are views of the bytes that it came from: nothing large is copied.

An index is mostly binary columns. Read through a memory map, they stay pages of the file, which all processes of a
machine share; the msgpack package would copy them into each process. Only what this format writes is understood: no
extension types, and text is UTF-8 with surrogate escapes.

Source: the MessagePack specification, https://github.com/msgpack/msgpack/blob/master/spec.md.
"""

import struct
from collections.abc import Callable, Mapping

from janus_shards.sample import RawBytes

# Deeper than any object of this format; a few bytes may ask for any depth.
_MAX_DEPTH = 16

# First byte -> what follows: the length of a text, binary, list or map; or a number itself.
_LENGTHS: Mapping[int, tuple[str, struct.Struct]] = {
    0xC4: ("bin", struct.Struct(">B")),
    0xC5: ("bin", struct.Struct(">H")),
    0xC6: ("bin", struct.Struct(">I")),
    0xD9: ("str", struct.Struct(">B")),
    0xDA: ("str", struct.Struct(">H")),
    0xDB: ("str", struct.Struct(">I")),
    0xDC: ("list", struct.Struct(">H")),
    0xDD: ("list", struct.Struct(">I")),
    0xDE: ("map", struct.Struct(">H")),
    0xDF: ("map", struct.Struct(">I")),
}
_NUMBERS: Mapping[int, struct.Struct] = {
    0xCA: struct.Struct(">f"),
    0xCB: struct.Struct(">d"),
    0xCC: struct.Struct(">B"),
    0xCD: struct.Struct(">H"),
    0xCE: struct.Struct(">I"),
    0xCF: struct.Struct(">Q"),
    0xD0: struct.Struct(">b"),
    0xD1: struct.Struct(">h"),
    0xD2: struct.Struct(">i"),
    0xD3: struct.Struct(">q"),
}
_CONSTANTS: Mapping[int, bool | None] = {0xC0: None, 0xC2: False, 0xC3: True}


def unpack_views(data: RawBytes, *, max_entries: int) -> object:
    """The one value that ``data`` holds.

    Args:
        data: The bytes; they must not change while a view of them lives.
        max_entries: Most entries that a list or map may have.

    Returns:
        Maps as ``dict`` with text keys, lists, ``str``, ``int``, ``float``, ``bool``, ``None``; binary as
        ``memoryview``.

    Raises:
        ValueError: The bytes are no such value, or more than one.
    """
    unpacker = _Unpacker(memoryview(data).cast("B"), max_entries)
    value = unpacker.value(0)
    if unpacker.position != len(unpacker.view):
        raise ValueError(f"the value ends at byte {unpacker.position} of {len(unpacker.view)}")
    return value


class _Unpacker:
    """Takes one value after the other from a view."""

    def __init__(self, view: memoryview, max_entries: int) -> None:
        self.view = view
        self.position = 0
        self._max_entries = max_entries
        self._readers: Mapping[str, Callable[[int, int], object]] = {
            "bin": self._binary, "str": self._text, "list": self._list, "map": self._map,
        }  # fmt: skip

    def _take(self, size: int) -> memoryview:
        start, stop = self.position, self.position + size
        if stop > len(self.view):
            raise ValueError(f"expected {size} bytes at byte {start}, found {len(self.view) - start}")
        self.position = stop
        return self.view[start:stop]

    def value(self, depth: int) -> object:
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested deeper than {_MAX_DEPTH} at byte {self.position}")
        tag = self._take(1)[0]
        if tag <= 0x7F or tag >= 0xE0:
            return tag if tag <= 0x7F else tag - 0x100
        if tag <= 0xBF:
            kind, length = (
                ("map", tag & 0xF) if tag <= 0x8F else ("list", tag & 0xF) if tag <= 0x9F else ("str", tag & 0x1F)
            )
            return self._readers[kind](length, depth)
        if tag in _LENGTHS:
            kind, form = _LENGTHS[tag]
            return self._readers[kind](form.unpack(self._take(form.size))[0], depth)
        if tag in _NUMBERS:
            form = _NUMBERS[tag]
            number: int | float = form.unpack(self._take(form.size))[0]
            return number
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        raise ValueError(f"byte 0x{tag:02x} at {self.position - 1} begins no value of this format")

    def _binary(self, length: int, _depth: int) -> memoryview:
        return self._take(length)

    def _text(self, length: int, _depth: int) -> str:
        return str(self._take(length), "utf-8", "surrogateescape")

    def _list(self, length: int, depth: int) -> list[object]:
        self._check_entries(length)
        return [self.value(depth + 1) for _ in range(length)]

    def _map(self, length: int, depth: int) -> dict[str, object]:
        self._check_entries(length)
        found: dict[str, object] = {}
        for _ in range(length):
            key = self.value(depth + 1)
            if not isinstance(key, str) or key in found:
                raise ValueError(f"key {key!r} is no text or occurs twice")
            found[key] = self.value(depth + 1)
        return found

    def _check_entries(self, length: int) -> None:
        if length > self._max_entries:
            raise ValueError(f"{length} entries, and at most {self._max_entries} are taken")
