"""``janus-shards info``: what a data set holds, from its manifest alone."""

from collections.abc import Mapping

import click

from janus_shards.cli.options import shared_options
from janus_shards.cli.terminal import print_json, print_pairs, range_text, size_text
from janus_shards.format.manifest import Manifest
from janus_shards.reader import Dataset, open_dataset
from janus_shards.storage.urls import open_storage


@click.command("info")
@click.argument("root")
@shared_options
def command(*, root: str, storage: Mapping[str, object], as_json: bool) -> None:
    """Show what a data set holds."""
    dataset = open_dataset(root, storage_options=storage)
    # Touches nothing; a query string, which may be a signature, is left behind.
    url = open_storage(root).url
    if as_json:
        print_json(_document(url, dataset))
    else:
        elsewhere = [("shards at", dataset.url)] if dataset.url != url else []
        print_pairs(url, [*_pairs(dataset), *elsewhere])


def _document(url: str, dataset: Dataset) -> dict[str, object]:
    manifest = dataset.catalog.manifest
    rows, sizes = manifest.shard_rows().tolist(), manifest.shard_bytes().tolist()
    return {
        "url": url,
        "shards_url": dataset.url,
        "samples": len(dataset),
        "shards": len(rows),
        "bytes": sum(sizes),
        "index_bytes": _index_bytes(manifest),
        "fields": list(dataset.fields),
        "columns": dataset.columns,
        "shard_bytes": {"min": min(sizes, default=0), "max": max(sizes, default=0)},
        "shard_samples": {"min": min(rows, default=0), "max": max(rows, default=0)},
        "generation": manifest.generation,
        "fingerprint": dataset.fingerprint,
        "writer": manifest.writer,
    }


def _pairs(dataset: Dataset) -> list[tuple[str, str]]:
    manifest = dataset.catalog.manifest
    rows, sizes = sorted(manifest.shard_rows().tolist()), sorted(manifest.shard_bytes().tolist())
    each = f"{range_text([size_text(size) for size in sizes])}, {range_text([f'{n:,}' for n in rows])} samples"
    per_sample = _index_bytes(manifest) / max(len(dataset), 1)
    return [
        ("samples", f"{len(dataset):,}"),
        ("shards", f"{len(rows):,}, each {each}"),
        (
            "bytes",
            f"{size_text(sum(sizes))}, indexes {size_text(_index_bytes(manifest))} ({per_sample:.0f} B a sample)",
        ),
        ("fields", ", ".join(dataset.fields)),
        ("columns", ", ".join(f"{name} ({kind})" for name, kind in dataset.columns.items()) or "none"),
        ("generation", f"{manifest.generation}, written by {manifest.writer or 'an unknown program'}"),
        ("fingerprint", dataset.fingerprint),
    ]


def _index_bytes(manifest: Manifest) -> int:
    return sum(shard.index_bytes for shard in manifest.shards)
