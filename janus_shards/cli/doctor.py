"""``janus-shards doctor``: what is wrong with a data set, and what to do about it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import click

from janus_shards.cli.options import shared_options, workers_option
from janus_shards.cli.progress import ProgressLine
from janus_shards.cli.terminal import count_text, print_json, printable, seconds_text
from janus_shards.operations.doctor import Diagnosis, DoctorReport, examine

# As main's: what was asked for is an answer here, not an error.
_EXIT_FINDINGS = 1


@click.command("doctor")
@click.argument("root")
@click.option(
    "--repair",
    is_flag=True,
    help="Make damaged indexes and manifests again from the shards, and remove what dead processes left.",
)
@click.option("--quick", is_flag=True, help="Look at indexes and lengths only, instead of reading every shard.")
@workers_option
@shared_options
@click.pass_context
def command(
    ctx: click.Context,
    *,
    root: str,
    repair: bool,
    quick: bool,
    workers: int | None,
    storage: Mapping[str, object],
    as_json: bool,
) -> None:
    """Find what is wrong with a data set, and mend it.

    Looks at the manifest, at every shard and index, at what no manifest names and at what was left half-written. Prints
    two lines a finding, what it is and what to do, and exits with 1 if anything is wrong in the end. No tar is ever
    touched.
    """
    with ProgressLine("doctor") as line:
        report = examine(root, repair=repair, quick=quick, workers=workers, storage_options=storage, progress=line)
    if as_json:
        print_json(_document(report))
    else:
        _print(root, report)
    ctx.exit(0 if report.is_sound else _EXIT_FINDINGS)


def _document(report: DoctorReport) -> dict[str, object]:
    return {
        "sound": report.is_sound,
        "found": _listed(report.found),
        "repaired": list(report.repaired),
        "remaining": _listed(report.remaining),
        "shards": report.num_shards,
        "seconds": report.seconds,
    }


def _listed(found: Sequence[Diagnosis]) -> list[dict[str, object]]:
    return [{**asdict(each.finding), "remedy": each.remedy} for each in found]


def _print(root: str, report: DoctorReport) -> None:
    for sentence in report.repaired:
        click.echo(printable(f"repaired: {sentence}"))
    for each in report.remaining:
        click.echo(printable(f"{each.finding.kind}: {each.finding.message}"))
        click.echo(printable(f"  {each.remedy}"))
    verdict = "sound" if report.is_sound else count_text(len(report.remaining), "finding")
    looked = f"{count_text(report.num_shards, 'shard')}, {seconds_text(report.seconds)}"
    click.echo(f"{printable(root)}: {verdict} ({looked})")
