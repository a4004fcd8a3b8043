"""One measurement in one process: prints a line of JSON. Run by ``bench.py``, in the environment of each peer.

``wall_s`` and ``cpu_s`` count the steady part, from the first batch on; CPU time includes child processes.
"""

import argparse
import io
import json
import os
import random
import resource
import tarfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SIZE, BATCH, THREADS = 384, 32, 2


def cpu_seconds() -> float:
    """CPU time of this process and its children so far."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def steady(batches: Callable[[], Iterable[int]]) -> dict[str, float]:
    """Time one pass; ``batches`` yields the number of samples of each batch."""
    began = time.perf_counter()
    first, samples = 0.0, 0
    cpu = wall = 0.0
    for count in batches():
        if not wall:
            first = time.perf_counter() - began
            wall, cpu = time.perf_counter(), cpu_seconds()
            continue
        samples += count
    return {
        "first_batch_s": first,
        "samples": samples,
        "wall_s": time.perf_counter() - wall,
        "cpu_s": cpu_seconds() - cpu,
    }


def shards(root: str) -> list[str]:
    """Paths of the shards of a data set."""
    return sorted(str(path) for path in Path(root).glob("*.tar"))


# --- janus-shards ----------------------------------------------------------------------------------------------------


def janus(root: str, *, decode: bool) -> Iterator[int]:
    """One epoch of our loader."""
    import janus_shards as js

    transform = {"jpg": js.ImageTransform(size=SIZE, fit="pad", engine="exact")} if decode else None
    options = js.LoaderOptions(decode=decode, threads=THREADS)
    loader = js.open_loader(
        root, batch_size=BATCH, fields=("jpg", "txt"), transform=transform, seed=int(time.time()), options=options
    )
    for batch in loader:
        yield len(batch)


def janus_pack(corpus: str, out: str) -> Iterator[int]:
    """Write the corpus with ``ShardWriter``: tars, indexes and manifest, in one process."""
    import janus_shards as js

    samples = corpus_samples(corpus)
    yield 0
    with js.ShardWriter(out, prefix="train", max_shard_bytes=64 << 20) as writer:
        for key, jpg, txt in samples:
            writer.write({"__key__": key, "jpg": jpg, "txt": txt})
    yield len(samples)


# --- bare loop: the same decode and resize calls without any pipeline
# ---------------------------------------------------


def bare(root: str) -> Iterator[int]:
    """pread, decode, resize and copy into a ring of batches on two threads, from offsets known in advance."""
    import numpy as np
    import simplejpeg
    import torch

    members: list[tuple[str, int, int]] = []
    for path in shards(root):
        with tarfile.open(path) as tar:
            members += [(path, member.offset_data, member.size) for member in tar if member.name.endswith(".jpg")]
    random.Random(time.time()).shuffle(members)
    files = {path: os.open(path, os.O_RDONLY) for path in shards(root)}

    def one(path: str, start: int, size: int, out: Any) -> None:
        pixels = simplejpeg.decode_jpeg(os.pread(files[path], size, start))
        longest = max(pixels.shape[:2])
        height, width = (max(int(side / longest * SIZE), 14) for side in pixels.shape[:2])
        image = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
        scaled = torch.nn.functional.interpolate(image, size=(height, width), mode="bicubic", antialias=True)
        top, left = (SIZE - height) // 2, (SIZE - width) // 2
        out[:, :top] = out[:, top + height :] = 127
        out[:, :, :left] = out[:, :, left + width :] = 127
        out[:, top : top + height, left : left + width] = scaled[0].numpy()

    def some(rows: list[tuple[str, int, int]], slab: Any) -> None:
        for row, out in zip(rows, slab, strict=True):
            one(*row, out)

    ring = [np.empty((BATCH, 3, SIZE, SIZE), np.uint8) for _ in range(6)]
    waiting: deque[list[Any]] = deque()
    with ThreadPoolExecutor(THREADS) as pool:
        for number in range(len(members) // BATCH):
            if len(waiting) == 4:
                yield finish(waiting.popleft())
            rows, slab = members[number * BATCH :][:BATCH], ring[number % 6]
            waiting.append([pool.submit(some, rows[i : i + 4], slab[i : i + 4]) for i in range(0, BATCH, 4)])
        while waiting:
            yield finish(waiting.popleft())


def finish(tasks: list[Any]) -> int:
    """Wait for the tasks of one batch."""
    for task in tasks:
        task.result()
    return BATCH


# --- webdataset
# ----------------------------------------------------------------------------------------------------------


def pad_resize(data: bytes) -> Any:
    """Janus's preprocessing with Pillow: longest side to 384, padded with 127."""
    import numpy as np
    import torch
    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB")
    longest = max(image.size)
    width, height = (max(int(side / longest * SIZE), 14) for side in image.size)
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
    out = np.full((SIZE, SIZE, 3), 127, np.uint8)
    top, left = (SIZE - height) // 2, (SIZE - width) // 2
    out[top : top + height, left : left + width] = pixels
    return torch.from_numpy(out)


