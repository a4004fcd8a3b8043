"""Make a corpus of photo-like JPEGs with captions from the photographs in examples/photos.

    python tools/make_corpus.py OUT --count 4000 --seed 0

Benchmarks need thousands of pictures that decode like photographs, and a repository cannot hold them. Each picture here
is a crop of a real photograph, scaled to the sizes of COCO, mirrored, re-lit, given sensor noise and encoded as cameras
and web sites do. One (seed, number) gives the same bytes whatever ``--count`` and ``--workers`` are, as long as the
versions of NumPy and Pillow stay. Measured for 4,000 pictures of seed 0: JPEGs of 12 to 280 KB, 76 KB in the
mean; captions of 72 to 4,739 bytes, 142 in the median.
"""

import argparse
import io
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.progress import Progress

_T = TypeVar("_T")

PHOTOS = Path(__file__).resolve().parent.parent / "examples" / "photos"

# Widths and heights of COCO's train images in landscape, with their rough shares.
SIZES = (
    ((640, 480), 0.45),
    ((640, 427), 0.30),
    ((640, 426), 0.08),
    ((612, 612), 0.05),
    ((500, 375), 0.07),
    ((640, 360), 0.05),
)
PORTRAIT_SHARE = 0.3
# Grey pictures decode faster, so their share is COCO's order of magnitude and not that of the sources.
GREY_SHARE = 0.02
PROGRESSIVE_SHARE = 0.15
# Encoder quality and its share; 4:2:0 below FULL_CHROMA_QUALITY, where most encoders switch to 4:4:4.
QUALITIES = ((75, 0.20), (82, 0.25), (88, 0.27), (92, 0.20), (95, 0.08))
FULL_CHROMA_QUALITY = 95

