"""Feed arbitrary bytes to everything that decodes foreign bytes, and keep what it cannot take.

    python tools/fuzz.py --seconds 60                       all targets, one after the other
    python tools/fuzz.py --target tar --seconds 600         one of them: tar, compressed, index, manifest, image, field
    python tools/fuzz.py --target tar --engine atheris      guided by coverage, where atheris is installed
    python tools/fuzz.py --target tar --replay FILE         one input again, with its traceback

Right is a result or an error of the library's own. Wrong are other exceptions and warnings, more than 2 s, more than
300 MB on top of the input, and the end of the process: each target runs in a process of its own, and the input at hand
lies in a file that outlives it. What was wrong is kept in ``--keep`` (default ``tests/data/fuzz``), named after target
and digest; ``tests/tools/test_fuzz.py`` tries all files there, and a few hundred changes of each seed, at every run.
"""

import argparse
import bz2
import gzip
import hashlib
import importlib
import importlib.util
import io
import lzma
import os
import random
import resource
import subprocess
import sys
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgpack
import numpy as np
import xxhash
from PIL import Image

from janus_shards.decode.fields import decode_field
from janus_shards.decode.image import decode_image, image_size
from janus_shards.errors import JanusShardsError
from janus_shards.format.compression import decompressed
from janus_shards.format.grouping import group_samples
from janus_shards.format.index import ShardIndex
from janus_shards.format.manifest import Manifest, ManifestPointer
from janus_shards.format.tar import TarScanner

REPOSITORY = Path(__file__).resolve().parent.parent
KEPT = REPOSITORY / "tests" / "data" / "fuzz"

MAX_SECONDS = 2.0
MAX_EXTRA_BYTES = 300 << 20
# A picture of this many pixels is decoded in well under the time that one input may take.
_MAX_PIXELS = 1 << 22
_MAX_INPUT_BYTES = 1 << 16


# --- targets ----------------------------------------------------------------------------------------------------------


def scan_tar(data: bytes) -> None:
    """Members and samples, in chunks that cut anywhere; every field lies inside the tar."""
    members = TarScanner((data[at : at + 777] for at in range(0, len(data), 777)), shard="fuzz.tar", keep_bytes=1 << 20)
    groups = group_samples(members, shard="fuzz.tar")
    while True:
        try:
            _, spans = next(groups)
        except StopIteration:
            return
        except JanusShardsError as exc:
            if exc.kind not in ("duplicate_field", "interleaved_key"):
                raise
            continue
        for span in spans:
            if not 512 <= span.offset <= span.offset + span.size <= len(data):
                raise AssertionError(f"field {span} lies outside of {len(data)} bytes")


def inflate(data: bytes) -> None:
    """A compressed tar, member by member; what a few bytes claim is never in memory at once."""
    list(TarScanner(decompressed([data], shard="fuzz.tar.gz"), shard="fuzz.tar.gz"))


def decode_index(data: bytes) -> None:
    """An index, and all that can be asked of it."""
    index = ShardIndex.decode(data, name="fuzz.idx")
    rows = np.arange(min(index.num_samples, 1000))
    for name in index.fields:
        spans = index.spans(name, rows)
        if len(rows) and int((spans.offsets + np.maximum(spans.sizes, 0)).max()) > index.tar_bytes:
            raise AssertionError(f"field {name!r} ends behind {index.tar_bytes} bytes")
        index.inline_many(name, rows)
    for row in rows[:20].tolist():
        index.key(row)
        index.fields_of(row)
    index.keys.texts()


def decode_manifest(data: bytes) -> None:
    """A generation or a pointer to one."""
    if data[:64].find(b"pointer") >= 0:
        ManifestPointer.decode(data, name="fuzz")
        return
    manifest = Manifest.decode(data, name="fuzz")
    manifest.fingerprint()
    _ = manifest.num_samples, manifest.shard_rows(), manifest.shard_bytes()


def decode_picture(data: bytes) -> None:
    """A picture, by its header and whole."""
    image_size(data)
    pixels = decode_image(data, max_pixels=_MAX_PIXELS)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise AssertionError(f"decoded to {pixels.dtype} {pixels.shape}")


def decode_any_field(data: bytes) -> None:
    """The field named by the first byte: text, JSON, MessagePack, an array or an integer."""
    names = ("txt", "json", "msgpack", "npy", "cls")
    decode_field(names[data[0] % len(names)] if data else "txt", data[1:])


