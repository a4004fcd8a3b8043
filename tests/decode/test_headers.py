import struct
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from janus_shards.decode.headers import exif_orientation, image_format, jpeg_header, png_exif

Encode = Callable[..., bytes]


@pytest.mark.parametrize(
    ("format", "name"),
    [
        ("JPEG", "jpeg"),
        ("PNG", "png"),
        ("GIF", "gif"),
        ("BMP", "bmp"),
        ("TIFF", "tiff"),
        ("WEBP", "webp"),
        ("PPM", "ppm"),
    ],
)
def test_format_is_recognised_by_content(small: Image.Image, encoded: Encode, format: str, name: str) -> None:
    """The first bytes name the format, for bytes and memoryview alike."""
    data = encoded(small, format)
    assert image_format(data) == image_format(memoryview(data)) == name


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\x00\x00\x00\x1cftypmif1\x00\x00\x00\x00mif1avifmiaf", "avif"),
        (b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic", "HEIF"),
        (b"\xff\x0a\xfa\x1f", "JPEG XL"),
        (b"<!DOCTYPE html><html>", None),
        (b"P7 no", None),
        (b"", None),
    ],
)
def test_other_content_is_named_or_unknown(data: bytes, name: str | None) -> None:
    """Formats without a decoder are told apart from what is no picture at all."""
    assert image_format(data) == name


@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_header_says_what_decides_the_decoder(small: Image.Image, encoded: Encode, progressive: bool) -> None:
    """Size, components, precision and the number of scans are those of the file."""
    header = jpeg_header(encoded(small, "JPEG", progressive=progressive))
    assert header is not None
    assert header[:4] == (48, 32, 3, 8)
    assert (header.scans > 1) == progressive


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [3, 4])
def test_orientation_is_read_in_both_byte_orders(order: str, kind: int) -> None:
    """An orientation tag counts in either byte order, as 16 or 32 bits, behind other tags."""
    mark = {"<": b"II*\x00", ">": b"MM\x00*"}[order]
    value = struct.pack(order + "HH" if kind == 3 else order + "I", *((6, 0) if kind == 3 else (6,)))
    entries = struct.pack(order + "HHII", 0x010F, 2, 1, 0) + struct.pack(order + "HHI", 0x0112, kind, 1) + value
    assert exif_orientation(mark + struct.pack(order + "IH", 8, 2) + entries) == 6


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_senseless_orientation_counts_as_upright(value: int) -> None:
    """Values outside 1..8 leave the picture as it is."""
    entry = struct.pack("<HHIHH", 0x0112, 3, 1, value, 0)
    assert exif_orientation(b"II*\x00" + struct.pack("<IH", 8, 1) + entry) == 1


def test_exif_behind_the_pixels_of_a_png_is_found(small: Image.Image, encoded: Encode) -> None:
    """An eXIf chunk counts wherever it stands."""
    data = encoded(small, "PNG")
    chunk = struct.pack(">I4s", 4, b"eXIf") + b"II*\x00" + b"crc4"
    assert png_exif(data[:-12] + chunk + data[-12:]) == b"II*\x00"
    assert png_exif(data) is None


@given(st.binary(max_size=200), st.sampled_from([b"", b"\xff\xd8\xff\xe1", b"II*\x00", b"\x89PNG\r\n\x1a\n"]))
def test_headers_of_any_bytes_are_answered(data: bytes, start: bytes) -> None:
    """No bytes make the header functions raise, and an orientation is always one of the eight."""
    image_format(start + data)
    png_exif(start + data)
    header = jpeg_header(start + data)
    assert header is None or (header.width > 0 and header.height > 0)
    assert exif_orientation(start + data) in range(1, 9)


def test_hostile_headers_cost_little() -> None:
    """A megabyte of fill bytes, or a quarter of one of empty segments, is walked in well under a second."""
    started = time.perf_counter()
    assert jpeg_header(b"\xff\xd8" + b"\xff" * 2**20) is None
    assert jpeg_header(b"\xff\xd8" + b"\xff\xe0\x00\x02" * 2**16) is None
    assert time.perf_counter() - started < 1
