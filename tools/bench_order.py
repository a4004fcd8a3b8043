"""Measure the order of samples: opening, seeking, laying out, and how well class-sorted data mixes. Prints Markdown.

``python tools/bench_order.py [--quick]``. Each size is measured in a process of its own, for its peak memory. Synthetic
shard tables; nothing is read.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
from numpy.typing import NDArray

from janus_shards.order.epoch import OrderOptions, open_order
from janus_shards.order.serving import rank_slots
from janus_shards.world import World

MEAN_BYTES = 75_000
SIZES = {4_000: 4, 200_000: 200, 10_000_000: 1_000, 1_000_000_000: 100_000}  # samples -> shards
WORLD = World(rank=1, world_size=8)


def shard_table(num_samples: int, num_shards: int) -> NDArray[np.int64]:
    """Rows of each shard: around the mean, none like its neighbours."""
    mean = num_samples // num_shards
    rows = mean + (np.arange(num_shards) * 7919) % (mean // 5 + 1) - mean // 10
    rows[-1] += num_samples - rows.sum()
    return rows


def timed(action: Callable[[], object]) -> float:
    """Seconds that an action takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure(num_samples: int) -> dict[str, float]:
    """All figures of one size, in this process."""
    rows = shard_table(num_samples, SIZES[num_samples])
    shard_bytes = rows * MEAN_BYTES
    open_order(np.array([5000]), np.array([5000]))  # what NumPy loads at first use is not the order's
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    order = open_order(rows, shard_bytes, OrderOptions(seed=1))
    out = {"open_s": time.perf_counter() - start, "lanes": order.num_lanes, "block_rows": order.block_rows}
    batch = min(256, num_samples)
    rules = {"steps": 1, "batch": batch}
    mine = order.epoch(1)
    out["first_rank_s"] = timed(lambda: rank_slots(mine, position=0, tail="drop", world=WORLD, **rules))
    epoch = order.epoch(2)
    out["first_global_s"] = timed(lambda: epoch.slots(num_samples // 2, num_samples // 2 + batch))
    places = (np.arange(200) * 7919 * 104_729) % (num_samples - batch + 1)
    seeks = [timed(partial(epoch.slots, at, at + batch)) for at in places.tolist()]
    out["seek_s"], out["slowest_seek_s"] = median(seeks), max(seeks)
    chunk = min(4000, num_samples)
    starts = range(0, min(num_samples - chunk, 400_000) + 1, chunk)
    out["row_s"] = timed(lambda: [epoch.slots(at, at + chunk) for at in starts]) / (len(starts) * chunk)
    out["peak_mb"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return out


def print_sizes(sizes: list[int]) -> None:
    """One line a size."""
    columns = ["samples", "shards", "lanes", "block rows", "open", "peak memory", "first batch, rank of 8"]
    columns += ["first batch, all lanes", "seek, median", "seek, slowest", "a row, in chunks of 4,000"]
    print("| " + " | ".join(columns) + " |\n|" + " --: |" * len(columns))
    for size in sizes:
        command = [sys.executable, __file__, "--size", str(size)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(
            f"| {size:,} | {SIZES[size]:,} | {found['lanes']} | {found['block_rows']} "
            f"| {found['open_s'] * 1e3:,.1f} ms | {found['peak_mb']:,.0f} MB "
            f"| {found['first_rank_s'] * 1e3:.1f} ms | {found['first_global_s'] * 1e3:.1f} ms "
            f"| {found['seek_s'] * 1e3:.2f} ms | {found['slowest_seek_s'] * 1e3:.2f} ms "
            f"| {found['row_s'] * 1e6:.2f} µs |"
        )


def chi2(ids: NDArray[np.int64], *, batch: int = 256, num_classes: int = 100) -> float:
    """Mean chi²/dof of the classes in a batch, for data sorted by class; 1.0 is a full shuffle."""
    batches = len(ids) // batch
    classes = ids[: batches * batch] * num_classes // len(ids)
    cells = np.repeat(np.arange(batches), batch) * num_classes + classes
    counts = np.bincount(cells, minlength=batches * num_classes)
    expected = batch / num_classes
    return float(((counts - expected) ** 2 / expected).sum() / batches / (num_classes - 1))


def buffered(shards: list[NDArray[np.int64]], *, buffer: int, seed: int) -> NDArray[np.int64]:
    """webdataset's way: shards permuted, then a buffer from which a random sample leaves for each that comes."""
    rng = np.random.default_rng(seed)
    stream = np.concatenate([shards[i] for i in rng.permutation(len(shards))])
    held, out = stream[:buffer].copy(), []
    for sample, at in zip(stream[buffer:], rng.integers(buffer, size=len(stream) - buffer), strict=True):
        out.append(held[at])
        held[at] = sample
    return np.concatenate([np.array(out, np.int64), rng.permutation(held)])


def print_quality(num_seeds: int) -> None:
    """One line a way to shuffle, on 200 shards of 1,000 rows."""
    rows = np.full(200, 1000)
    options = {
        "`shuffle=True` (192 lanes, blocks of 32 rows)": OrderOptions(),
        "`window=2`": OrderOptions(window=2),
        "`window=4`": OrderOptions(window=4),
        '`lanes="mixed"`': OrderOptions(lanes="mixed"),
        "`lanes=64`": OrderOptions(lanes=64),
        '`shuffle="full"`': OrderOptions(shuffle="full"),
    }
    print("\n| shuffle | rows in open windows | chi²/dof, mean | least | most |\n| --- | --: | --: | --: | --: |")
    for name, choice in options.items():
        found = []
        for seed in range(num_seeds):
            changed = OrderOptions(seed=seed, shuffle=choice.shuffle, lanes=choice.lanes, window=choice.window)
            order = open_order(rows, rows * MEAN_BYTES, changed)
            found += [chi2(order.epoch(epoch).slots(0, 200_000).sample_ids) for epoch in range(3)]
        window = order.num_lanes * order.block_rows * choice.window if choice.shuffle is True else 0
        print(f"| {name} | {window:,} | {np.mean(found):.2f} | {min(found):.2f} | {max(found):.2f} |")
    shards = np.split(np.arange(200_000), 200)
    for buffer in (1000, 8192):
        found = [chi2(buffered(shards, buffer=buffer, seed=seed)) for seed in range(3)]
        print(f"| buffer of {buffer:,} | {buffer:,} | {np.mean(found):.2f} | {min(found):.2f} | {max(found):.2f} |")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="leave out the billion")
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.size:
        print(json.dumps(measure(arguments.size)))
        return
    print_sizes(list(SIZES)[: -1 if arguments.quick else None])
    print_quality(2 if arguments.quick else 10)


if __name__ == "__main__":
    main()
