"""``janus-shards stream``: read a data set as training would, and say what that took."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import click

from janus_shards.cache.base import CacheOptions
from janus_shards.cli.options import extent, names, rank_of_world, shared_options
from janus_shards.cli.options import size as size_option
from janus_shards.cli.progress import ProgressLine
from janus_shards.cli.terminal import print_json, print_table, printable, seconds_text, size_text
from janus_shards.decode.image import ImageTransform
from janus_shards.errors import ConfigError
from janus_shards.operations.sources import is_image
from janus_shards.pipeline.bad_samples import BadSamples
from janus_shards.pipeline.loader import Loader, build_loader
from janus_shards.pipeline.options import LoaderOptions
from janus_shards.reader import open_dataset
from janus_shards.world import World

_OPTIONS = LoaderOptions()
_SHUFFLES: Mapping[str, Literal[True, "full"] | None] = {"true": True, "full": "full", "none": None}


@click.command("stream")
@click.argument("root")
@click.option("--fields", metavar="NAMES", callback=names, help="Fields to read, such as jpg,txt; all when not given.")
@click.option(
    "--size",
    metavar="SIDE|HxW",
    callback=extent,
    help="Decode pictures and resize them; without it, bytes stay as stored.",
)
@click.option(
    "--fit",
    type=click.Choice(["pad", "crop", "stretch"]),
    default=ImageTransform.fit,
    show_default=True,
    help="How a picture meets the size.",
)
@click.option(
    "--engine",
    type=click.Choice(["exact", "pillow"]),
    default=ImageTransform.engine,
    show_default=True,
    help="exact is torch's fast kernel, pillow is bit for bit Pillow's.",
)
@click.option(
    "--batch-size", type=click.IntRange(min=1), default=32, show_default=True, help="Samples a rank and step."
)
@click.option("--epochs", type=click.IntRange(min=1), default=1, show_default=True, help="Passes over the data.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Batches of each epoch, at most.")
@click.option(
    "--world",
    metavar="RANK/SIZE",
    callback=rank_of_world,
    help="Which rank of how many; else from torchrun or Slurm, else 0/1.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the order.")
@click.option(
    "--shuffle",
    type=click.Choice(list(_SHUFFLES)),
    default="true",
    show_default=True,
    help="true: by blocks; full: one permutation of all samples; none: as stored.",
)
@click.option(
    "--tail",
    type=click.Choice(["drop", "pad", "uneven"]),
    default=_OPTIONS.tail,
    show_default=True,
    help="Samples that fill no whole step: left out, filled up with repeats, or a shorter batch.",
)
@click.option(
    "--on-missing",
    type=click.Choice(["raise", "none"]),
    default=_OPTIONS.on_missing,
    show_default=True,
    help="Samples that lack a field: an error, or an empty place.",
)
@click.option(
    "--on-bad",
    type=click.Choice(["raise", "skip", "substitute"]),
    default=BadSamples.policy,
    show_default=True,
    help="Samples that cannot be decoded: an error, an empty place, or the next good one.",
)
@click.option("--max-bad", type=click.IntRange(min=0), metavar="N", help="Bad samples before giving up.")
@click.option("--bad-report", metavar="FILE", help="Write a line of JSON for each bad sample.")
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Decoding threads; by default one a core.")
@click.option(
    "--prefetch",
    type=click.IntRange(min=1),
    metavar="N",
    default=_OPTIONS.prefetch,
    show_default=True,
    help="Batches made ahead.",
)
@click.option("--cache", metavar="DIR", help="Folder on a local SSD that keeps what was read for later epochs.")
@click.option(
    "--cache-size", metavar="SIZE", callback=size_option, default="100GB", show_default=True, help="Budget on disk."
)
@click.option("--decoded", is_flag=True, help="Cache decoded and resized pictures as well.")
@shared_options
def command(
    *,
    root: str,
    fields: Sequence[str] | None,
    size: int | tuple[int, int] | None,
    fit: Literal["pad", "crop", "stretch"],
    engine: Literal["exact", "pillow"],
    batch_size: int,
    epochs: int,
    limit: int | None,
    world: World | None,
    seed: int,
    shuffle: str,
    tail: Literal["drop", "pad", "uneven"],
    on_missing: Literal["raise", "none"],
    on_bad: Literal["raise", "skip", "substitute"],
    max_bad: int | None,
    bad_report: str | None,
    threads: int | None,
    prefetch: int,
    cache: str | None,
    cache_size: int,
    decoded: bool,
    storage: Mapping[str, object],
    as_json: bool,
) -> None:
    """Stream batches and measure.

    Reads the data set at ROOT as training would, and drops the batches. With --size, pictures are decoded and resized;
    without it, fields are delivered as they are stored.
    """
    started = time.perf_counter()
    dataset = open_dataset(root, storage_options=storage)
    transform = None
    if size is not None:
        transform = _transforms(fields or dataset.fields, ImageTransform(size=size, fit=fit, engine=engine))
    loader = build_loader(
        dataset,
        batch_size=batch_size,
        global_batch_size=None,
        fields=fields,
        transform=transform,
        shuffle=_SHUFFLES[shuffle],
        seed=seed,
        cache=_cache(cache, cache_size, decoded=decoded),
        world=world or World.from_env(),
        options=LoaderOptions(
            decode=size is not None,
            tail=tail,
            on_missing=on_missing,
            on_bad=BadSamples(policy=on_bad, max_total=max_bad, report=bad_report),
            threads=threads,
            prefetch=prefetch,
        ),
        storage_options=None,
    )
    with loader, ProgressLine("stream") as line:
        run = _stream(loader, epochs, limit, line, started)
    if as_json:
        print_json(_document(loader, run))
    else:
        _print(loader, run)


def _cache(directory: str | None, max_bytes: int, *, decoded: bool) -> CacheOptions | None:
    if directory is not None:
        return CacheOptions(directory=directory, max_bytes=max_bytes, decoded=decoded)
    if decoded:
        raise ConfigError("--decoded: expected --cache DIR as well, the folder to keep decoded pictures in")
    return None


def _transforms(fields: Sequence[str], transform: ImageTransform) -> dict[str, ImageTransform]:
    pictures = {name: transform for name in fields if is_image(name)}
    if not pictures:
        raise ConfigError(f"--size: expected a field with pictures, found {', '.join(fields)}")
    return pictures


class _Store(TypedDict):
    requests: int
    bytes: int


class _Epoch(TypedDict):
    """One epoch as ``Loader.stats`` and ``--json`` show it."""

    epoch: int
    samples: int
    batches: int
    seconds: float
    first_batch_s: float | None
    samples_per_s: float
    cache: dict[str, float]
    store: _Store
    ledger: dict[str, float]
    keys_sha256: str


@dataclass
class _Run:
    """What was streamed.

    Attributes:
        epochs: One entry an epoch.
        first_batch_s: From the start of the command's work, opening included.
        seconds: The same to its end.
        bad: Bad samples ``skipped`` and ``substituted``.
        keys_sha256: Of all keys in the order of delivery, each with a line end behind it.
    """

    epochs: list[_Epoch] = field(default_factory=list)
    first_batch_s: float | None = None
    seconds: float = 0.0
    bad: dict[str, int] = field(default_factory=dict)
    keys_sha256: str = ""


def _stream(loader: Loader, epochs: int, limit: int | None, line: ProgressLine, started: float) -> _Run:
    run, every_key = _Run(), hashlib.sha256()
    for number in range(epochs):
        keys = hashlib.sha256()
        line.begin(f"epoch {number + 1}/{epochs}", min(len(loader), limit or len(loader)))
        for done, batch in enumerate(loader, start=1):
            if run.first_batch_s is None:
                run.first_batch_s = time.perf_counter() - started
            lines = "".join(f"{key}\n" for key in batch.keys).encode("utf-8", "surrogateescape")
            keys.update(lines)
            every_key.update(lines)
            if line.is_due:
                _show(line, done, min(len(loader), limit or len(loader)), loader)
            if done == limit:
                break
        run.epochs.append(_epoch(loader, keys.hexdigest()))
    run.seconds, run.keys_sha256 = time.perf_counter() - started, every_key.hexdigest()
    stats: Any = loader.stats()
    run.bad = stats["bad"]
    return run


def _epoch(loader: Loader, keys_sha256: str) -> _Epoch:
    stats: Any = loader.stats()
    return {
        "epoch": stats["epoch"],
        "samples": stats["samples"],
        "batches": stats["batches"],
        "seconds": stats["seconds"],
        "first_batch_s": stats["first_batch_s"],
        "samples_per_s": stats["samples_per_s"],
        "cache": stats["cache"],
        "store": stats["store"],
        "ledger": stats["ledger"],
        "keys_sha256": keys_sha256,
    }


def _show(line: ProgressLine, done: int, total: int, loader: Loader) -> None:
    epoch = _epoch(loader, "")
    rate = size_text(epoch["store"]["bytes"] / max(epoch["seconds"], 1e-3))
    line.show(done, total, f"{epoch['samples_per_s']:,.0f} samples/s  {rate}/s")


def _document(loader: Loader, run: _Run) -> dict[str, object]:
    """Totals, and the same for each epoch."""
    hits, misses = (_sum(run, "cache", name) for name in ("hits", "misses"))
    busy = sum(epoch["seconds"] for epoch in run.epochs)
    samples = sum(epoch["samples"] for epoch in run.epochs)
    return {
        "url": loader.dataset.url,
        **{name.replace(" ", "_"): value for name, value in loader.identity.items()},
        "samples": samples,
        "batches": sum(epoch["batches"] for epoch in run.epochs),
        "epochs": run.epochs,
        "seconds": run.seconds,
        "first_batch_s": run.first_batch_s,
        "samples_per_s": samples / busy if busy else 0.0,
        "cache": {
            "hits": hits,
            "misses": misses,
            "hit_rate": hits / (hits + misses) if hits + misses else 0.0,
            "bytes": run.epochs[-1]["cache"]["bytes"],
        },
        "store": {name: _sum(run, "store", name) for name in ("requests", "bytes")},
        "ledger": {name: _sum(run, "ledger", name) for name in run.epochs[0]["ledger"]},
        "bad": run.bad,
        "keys_sha256": run.keys_sha256,
    }


def _sum(run: _Run, group: Literal["cache", "store", "ledger"], name: str) -> float:
    groups: list[Mapping[str, Any]] = [epoch[group] for epoch in run.epochs]
    return sum(float(values[name]) if group == "ledger" else values[name] for values in groups)


def _print(loader: Loader, run: _Run) -> None:
    click.echo(click.style(printable(loader.dataset.url), bold=True))
    # Both would be wider than 80 columns.
    last = "cached" if any(epoch["cache"]["bytes"] for epoch in run.epochs) else "requests"
    header = ("epoch", "samples", "batches", "seconds", "samples/s", "first batch", "read", last)
    print_table(header, [_row(epoch, last) for epoch in run.epochs])
    ledger = {name: _sum(run, "ledger", name) for name in run.epochs[0]["ledger"]}
    wall_s = ledger.pop("wall_s")
    shares = sorted(((seconds, name) for name, seconds in ledger.items() if seconds >= 0.005 * wall_s), reverse=True)
    parts = ", ".join(f"{name.removesuffix('_s')} {seconds / wall_s:.0%}" for seconds, name in shares)
    click.echo(f"time   {parts or 'none'}")
    if any(run.bad.values()):
        click.echo(f"bad    {', '.join(f'{count:,} {what}' for what, count in run.bad.items())}")
    click.echo(f"total  {seconds_text(run.seconds)} with opening; keys sha256 {run.keys_sha256[:16]}…")


def _row(epoch: _Epoch, last: str) -> tuple[str, ...]:
    return (
        str(epoch["epoch"]),
        f"{epoch['samples']:,}",
        f"{epoch['batches']:,}",
        f"{epoch['seconds']:.2f}",
        f"{epoch['samples_per_s']:,.0f}",
        "-" if epoch["first_batch_s"] is None else f"{epoch['first_batch_s']:.2f} s",
        size_text(epoch["store"]["bytes"]),
        f"{epoch['cache']['hit_rate']:.0%}" if last == "cached" else f"{epoch['store']['requests']:,}",
    )
