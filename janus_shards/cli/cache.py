"""``janus-shards cache``: what a cache holds, whether it is sound, and removing it."""

from collections.abc import Mapping
from dataclasses import asdict

import click

from janus_shards.cli.options import shared_options
from janus_shards.cli.terminal import count_text, print_json, print_pairs, printable, seconds_text, size_text
from janus_shards.operations.cache import CacheStatus, cache_status, clear_cache, verify_cache

# As main's: what was asked for is an answer here, not an error.
_EXIT_FINDINGS = 1


@click.command("cache")
@click.argument("action", type=click.Choice(["status", "verify", "clear"]))
@click.argument("directory", metavar="DIR")
@shared_options
@click.pass_context
def command(ctx: click.Context, *, action: str, directory: str, storage: Mapping[str, object], as_json: bool) -> None:
    """Show, check or remove a cache.

    DIR is what the loader was given as its cache. status shows what is there. verify reads every entry and exits with
    1 if one is damaged. clear removes all entries; jobs that use the cache meanwhile go on, and fetch what they miss.
    """
    {"status": _status, "verify": _verify, "clear": _clear}[action](ctx, directory, as_json)


def _status(_ctx: click.Context, directory: str, as_json: bool) -> None:
    found = cache_status(directory)
    if as_json:
        print_json([asdict(folder) for folder in found])
        return
    for folder in found:
        print_pairs(folder.path, _pairs(folder))


def _pairs(folder: CacheStatus) -> list[tuple[str, str]]:
    return [
        ("stored", f"{count_text(folder.raw_entries, 'block')}, {size_text(folder.raw_bytes)}"),
        (
            "decoded",
            f"{count_text(folder.decoded_rows, 'row')} of {count_text(folder.decoded_entries, 'block')}, "
            f"{size_text(folder.decoded_bytes)}",
        ),
        ("data sets", str(folder.data_sets)),
        ("in use by", _several(folder.processes, "process", "processes")),
        ("not ours", count_text(folder.foreign, "file")),
        ("disk free", size_text(folder.free_bytes)),
    ]


def _verify(ctx: click.Context, directory: str, as_json: bool) -> None:
    report = verify_cache(directory)
    if as_json:
        print_json(
            {
                "sound": not report.findings,
                "findings": [asdict(finding) for finding in report.findings],
                "entries": report.entries,
                "bytes_read": report.num_bytes,
                "seconds": report.seconds,
            }
        )
    else:
        for finding in report.findings:
            click.echo(printable(f"{finding.kind}: {finding.file}: {finding.message}"))
        verdict = count_text(len(report.findings), "finding") if report.findings else "sound"
        click.echo(f"{printable(directory)}: {verdict}")
        what = _several(report.entries, "entry", "entries")
        click.echo(f"{what}, {size_text(report.num_bytes)}, {seconds_text(report.seconds)}; damaged ones are misses")
    ctx.exit(_EXIT_FINDINGS if report.findings else 0)


def _clear(_ctx: click.Context, directory: str, as_json: bool) -> None:
    report = clear_cache(directory)
    if as_json:
        print_json({"entries": report.entries, "bytes": report.num_bytes, "kept": report.kept})
        return
    what = _several(report.entries, "entry", "entries")
    kept = f"; kept {count_text(report.kept, 'file')} that are not ours" if report.kept else ""
    click.echo(f"{printable(directory)}: removed {what}, {size_text(report.num_bytes)}{kept}")


def _several(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