DETAILS = (
    "seen from close by", "in soft afternoon light", "a little out of focus at the edges", "with strong contrast",
    "under a pale sky", "in warm colours", "in cool colours", "with some grain in the shadows", "photographed by hand",
    "with the main subject off centre", "cropped tightly", "with a plain background", "in natural light",
    "taken with a small camera", "slightly overexposed", "slightly underexposed", "with fine texture all over",
    "with deep shadows", "in muted tones", "as it looked on that day",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Source:
    """A photograph to cut pictures from."""

    name: str
    image: Image.Image
    caption: str

    @property
    def grey(self) -> bool:
        """Whether the photograph has no colour."""
        return self.image.mode == "L"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One member of the corpus."""

    jpeg: bytes
    caption: str


def load_sources(folder: Path = PHOTOS) -> tuple[Source, ...]:
    """The photographs of ``folder`` with their captions, in name order.

    Raises:
        FileNotFoundError: The folder holds no JPEG, or one has no caption.
    """
    sources = []
    for path in sorted(folder.glob("*.jpg")):
        with Image.open(path) as image:
            image.load()
            sources.append(
                Source(name=path.stem, image=image, caption=path.with_suffix(".txt").read_text("utf-8").strip())
            )
    if not sources:
        raise FileNotFoundError(f"no .jpg in {folder}")
    return tuple(sources)


def make_picture(sources: Sequence[Source], *, seed: int, number: int) -> Picture:
    """Picture ``number`` of the corpus of ``seed``."""
    rng = np.random.default_rng((seed, number))
    source = _choose_source(sources, rng)
    pixels = np.asarray(_cut(source.image, _choose_size(rng), rng), dtype=np.float32)
    pixels = _add_noise(_relight(pixels, rng), rng)
    image = Image.fromarray(np.clip(pixels + 0.5, 0, 255).astype(np.uint8))
    return Picture(jpeg=_encode(image, rng), caption=_describe(source, rng))


def make_corpus(
    out: Path, *, count: int, seed: int, workers: int, photos: Path = PHOTOS, progress: bool = False
) -> NDArray[np.int64]:
    """Write ``count`` pairs ``00000000.jpg``, ``00000000.txt``, … into the new folder ``out``.

    The folder appears under its name when it is complete.

    Returns:
        Shape ``(count,)``, int64: bytes of each JPEG.

    Raises:
        FileExistsError: ``out`` exists and is not empty.
    """
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"{out} exists and is not empty; name a new folder or delete it")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        folder = Path(scratch) / "corpus"
        folder.mkdir()
        write = partial(_write_picture, folder, photos, seed)
        with Progress(disable=not progress) as bar:
            sizes = list(bar.track(_map(write, range(count), workers), total=count, description="Making pictures"))
        os.replace(folder, out)
    return np.array(sizes, dtype=np.int64)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder to create")
    parser.add_argument("--count", type=int, default=4000, help="number of pictures (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other pictures (default %(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument(
        "--photos", type=Path, default=PHOTOS, help="folder of source photographs (default: examples/photos)"
    )
    options = parser.parse_args(arguments)
    if min(options.count, options.workers) < 1:
        parser.error("--count and --workers are at least 1")
    on_terminal = sys.stdout.isatty()
    try:
        sizes = make_corpus(
            options.out,
            count=options.count,
            seed=options.seed,
            workers=options.workers,
            photos=options.photos,
            progress=on_terminal,
        )
    except OSError as exc:
        print(f"make_corpus: {exc}", file=sys.stderr)
        return 2
    if on_terminal:
        print(f"{options.out}: {len(sizes)} pictures of {_kilobytes(sizes)} and their captions")
    return 0


def _kilobytes(sizes: NDArray[np.int64]) -> str:
    return f"{sizes.min() / 1000:.0f} to {sizes.max() / 1000:.0f} KB (mean {sizes.mean() / 1000:.1f})"


def _map(write: "partial[int]", numbers: Sequence[int], workers: int) -> Iterator[int]:
    if workers == 1:
        yield from map(write, numbers)
        return
    # spawn: a forked child of a process with threads (rich starts one) may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield from pool.map(write, numbers, chunksize=16)


_sources_of_folder = cache(load_sources)  # each process decodes the photographs once


def _write_picture(folder: Path, photos: Path, seed: int, number: int) -> int:
    picture = make_picture(_sources_of_folder(photos), seed=seed, number=number)
    (folder / f"{number:08d}.jpg").write_bytes(picture.jpeg)
    (folder / f"{number:08d}.txt").write_text(picture.caption, "utf-8")
    return len(picture.jpeg)


def _weighted(choices: Sequence[tuple[_T, float]], rng: np.random.Generator) -> _T:
    weights = np.array([weight for _, weight in choices])
    return choices[int(rng.choice(len(choices), p=weights / weights.sum()))][0]


def _choose_source(sources: Sequence[Source], rng: np.random.Generator) -> Source:
    grey = rng.random() < GREY_SHARE
    wanted = [source for source in sources if source.grey == grey] or sources
    return wanted[int(rng.integers(len(wanted)))]


def _choose_size(rng: np.random.Generator) -> tuple[int, int]:
    width, height = _weighted(SIZES, rng)
    return (height, width) if rng.random() < PORTRAIT_SHARE else (width, height)


def _cut(image: Image.Image, size: tuple[int, int], rng: np.random.Generator) -> Image.Image:
    """A random window of 55 to 100 % of the largest that fits, scaled to ``size`` and perhaps mirrored."""
    fit = min(image.width / size[0], image.height / size[1]) * rng.uniform(0.55, 1.0)
    width, height = size[0] * fit, size[1] * fit
    left, top = rng.uniform(0, image.width - width), rng.uniform(0, image.height - height)
    cut = image.resize(size, Image.Resampling.LANCZOS, box=(left, top, left + width, top + height))
    return cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else cut


def _relight(pixels: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Exposure, contrast, white balance and saturation moved by what a photographer would still keep."""
    lowest, highest = (0.75, 0.85, -12, 0.7), (1.3, 1.15, 12, 1.25)
    gamma, contrast, shift, saturation = rng.uniform(lowest, highest).astype(np.float32)
    lit: NDArray[np.float32] = (255 * (pixels / 255) ** gamma - 128) * contrast + 128 + shift
    if lit.ndim == 3:
        luma = lit.mean(axis=2, keepdims=True, dtype=np.float32)
        lit = luma + (lit - luma) * saturation
        lit *= rng.uniform(0.94, 1.06, size=3).astype(np.float32)
    return lit


def _add_noise(pixels: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Read noise and shot noise, mostly in luma, as a camera's own demosaicing leaves it."""
    read = rng.gamma(2.0, 1.0)
    sigma = np.sqrt(read**2 + 0.12 * read * np.clip(pixels, 0, 255))  # same shape as pixels
    noise = rng.standard_normal(pixels.shape[:2], dtype=np.float32)
    if pixels.ndim == 3:
        noise = noise[:, :, None] + 0.35 * rng.standard_normal(pixels.shape, dtype=np.float32)
    noisy: NDArray[np.float32] = pixels + sigma * noise
    return noisy


def _encode(image: Image.Image, rng: np.random.Generator) -> bytes:
    quality = _weighted(QUALITIES, rng)
    full_chroma = quality >= FULL_CHROMA_QUALITY or rng.random() < 0.1
    out = io.BytesIO()
    image.save(
        out,
        "JPEG",
        quality=quality,
        subsampling="4:4:4" if full_chroma else "4:2:0",
        progressive=bool(rng.random() < PROGRESSIVE_SHARE),
        optimize=bool(rng.random() < 0.5),
    )
    return out.getvalue()


def _describe(source: Source, rng: np.random.Generator) -> str:
    """The source's caption and a log-normal number of details: half have at most 2, one in a hundred 30 and more."""
    num_details = min(int(rng.lognormal(mean=0.7, sigma=1.2)), 200)
    details = (DETAILS[int(pick)] for pick in rng.integers(len(DETAILS), size=num_details))
    return ", ".join([source.caption.rstrip("."), *details]) + "."


if __name__ == "__main__":
    raise SystemExit(main())
