import bz2
import contextlib
import gzip
import io
import lzma
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.errors import TarFormatError
from janus_shards.format.compression import decompressed
from janus_shards.format.tar import END_BLOCKS, encode_header, padding

TAR = encode_header("a.txt", 5) + b"hello" + padding(5) + END_BLOCKS
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress, "plain": bytes,
}  # fmt: skip


def read(data: bytes, *, chunk: int = 1 << 20) -> bytes:
    """All bytes that come out."""
    chunks = [b"", *(data[at : at + chunk] for at in range(0, len(data), chunk))]
    return b"".join(bytes(piece) for piece in decompressed(chunks, shard="s.tar"))


@pytest.mark.parametrize("name", COMPRESS)
@pytest.mark.parametrize("chunk", [1, 7, 600, 1 << 20])
def test_bytes_of_the_tar_come_out(name: str, chunk: int) -> None:
    """Whatever the compression and however the bytes are cut, the tar inside is the same."""
    assert read(COMPRESS[name](TAR), chunk=chunk) == TAR


@pytest.mark.parametrize("name", ["gzip", "bzip2", "xz"])
@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_streams_that_follow_each_other_are_one(name: str, chunk: int) -> None:
    """Pieces compressed apart and joined, padded with zeros or not, are read to the end."""
    compress = COMPRESS[name]
    half = len(TAR) // 2
    assert read(compress(TAR[:half]) + compress(TAR[half:]), chunk=chunk) == TAR
    assert read(compress(TAR[:half]) + bytes(700) + compress(TAR[half:]) + bytes(2000), chunk=chunk) == TAR


def test_a_member_named_like_a_compression_is_plain() -> None:
    """A good tar header decides, though its name begins like bzip2."""
    tar = encode_header("BZh9.txt", 0) + END_BLOCKS
    assert read(tar) == tar


@pytest.mark.parametrize("name", ["gzip", "bzip2", "xz"])
@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda data: data[: len(data) // 2], "truncated_shard"),
        (lambda data: data[:-1], "truncated_shard"),
        (lambda data: data + b"<html>", "trailing_data"),
        (lambda data: data[:20] + bytes([data[20] ^ 255]) + data[21:], "compressed_shard"),
    ],
)
def test_damage_is_told_by_kind(name: str, change: Callable[[bytes], bytes], kind: str) -> None:
    """A cut, other bytes behind the end and a flipped byte each have their kind, and the shard is named."""
    data = change(COMPRESS[name](TAR * 3))
    for chunk in (1, 1 << 20):
        with pytest.raises(TarFormatError, match=rf"shard s\.tar: .*{name}") as caught:
            read(data, chunk=chunk)
        # A flipped length may also send a decoder past the end.
        assert caught.value.kind in (kind, "truncated_shard" if kind == "compressed_shard" else kind)


@pytest.mark.parametrize(
    ("name", "magic"), [("zstd", b"\x28\xb5\x2f\xfd"), ("lz4", b"\x04\x22\x4d\x18"), ("zip", b"PK\x03\x04")]
)
def test_what_cannot_be_read_is_recognised(name: str, magic: bytes) -> None:
    """A compression that is damaged, or that this Python does not know, is named as what it is."""
    with pytest.raises(TarFormatError, match=rf"shard s\.tar: .*{name}"):
        read(magic + bytes(600))


def test_memory_does_not_follow_what_a_few_bytes_stand_for() -> None:
    """A bomb of 64 MB in a few kilobytes passes in small pieces."""
    bomb = io.BytesIO()
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
    for _ in range(64):
        bomb.write(deflate.compress(bytes(1 << 20)))
    bomb.write(deflate.flush())
    data = [bomb.getvalue()]
    tracemalloc.start()
    try:
        assert sum(len(piece) for piece in decompressed(data, shard="s.tar")) == 64 << 20
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=300), st.sampled_from(["gzip", "bzip2", "xz"]), st.integers(0, 400), st.integers(1, 999))
def test_any_bytes_are_bytes_or_an_error(damage: bytes, name: str, at: int, chunk: int) -> None:
    """Nothing but ``TarFormatError`` is ever raised."""
    data = COMPRESS[name](TAR)
    with contextlib.suppress(TarFormatError):
        read(data[:at] + damage + data[at + len(damage) :], chunk=chunk)