@dataclass(frozen=True)
class Target:
    """Something that takes foreign bytes.

    Attributes:
        run: Takes one input.
        seeds: Inputs to begin with.
        repair: Makes a checksum right again, so that damage is not found by the checksum alone.
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    repair: Callable[[bytes], bytes] = bytes


# --- seeds ------------------------------------------------------------------------------------------------------------


def _files(*patterns: str) -> list[bytes]:
    """Frozen files of the tests, of at most 64 KiB each."""
    data = REPOSITORY / "tests" / "data"
    found = [path.read_bytes() for pattern in patterns for path in sorted(data.glob(pattern)) if path.is_file()]
    return [each[:_MAX_INPUT_BYTES] for each in found]


def _pictures() -> list[bytes]:
    """A photograph in every format and many modes, small, and the fields of the cases."""
    with Image.open(REPOSITORY / "examples" / "photos" / "chelsea.jpg") as photo:
        small = photo.convert("RGB").resize((48, 32))
    seeds = []
    for format in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "PPM", "JPEG2000"):
        for mode in ("RGB", "L", "P", "RGBA", "LA", "CMYK", "1", "I;16", "F"):
            target, options = io.BytesIO(), {"exif": _turned_exif()} if format in ("JPEG", "PNG", "WEBP") else {}
            try:
                small.convert("L" if mode == "I;16" else mode).convert(mode).save(target, format, **options)
            except (OSError, ValueError, KeyError):
                continue
            seeds.append(target.getvalue())
    for more in ({"progressive": True}, {"restart_marker_rows": 1}, {"quality": 100, "subsampling": 0}):
        target = io.BytesIO()
        small.save(target, "JPEG", **more)
        seeds.append(target.getvalue())
    return seeds


def _turned_exif() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif.tobytes()


def _fields() -> list[bytes]:
    arrays = io.BytesIO()
    np.save(arrays, np.arange(6, dtype=np.float32).reshape(2, 3))
    values = [
        "héllo".encode(),
        b'{"a": [1, NaN, "\\ud800"]}',
        msgpack.packb({"a": [1, b"x", 2.5]}),
        arrays.getvalue(),
        b"7",
    ]
    return [bytes([number]) + value for number, value in enumerate(values)]


def _reseal_headers(data: bytes) -> bytes:
    """Right checksums in whatever could be a tar header."""
    out = bytearray(data)
    for at in range(0, len(out) - 511, 512):
        if out[at + 257 : at + 262] == b"ustar" or out[at : at + 1].isalnum():
            total = sum(out[at : at + 148]) + 8 * ord(" ") + sum(out[at + 156 : at + 512])
            out[at + 148 : at + 156] = b"%06o\0 " % total
    return bytes(out)


def _reseal_map(data: bytes) -> bytes:
    """A right checksum at the end of an index or manifest."""
    return data[:-8] + xxhash.xxh3_64_digest(data[:-8])


def _reseal_chunks(data: bytes) -> bytes:
    """Right checksums in the chunks of a PNG."""
    out, at = bytearray(data), 8
    while data[1:4] == b"PNG" and at + 12 <= len(out):
        stop = at + 8 + int.from_bytes(out[at : at + 4], "big")
        if stop + 4 <= len(out):
            out[stop : stop + 4] = zlib.crc32(out[at + 4 : stop]).to_bytes(4, "big")
        at = stop + 4
    return bytes(out)


def _compressed() -> list[bytes]:
    plain = _files("golden/example-000000.tar")[0]
    packed = [compress(plain) for compress in (gzip.compress, bz2.compress, lzma.compress)]
    return [*packed, packed[0] + packed[0], packed[0] + bytes(100), packed[0] + b"tail", plain]


TARGETS: Mapping[str, Target] = {
    "tar": Target(scan_tar, lambda: _files("golden/*.tar", "cases/T*/*.tar"), _reseal_headers),
    "compressed": Target(inflate, _compressed),
    "index": Target(decode_index, lambda: _files("golden/*.idx"), _reseal_map),
    "manifest": Target(decode_manifest, lambda: _files("golden/manifest*.msgpack"), _reseal_map),
    "image": Target(decode_picture, _pictures, _reseal_chunks),
    "field": Target(decode_any_field, _fields),
}


# --- inputs -----------------------------------------------------------------------------------------------------------


_BYTE_ORDERS: Sequence[Literal["little", "big"]] = ("little", "big")
_INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)


def mutate(seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """One of the seeds after a few random changes."""
    data = bytearray(rng.choice(seeds))
    for _ in range(1 << rng.randrange(6)):
        at = rng.randrange(len(data) + 1)
        choice = rng.randrange(22)
        if choice <= 3 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif choice <= 7 and data:
            data[at % len(data)] = rng.randrange(256)
        elif choice <= 9:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif choice <= 11:
            del data[at : at + rng.randrange(1, 64)]
        elif choice <= 16:
            width, order = rng.choice((1, 2, 4, 8)), rng.choice(_BYTE_ORDERS)
            value = rng.choice(_INTERESTING) % 256**width
            data[at : at + width] = value.to_bytes(width, order)
        elif choice <= 18:
            other = rng.choice(seeds)
            start = rng.randrange(len(other) + 1)
            data[at : at + rng.randrange(2048)] = other[start : start + rng.randrange(2048)]
        elif choice <= 20:
            data[at:at] = data[at : at + 512 * rng.randrange(1, 4)]
        else:
            del data[at:]
    return bytes(data[:_MAX_INPUT_BYTES])


def problem_of(target: Target, data: bytes) -> str:
    """What is wrong with how an input was taken; empty when nothing is."""
    before, started = _peak_bytes(), time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            target.run(data)
    except JanusShardsError:
        pass
    except Exception:  # noqa: BLE001  every other exception is a finding
        return traceback.format_exc()
    seconds, extra = time.perf_counter() - started, _peak_bytes() - before
    if seconds > MAX_SECONDS:
        return f"took {seconds:.1f} s"
    return f"took {extra >> 20} MiB" if extra > MAX_EXTRA_BYTES else ""


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# --- runs -------------------------------------------------------------------------------------------------------------


def _keep(folder: Path, name: str, data: bytes, problem: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{hashlib.sha256(data).hexdigest()[:16]}.bin"
    path.write_bytes(data)
    print(f"{path}: {problem}")


def _inputs(target: Target, rng: random.Random) -> Iterator[bytes]:
    seeds = target.seeds()
    yield from seeds
    while True:
        data = mutate(seeds, rng)
        yield data if rng.randrange(2) else target.repair(data)


def _run_random(name: str, *, seconds: float, seed: int, folder: Path, current: Path) -> int:
    """Random changes until the time is over; the number of findings."""
    target, rng = TARGETS[name], random.Random(seed)
    count = findings = 0
    stop = time.monotonic() + seconds
    with current.open("wb", buffering=0) as file:
        for data in _inputs(target, rng):
            if time.monotonic() > stop:
                break
            os.ftruncate(file.fileno(), 0)
            os.pwrite(file.fileno(), data, 0)
            problem = problem_of(target, data)
            count += 1
            if problem:
                findings += 1
                _keep(folder, name, data, problem)
    current.unlink()
    print(f"{name}: {count} inputs in {seconds:.0f} s, {findings} findings (seed {seed})")
    return findings


def _run_atheris(name: str, *, seconds: float, seed: int, folder: Path, corpus: Path) -> int:
    """The same guided by coverage: libFuzzer stops at the first finding and keeps it by itself."""
    # No dependency of ours: imported by name, so that nobody needs it to check types.
    atheris = importlib.import_module("atheris")
    target = TARGETS[name]
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(data)
    atheris.instrument_all()

    def take(data: bytes) -> None:
        problem = problem_of(target, data)
        if problem:
            _keep(folder, name, data, problem)
            raise AssertionError(problem)

    options = [f"-max_total_time={seconds:.0f}", f"-seed={seed}", f"-max_len={_MAX_INPUT_BYTES}", "-rss_limit_mb=2048"]
    atheris.Setup([sys.argv[0], str(corpus), *options], take)
    atheris.Fuzz()
    return 0


def _run_apart(name: str, arguments: Sequence[str], folder: Path, current: Path) -> int:
    """One target in a process of its own; the number of findings, its end by a signal among them."""
    command = [sys.executable, __file__, "--target", name, "--inside", str(current), *arguments]
    ended = subprocess.run(command, check=False, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}).returncode
    if ended not in (0, 1) and current.exists():
        _keep(folder, name, current.read_bytes(), f"the process ended with {ended}")
        current.unlink()
    return int(ended != 0)


def main() -> int:
    """Run as the arguments say; 1 when something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=list(TARGETS))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--engine", choices=["random", "atheris"], default="random")
    parser.add_argument("--keep", type=Path, default=KEPT)
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.replay:
        TARGETS[given.target].run(given.replay.read_bytes())
        return 0
    names = [given.target] if given.target else list(TARGETS)
    seconds = given.seconds / len(names)
    current = given.inside or given.keep / f".current-{os.getpid()}"
    if given.inside:
        return int(_run_random(given.target, seconds=seconds, seed=given.seed, folder=given.keep, current=current) > 0)
    if given.engine == "atheris":
        if importlib.util.find_spec("atheris") is None:
            sys.exit("atheris is not installed: pip install atheris, or --engine random")
        corpus = given.keep / f".corpus-{given.target or 'tar'}"
        return _run_atheris(
            given.target or "tar", seconds=given.seconds, seed=given.seed, folder=given.keep, corpus=corpus
        )
    given.keep.mkdir(parents=True, exist_ok=True)
    arguments = ["--seconds", str(seconds), "--seed", str(given.seed), "--keep", str(given.keep)]
    return int(sum(_run_apart(name, arguments, given.keep, current) for name in names) > 0)


if __name__ == "__main__":
    sys.exit(main())
