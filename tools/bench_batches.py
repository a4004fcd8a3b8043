"""Measure planned batches and mixtures: padding, planning, steps. Prints Markdown; nothing is read.

``python tools/bench_batches.py [--quick]``. Lengths are drawn: captions from a log-normal (median 55 tokens, the
longest 1 % above 280), images with text as 576 tokens and a caption. Times are CPU seconds of one thread.
"""

import argparse
import resource
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from janus_shards.batching.buckets import Buckets
from janus_shards.batching.budget import TokenBudget
from janus_shards.batching.encoding import decode_plan, encode_plan
from janus_shards.batching.fixed import FixedSize
from janus_shards.batching.packing import Packing, best_fit
from janus_shards.batching.plan import MicroBatches
from janus_shards.batching.rule import BatchRule
from janus_shards.order.epoch import Order, OrderOptions, open_order
from janus_shards.order.mixture import Mixture
from janus_shards.order.mixture_order import SourceTable, open_mixture
from janus_shards.order.planned import PlannedEpoch, lane_rows
from janus_shards.order.serving import num_steps, rank_batches, rank_slots
from janus_shards.world import World

MAX_TOKENS = 8192
IMAGE_TOKENS = 576
ROWS_PER_SHARD = 10_000
WORLD_SIZE = 8

CAPTION_RULES: dict[str, BatchRule] = {
    "`TokenBudget(max_tokens=8192)`": TokenBudget(column="tokens", max_tokens=MAX_TOKENS),
    "`TokenBudget(..., pad_multiple=8)`": TokenBudget(column="tokens", max_tokens=MAX_TOKENS, pad_multiple=8),
    "`Packing(max_tokens=8192)`": Packing(column="tokens", max_tokens=MAX_TOKENS),
    "`Buckets(shapes=(32, 48, 64, ...))`": Buckets(
        column="tokens", shapes=(32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048), max_slots=MAX_TOKENS
    ),
    "`FixedSize(batch_size=128)`": FixedSize(column="tokens", batch_size=128),
}
IMAGE_RULES: dict[str, BatchRule] = {
    "`TokenBudget(max_tokens=8192, extra_tokens=576)`": TokenBudget(
        column="tokens", max_tokens=MAX_TOKENS, extra_tokens=IMAGE_TOKENS
    ),
    "`Packing(max_tokens=8192, extra_tokens=576)`": Packing(
        column="tokens", max_tokens=MAX_TOKENS, extra_tokens=IMAGE_TOKENS
    ),
}


def captions(count: int) -> NDArray[np.int64]:
    """Long-tailed lengths, in tokens."""
    lengths: NDArray[np.int64] = np.random.default_rng(0).lognormal(4, 0.7, count).clip(5, 2048).astype(np.int64)
    return lengths


