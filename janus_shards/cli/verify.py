"""``janus-shards verify``: whether a data set is what its manifest says."""

from collections.abc import Mapping
from dataclasses import asdict

import click

from janus_shards.cli.options import shared_options, workers_option
from janus_shards.cli.progress import ProgressLine
from janus_shards.cli.terminal import count_text, print_json, printable, seconds_text
from janus_shards.operations.verify import VerifyReport, verify

# As main's: what was asked for is an answer here, not an error.
_EXIT_FINDINGS = 1


@click.command("verify")
@click.argument("root")
@click.option("--full", is_flag=True, help="Read every shard and compare every byte, not indexes and lengths only.")
@workers_option
@shared_options
@click.pass_context
def command(
    ctx: click.Context, *, root: str, full: bool, workers: int | None, storage: Mapping[str, object], as_json: bool
) -> None:
    """Check that a data set is what its manifest says.

    Prints one line a finding, and exits with 1 if there is any.
    """
    with ProgressLine("verify") as line:
        report = verify(root, full=full, workers=workers, storage_options=storage, progress=line)
    if as_json:
        print_json(_document(report))
    else:
        _print(root, report, full=full)
    ctx.exit(0 if report.is_sound else _EXIT_FINDINGS)


def _document(report: VerifyReport) -> dict[str, object]:
    return {
        "sound": report.is_sound,
        "findings": [asdict(finding) for finding in report.findings],
        "shards": report.num_shards,
        "samples": report.num_samples,
        "bytes_read": report.num_bytes,
        "seconds": report.seconds,
    }


def _print(root: str, report: VerifyReport, *, full: bool) -> None:
    for finding in report.findings:
        click.echo(printable(f"{finding.kind}: {finding.message}"))
    verdict = "sound" if report.is_sound else count_text(len(report.findings), "finding")
    click.echo(f"{printable(root)}: {verdict}")
    checked = "every byte read" if full else "indexes and lengths checked, --full reads every byte"
    what = f"{count_text(report.num_samples, 'sample')} in {count_text(report.num_shards, 'shard')}"
    click.echo(f"{what}, {seconds_text(report.seconds)}; {checked}")
