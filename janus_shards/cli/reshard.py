"""``janus-shards reshard``: existing shards become a data set of other shards."""

from collections.abc import Mapping, Sequence

import click

from janus_shards.cli.layout import existing_options, layout_options, on_bad_option
from janus_shards.cli.options import shared_options
from janus_shards.cli.progress import ProgressLine
from janus_shards.cli.terminal import count_text, print_json, printable, seconds_text, size_text, warn
from janus_shards.operations.reshard import ReshardOptions, ReshardReport, reshard
from janus_shards.operations.scan import OnBad
from janus_shards.writer.shard import ShardLayout


@click.command("reshard")
@click.argument("sources", metavar="IN...", nargs=-1, required=True)
@click.argument("root", metavar="OUT")
@layout_options
@on_bad_option("Samples with a field twice, in several pieces, damaged or with names that cannot be written.")
@existing_options
@shared_options
def command(
    *,
    sources: Sequence[str],
    root: str,
    on_bad: OnBad,
    resume: bool,
    overwrite: bool,
    layout: ShardLayout,
    storage: Mapping[str, object],
    as_json: bool,
) -> None:
    """Write the samples of existing shards anew.

    IN is the root of a data set, or tars: URLs, patterns or folders, with or without an index, plain or compressed by
    gzip, bzip2 or xz. They are read from front to back; order and bytes of the samples stay.
    """
    options = ReshardOptions(
        layout=layout,
        on_bad=on_bad,
        resume=resume,
        overwrite=overwrite,
    )
    with ProgressLine("reshard") as line:
        report = reshard(sources, root, options=options, storage_options=storage, progress=line)
    for message in report.warnings:
        warn(message)
    if as_json:
        print_json(_document(root, report))
    else:
        _print(root, report)


def _document(root: str, report: ReshardReport) -> dict[str, object]:
    manifest = report.manifest
    return {
        "root": root,
        "samples": manifest.num_samples,
        "shards": len(manifest.shards),
        "bytes": sum(shard.tar_bytes for shard in manifest.shards),
        "read": report.num_read,
        "skipped": report.num_skipped,
        "skipped_samples": [sample._asdict() for sample in report.skipped],
        "seconds": report.seconds,
        "fields": list(manifest.fields),
        "columns": dict(manifest.columns),
        "generation": manifest.generation,
        "fingerprint": manifest.fingerprint(),
        "warnings": list(report.warnings),
    }


def _print(root: str, report: ReshardReport) -> None:
    manifest = report.manifest
    num_bytes = sum(shard.tar_bytes for shard in manifest.shards)
    shards = f"{count_text(len(manifest.shards), 'shard')} from {count_text(report.num_read, 'shard')}"
    samples = count_text(manifest.num_samples, "sample")
    click.echo(f"{printable(root)}: {samples} in {shards}, {size_text(num_bytes)}, {seconds_text(report.seconds)}")
