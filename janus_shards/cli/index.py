"""``janus-shards index``: tars that something else wrote become a data set."""

from collections.abc import Mapping, Sequence

import click

from janus_shards.cli.layout import inline_option, on_bad_option
from janus_shards.cli.options import shared_options, workers_option
from janus_shards.cli.progress import ProgressLine
from janus_shards.cli.terminal import count_text, print_json, printable, seconds_text, size_text, warn
from janus_shards.operations.index import IndexOptions, IndexReport, index_shards
from janus_shards.operations.scan import OnBad


@click.command("index")
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@click.option("--output", metavar="ROOT", help="Where indexes and manifest go; beside the shards when not given.")
@inline_option
@on_bad_option("Samples with a field twice or in several pieces end the run, or are left out and reported.")
@click.option("--resume", is_flag=True, help="Keep the indexes of an interrupted run that fit their shards.")
@click.option("--overwrite", is_flag=True, help="Replace indexes and manifest; shards are never touched.")
@workers_option
@shared_options
def command(
    *,
    urls: Sequence[str],
    output: str | None,
    inline: int,
    on_bad: OnBad,
    resume: bool,
    overwrite: bool,
    workers: int | None,
    storage: Mapping[str, object],
    as_json: bool,
) -> None:
    """Index existing tar shards where they lie.

    URL is a tar, a folder of tars, or a pattern such as 's3://bucket/{000000..000123}.tar' or 'shards/*.tar'. Each
    shard is read once and not changed.
    """
    options = IndexOptions(
        inline_bytes=inline,
        on_bad=on_bad,
        resume=resume,
        overwrite=overwrite,
        workers=workers,
    )
    with ProgressLine("index") as line:
        report = index_shards(urls, output=output, options=options, storage_options=storage, progress=line)
    for message in report.warnings:
        warn(message)
    if as_json:
        print_json(_document(report))
    else:
        _print(output, report)


def _document(report: IndexReport) -> dict[str, object]:
    manifest = report.manifest
    return {
        "samples": manifest.num_samples,
        "shards": len(manifest.shards),
        "bytes": sum(shard.tar_bytes for shard in manifest.shards),
        "indexed": report.num_indexed,
        "kept": report.num_kept,
        "bytes_read": report.num_bytes,
        "links": report.num_links,
        "ignored": report.num_ignored,
        "skipped": report.num_skipped,
        "skipped_samples": [sample._asdict() for sample in report.skipped],
        "seconds": report.seconds,
        "fields": list(manifest.fields),
        "generation": manifest.generation,
        "fingerprint": manifest.fingerprint(),
        "warnings": list(report.warnings),
    }


def _print(output: str | None, report: IndexReport) -> None:
    shards = count_text(len(report.manifest.shards), "shard")
    kept = f" ({report.num_kept} kept from before)" if report.num_kept else ""
    where = f"{printable(output)}: " if output else ""
    click.echo(
        f"{where}{count_text(report.manifest.num_samples, 'sample')} in {shards}{kept}, read "
        f"{size_text(report.num_bytes)}, {seconds_text(report.seconds)}"
    )
