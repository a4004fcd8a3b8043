"""What the caches are worth, in one run, the cases interleaved; prints Markdown.

``make bench-cache``, or ``python tools/bench_cache.py --rounds 5``. Uses the photographs that ``make bench`` makes.
FFCV is
measured in ``.venv-ffcv``, which is made when Debian's ``libopencv-dev libturbojpeg0-dev pkg-config`` are installed.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import janus_shards as js

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.bench import DATA, prepare_data, run, show  # noqa: E402  the folder of scripts is no package
from tools.fault_server import FaultServer, Rule  # noqa: E402  the same

SIZE, BATCH, THREADS, NUM_PICTURES = 384, 32, 2, 2000
RECORD_BYTES = 3 * SIZE * SIZE
FFCV = ROOT / ".venv-ffcv"


def open_loader(source: Any, folder: Path, *, size: int = SIZE, batch: int = BATCH, **cache: Any) -> js.Loader:
    """A loader of decoded pictures with a cache."""
    return js.open_loader(
        source,
        batch_size=batch,
        fields=("jpg",),
        transform={"jpg": js.ImageTransform(size=size)},
        seed=7,
        cache=js.CacheOptions(directory=str(folder), min_free_bytes=0, **cache),
        options=js.LoaderOptions(threads=THREADS, tail="uneven"),
    )


def rate(loader: js.Loader) -> float:
    """Samples a second of one epoch."""
    began, samples = time.perf_counter(), 0
    for batch in loader:
        samples += len(batch)
    return samples / (time.perf_counter() - began)


# --- hit rates -------------------------------------------------------------------------------------------------------


def hit_rates(source: js.Dataset, folder: Path) -> None:
    """Hit rate of epochs 2 and 3 by the share of the data that fits, beside an LRU that sees the same rows."""
    print("\n### Hit rate by capacity\n")
    print("| fits | one rank, epochs 2 and 3 | two ranks, epochs 2 and 3 | LRU, epochs 2 and 3 |\n|--:|--:|--:|--:|")
    for share in (0.10, 0.25, 0.50, 0.75):
        show(f"hit rate at {share:.0%}")
        size = 128
        max_bytes = int(share * len(source) * 3 * size * size)
        alone, orders = [], []
        loader = open_loader(source, folder / f"one{share}", size=size, decoded=True, max_bytes=max_bytes)
        for _ in range(3):
            orders.append([int(i) for batch in loader for i in batch.sample_ids])
            alone.append(loader.stats()["cache"]["hit_rate"])
        pair = two_ranks(source, folder / f"two{share}", size, max_bytes)
        lru = lru_rates(orders, int(share * len(source)))
        cells = (", ".join(f"{value:.1%}" for value in values[1:]) for values in (alone, pair, lru))
        print(f"| {share:.0%} | {' | '.join(cells)} |")


def two_ranks(source: js.Dataset, folder: Path, size: int, max_bytes: int) -> list[float]:
    """Hit rate of each of three epochs over two ranks that share a folder and run at once."""
    loaders = [
        js.open_loader(
            source,
            batch_size=BATCH,
            fields=("jpg",),
            transform={"jpg": js.ImageTransform(size=size)},
            seed=7,
            world=js.World(rank=rank, world_size=2, local_world_size=2),
            cache=js.CacheOptions(directory=str(folder), min_free_bytes=0, decoded=True, max_bytes=max_bytes),
            options=js.LoaderOptions(threads=1, tail="uneven"),
        )
        for rank in range(2)
    ]
    rates = []
    for _ in range(3):
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(rate, loaders))
        hits, misses = (sum(each.stats()["cache"][name] for each in loaders) for name in ("hits", "misses"))
        rates.append(hits / (hits + misses))
    return rates


def lru_rates(orders: list[list[int]], capacity: int) -> list[float]:
    """Hit rate of each epoch of a least-recently-used cache of so many rows."""
    kept: OrderedDict[int, None] = OrderedDict()
    rates = []
    for order in orders:
        hits = 0
        for sample_id in order:
            hits += sample_id in kept
            kept[sample_id] = None
            kept.move_to_end(sample_id)
            if len(kept) > capacity:
                kept.popitem(last=False)
        rates.append(hits / len(order))
    return rates


# --- decoded rows ----------------------------------------------------------------------------------------------------


def record_files(folder: Path) -> list[tuple[int, int]]:
    """Descriptor and position of every decoded record in a cache folder."""
    records = []
    for path in sorted(folder.rglob("*.rows")):
        fd = os.open(path, os.O_RDONLY)
        size = os.fstat(fd).st_size
        records += [(fd, size - (number + 1) * RECORD_BYTES) for number in range(size // RECORD_BYTES)]
    return records


def bare_loop(read: Callable[[int, Any], object], count: int) -> float:
    """Samples a second of a loop over all records in random order on two threads, into a ring of batches."""
    order = np.random.default_rng().permutation(count)[: count // BATCH * BATCH].tolist()
    ring = [np.zeros((BATCH, RECORD_BYTES), np.uint8) for _ in range(6)]

    def some(ids: list[int], rows: Any) -> None:
        for number, row in zip(ids, rows, strict=True):
            read(number, row)

    waiting: deque[list[Any]] = deque()
    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        for number in range(len(order) // BATCH):
            if len(waiting) == 4:
                for task in waiting.popleft():
                    task.result()
            ids, slab = order[number * BATCH :][:BATCH], ring[number % 6]
            waiting.append([pool.submit(some, ids[i : i + 4], slab[i : i + 4]) for i in range(0, BATCH, 4)])
    return len(order) / (time.perf_counter() - began)


def cold(folder: Path, measure: Callable[[], float]) -> float:
    """Measure with no entry in the page cache."""
    os.sync()
    for path in folder.rglob("*.rows"):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    return measure()


def ffcv_python() -> Path | None:
    """The interpreter of FFCV's environment; ``None`` when it cannot be built here."""
    python = FFCV / "bin" / "python"
    if not (FFCV / ".stamp").exists():
        try:
            run(sys.executable, "-m", "venv", FFCV)
            run(python, "-m", "pip", "install", "--quiet", "setuptools<81", "wheel", "numpy<2", "pillow")
            run("tools/install_torch.sh", python)
            run(
                python,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-build-isolation",
                "numpy<2",
                "opencv-python-headless",
                "ffcv",
            )
            (FFCV / ".stamp").touch()
        except subprocess.CalledProcessError:
            return None
    return python


