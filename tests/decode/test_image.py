import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps

from janus_shards.decode.image import MAX_SCANS, decode_image, decode_image16, encode_image, image_size
from janus_shards.errors import DecodeError, SampleError

Encode = Callable[..., bytes]
PHOTOS = sorted((Path(__file__).resolve().parents[2] / "examples" / "photos").glob("*.jpg"))


def by_pillow(data: bytes) -> np.ndarray:
    """The picture as Pillow's own Image.open shows it."""
    with Image.open(io.BytesIO(data)) as picture:
        return np.array(ImageOps.exif_transpose(picture).convert("RGB"))


@pytest.mark.parametrize("path", PHOTOS, ids=lambda path: path.stem)
def test_photographs_decode_as_pillow_does(path: Path) -> None:
    """simplejpeg and Pillow give the same pixels of real photographs, bit for bit."""
    assert np.array_equal(decode_image(path.read_bytes()), by_pillow(path.read_bytes()))


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("quality", [30, 75, 95])
@pytest.mark.parametrize("progressive", [False, True])
def test_every_kind_of_jpeg_decodes_as_pillow_does(
    photo: Image.Image, encoded: Encode, subsampling: str, quality: int, progressive: bool
) -> None:
    """Bit for bit with any chroma subsampling and quality, baseline or progressive, at odd sizes too."""
    picture = photo.resize((101, 67))
    data = encoded(picture, "JPEG", subsampling=subsampling, quality=quality, progressive=progressive)
    assert np.array_equal(decode_image(data), by_pillow(data))


@pytest.mark.parametrize(
    ("format", "mode"),
    [("JPEG", "L"), ("JPEG", "CMYK")]
    + [("PNG", mode) for mode in ("1", "L", "LA", "P", "RGBA")]
    + [("TIFF", mode) for mode in ("1", "L", "LA", "P", "RGBA", "CMYK")],
)
def test_colour_modes_become_rgb(small: Image.Image, encoded: Encode, format: str, mode: str) -> None:
    """Grey, CMYK, 1-bit, palette and pictures with alpha come out as RGB with their real colours."""
    data = encoded(small.convert(mode), format)
    pixels = decode_image(data)
    assert pixels.shape == (32, 48, 3)
    assert np.array_equal(pixels, by_pillow(data))


@pytest.mark.parametrize("transparency", [3, b"\x00\x40\x80"])
def test_transparent_palettes_keep_their_colours(small: Image.Image, encoded: Encode, transparency: object) -> None:
    """Transparency of a palette is dropped without a warning, and the colours stay."""
    picture = small.quantize(16)
    data = encoded(picture, "PNG", transparency=transparency)
    assert np.array_equal(decode_image(data), np.array(picture.convert("RGB")))