def to_pixels(sample: tuple[bytes, str]) -> tuple[Any, str]:
    """One decoded sample."""
    return pad_resize(sample[0]), sample[1]


def stack(samples: list[tuple[Any, str]]) -> tuple[Any, list[str]]:
    """A batch of decoded samples."""
    import torch

    return torch.stack([pixels for pixels, _ in samples]), [text for _, text in samples]


def as_list(samples: list[Any]) -> tuple[list[bytes], list[str]]:
    """A batch of stored bytes."""
    return [data for data, _ in samples], [text for _, text in samples]


def webdataset(root: str, *, decode: bool) -> Iterator[int]:
    """One epoch of webdataset in a DataLoader with two workers."""
    import torch
    import webdataset as wds

    torch.set_num_threads(1)
    data = wds.WebDataset(shards(root), shardshuffle=100, seed=int(time.time()), empty_check=False).shuffle(1000)
    data = data.to_tuple("jpg", "txt")
    if decode:
        data = data.map(to_pixels)
    loader = torch.utils.data.DataLoader(
        data, batch_size=BATCH, num_workers=2, collate_fn=stack if decode else as_list, prefetch_factor=4
    )
    for first, _ in loader:
        yield len(first)


def webdataset_pack(corpus: str, out: str) -> Iterator[int]:
    """Write the corpus with webdataset's ShardWriter: tars alone."""
    import webdataset as wds

    samples = corpus_samples(corpus)
    yield 0
    os.makedirs(out)
    with wds.ShardWriter(f"{out}/train-%06d.tar", maxsize=64 << 20, verbose=0) as writer:
        for key, jpg, txt in samples:
            writer.write({"__key__": key, "jpg": jpg, "txt": txt})
    yield len(samples)


def corpus_samples(corpus: str) -> list[tuple[str, bytes, str]]:
    """Key, picture and caption of each sample, from memory: the writers are measured, not the reading."""
    pictures = sorted(Path(corpus).glob("*.jpg"))
    return [(path.stem, path.read_bytes(), path.with_suffix(".txt").read_text("utf-8")) for path in pictures]


CASES: dict[str, Callable[[argparse.Namespace], Iterable[int]]] = {
    "janus-decode": lambda options: janus(options.root, decode=True),
    "janus-raw": lambda options: janus(options.root, decode=False),
    "janus-pack": lambda options: janus_pack(options.root, options.out),
    "bare-decode": lambda options: bare(options.root),
    "webdataset-decode": lambda options: webdataset(options.root, decode=True),
    "webdataset-raw": lambda options: webdataset(options.root, decode=False),
    "webdataset-pack": lambda options: webdataset_pack(options.root, options.out),
}


def main() -> None:
    """Run one case and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=sorted(CASES))
    parser.add_argument("root", help="data set, or the corpus for the writers")
    parser.add_argument("--out", default="", help="where writers write; must not exist")
    parser.add_argument("--repeat", type=int, default=1, help="passes in one process; the fastest counts")
    options = parser.parse_args()
    passes = [steady(lambda: CASES[options.case](options)) for _ in range(options.repeat)]
    print(json.dumps(min(passes, key=lambda figures: figures["wall_s"])))


if __name__ == "__main__":
    main()