def in_turn(cases: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Median of each case, measured in turn."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds):
        for name, measure in cases.items():
            show(f"round {number + 1} of {rounds}: {name}")
            found[name].append(measure())
    return {name: statistics.median(rates) for name, rates in found.items()}


def decoded_rows(source: js.Dataset, folder: Path, rounds: int) -> None:
    """Epochs from decoded rows beside bare loops and FFCV."""
    ours = open_loader(source, folder / "rows", decoded=True, max_bytes="8GB")
    memory = open_loader(source, folder / "memory", max_bytes="1MB", memory_bytes="8GB")
    rate(ours), rate(memory)
    records = record_files(folder / "rows")
    held = [np.frombuffer(os.pread(fd, RECORD_BYTES, start), np.uint8).copy() for fd, start in records]
    python = ffcv_python()

    def preadv() -> float:
        return bare_loop(lambda n, row: os.preadv(records[n][0], [row], records[n][1]), len(records))

    cases: dict[str, Callable[[], float]] = {
        "decoded SSD entries, page cache": lambda: rate(ours),
        "bare preadv loop, page cache": preadv,
        "memory tier": lambda: rate(memory),
        "bare gather copy": lambda: bare_loop(lambda n, row: np.copyto(row, held[n]), len(held)),
    }
    if python is not None:
        beton = DATA / "pictures.beton"
        cases["FFCV, raw mode"] = lambda: float(
            json.loads(run(python, "tools/bench_ffcv.py", DATA / "train", beton).splitlines()[-1])["samples_per_s"]
        )
    # Cold ones last: what comes back into the page cache piece by piece is slower to copy from than what was written.
    uncached = {
        "decoded SSD entries, cold": lambda: cold(folder, lambda: rate(ours)),
        "bare preadv loop, cold": lambda: cold(folder, preadv),
    }
    print(f"\n### Decoded 384×384 rows of {NUM_PICTURES:,} pictures, batches of 32, median of {rounds}\n")
    print("| | samples/s |\n|---|--:|")
    for group in (cases, uncached):
        for name, value in in_turn(group, rounds).items():
            print(f"| {name} | {value:,.0f} |")
    if python is None:
        print("\nFFCV could not be built here (it needs libopencv-dev libturbojpeg0-dev pkg-config).")


# --- stored bytes over a slow store ----------------------------------------------------------------------------------


@contextlib.contextmanager
def slow_store(root: Path) -> Iterator[FaultServer]:
    """The data set behind 20 ms a request and 50 MB/s in all."""
    # 16 requests run at once; each gets its part of the bandwidth.
    rule = Rule(operation="*", delay_s=0.02, bytes_per_s=50e6 / 16, times=None)
    with FaultServer(root, [rule]) as server:
        yield server


def raw_blocks(folder: Path) -> None:
    """Epochs 1 and 2 of stored bytes over a slow store, and local shards."""
    root = DATA / "train"

    def bytes_loader(url: str, cache: Path | None, storage: dict[str, Any] | None) -> js.Loader:
        return js.open_loader(
            url,
            batch_size=BATCH,
            fields=("jpg", "txt"),
            seed=7,
            cache=None if cache is None else js.CacheOptions(directory=str(cache), min_free_bytes=0),
            options=js.LoaderOptions(threads=THREADS, decode=False),
            storage_options=storage,
        )

    with slow_store(root) as server:
        storage = {"endpoint_url": server.endpoint, "region": "us-east-1", "key": "x", "secret": "y"}
        loader = bytes_loader(server.url, folder / "raw", storage)
        first = rate(loader)
        later = [rate(loader) for _ in range(3)]
        requests = loader.stats()["store"]["requests"]
    local = bytes_loader(str(root), None, None)
    direct = [rate(local) for _ in range(3)]
    print("\n### Stored bytes over a store with 20 ms a request and 50 MB/s\n")
    print("| | samples/s |\n|---|--:|")
    print(f"| epoch 1 | {first:,.0f} |\n| epoch 2, from raw entries | {max(later):,.0f} |")
    print(f"| local shards without a cache | {max(direct):,.0f} |\n\nRequests in epoch 2: {requests}.")


def single_flight(folder: Path) -> None:
    """Two ranks that start at once on an empty cache, each of which wants every block."""
    with FaultServer(DATA / "train", [Rule(operation="GET", delay_s=0.02, times=None)]) as server:
        storage = {"endpoint_url": server.endpoint, "region": "us-east-1", "key": "x", "secret": "y"}
        loaders = [
            js.open_loader(
                server.url,
                batch_size=BATCH,
                fields=("jpg",),
                seed=7,
                cache=js.CacheOptions(directory=str(folder / "flight"), min_free_bytes=0),
                options=js.LoaderOptions(threads=1, decode=False, prefetch=1),
                storage_options=storage,
            )
            for _ in range(2)
        ]
        threads = [threading.Thread(target=rate, args=(loader,)) for loader in loaders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stored = sum(request.key.endswith(".tar") for request in server.of("GET"))
        blocks = len(list((folder / "flight").rglob("*.raw")))
    print("\n### Two jobs at once on an empty cache, both reading everything\n")
    print(f"{stored} requests for shards, {blocks} blocks; the rows of the first batch are read singly by each job.")


def main() -> None:
    """Prepare, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    DATA.mkdir(exist_ok=True)
    prepare_data()
    source = js.open_dataset(str(DATA / "train"))
    folder = Path(tempfile.mkdtemp(prefix="cache-", dir=DATA))
    try:
        hit_rates(source.where(np.arange(NUM_PICTURES)), folder)
        decoded_rows(source.where(np.arange(NUM_PICTURES)), folder, options.rounds)
        raw_blocks(folder)
        single_flight(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show("")


if __name__ == "__main__":
    main()
