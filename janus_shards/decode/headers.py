"""What the first bytes of a picture say without decoding it: format, size, orientation.

Pure functions over bytes; no codec is imported here. ``image.py`` decodes.
"""

import re
import struct
from typing import NamedTuple

from janus_shards.sample import RawBytes

# A marker: any number of fill bytes, then the code (JPEG, ITU-T T.81, B.1.1.2).
_MARKER = re.compile(rb"\xff+([^\xff\x00])")
_SCAN_START = re.compile(rb"\xff\xda")
# SOF0..SOF15 without DHT (C4), JPG (C8) and DAC (CC).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# SOF2, 6, 10 and 14 code the picture in several scans, each of which the decoder walks over the whole picture.
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
_STANDALONE = frozenset(range(0xD0, 0xD9)) | {0x01}
_ORIENTATION_TAG = 0x0112
_SHORT, _LONG = 3, 4

_SIGNATURES = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
    (b"II*\x00", "tiff"),
    (b"MM\x00*", "tiff"),
    (b"II+\x00", "tiff"),
    (b"MM\x00+", "tiff"),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", "jpeg2000"),
    (b"\xff\x4f\xff\x51", "jpeg2000"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\x00\x00\x00\x0cJXL \r\n\x87\n", "JPEG XL"),
    (b"8BPS", "Photoshop"),
    (b"\x00\x00\x01\x00", "ICO"),
    (b"\x76\x2f\x31\x01", "OpenEXR"),
    (b"DDS ", "DDS"),
    (b"%PDF", "PDF"),
    (b"<svg", "SVG"),
)


class JpegHeader(NamedTuple):
    """The part of a JPEG header that decides how to decode it.

    Attributes:
        width: Pixels a stored line has, before any turning.
        height: Stored lines.
        components: 1 grey, 3 colour, 4 CMYK or YCCK.
        precision: Bits a sample; decoders here take 8.
        scans: Passes over the picture; counted for progressive files only, otherwise 1.
        orientation: EXIF orientation, 1..8; 1 when there is none or it makes no sense.
    """

    width: int
    height: int
    components: int
    precision: int
    scans: int
    orientation: int


def image_format(data: RawBytes) -> str | None:
    """Name of the format by the first bytes; lower case when this library decodes it, ``None`` when unknown."""
    prefix = bytes(data[:64])
    for signature, name in _SIGNATURES:
        if prefix.startswith(signature):
            return name
    if prefix.startswith(b"RIFF") and prefix[8:12] == b"WEBP":
        return "webp"
    if prefix[:1] == b"P" and prefix[1:2] in (b"1", b"2", b"3", b"4", b"5", b"6") and prefix[2:3].isspace():
        return "ppm"
    if prefix[4:8] == b"ftyp":
        return _isobmff_format(prefix)
    return None


def jpeg_header(data: RawBytes) -> JpegHeader | None:
    """Walk the segments of a JPEG up to its first scan; ``None`` when they cannot be followed.

    Costs a few microseconds: segments are skipped by their length.

    Source: ITU-T T.81, annex B; EXIF 2.3, 4.5.4.
    """
    position, frame, marker, orientation = 2, (0, 0, 0, 0), 0, 1
    frame_marker = 0
    while (found := _MARKER.match(data, position)) is not None:
        position = found.end()
        marker = data[position - 1]
        if marker in _STANDALONE:
            continue
        if position + 2 > len(data) or marker == 0xD9:
            return None
        if marker in _FRAMES:
            if position + 8 > len(data):
                return None
            frame, frame_marker = struct.unpack_from(">BHHB", data, position + 2), marker
        elif marker == 0xE1 and data[position + 2 : position + 8] == b"Exif\x00\x00":
            length = (data[position] << 8) | data[position + 1]
            orientation = exif_orientation(data[position + 8 : position + length])
        elif marker == 0xDA:
            break
        position += (data[position] << 8) | data[position + 1]
    precision, height, width, components = frame
    if marker != 0xDA or not width or not height:
        return None
    scans = sum(1 for _ in _SCAN_START.finditer(data, position - 2)) if frame_marker in _PROGRESSIVE else 1
    return JpegHeader(width, height, components, precision, scans, orientation)


def exif_orientation(exif: RawBytes) -> int:
    """The orientation tag of an EXIF block (a TIFF structure), 1..8; 1 when it is absent or damaged."""
    if exif[:6] == b"Exif\x00\x00":
        exif = exif[6:]
    order = {b"II*\x00": "<", b"MM\x00*": ">"}.get(bytes(exif[:4]))
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(order + "I", exif, 4)
        (count,) = struct.unpack_from(order + "H", exif, start)
        for place in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(order + "HH", exif, place)
            if tag == _ORIENTATION_TAG:
                code = {_SHORT: "H", _LONG: "I"}.get(kind)
                value: int = struct.unpack_from(order + code, exif, place + 8)[0] if code else 1
                return value if 1 <= value <= 8 else 1
    except struct.error:
        return 1
    return 1


def png_exif(data: RawBytes) -> RawBytes | None:
    """The EXIF chunk of a PNG, wherever it stands; Pillow sees one behind the pixels only after decoding them.

    Source: PNG (third edition), 5.3 and 11.3.5.1.
    """
    position = 8
    while position + 8 <= len(data):
        length, name = struct.unpack_from(">I4s", data, position)
        if name == b"eXIf":
            return data[position + 8 : position + 8 + length]
        position += 12 + length
    return None


def canvas_size(data: RawBytes, name: str) -> tuple[int, int] | None:
    """(width, height) as stored, for the formats whose decoder reserves memory before it can be asked; else
    ``None``.
    """
    prefix = bytes(data[:30])
    if name == "gif" and len(prefix) >= 10:
        width, height = struct.unpack_from("<HH", prefix, 6)
        return width, height
    if name == "webp" and len(prefix) == 30:
        return _webp_size(prefix)
    return None


def _webp_size(prefix: bytes) -> tuple[int, int] | None:
    chunk = prefix[12:16]
    if chunk == b"VP8 ":
        width, height = struct.unpack_from("<HH", prefix, 26)
        return width & 0x3FFF, height & 0x3FFF
    if chunk == b"VP8L":
        (bits,) = struct.unpack_from("<I", prefix, 21)
        return (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1
    if chunk == b"VP8X":
        return int.from_bytes(prefix[24:27], "little") + 1, int.from_bytes(prefix[27:30], "little") + 1
    return None


def _isobmff_format(prefix: bytes) -> str | None:
    """AVIF or HEIF by the brands of the ``ftyp`` box (ISO/IEC 14496-12, 4.3)."""
    length = min(int.from_bytes(prefix[:4], "big"), len(prefix))
    brands = {prefix[8:12], *(prefix[at : at + 4] for at in range(16, length - 3, 4))}
    if brands & {b"avif", b"avis"}:
        return "avif"
    return "HEIF" if brands & {b"heic", b"heix", b"hevc", b"heim", b"mif1", b"msf1"} else None
