"""Speed of the main job beside webdataset and a bare loop, in one run, the cases interleaved; prints Markdown tables.

``make bench``, or ``python tools/bench.py --rounds 5``. Data and peers are made once, in ``bench-data/`` and
``.venv-bench/``. Medians over the rounds are shown; ratios are taken between medians of the same run.
"""

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "bench-data"
PEERS = ROOT / ".venv-bench"
CASES = ROOT / "tools" / "bench_cases.py"
NUM_PHOTOS = 4000

Figures = dict[str, float]


def run(*command: str | Path) -> str:
    """Standard output of a command that must succeed."""
    return subprocess.run(
        [str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ).stdout


def prepare_data() -> None:
    """Make the photographs, a data set of them, and the same in 1,000 shards."""
    corpus = DATA / "photos"
    if not corpus.exists():
        run(sys.executable, "tools/make_corpus.py", corpus.with_suffix(".part"), "--count", str(NUM_PHOTOS))
        corpus.with_suffix(".part").rename(corpus)
    for name, flags in (("train", ["--shard-size", "64MiB"]), ("thousand", ["--max-samples", "4"])):
        if not (DATA / name / "manifest.msgpack").exists():
            run(Path(sys.executable).parent / "janus-shards", "pack", corpus, DATA / name, *flags, "--overwrite")


def prepare_peers() -> Path:
    """The interpreter of the peers' own environment."""
    python = PEERS / "bin" / "python"
    if not (PEERS / ".stamp").exists():
        run(sys.executable, "-m", "venv", PEERS)
        run("tools/install_torch.sh", python)
        run(python, "-m", "pip", "install", "--quiet", "webdataset>=1.0", "pillow", "numpy")
        (PEERS / ".stamp").touch()
    return python


def measure(python: Path, case: str, root: Path, *flags: str | Path) -> Figures:
    """One run of one case in a process of its own."""
    figures: Figures = json.loads(run(python, CASES, case, root, *flags).splitlines()[-1])
    return figures


def compare(rows: Sequence[tuple[str, Path, str]], root: Path, rounds: int, *, writes: bool = False) -> list[Figures]:
    """Medians of each case, measured in turn."""
    found: list[list[Figures]] = [[] for _ in rows]
    for number in range(rounds):
        for at, (_, python, case) in enumerate(rows):
            show(f"round {number + 1} of {rounds}: {case}")
            out = DATA / "written"
            shutil.rmtree(out, ignore_errors=True)
            flags = ["--out", out] if writes else ["--repeat", "5"] if case.endswith("-raw") else []
            found[at].append(measure(python, case, root, *flags))
            shutil.rmtree(out, ignore_errors=True)
    return [median(figures) for figures in found]


def median(runs: list[Figures]) -> Figures:
    """Median of each figure over the rounds."""
    return {name: statistics.median(figures[name] for figures in runs) for name in runs[0]}


def table(title: str, rows: Sequence[tuple[str, Path, str]], figures: list[Figures]) -> None:
    """Print one comparison; the ratio is to the first row's rate."""
    print(f"\n### {title}\n\n| | samples/s | CPU ms/sample | first batch s | first row is |\n|---|--:|--:|--:|--:|")
    rates = [each["samples"] / each["wall_s"] for each in figures]
    for (name, _, _), each, rate in zip(rows, figures, rates, strict=True):
        cpu = each["cpu_s"] / each["samples"] * 1e3
        print(f"| {name} | {rate:,.0f} | {cpu:.3f} | {each['first_batch_s']:.2f} | {rates[0] / rate:.2f} × |")


def opening(rounds: int) -> None:
    """Time from a fresh interpreter's import to the first batch of a data set of 1,000 shards."""
    script = (
        "import sys, time, janus_shards as js; import torch; began = time.perf_counter();"
        "loader = js.open_loader(sys.argv[1], batch_size=32, fields=('jpg', 'txt'),"
        "transform={'jpg': js.ImageTransform(size=384)}); next(iter(loader)); print(time.perf_counter() - began)"
    )
    times = [float(run(sys.executable, "-c", script, DATA / "thousand")) for _ in range(rounds)]
    print("\n### Opening 1,000 local shards to the first decoded batch of 32\n")
    print(f"median {statistics.median(times):.2f} s, best {min(times):.2f} s")


def show(text: str) -> None:
    """Progress, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def main() -> None:
    """Prepare, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    DATA.mkdir(exist_ok=True)
    prepare_data()
    ours, theirs = Path(sys.executable), prepare_peers()
    print(
        f"{time.strftime('%Y-%m-%d')}, {platform.processor() or platform.machine()}, Python {platform.python_version()}"
    )
    decode = [
        ("janus-shards, exact", ours, "janus-decode"),
        ("bare loop, 2 threads", ours, "bare-decode"),
        ("webdataset + Pillow, 2 workers", theirs, "webdataset-decode"),
    ]
    train = DATA / "train"
    table("Cold decode to 384×384 uint8, batches of 32", decode, compare(decode, train, options.rounds))
    raw = [
        ("janus-shards, 1 process", ours, "janus-raw"),
        ("webdataset, 2 workers", theirs, "webdataset-raw"),
    ]
    table("Stored bytes, page cache, best of 5 epochs", raw, compare(raw, train, options.rounds))
    pack = [
        ("janus-shards ShardWriter, with index", ours, "janus-pack"),
        ("webdataset ShardWriter", theirs, "webdataset-pack"),
    ]
    table("Writing shards, 1 process", pack, compare(pack, DATA / "photos", options.rounds, writes=True))
    opening(options.rounds)
    print("\n### Order\n")
    print(run(sys.executable, "tools/bench_order.py"))
    show("")


if __name__ == "__main__":
    main()
