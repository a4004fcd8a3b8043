"""Pictures: bytes to pixels, pixels to bytes, and pixels into a batch. The only module that imports image codecs.

Baseline and progressive JPEGs in grey or colour go to simplejpeg (libjpeg-turbo, the GIL released), everything else to
Pillow, chosen by content. Both give the same pixels bit for bit: the slow DCT and smooth chroma upsampling are
libjpeg-turbo's and Pillow's defaults alike.
"""

import hashlib
import importlib
import importlib.util
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps

from janus_shards.decode import headers
from janus_shards.decode.geometry import Fit, Placement, Rounding, place
from janus_shards.errors import ConfigError, DecodeError, SampleError
from janus_shards.sample import RawBytes

try:
    import simplejpeg
except ImportError:  # no wheel for this platform: Pillow decodes the same pixels, more slowly
    simplejpeg = None

if TYPE_CHECKING:
    from torch import Tensor

#: Pictures with more pixels are refused from their header. Pillow's own limit.
MAX_PIXELS = 89_478_485
#: A progressive JPEG with more scans is refused: each of them costs a walk over all pixels, however few its bytes.
MAX_SCANS = 100

Pixels = NDArray[np.uint8]
Value = TypeVar("Value", bound=np.generic)

# Module and class of Pillow's decoders. They are called directly: Image.open() would warn about large pictures and
# ask decoders for formats that no data set should contain.
_PILLOW_DECODERS = {
    "avif": ("AvifImagePlugin", "AvifImageFile"),
    "bmp": ("BmpImagePlugin", "BmpImageFile"),
    "gif": ("GifImagePlugin", "GifImageFile"),
    "jpeg": ("JpegImagePlugin", "JpegImageFile"),
    "jpeg2000": ("Jpeg2KImagePlugin", "Jpeg2KImageFile"),
    "png": ("PngImagePlugin", "PngImageFile"),
    "ppm": ("PpmImagePlugin", "PpmImageFile"),
    "tiff": ("TiffImagePlugin", "TiffImageFile"),
    "webp": ("WebPImagePlugin", "WebPImageFile"),
}
# What libjpeg-turbo says when pixels are lost. Other complaints (stray bytes between segments, which phones write, odd
# subsampling) leave the decision to Pillow.
_JPEG_DAMAGE = ("premature end", "huffman", "arithmetic", "instead of rst")
# What Pillow says of a PNG whose metadata would take more memory than its pixels.
_METADATA_BOMB = ("Decompressed data too large", "Too much memory used in text chunks")
_ORIENTATION_TIFF = 0x0112


def decode_image(data: RawBytes, *, exif: bool = True, max_pixels: int = MAX_PIXELS) -> Pixels:
    """Decode a picture of any supported format to RGB.

    Args:
        data: The encoded picture. The format is recognised by content.
        exif: Turn the picture upright as its EXIF orientation says. Without it, pixels come as stored.
        max_pixels: Larger pictures are refused before their pixels are decoded.

    Returns:
        Shape ``(height, width, 3)``, uint8, writable, C-contiguous. Grey is repeated, palettes are resolved, alpha is
        dropped (not multiplied in), 16-bit values keep their high byte; of an animation, the first frame.

    Raises:
        DecodeError: Kind ``image_decode`` (damaged, cut, or no picture), ``image_too_large`` (more pixels or scans than
            allowed) or ``unsupported_image`` (a format or pixel type without an RGB meaning here).
    """
    name = _known_format(data)
    header = headers.jpeg_header(data) if name == "jpeg" else None
    pixels = None if header is None else _decode_jpeg(data, header, max_pixels)
    if header is not None and pixels is not None:
        return np.ascontiguousarray(_turned(pixels, header.orientation if exif else 1))
    with _pillow_errors(name):
        picture = _open_with_pillow(data, name, max_pixels)
        turn = _pillow_orientation(picture, data, name, exif=exif)
        return np.ascontiguousarray(_turned(_rgb(picture, name), turn))


