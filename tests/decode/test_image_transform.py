import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from janus_shards.decode.image import ImageTransform, decode_image, encode_image
from janus_shards.decode.transform import Augment, FieldTransform, SampleTransform
from janus_shards.errors import ConfigError, DecodeError

Encode = Callable[..., bytes]
BICUBIC = Image.Resampling.BICUBIC


def applied(transform: ImageTransform, data: bytes) -> np.ndarray:
    """The row that a transform writes, over a background that must disappear."""
    out = np.full(transform.shape, 201, transform.dtype)
    transform.apply(data, out)
    return out


def padded_by_pillow(pixels: np.ndarray, size: int, rounding: str) -> np.ndarray:
    """Janus's own processing of one picture up to the normalisation, written with Pillow alone."""
    height, width = pixels.shape[:2]
    longest = max(height, width)
    if rounding == "floor":
        scaled = (max(int(width / longest * size), 14), max(int(height / longest * size), 14))
    else:
        scaled = (max(round(width * (size / longest)), 14), max(round(height * (size / longest)), 14))
    frame = Image.new("RGB", (size, size), (127, 127, 127))
    frame.paste(Image.fromarray(pixels).resize(scaled, BICUBIC), ((size - scaled[0]) // 2, (size - scaled[1]) // 2))
    return np.array(frame).transpose(2, 0, 1)


@pytest.mark.parametrize("rounding", ["floor", "round"])
@pytest.mark.parametrize("size", [(640, 427), (427, 640), (500, 500), (384, 200), (90, 60)])
def test_pillow_engine_equals_the_janus_processing(
    photo: Image.Image, encoded: Encode, size: tuple[int, int], rounding: str
) -> None:
    """``engine="pillow"`` gives the padded picture of the original processor bit for bit."""
    data = encoded(photo.resize(size), "JPEG")
    transform = ImageTransform(size=384, engine="pillow", rounding=rounding)
    assert np.array_equal(applied(transform, data), padded_by_pillow(decode_image(data), 384, rounding))


@pytest.mark.parametrize("fit", ["pad", "crop", "stretch"])
@pytest.mark.parametrize("size", [(640, 427), (427, 640), (300, 300), (384, 384), (100, 70), (1200, 800)])
def test_exact_engine_is_within_two_levels_of_pillow(
    photo: Image.Image, encoded: Encode, size: tuple[int, int], fit: str
) -> None:
    """For photographs of ordinary shapes the fast engine differs by at most 2 of 255 levels."""
    data = encoded(photo.resize(size), "JPEG")
    exact, pillow = (applied(ImageTransform(fit=fit, engine=engine), data) for engine in ("exact", "pillow"))
    assert np.abs(exact.astype(int) - pillow).max() <= 2


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 90),
    st.integers(1, 90),
    st.tuples(st.integers(1, 64), st.integers(1, 64)),
    st.sampled_from(["pad", "crop", "stretch"]),
    st.sampled_from(["exact", "pillow"]),
    st.sampled_from(["floor", "round"]),
)
def test_every_element_is_written(
    height: int, width: int, size: tuple[int, int], fit: str, engine: str, rounding: str
) -> None:
    """Any picture fills the whole row and nothing outside it, whatever the options."""
    transform = ImageTransform(size=size, fit=fit, engine=engine, rounding=rounding, fill=9)
    batch = np.full((3, *transform.shape), 77, np.uint8)
    transform.apply(encode_image(np.full((height, width, 3), 200, np.uint8), "PNG"), batch[1])
    assert set(np.unique(batch[1])) <= {200, 9}
    assert (batch[[0, 2]] == 77).all()
    assert fit == "pad" or (batch[1] == 200).all()


def test_padding_takes_a_level_for_each_channel(encoded: Encode) -> None:
    """Borders hold the fill, the picture lies between them."""
    row = applied(ImageTransform(size=32, fill=(1, 2, 3)), encoded(Image.new("RGB", (32, 16)), "PNG"))
    assert row[:, :8].reshape(3, -1).tolist() == [[1] * 256, [2] * 256, [3] * 256]
    assert not row[:, 8:24].any()
    assert (row[:, 24:] == row[:, :8]).all()


def test_cropping_keeps_the_centre(encoded: Encode) -> None:
    """Of a wide picture the middle columns remain."""
    pixels = np.zeros((20, 60, 3), np.uint8)
    pixels[:, 20:40] = 250
    assert (applied(ImageTransform(size=20, fit="crop"), encoded(Image.fromarray(pixels), "PNG")) == 250).all()


def test_orientation_comes_before_the_geometry(photo: Image.Image, encoded: Encode) -> None:
    """A photo taken upright is padded left and right although its pixels are stored sideways."""
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(photo, "JPEG", exif=exif)
    for engine in ("exact", "pillow"):
        turned = applied(ImageTransform(engine=engine), data)
        assert (turned[:, :, :20] == 127).all()
        assert not (applied(ImageTransform(engine=engine, exif=False), data)[:, :, :20] == 127).all()


