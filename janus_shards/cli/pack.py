"""``janus-shards pack``: files become a data set."""

from collections.abc import Mapping, Sequence
from typing import Literal

import click

from janus_shards.cli.layout import existing_options, layout_options, on_bad_option
from janus_shards.cli.options import names, shared_options, workers_option
from janus_shards.cli.progress import ProgressLine
from janus_shards.cli.terminal import count_text, print_json, printable, seconds_text, size_text, warn
from janus_shards.operations.pack import PackOptions, PackReport, pack
from janus_shards.operations.sources import DotRule
from janus_shards.operations.tables import TABLE_SUFFIXES, TableColumns
from janus_shards.writer.shard import ShardLayout


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
@on_bad_option("Table: rows that cannot be packed end the run, or are left out and reported.")
@click.option("--allow-missing", is_flag=True, help="Folder: samples may have different fields.")
@click.option(
    "--dots",
    type=click.Choice(["field", "replace"]),
    default="field",
    show_default=True,
    help="Folder: a.b.jpg is field b.jpg of key a, or field jpg of key a_b.",
)
@layout_options
@existing_options
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
    resume: bool,
    overwrite: bool,
    workers: int | None,
    layout: ShardLayout,
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
        layout=layout,
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