def decode_image16(data: RawBytes, *, exif: bool = True, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint16]:
    """Decode a one-channel picture of 16 bits, such as a depth map, with its values untouched.

    Returns:
        Shape ``(height, width)``, uint16, native byte order.

    Raises:
        DecodeError: As ``decode_image``; kind ``unsupported_image`` when the picture does not hold one 16-bit channel.
    """
    name = _known_format(data)
    with _pillow_errors(name):
        picture = _open_with_pillow(data, name, max_pixels)
        turn = _pillow_orientation(picture, data, name, exif=exif)
        picture.load()
        if not _holds_16_bits(picture):
            raise DecodeError(
                f"{name} picture of mode {picture.mode}: expected one channel of 16 bits; use decode_image",
                kind="unsupported_image",
            )
        return np.ascontiguousarray(_turned(np.asarray(picture), turn).astype(np.uint16))


def image_size(data: RawBytes, *, exif: bool = True) -> tuple[int, int]:
    """(width, height) of a picture as ``decode_image`` delivers it, from its header alone. Any size is told.

    Raises:
        DecodeError: As ``decode_image``, for what the header shows.
    """
    name = _known_format(data)
    header = headers.jpeg_header(data) if name == "jpeg" else None
    if header is not None:
        sideways = exif and header.orientation >= 5
        return (header.height, header.width) if sideways else (header.width, header.height)
    canvas = headers.canvas_size(data, name)
    if canvas is not None and canvas[0] * canvas[1] > MAX_PIXELS:
        return canvas  # the decoder would reserve memory for it, or warn
    with _pillow_errors(name):
        picture = _open_with_pillow(data, name, None)
        width, height = picture.size
        return (height, width) if _pillow_orientation(picture, data, name, exif=exif) >= 5 else (width, height)


def encode_image(value: object, format: str) -> bytes:
    """Encode a picture.

    Args:
        value: A uint8 array ``[H, W]``, ``[H, W, 1]``, ``[H, W, 3]`` or ``[H, W, 4]``, a uint16 array ``[H, W]``, or a
            PIL image, which is turned upright first, because its EXIF block is not kept.
        format: A Pillow format: ``JPEG`` (quality 95, no chroma subsampling), ``WEBP`` and ``AVIF`` (quality 95), or
            the lossless ``PNG``, ``BMP``, ``TIFF``, ``PPM``; ``GIF`` reduces to 256 colours.

    Raises:
        SampleError: Kind ``encode``: the value is no picture, or the format cannot hold it.
    """
    picture = _as_picture(value)
    if format == "JPEG" and picture.mode in ("1", "P"):
        picture = picture.convert("RGB" if picture.mode == "P" else "L")
    options = {"quality": 95, "subsampling": 0} if format == "JPEG" else {"quality": 95}
    target = io.BytesIO()
    try:
        picture.save(target, format, **(options if format in ("JPEG", "WEBP", "AVIF") else {}))
    except (OSError, ValueError, KeyError, RuntimeError) as exc:
        raise SampleError(
            f"cannot write a picture of mode {picture.mode}, {picture.width} x {picture.height}, as {format}: {exc}",
            kind="encode",
        ) from exc
    return target.getvalue()