def test_row_is_untouched_when_decoding_fails(photo: Image.Image, encoded: Encode) -> None:
    """A damaged picture leaves the batch as it was."""
    out = np.full((3, 384, 384), 42, np.uint8)
    with pytest.raises(DecodeError):
        ImageTransform().apply(encoded(photo, "JPEG")[:-900], out)
    assert (out == 42).all()


def test_thin_strips_do_not_explode_when_cropped(encoded: Encode) -> None:
    """A strip whose short side would be scaled to hundreds of millions of pixels is refused."""
    with pytest.raises(DecodeError, match="max_pixels") as caught:
        applied(ImageTransform(fit="crop"), encoded(Image.new("RGB", (20000, 1)), "PNG"))
    assert caught.value.kind == "image_too_large"


def test_threads_give_the_same_rows(photo: Image.Image, encoded: Encode) -> None:
    """Several threads may share a transform, and results do not depend on them."""
    datas = [encoded(photo.resize((300 + 10 * step, 400)), "JPEG") for step in range(8)]
    transform = ImageTransform()
    expected = [applied(transform, data) for data in datas]
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda data: applied(transform, data), datas))
    assert all(np.array_equal(row, wanted) for row, wanted in zip(rows, expected, strict=True))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts native threads under /proc")
def test_no_native_thread_is_started(photo: Image.Image, encoded: Encode) -> None:
    """A worker thread resizes by itself: torch starts no team of OpenMP threads beside it."""
    script = """
import os, sys, threading
import numpy as np
import torch
from janus_shards.decode import ImageTransform
data, counts = sys.stdin.buffer.read(), []
def work():
    ImageTransform().apply(data, np.empty((3, 384, 384), np.uint8))
    counts.append(len(os.listdir("/proc/self/task")))
before = len(os.listdir("/proc/self/task"))
worker = threading.Thread(target=work)
worker.start()
worker.join()
print(torch.get_num_threads() > 1, counts[0] - before)
"""
    data = encoded(photo.resize((900, 600)), "JPEG")
    environment = {**os.environ, "OMP_NUM_THREADS": "4"}
    answer = subprocess.run(
        [sys.executable, "-c", script], input=data, env=environment, capture_output=True, check=True, timeout=60
    )
    assert answer.stdout.split() == [b"True", b"1"]


def test_fingerprint_is_frozen() -> None:
    """The text behind the fingerprint, and the fingerprint, are those that caches were written with."""
    transform = ImageTransform()
    assert transform.description == (
        "ImageTransform/1 size=384x384 fit=pad engine=exact fill=127,127,127 rounding=floor exif=1"
    )
    assert transform.fingerprint == "105ba499802a29b9"


def test_fingerprint_follows_what_is_written() -> None:
    """Every option that changes pixels changes the fingerprint; another spelling or limit does not."""
    base = ImageTransform()
    others = [
        replace(base, size=(384, 385)),
        replace(base, fit="crop"),
        replace(base, engine="pillow"),
        replace(base, fill=(127, 127, 128)),
        replace(base, rounding="round"),
        replace(base, exif=False),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 7
    assert replace(base, size=(384, 384), fill=(127, 127, 127), max_pixels=10**6).fingerprint == base.fingerprint


@pytest.mark.parametrize(
    "options",
    [
        {"size": 0},
        {"size": (384,)},
        {"size": 38.4},
        {"fit": "squeeze"},
        {"engine": "opencv"},
        {"fill": 256},
        {"fill": (1, 2)},
        {"rounding": "up"},
        {"max_pixels": 0},
    ],
)
def test_options_are_checked_at_birth(options: dict[str, object]) -> None:
    """A value outside its range is refused by name."""
    with pytest.raises(ConfigError, match=f"{next(iter(options))}="):
        ImageTransform(**options)


def test_row_of_another_shape_is_refused(small: Image.Image, encoded: Encode) -> None:
    """A transform writes rows of its own shape only."""
    with pytest.raises(ConfigError, match=r"\(3, 64, 65\)"):
        ImageTransform(size=64).apply(encoded(small, "PNG"), np.zeros((3, 64, 65), np.uint8))


def test_transform_is_a_plain_picklable_field_transform() -> None:
    """It survives pickling equal, is a ``FieldTransform`` without a random part, and is no ``SampleTransform``."""
    transform = ImageTransform(size=(20, 30), fit="crop")
    assert pickle.loads(pickle.dumps(transform)) == transform
    assert isinstance(transform, FieldTransform)
    assert not isinstance(transform, Augment | SampleTransform)


def test_torch_is_needed_by_the_exact_engine_alone() -> None:
    """Without torch the exact engine names the extra, and the other one works; importing decode never loads torch."""
    script = """
import sys
import janus_shards.decode
assert "torch" not in sys.modules
sys.modules["torch"] = None
from janus_shards.decode import ImageTransform
ImageTransform(engine="pillow")
try:
    ImageTransform()
except Exception as error:
    print(type(error).__name__, error)
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.startswith("ConfigError")
    assert "janus-shards[torch]" in answer.stdout
