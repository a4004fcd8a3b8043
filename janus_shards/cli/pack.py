"""``janus-shards pack``: files become a data set."""

from collections.abc import Mapping, Sequence
from typing import Literal

import click

from janus_shards.cli.options import names, shared_options, size, size_or_off, workers_option
from janus_shards.cli.progress import ProgressLine
from janus_shards.cli.terminal import count_text, print_json, printable, seconds_text, size_text, warn
from janus_shards.operations.pack import PackOptions, PackReport, pack
from janus_shards.operations.sources import DotRule
from janus_shards.operations.tables import TABLE_SUFFIXES, TableColumns
from janus_shards.writer.shard import ShardLayout

_LAYOUT = ShardLayout()


@click.command("pack")
@click.argument("source")
@click.argument("root")
@click.option("--image-column", metavar="NAME", help="Table: column with the path of a picture.")
@click.option("--text-column", metavar="NAME", help="Table: column that becomes the field txt.")
@click.option("--key-column", metavar="NAME", help="Table: column with the keys; without it, rows are numbered.")
@click.option(
    "--json-columns",
    metavar="NAMES",
    callback=names,
    help="Table: columns that become the field json; * takes all others.",
)
@click.option(
    "--on-bad",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="Table: rows that cannot be packed end the run, or are left out and reported.",
)
@click.option("--allow-missing", is_flag=True, help="Folder: samples may have different fields.")
@click.option(
    "--dots",
    type=click.Choice(["field", "replace"]),
    default="field",
    show_default=True,
    help="Folder: a.b.jpg is field b.jpg of key a, or field jpg of key a_b.",
)
@click.option("--prefix", default=_LAYOUT.prefix, show_default=True, help="Shards are called PREFIX-000000.tar etc.")
@click.option(
    "--shard-size",
    metavar="SIZE",
    callback=size,
    default=f"{_LAYOUT.max_shard_bytes >> 20}MiB",
    show_default=True,
    help="Largest size of a shard.",
)
@click.option("--max-samples", type=click.IntRange(min=1), metavar="N", help="Most samples of a shard.")
@click.option(
    "--inline",
    metavar="SIZE",
    callback=size_or_off,
    default=f"{_LAYOUT.inline_bytes >> 10}KiB",
    show_default=True,
    help="Keep smaller values, such as captions, in the index as well; 0 keeps none.",
)
@click.option("--resume", is_flag=True, help="Keep the whole shards of an interrupted run, write the others.")
@click.option("--overwrite", is_flag=True, help="Replace the data set that is there.")
@workers_option
@shared_options
def command(
    *,
    source: str,
    root: str,
    image_column: str | None,
    text_column: str | None,
    key_column: str | None,
    json_columns: Sequence[str] | None,
    on_bad: Literal["raise", "skip"],
    allow_missing: bool,
    dots: DotRule,
    prefix: str,
    shard_size: int,
    max_samples: int | None,
    inline: int,
    resume: bool,
    overwrite: bool,
    workers: int | None,
    storage: Mapping[str, object],
    as_json: bool,
) -> None:
    """Pack a folder or a table into shards.

    SOURCE is a folder, whose files of one stem are one sample (photo.jpg, photo.txt), or a table: .csv, .tsv, .jsonl or
    .parquet.    ROOT is the folder or URL to write to.
    """
    columns = None
    if image_column or text_column or json_columns:
        columns = TableColumns(
            image=image_column,
            text=text_column,
            key=key_column,
            json=json_columns or (),
            on_bad=on_bad,
        )
    _check_fit(source, has_columns=bool(columns or key_column or on_bad != "raise"))
    options = PackOptions(
        layout=ShardLayout(prefix=prefix, max_shard_bytes=shard_size, max_samples=max_samples, inline_bytes=inline),
        resume=resume,
        overwrite=overwrite,
        allow_missing=allow_missing,
        dots=dots,
        workers=workers,
    )
    with ProgressLine("pack") as line:
        report = pack(source, root, columns=columns, options=options, storage_options=storage, progress=line)
    for message in report.warnings:
        warn(message)
    if as_json:
        print_json(_document(root, report))
    else:
        _print(root, report)


def _check_fit(source: str, *, has_columns: bool) -> None:
    if has_columns and not source.lower().endswith(TABLE_SUFFIXES):
        raise click.UsageError(f"{source} is no table ({', '.join(TABLE_SUFFIXES)}), so it has no columns and rows")


def _document(root: str, report: PackReport) -> dict[str, object]:
    return {
        "root": root,
        "samples": report.num_samples,
        "shards": len(report.manifest.shards),
        "bytes": report.num_bytes,
        "written": report.num_written,
        "kept": report.num_kept,
        "skipped": report.num_skipped,
        "skipped_rows": list(report.skipped),
        "seconds": report.seconds,
        "fields": list(report.manifest.fields),
        "columns": dict(report.manifest.columns),
        "generation": report.manifest.generation,
        "fingerprint": report.manifest.fingerprint(),
        "warnings": list(report.warnings),
    }


def _print(root: str, report: PackReport) -> None:
    shards = count_text(len(report.manifest.shards), "shard")
    kept = f" ({report.num_kept} kept from before)" if report.num_kept else ""
    click.echo(
        f"{printable(root)}: {count_text(report.num_samples, 'sample')} in {shards}{kept}, "
        f"{size_text(report.num_bytes)}, {seconds_text(report.seconds)}"
    )
