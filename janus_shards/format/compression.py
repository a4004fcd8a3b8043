"""Compressed tars as the bytes of the tar inside, from front to back, in bounded memory. Nothing here opens files.

Which compression it is, the first bytes say, not the name. Random access into a compressed tar is not possible, which
is why ``format.tar`` refuses one.
"""

import bz2
import importlib
import importlib.util
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Protocol

from janus_shards.errors import TarFormatError
from janus_shards.format.tar_blocks import BLOCK_BYTES, checksum_matches, compression
from janus_shards.sample import RawBytes

# Most that one step may give, however much a few bytes claim to stand for.
_PIECE_BYTES = 1 << 20
_LONGEST_MAGIC = 6


class _Decompressor(Protocol):
    """The common part of the standard library's decompressors, one for each compressed stream."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    @property
    def needs_input(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes: ...


class _Gzip:
    """zlib's decompressor with the manners of bz2's and lzma's: it keeps what it was not asked for yet."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail and not self._inner.eof

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max(max_length, 0))


def decompressed(chunks: Iterable[RawBytes], *, shard: str) -> Iterator[RawBytes]:
    """The bytes of a tar, whether it comes plain or compressed by gzip, bzip2, xz or (Python 3.14) zstd.

    Args:
        chunks: The bytes as stored, in pieces of any length.
        shard: Name or URL of the tar, for messages.

    Raises:
        TarFormatError: ``truncated_shard``: the compressed data ends early. ``trailing_data``: other bytes than zeros
            follow it. ``compressed_shard``: it is damaged, or this Python cannot decompress it.
    """
    pieces = (bytes(chunk) for chunk in chunks if len(chunk))
    head = _at_least(BLOCK_BYTES, b"", pieces)
    # A member called "BZh.jpg" makes a good header that starts like bzip2.
    is_header = len(head) >= BLOCK_BYTES and checksum_matches(head[:BLOCK_BYTES])
    name = None if is_header else compression(head)
    return chain([head], pieces) if name is None else _inflate(chain([head], pieces), name, shard)


def _at_least(num_bytes: int, start: bytes, pieces: Iterator[bytes]) -> bytes:
    """So many bytes and what came with them; fewer only at the end."""
    while len(start) < num_bytes and (piece := next(pieces, b"")):
        start += piece
    return start


def _inflate(pieces: Iterator[bytes], name: str, shard: str) -> Iterator[bytes]:
    """One compressed stream after the other, as ``cat a.gz b.gz`` makes them."""
    open_stream, damage = _decompressor(name, shard)
    rest = b""
    while True:
        stream = open_stream()
        while not stream.eof:
            if stream.needs_input and not rest:
                rest = next(pieces, b"")
                if not rest:
                    raise _error(
                        "truncated_shard", f"the {name} data ends before its end; fetch or write it again", shard
                    )
            try:
                piece = stream.decompress(rest, _PIECE_BYTES)
            except damage as exc:
                raise _error("compressed_shard", f"the {name} data is damaged: {exc}", shard) from exc
            rest = b""
            if piece:
                yield piece
        rest = _behind_zeros(stream.unused_data, pieces)
        if not rest:
            return
        rest = _at_least(_LONGEST_MAGIC, rest, pieces)
        if compression(rest) != name:
            raise _error("trailing_data", f"the {name} data has ended, but other bytes than zeros follow", shard)


def _behind_zeros(rest: bytes, pieces: Iterator[bytes]) -> bytes:
    """What follows padding, which tapes and some stores add."""
    rest = rest.lstrip(b"\0")
    while not rest and (piece := next(pieces, b"")):
        rest = piece.lstrip(b"\0")
    return rest


def _decompressor(name: str, shard: str) -> tuple[Callable[[], _Decompressor], type[Exception]]:
    if name == "gzip":
        return _Gzip, zlib.error
    if name == "bzip2":
        return bz2.BZ2Decompressor, OSError
    if name == "xz":
        return lzma.LZMADecompressor, lzma.LZMAError
    if name != "zstd":
        raise _error("compressed_shard", f"{name} is not read here; unpack it first", shard)
    if importlib.util.find_spec("compression") is None:
        raise _error("compressed_shard", "reading zstd needs Python 3.14; unpack it first with `zstd -d`", shard)
    module = importlib.import_module("compression.zstd")
    return module.ZstdDecompressor, module.ZstdError


def _error(kind: str, problem: str, shard: str) -> TarFormatError:
    return TarFormatError(f"shard {shard}: {problem}", kind=kind, shard=shard)
