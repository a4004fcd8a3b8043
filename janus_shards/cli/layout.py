"""Options of the commands that write shards or indexes."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from janus_shards.cli.options import size, size_or_off
from janus_shards.writer.shard import ShardLayout

_Result = TypeVar("_Result")
_LAYOUT = ShardLayout()

#: ``--inline``, in bytes.
inline_option = click.option(
    "--inline",
    metavar="SIZE",
    callback=size_or_off,
    default=f"{_LAYOUT.inline_bytes >> 10}KiB",
    show_default=True,
    help="Keep smaller values, such as captions, in the index as well; 0 keeps none.",
)

_LAYOUT_OPTIONS = (
    click.option(
        "--prefix", default=_LAYOUT.prefix, show_default=True, help="Shards are called PREFIX-000000.tar etc."
    ),
    click.option(
        "--shard-size",
        metavar="SIZE",
        callback=size,
        default=f"{_LAYOUT.max_shard_bytes >> 20}MiB",
        show_default=True,
        help="Largest size of a shard.",
    ),
    click.option("--max-samples", type=click.IntRange(min=1), metavar="N", help="Most samples of a shard."),
    inline_option,
)

_EXISTING_OPTIONS = (
    click.option("--resume", is_flag=True, help="Keep the whole shards of an interrupted run, write the others."),
    click.option("--overwrite", is_flag=True, help="Replace the data set that is there."),
)


def layout_options(command: Callable[..., _Result]) -> Callable[..., _Result]:
    """How samples are cut into shards; the command gets ``layout``."""

    @functools.wraps(command)
    def with_layout(*, prefix: str, shard_size: int, max_samples: int | None, inline: int, **given: Any) -> _Result:
        layout = ShardLayout(prefix=prefix, max_shard_bytes=shard_size, max_samples=max_samples, inline_bytes=inline)
        return command(layout=layout, **given)

    return _with_options(with_layout, _LAYOUT_OPTIONS)


def existing_options(command: Callable[..., _Result]) -> Callable[..., _Result]:
    """``--resume`` and ``--overwrite``, for what the root already holds."""
    return _with_options(command, _EXISTING_OPTIONS)


def on_bad_option(text: str) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """``--on-bad``; what counts as bad differs between the commands."""
    return click.option("--on-bad", type=click.Choice(["raise", "skip"]), default="raise", show_default=True, help=text)


def _with_options(command: Callable[..., _Result], options: tuple[Callable[..., Any], ...]) -> Callable[..., _Result]:
    for option in reversed(options):
        command = option(command)
    return command