def test_alpha_is_dropped_not_multiplied_in(encoded: Encode) -> None:
    """A fully transparent red pixel is red."""
    data = encoded(Image.new("RGBA", (3, 2), (255, 0, 0, 0)), "PNG")
    assert decode_image(data).tolist() == [[[255, 0, 0]] * 3] * 2


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
def test_16_bits_keep_the_high_byte_or_everything(encoded: Encode, format: str) -> None:
    """As RGB a 16-bit value becomes its high byte; on request it comes untouched."""
    values = np.arange(0, 65536, 109, dtype=np.uint16)[:600].reshape(20, 30)
    data = encoded(Image.fromarray(values), format)
    assert np.array_equal(decode_image16(data), values)
    assert np.array_equal(decode_image(data), np.repeat((values >> 8).astype(np.uint8)[:, :, None], 3, 2))


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "WEBP", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_stand_upright(small: Image.Image, encoded: Encode, format: str, orientation: int) -> None:
    """EXIF orientation is applied, or left alone on request; the size told is the size delivered."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(small, format, exif=exif)
    plain = decode_image(encoded(small, format))
    upright, stored = decode_image(data), decode_image(data, exif=False)
    with Image.fromarray(plain) as picture:
        picture.getexif()[0x0112] = orientation
        assert np.array_equal(upright, np.array(ImageOps.exif_transpose(picture)))
    assert np.array_equal(stored, plain)
    assert image_size(data) == upright.shape[1::-1]
    assert image_size(data, exif=False) == stored.shape[1::-1]


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
def test_animations_give_their_first_frame(small: Image.Image, encoded: Encode, format: str) -> None:
    """Of several frames the first is delivered."""
    first = small.quantize(64).convert("RGB")
    other = ImageOps.invert(first)
    data = encoded(
        first, format, save_all=True, append_images=[other], **({"lossless": True} if format == "WEBP" else {})
    )
    assert np.abs(decode_image(data).astype(int) - np.array(first)).max() <= 3


@pytest.mark.parametrize("size", [(1, 1), (305, 1), (1, 305), (3, 4), (4, 3), (3, 3)])
def test_layout_is_never_guessed(encoded: Encode, size: tuple[int, int]) -> None:
    """Pictures of 1, 3 or 4 pixels keep height, width and channels apart."""
    width, height = size
    values = np.arange(width * height * 3, dtype=np.int64).reshape(height, width, 3).astype(np.uint8)
    assert np.array_equal(decode_image(encoded(Image.fromarray(values), "PNG")), values)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF"])
def test_cut_pictures_are_errors(small: Image.Image, encoded: Encode, format: str) -> None:
    """A picture cut anywhere is an error, never a picture that ends in grey."""
    data = encoded(small, format)
    for stop in (len(data) * 6 // 10, 20, 4, 0):
        with pytest.raises(DecodeError) as caught:
            decode_image(data[:stop])
        assert caught.value.kind == "image_decode"


def test_jpeg_that_ends_too_early_is_an_error(small: Image.Image, encoded: Encode) -> None:
    """An end marker behind half the pixels hides the damage from Pillow, but not from us."""
    data = encoded(small, "JPEG")
    half = len(data) - 300
    with pytest.raises(DecodeError, match="premature end"):
        decode_image(data[:half] + b"\xff\xd9")


def test_stray_bytes_in_a_jpeg_are_tolerated(small: Image.Image, encoded: Encode) -> None:
    """Bytes between the pixels and the end, and behind the end, as some cameras write, cost no picture."""
    data = encoded(small, "JPEG")
    assert np.array_equal(decode_image(data[:-2] + b"\x12" * 999 + data[-2:]), decode_image(data))
    assert np.array_equal(decode_image(data + b"trailer"), decode_image(data))


def test_a_web_page_is_no_picture() -> None:
    """What is no picture at all says so, without showing its content."""
    with pytest.raises(DecodeError, match="no picture: 24 bytes") as caught:
        decode_image(b"<html>password=x</html>\n")
    assert caught.value.kind == "image_decode"
    assert "password" not in str(caught.value)


def test_known_formats_without_a_decoder_are_named() -> None:
    """A HEIC photo is told apart from damage."""
    with pytest.raises(DecodeError, match="HEIF") as caught:
        decode_image(b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic")
    assert caught.value.kind == "unsupported_image"


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds no pixels."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    return start + b"\x00\x00\x00\x01IDAT"


def sized(data: bytes, place: int, code: str) -> bytes:
    """``data`` with 60,000 written twice at ``place``."""
    return data[:place] + struct.pack(code, 60000, 60000) + data[place + struct.calcsize(code) :]


def test_bombs_are_refused_from_the_header(small: Image.Image, encoded: Encode) -> None:
    """A picture that claims too many pixels is refused before any is decoded, in every format that can claim them."""
    jpeg, gif, bmp = encoded(small, "JPEG"), encoded(small, "GIF"), encoded(small, "BMP")
    bombs = [
        png_header(60000, 60000),
        sized(jpeg, jpeg.index(b"\xff\xc0") + 5, ">HH"),
        sized(gif, 6, "<HH"),
        sized(bmp, 18, "<ii"),
        b"P6 60000 60000 255\n",
        b"RIFF\x16\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00" + (b"\x5f\xea\x00" * 2),
    ]
    for bomb in bombs:
        with pytest.raises(DecodeError, match="60000 x 60000") as caught:
            decode_image(bomb)
        assert caught.value.kind == "image_too_large"


def test_limit_counts_pixels(small: Image.Image, encoded: Encode) -> None:
    """``max_pixels`` is the largest size that passes."""
    for format in ("JPEG", "PNG"):
        assert decode_image(encoded(small, format), max_pixels=48 * 32).shape == (32, 48, 3)
        with pytest.raises(DecodeError, match="1535"):
            decode_image(encoded(small, format), max_pixels=48 * 32 - 1)


@pytest.mark.parametrize("chunk", [b"zTXt", b"iTXt"])
def test_compressed_metadata_is_no_way_to_take_memory(chunk: bytes, small: Image.Image, encoded: Encode) -> None:
    """A few kilobytes of text that unpack to megabytes are refused as too large."""
    png, text = encoded(small, "PNG"), zlib.compress(bytes(20 << 20))
    # Keyword, then the method; iTXt has a flag, a language and a translated keyword besides.
    body = chunk + b"note\x00" + (b"\x00" if chunk == b"zTXt" else b"\x01\x00\x00\x00") + text
    bomb = png[:33] + struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body)) + png[33:]
    with pytest.raises(DecodeError) as caught:
        decode_image(bomb)
    assert caught.value.kind == "image_too_large"


def test_too_many_scans_are_refused(small: Image.Image, encoded: Encode) -> None:
    """A progressive JPEG whose few bytes ask for hundreds of walks over the picture is refused."""
    data = encoded(small, "JPEG", progressive=True)
    scans = b"\xff\xda\x00\x08\x01\x01\x00\x01\x3f\x00\x00" * (MAX_SCANS + 1)
    with pytest.raises(DecodeError, match="scans") as caught:
        decode_image(data[:-2] + scans + data[-2:])
    assert caught.value.kind == "image_too_large"


def test_damaged_exif_costs_neither_picture_nor_warning(small: Image.Image, encoded: Encode) -> None:
    """Camera metadata that points outside itself is ignored; for CMYK, where Pillow would read it, too."""
    exif = b"Exif\x00\x00II*\x00\x08\x00\x00\x00\x02\x00\x1a\x01\x05\x00\x01\x00\x00\x00\xff\xff\xff\x00"
    for mode in ("RGB", "CMYK"):
        data = encoded(small.convert(mode), "JPEG", exif=exif)
        assert np.array_equal(decode_image(data), decode_image(encoded(small.convert(mode), "JPEG")))


def test_pillows_settings_stay_as_they_are(small: Image.Image, encoded: Encode) -> None:
    """Decoding changes no global setting of Pillow."""
    limit, truncated = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    decode_image(encoded(small, "PNG"))
    assert limit == Image.MAX_IMAGE_PIXELS
    assert truncated == ImageFile.LOAD_TRUNCATED_IMAGES


FORMATS = ["JPEG", "PNG", "GIF", "WEBP", "BMP", "PPM", "AVIF"]


@settings(max_examples=300, deadline=2000)
@given(st.data())
def test_damage_gives_pixels_or_a_decode_error(data: st.DataObject) -> None:
    """Whatever bytes are overwritten, the answer is an RGB array or a ``DecodeError``, in bounded time."""
    target = io.BytesIO()
    noise = np.random.default_rng(5).integers(0, 255, (12, 18, 3), dtype=np.uint8)
    Image.fromarray(noise).save(target, data.draw(st.sampled_from(FORMATS)))
    damaged = bytearray(target.getvalue())
    for place in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=6)):
        damaged[place] = data.draw(st.integers(0, 255))
    try:
        pixels = decode_image(bytes(damaged), max_pixels=10**6)
    except DecodeError as error:
        outcome = error.kind
    else:
        outcome = (pixels.ndim, pixels.shape[2], pixels.dtype, pixels.flags.writeable)
    assert outcome in ("image_decode", "image_too_large", "unsupported_image", (3, 3, np.uint8, True))


@given(st.binary(max_size=300))
def test_arbitrary_bytes_give_a_decode_error(data: bytes) -> None:
    """Bytes that are no picture raise ``DecodeError`` and nothing else, from each of the readers."""
    for read in (decode_image, decode_image16, image_size):
        with pytest.raises(DecodeError):
            read(memoryview(data))


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_formats_round_trip(small: Image.Image, format: str) -> None:
    """What is written lossless is read back equal, from an array and from a PIL image."""
    pixels = np.array(small)
    assert np.array_equal(decode_image(encode_image(pixels, format)), pixels)
    assert encode_image(small, format) == encode_image(pixels, format)


@pytest.mark.parametrize("format", ["JPEG", "WEBP", "AVIF"])
def test_lossy_formats_stay_close(photo: Image.Image, format: str) -> None:
    """Lossy formats are written at a quality that changes a photograph by 3 levels on average at most."""
    read = decode_image(encode_image(photo, format)).astype(int)
    assert np.abs(read - np.array(photo)).mean() < 3


def test_pil_images_are_written_upright(small: Image.Image, encoded: Encode) -> None:
    """A PIL image with an orientation keeps the look, because its EXIF block is not written."""
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(small, "PNG", exif=exif)
    with Image.open(io.BytesIO(data)) as picture:
        assert np.array_equal(decode_image(encode_image(picture, "PNG")), decode_image(data))


@pytest.mark.parametrize(
    ("value", "format", "says"),
    [
        (np.zeros((3, 8, 8), np.uint8), "JPEG", r"shape \(3, 8, 8\)"),
        (np.zeros((8, 8, 3), np.float32), "PNG", "float32"),
        (np.zeros((0, 8, 3), np.uint8), "PNG", r"shape \(0, 8, 3\)"),
        (np.zeros((8, 8, 4), np.uint8), "JPEG", "RGBA"),
        ("photo.jpg", "JPEG", "type str"),
    ],
)
def test_values_that_are_no_picture_are_refused(value: object, format: str, says: str) -> None:
    """The error names what was given and what is expected."""
    with pytest.raises(SampleError, match=says) as caught:
        encode_image(value, format)
    assert caught.value.kind == "encode"