@dataclass(frozen=True, kw_only=True)
class ImageTransform:
    """Encoded picture to a CHW uint8 row of fixed size.

    Attributes:
        size: Height and width of the row, or one number for both.
        fit: ``pad`` | ``crop`` | ``stretch``; see ``geometry.place``.
        engine: ``exact``: torch's uint8 kernel, within 2 levels of Pillow for ordinary shapes and several times faster;
            needs torch. ``pillow``: bit for bit what ``PIL.Image.resize(BICUBIC)`` gives. Both are antialiased bicubic
            and decode the same pixels.
        fill: Level of the padding, one for all channels or one each.
        rounding: ``floor`` as the original Janus processor, ``round`` as transformers 5.
        exif: Turn pictures upright first.
        max_pixels: See ``decode_image``. Does not change what is written, so the fingerprint leaves it out.

    Raises:
        ConfigError: A value outside its range, or ``exact`` without torch.
    """

    size: int | tuple[int, int] = 384
    fit: Fit = "pad"
    engine: Literal["exact", "pillow"] = "exact"
    fill: int | tuple[int, int, int] = 127
    rounding: Rounding = "floor"
    exif: bool = True
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        self._check("size", _is_size(self.size), "a side or (height, width), each at least 1")
        self._check("fit", self.fit in ("pad", "crop", "stretch"), "pad, crop or stretch")
        self._check("engine", self.engine in ("exact", "pillow"), "exact or pillow")
        self._check("fill", _is_fill(self.fill), "a level 0..255, or three of them")
        self._check("rounding", self.rounding in ("floor", "round"), "floor or round")
        self._check("max_pixels", self.max_pixels >= 1, "at least 1")
        if self.engine == "exact" and importlib.util.find_spec("torch") is None:
            raise ConfigError(
                'ImageTransform(engine="exact") needs torch: pip install "janus-shards[torch]", or engine="pillow"'
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(3, height, width)."""
        return (3, *self._frame)

    @property
    def dtype(self) -> np.dtype[np.uint8]:
        """uint8."""
        return np.dtype(np.uint8)

    @property
    def description(self) -> str:
        """Everything that decides which pixels are written, and the version of the algorithm. Changes with either."""
        height, width = self._frame
        return (
            f"ImageTransform/1 size={height}x{width} fit={self.fit} engine={self.engine} "
            f"fill={','.join(map(str, self._fill))} rounding={self.rounding} exif={int(self.exif)}"
        )

    @property
    def fingerprint(self) -> str:
        """The first 16 hex digits of the sha256 of ``description``."""
        return hashlib.sha256(self.description.encode()).hexdigest()[:16]

    def apply(self, data: RawBytes, out: NDArray[np.generic]) -> None:
        """Decode ``data`` and write the row.

        Args:
            data: The encoded picture.
            out: uint8 ``[3, height, width]``, such as a row of a batch. Untouched when decoding fails.

        Raises:
            DecodeError: As ``decode_image``; kind ``image_too_large`` also when ``crop`` would scale a thin strip to
                more than ``max_pixels``.
        """
        if out.shape != self.shape:
            raise ConfigError(f"ImageTransform(size={self.size!r}) cannot write a row of shape {out.shape}")
        pixels = decode_image(data, exif=self.exif, max_pixels=self.max_pixels)
        placed = place(pixels.shape[0], pixels.shape[1], self._frame, fit=self.fit, rounding=self.rounding)
        _check_pixels(placed.width, placed.height, self.max_pixels)
        resize = _resize_exact if self.engine == "exact" else _resize_with_pillow
        _lay(resize(pixels, placed), placed, self._fill, out)

    def _check(self, name: str, valid: bool, expected: str) -> None:
        if not valid:
            raise ConfigError(f"ImageTransform({name}={getattr(self, name)!r}): expected {expected}")

    @property
    def _frame(self) -> tuple[int, int]:
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @property
    def _fill(self) -> tuple[int, int, int]:
        return (self.fill, self.fill, self.fill) if isinstance(self.fill, int) else self.fill


def _is_size(size: object) -> bool:
    sides = size if isinstance(size, tuple) and len(size) == 2 else (size,)
    return all(isinstance(side, int) and side >= 1 for side in sides)


def _is_fill(fill: object) -> bool:
    levels = fill if isinstance(fill, tuple) and len(fill) == 3 else (fill,)
    return all(isinstance(level, int) and 0 <= level <= 255 for level in levels)


def _decode_jpeg(data: RawBytes, header: headers.JpegHeader, max_pixels: int) -> Pixels | None:
    """Pixels as stored, or ``None`` when Pillow should have a look."""
    _check_pixels(header.width, header.height, max_pixels)
    if header.scans > MAX_SCANS:
        raise DecodeError(
            f"progressive JPEG with {header.scans} scans; at most {MAX_SCANS} are decoded", kind="image_too_large"
        )
    if simplejpeg is None or header.components not in (1, 3) or header.precision != 8:
        return None
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data)
    except ValueError as exc:
        # Strict decoding stops at the first complaint, so this is the earliest fault of the file.
        if any(sign in str(exc).lower() for sign in _JPEG_DAMAGE):
            raise DecodeError(f"damaged or cut JPEG of {len(data)} bytes: {exc}", kind="image_decode") from exc
        return None
    return pixels


def _known_format(data: RawBytes) -> str:
    name = headers.image_format(data)
    if name in _PILLOW_DECODERS:
        return name
    if name is not None:
        raise DecodeError(f"{name} pictures are not decoded ({len(data)} bytes)", kind="unsupported_image")
    raise DecodeError(
        f"no picture: {len(data)} bytes that begin like none of the formats {', '.join(_PILLOW_DECODERS)}",
        kind="image_decode",
    )


def _open_with_pillow(data: RawBytes, name: str, max_pixels: int | None) -> ImageFile.ImageFile:
    canvas = headers.canvas_size(data, name)
    if canvas is not None and max_pixels is not None:
        _check_pixels(*canvas, max_pixels)
    module_name, class_name = _PILLOW_DECODERS[name]
    if name == "avif" and importlib.util.find_spec("PIL._avif") is None:
        raise DecodeError("this Pillow was built without AVIF", kind="unsupported_image")
    decoder = getattr(importlib.import_module(f"PIL.{module_name}"), class_name)
    if name == "jpeg":
        # Only the resolution would be read from it, and Pillow warns when it is damaged. jpeg_header knows the rest.
        data = bytes(data).replace(b"Exif\x00\x00", bytes(6), 1)
    # BytesIO shares a bytes object and copies a memoryview.
    picture: ImageFile.ImageFile = decoder(io.BytesIO(data))
    if max_pixels is not None:
        _check_pixels(*picture.size, max_pixels)
    return picture


def _pillow_orientation(picture: ImageFile.ImageFile, data: RawBytes, name: str, *, exif: bool) -> int:
    """The turn that is still to be applied to what Pillow decodes."""
    if name == "tiff":
        # Pillow turns TIFFs by itself, and tells their size turned: only exif=False leaves work, the inverse turn.
        turned = getattr(picture, "tag_v2", {}).get(_ORIENTATION_TIFF, 1)
        return 1 if exif else {6: 8, 8: 6}.get(turned, turned)
    if not exif:
        return 1
    if name == "jpeg":
        header = headers.jpeg_header(data)
        return header.orientation if header else 1
    block = headers.png_exif(data) if name == "png" else picture.info.get("exif")
    return headers.exif_orientation(block) if block else 1


def _rgb(picture: ImageFile.ImageFile, name: str) -> Pixels:
    """Shape ``(height, width, 3)``, writable."""
    picture.load()
    if _holds_16_bits(picture):
        high = (np.asarray(picture).astype(np.uint16) >> 8).astype(np.uint8)
        return np.repeat(high[:, :, None], 3, axis=2)
    if picture.mode in ("I", "F"):
        raise DecodeError(
            f"{name} picture of 32-bit values (mode {picture.mode}) has no RGB form; read it from its raw bytes",
            kind="unsupported_image",
        )
    # Left in, Pillow would warn that a transparent palette should become RGBA: alpha is dropped here on purpose.
    picture.info.pop("transparency", None)
    if picture.mode in ("La", "RGBa"):  # premultiplied
        return np.array(picture.convert({"La": "LA", "RGBa": "RGBA"}[picture.mode]).convert("RGB"))
    return np.array(picture if picture.mode == "RGB" else picture.convert("RGB"))


def _holds_16_bits(picture: ImageFile.ImageFile) -> bool:
    # Pillow reads PPM values of 16 bits as 32-bit integers.
    return picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format == "PPM")


def _turned(pixels: NDArray[Value], orientation: int) -> NDArray[Value]:
    """A view of ``[H, W, ...]`` that stands upright. Source: EXIF 2.3, table 6 (Orientation)."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


def _check_pixels(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise DecodeError(
            f"picture of {width} x {height} pixels; at most {max_pixels} are allowed (max_pixels)",
            kind="image_too_large",
        )


@contextmanager
def _pillow_errors(name: str) -> Iterator[None]:
    try:
        yield
    except DecodeError:
        raise
    except MemoryError as exc:
        raise DecodeError(f"no memory to decode this {name} picture", kind="image_too_large") from exc
    except Exception as exc:
        # Compressed text and colour profiles that unpack to megabytes.
        is_bomb = any(sign in str(exc) for sign in _METADATA_BOMB)
        raise DecodeError(
            f"damaged, cut or unreadable {name} picture: {type(exc).__name__}: {exc}",
            kind="image_too_large" if is_bomb else "image_decode",
        ) from exc


def _resize_exact(pixels: Pixels, placed: Placement) -> Pixels:
    """Shape ``(3, height, width)``: antialiased bicubic in 16-bit integers, GIL released, on this thread alone."""
    if pixels.shape[:2] == (placed.height, placed.width):
        return pixels.transpose(2, 0, 1)
    import torch  # late: the rest of the library works without it

    # [1, H, W, C] seen as [1, C, H, W]. With the batch dimension added first the strides are those of channels_last,
    # so the kernel neither unpacks its input nor splits its output into planes byte by byte; NumPy does the latter
    # three times faster.
    batch: Tensor = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
    scaled = torch.nn.functional.interpolate(batch, size=(placed.height, placed.width), mode="bicubic", antialias=True)
    array: Pixels = scaled[0].numpy()
    return array


def _resize_with_pillow(pixels: Pixels, placed: Placement) -> Pixels:
    """Shape ``(3, height, width)``."""
    picture = Image.fromarray(pixels).resize((placed.width, placed.height), Image.Resampling.BICUBIC)
    return np.asarray(picture).transpose(2, 0, 1)


def _lay(scaled: Pixels, placed: Placement, fill: tuple[int, int, int], out: NDArray[np.generic]) -> None:
    """Write a scaled picture ``[3, h, w]`` and its border into ``[3, H, W]``.

    NumPy copies without the GIL and on this thread; torch's copy would start a team of OpenMP threads in each worker.
    """
    frame_height, frame_width = out.shape[1:]
    top, left = max(placed.top, 0), max(placed.left, 0)
    bottom, right = top + min(placed.height, frame_height), left + min(placed.width, frame_width)
    if (top, left, bottom, right) != (0, 0, frame_height, frame_width):
        level = np.array(fill, np.uint8)[:, None, None]
        out[:, :top] = level
        out[:, bottom:] = level
        out[:, top:bottom, :left] = level
        out[:, top:bottom, right:] = level
    skip_top, skip_left = max(-placed.top, 0), max(-placed.left, 0)
    out[:, top:bottom, left:right] = scaled[:, skip_top : skip_top + bottom - top, skip_left : skip_left + right - left]


def _as_picture(value: object) -> Image.Image:
    if isinstance(value, Image.Image):
        return ImageOps.exif_transpose(value)
    if not isinstance(value, np.ndarray):
        found = f"a value of type {type(value).__name__}"
    elif value.size and value.dtype == np.uint16 and value.ndim == 2:
        return Image.fromarray(np.ascontiguousarray(value))
    elif value.size and value.dtype == np.uint8 and (value.ndim == 2 or value.shape[2:] in ((1,), (3,), (4,))):
        return Image.fromarray(np.ascontiguousarray(value[:, :, 0] if value.shape[2:] == (1,) else value))
    else:
        found = f"an array of dtype {value.dtype} and shape {value.shape}"
    raise SampleError(
        f"cannot encode {found} as a picture: expected bytes, a PIL image, or uint8 [H, W], [H, W, 3] or [H, W, 4]",
        kind="encode",
    )
