"""Pictures for the decoder tests: real photographs of ``examples/photos`` and forms of them that Pillow writes."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

PHOTOS = Path(__file__).resolve().parents[2] / "examples" / "photos"


@pytest.fixture(scope="session")
def photo() -> Image.Image:
    """A colour photograph of 450 x 300 pixels or so."""
    with Image.open(PHOTOS / "chelsea.jpg") as picture:
        return picture.convert("RGB")


@pytest.fixture(scope="session")
def small(photo: Image.Image) -> Image.Image:
    """The photograph at 48 x 32 pixels."""
    return photo.resize((48, 32), Image.Resampling.BICUBIC)


@pytest.fixture(scope="session")
def encoded() -> Callable[..., bytes]:
    """``encoded(picture, "PNG", **options)``: the bytes Pillow writes."""

    def encode(picture: Image.Image, format: str, **options: object) -> bytes:
        target = io.BytesIO()
        picture.save(target, format, **options)
        return target.getvalue()

    return encode
