"""Options that several commands share, and callbacks that turn what was typed into values."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from janus_shards.errors import ConfigError
from janus_shards.sizes import parse_bytes
from janus_shards.world import World

_Result = TypeVar("_Result")
_DEBUG = "janus_shards.debug"


def is_debugging(ctx: click.Context) -> bool:
    """Whether tracebacks are wanted."""
    return bool(ctx.meta.get(_DEBUG))


def _keep_debug(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    ctx.meta[_DEBUG] = wanted or is_debugging(ctx)


#: ``--debug``, before or behind the command.
debug_option = click.option(
    "--debug",
    is_flag=True,
    is_eager=True,
    envvar="JANUS_DEBUG",
    expose_value=False,
    callback=_keep_debug,
    help="Show the traceback of an error (also JANUS_DEBUG=1).",
)

#: ``--json``; the command gets ``as_json``.
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")

_STORAGE_OPTIONS = {
    "endpoint_url": click.option("--endpoint-url", metavar="URL", help="S3 endpoint, such as http://localhost:9000."),
    "anonymous": click.option("--anonymous", is_flag=True, help="Send unsigned requests, for public buckets."),
    "requester_pays": click.option("--requester-pays", is_flag=True, help="Accept the cost of requests."),
    "profile": click.option("--profile", metavar="NAME", help="AWS profile (needs the extra aws)."),
    "region": click.option("--region", metavar="NAME", help="Region of the bucket."),
}


def shared_options(command: Callable[..., _Result]) -> Callable[..., _Result]:
    """The options that every command has; the command gets ``storage``, options as ``StorageOptions.from_mapping``
    takes them, and ``as_json``.

    Keys and everything else that is not given come from the AWS variables, which the store's client reads itself.
    """

    @functools.wraps(command)
    def with_storage(*arguments: Any, **given: Any) -> _Result:
        storage = {name: value for name in _STORAGE_OPTIONS if (value := given.pop(name))}
        return command(*arguments, storage=storage, **given)

    decorated: Callable[..., _Result] = with_storage
    for option in reversed((*_STORAGE_OPTIONS.values(), json_option, debug_option)):
        decorated = option(decorated)
    return decorated


def size(_ctx: click.Context, option: click.Parameter, value: str | None) -> int | None:
    """Bytes of a value such as ``256MB`` or ``1GiB``."""
    if value is None:
        return None
    try:
        return parse_bytes(value, name=option.opts[0])
    except ConfigError as exc:
        raise click.UsageError(exc.message) from exc


def size_or_off(ctx: click.Context, option: click.Parameter, value: str | None) -> int | None:
    """The same, with 0 for off."""
    return 0 if value == "0" else size(ctx, option, value)


def names(_ctx: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Names with commas between them."""
    if value is None:
        return None
    found = tuple(name.strip() for name in value.split(","))
    if not all(found):
        raise click.BadParameter(f"{value!r}: expected names with commas between them, such as jpg,txt")
    return found


def extent(_ctx: click.Context, _option: click.Parameter, value: str | None) -> int | tuple[int, int] | None:
    """Pixels: the side of a square, or HEIGHTxWIDTH."""
    if value is None:
        return None
    sides = value.lower().split("x")
    if len(sides) > 2 or not all(side.isascii() and side.isdigit() and int(side) for side in sides):
        raise click.BadParameter(f"{value!r}: expected pixels, such as 384 or 256x384 (height x width)")
    return int(sides[0]) if len(sides) == 1 else (int(sides[0]), int(sides[1]))


def rank_of_world(_ctx: click.Context, _option: click.Parameter, value: str | None) -> World | None:
    """RANK/SIZE, such as 0/2."""
    if value is None:
        return None
    rank, slash, world_size = value.partition("/")
    if not (slash and rank.isdecimal() and world_size.isdecimal()):
        raise click.BadParameter(f"{value!r}: expected a rank and a number of ranks, such as 0/2")
    return World(rank=int(rank), world_size=int(world_size))


#: ``--workers``, at least 1.
workers_option = click.option(
    "--workers", type=click.IntRange(min=1), metavar="N", help="Processes; by default one a core, where that pays."
)
