"""Small pictures and folders of them."""

import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image


@pytest.fixture(scope="session")
def picture() -> Callable[..., bytes]:
    """``picture(n, "PNG")``: a small picture, 8 + n pixels wide and 6 high, another for each number."""

    def encode(number: int, format: str = "JPEG") -> bytes:
        buffer = io.BytesIO()
        Image.new("RGB", (8 + number, 6), (number % 256, 80, 120)).save(buffer, format)
        return buffer.getvalue()

    return encode


@pytest.fixture
def photos(tmp_path: Path, picture: Callable[..., bytes]) -> Path:
    """A folder of ten pictures, ``img0.jpg`` to ``img9.jpg``, with captions."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(10):
        (folder / f"img{number}.jpg").write_bytes(picture(number))
        (folder / f"img{number}.txt").write_text(f"caption {number}")
    return folder


@pytest.fixture
def digests() -> Callable[[Path], dict[str, str]]:
    """SHA-256 of every file in a folder, hidden ones included, by name."""

    def of(folder: Path) -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}

    return of