def opened(rule: BatchRule, sizes: NDArray[np.int32]) -> Order:
    """The order of a data set with these lengths, its lanes cut for the rule."""
    rows = np.full(len(sizes) // ROWS_PER_SHARD, ROWS_PER_SHARD)
    return open_order(
        rows,
        rows * 75_000,
        OrderOptions(seed=1),
        costs=rule.weights(sizes),
        lane_cost=rule.lane_weight(sizes),
        batching=rule.describe(sizes),
    )


def planned(rule: BatchRule, lengths: NDArray[np.int64]) -> tuple[MicroBatches, PlannedEpoch, dict[str, float]]:
    """Plan and planned order of the first epoch, and the seconds that each part took."""
    seconds: dict[str, float] = {}

    def timed(name: str, action: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = action()
        seconds[name] = time.process_time() - start
        return result

    sizes = timed("sizes", lambda: rule.sizes({"tokens": lengths})).values
    epoch = timed("order", lambda: opened(rule, sizes).epoch(0))
    rows, borders = timed("rows", lambda: lane_rows(epoch))
    in_order = timed("lookup", lambda: sizes[rows])
    plan = timed("plan", lambda: rule.plan(in_order, borders))
    arrays = {"rows": plan.rows, "offsets": plan.offsets, "lanes": plan.lanes, "shapes": plan.shapes}
    return plan, timed("serve", lambda: PlannedEpoch(epoch, **arrays)), seconds


def fixed_waste(lengths: NDArray[np.int64], batch: int) -> float:
    """Padding of batches of neighbours, each padded to its longest row."""
    whole = lengths[: len(lengths) // batch * batch].reshape(-1, batch)
    return 1 - float(whole.sum()) / float(whole.max(axis=1).sum() * batch)


def fewest_bins(sizes: NDArray[np.int32], capacity: int) -> int:
    """A number of bins that no packing can go below.

    Source: dual feasible functions u(k), Fekete and Schepers, "New classes of lower bounds for bin packing problems",
    IPCO 1998.
    """
    counts = np.bincount(sizes)
    size = np.arange(len(counts))
    best = -(-int(sizes.sum(dtype=np.int64)) // capacity)
    for k in range(1, 65):
        scaled = (k + 1) * size
        value = np.where(scaled % capacity == 0, size / capacity, (scaled // capacity) / k)
        best = max(best, int(np.ceil((counts * value).sum() - 1e-6)))
    return best


def print_waste(num_rows: int) -> None:
    """One line a way to make batches of captions."""
    lengths = captions(num_rows)
    print(f"Captions: {num_rows:,} rows, mean {lengths.mean():.0f} tokens, longest {lengths.max():,}.\n")
    print("| batches | micro-batches | rows in one | padding | in the epoch's tail | lanes | lost by drop, 8 ranks |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    stored = fixed_waste(lengths, 128)
    epoch = opened(FixedSize(column="tokens", batch_size=128), lengths.astype(np.int32)).epoch(0)
    shuffled = fixed_waste(lengths[epoch.slots(0, num_rows).sample_ids], 128)
    for name, waste in (("128 rows, stored order", stored), ("128 rows, shuffled", shuffled)):
        print(f"| {name} | {num_rows // 128:,} | 128 | {waste:.1%} | | | |")
    for name, rule in CAPTION_RULES.items():
        plan, served, _ = planned(rule, lengths)
        print_plan(name, plan, served)


def print_plan(name: str, plan: MicroBatches, epoch: PlannedEpoch) -> None:
    """Its line of the table."""
    steps = num_steps(len(plan), batch=WORLD_SIZE, tail="drop")
    lost = len(plan) - steps * WORLD_SIZE
    rows = len(epoch.batches_at(np.arange(len(plan) - lost, len(plan))).slots)
    print(
        f"| {name} | {len(plan):,} | {len(plan.rows) / len(plan):.0f} | {plan.waste:.2%} | {plan.tail_share:.1%} "
        f"| {epoch.grid.num_lanes - 1} | {lost} micro-batches, {rows} rows |"
    )


def print_images(num_rows: int) -> None:
    """Images with text, beside what item sizes allow."""
    lengths = captions(num_rows)
    sizes = (lengths + IMAGE_TOKENS).astype(np.int32)
    bins = fewest_bins(sizes, MAX_TOKENS)
    bound = 1 - float(sizes.sum(dtype=np.int64)) / (bins * MAX_TOKENS)
    alike = 1 - MAX_TOKENS // sizes.mean() * sizes.mean() / MAX_TOKENS
    sample = np.sort(sizes[:20_000])[::-1]
    at_leisure = max(best_fit(sample.tolist(), capacity=MAX_TOKENS, open_bins=len(sample))[0]) + 1
    reached = 1 - float(sample.sum(dtype=np.int64)) / (at_leisure * MAX_TOKENS)
    print(f"\nImages with text: {num_rows:,} rows of 576 tokens and a caption, in {MAX_TOKENS:,} tokens.")
    print(f"No packing can leave less than {bound:.2%} empty. Best fit of the longest rows first, with all bins open,")
    print(f"leaves {reached:.2%} of 20,000 rows; rows that all had the mean size of {sizes.mean():.0f}, {alike:.2%}.\n")
    print("| batches | micro-batches | rows in one | padding | in the epoch's tail | lanes | lost by drop, 8 ranks |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    for name, rule in IMAGE_RULES.items():
        plan, served, _ = planned(rule, lengths)
        print_plan(name, plan, served)


def print_times(num_rows: int) -> None:
    """Seconds to plan an epoch, and milliseconds of a step."""
    lengths = captions(num_rows)
    print(f"\nPlanning an epoch of {num_rows:,} rows, in seconds; a step of one micro-batch on each of 8 ranks.\n")
    print(
        "| rule | open order | rows in lane order | plan | total | a row | file | write, read | a step, median "
        "| slowest of 300 | a step of 100 at once |\n|" + " --: |" * 11
    )
    rules = {**CAPTION_RULES, **IMAGE_RULES}
    for name, rule in rules.items():
        plan, epoch, seconds = planned(rule, lengths)
        start = time.process_time()
        data = encode_plan(plan, identity="bench")
        written = time.process_time()
        decode_plan(data, identity="bench", name="bench")
        read = time.process_time()
        steps = len(plan) // WORLD_SIZE
        rules_of_step = {"batch": WORLD_SIZE, "tail": "drop", "world": World(rank=3, world_size=WORLD_SIZE)}
        step = partial(rank_batches, epoch, **rules_of_step)  # type: ignore[arg-type]
        places = [WORLD_SIZE * (at * 7919 % steps) for at in range(300)]
        times = [_seconds(partial(step, position=at, steps=1)) for at in places]
        stretch = _seconds(partial(step, position=places[7] // 2 // 8 * 8, steps=100)) / 100
        # Looking up the lengths in the new order counts as planning.
        parts = [seconds["order"] + seconds["sizes"], seconds["rows"], seconds["lookup"] + seconds["plan"]]
        total = sum(seconds.values())
        print(
            f"| {name} | {parts[0]:.2f} | {parts[1]:.2f} | {parts[2]:.2f} | {total:.2f} "
            f"| {total / num_rows * 1e6:.2f} µs | {len(data) / 1e6:.0f} MB "
            f"| {written - start:.2f}, {read - written:.2f} | {median(times) * 1e3:.2f} ms "
            f"| {max(times) * 1e3:.2f} ms | {stretch * 1e3:.2f} ms |"
        )
    print(f"\nPeak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB.")


def print_mixtures(sizes: list[int]) -> None:
    """Opening, seeking and serving of mixtures, and how well shares hold."""
    print(
        "\n| samples of three sources | open | first batch, rank of 8 | seek, median | slowest | a row, 4,000 at once |"
    )
    print("|" + " --: |" * 6)
    for size in sizes:
        tables = []
        for share in (0.7, 0.25, 0.05):
            rows = np.full(max(4, int(size * share) // ROWS_PER_SHARD), ROWS_PER_SHARD)
            tables.append(SourceTable(shard_rows=rows, shard_bytes=rows * 75_000))
        mixture = Mixture({"a": 0.5, "b": 0.3, "c": 0.2})
        start = time.process_time()
        order = open_mixture(mixture, tables, OrderOptions(seed=1))
        opening = time.process_time() - start
        count = order.num_samples
        world = World(rank=1, world_size=WORLD_SIZE)
        first = _seconds(partial(rank_slots, order.epoch(1), position=0, steps=1, batch=256, tail="drop", world=world))
        epoch = order.epoch(2)
        epoch.slots(0, 256)
        places = [at * 7919 * 104_729 % (count - 256) for at in range(40)]
        seeks = [_seconds(partial(epoch.slots, at, at + 256)) for at in places]
        starts = range(count // 3, count // 3 + 400_000, 4000)
        row = _seconds(partial(_serve, epoch.slots, starts)) / 400_000
        print(
            f"| {count:,} | {opening:.2f} s | {first * 1e3:.0f} ms | {median(seeks) * 1e3:.1f} ms "
            f"| {max(seeks) * 1e3:.1f} ms | {row * 1e6:.2f} µs |"
        )
    print("\n| shares | batch of 64 off by | of 1,024 | of 64 from anywhere | of 1,024 from anywhere |")
    print("| --- | --: | --: | --: | --: |")
    for shares in ((0.7, 0.3), (0.5, 0.3, 0.2), (0.9, 0.1), (0.6, 0.25, 0.1, 0.05)):
        rows = np.full(100, ROWS_PER_SHARD)
        mixture = Mixture(dict(enumerate(shares)), samples_per_epoch=192 * 1024)
        tables = [SourceTable(shard_rows=rows, shard_bytes=rows * 75_000)] * len(shares)
        sources = open_mixture(mixture, tables).epoch(0).slots(0, 192 * 1024).sources
        found = [_off_by(sources, shares, batch, step) for step in (0, 1) for batch in (64, 1024)]
        print(f"| {', '.join(map(str, shares))} | " + " | ".join(f"{value:.1f}" for value in found) + " |")


def _serve(slots: Callable[[int, int], object], starts: range) -> None:
    for start in starts:
        slots(start, start + starts.step)


def _off_by(sources: NDArray[np.int64], shares: tuple[float, ...], batch: int, step: int) -> float:
    """Most samples that a source has too many or too few in a batch, from multiples of the batch or from anywhere."""
    worst = 0.0
    for source, share in enumerate(shares):
        before = np.append(0, np.cumsum(sources == source))
        starts = np.arange(0, len(sources) - batch + 1, step or batch)
        worst = max(worst, float(np.abs(before[starts + batch] - before[starts] - share * batch).max()))
    return worst


def _seconds(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, and no billion")
    quick = parser.parse_args().quick
    print_waste(200_000 if quick else 2_000_000)
    print_images(100_000 if quick else 1_000_000)
    print_times(1_000_000 if quick else 10_000_000)
    print_mixtures([10**6] if quick else [10**6, 10**8, 10**9])


if __name__ == "__main__":
    main()
