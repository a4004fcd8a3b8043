"""``janus-shards ls``: samples and the sizes of their fields."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import click

from janus_shards.cli.options import shared_options
from janus_shards.cli.terminal import print_json, printable, size_text
from janus_shards.operations.listing import ListedSample, list_samples
from janus_shards.reader import open_dataset

# Lines that are aligned with each other; a long listing shows its first lines at once.
_PAGE_LINES = 1000


@click.command("ls")
@click.argument("root")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    metavar="N",
    show_default=True,
    help="Samples to list; 0 lists all.",
)
@click.option(
    "--start", type=click.IntRange(min=0), default=0, metavar="ID", show_default=True, help="First sample id."
)
@shared_options
def command(*, root: str, limit: int, start: int, storage: Mapping[str, object], as_json: bool) -> None:
    """List samples and the sizes of their fields.

    Each line has the sample id, the key and the fields.
    """
    dataset = open_dataset(root, storage_options=storage)
    samples = list_samples(dataset, start=start, stop=start + limit if limit else None)
    if as_json:
        print_json([_document(sample) for sample in samples])
        return
    for page in _pages(samples):
        _print(page)
    more = len(dataset) - start - limit
    if limit and more > 0 and sys.stdout.isatty():
        click.echo(f"… and {more:,} more (--start {start + limit}, or --limit 0 for all)", err=True)


def _document(sample: ListedSample) -> dict[str, object]:
    return {"sample_id": sample.sample_id, "key": sample.key, "shard": sample.shard, "fields": dict(sample.fields)}


def _pages(samples: Iterator[ListedSample]) -> Iterator[list[ListedSample]]:
    while page := list(islice(samples, _PAGE_LINES)):
        yield page


def _print(page: Sequence[ListedSample]) -> None:
    lines = [_cells(sample) for sample in page]
    widths = [max(map(len, column)) for column in zip(*(line[:2] for line in lines), strict=True)]
    for number, key, fields in lines:
        click.echo(f"{number.rjust(widths[0])}  {key.ljust(widths[1])}  {fields}".rstrip())


def _cells(sample: ListedSample) -> tuple[str, str, str]:
    fields = "  ".join(f"{printable(name)} {size_text(size):>7}" for name, size in sample.fields.items())
    return str(sample.sample_id), printable(sample.key), fields
