"""Finds the command that was asked for, and turns every way to end into an exit code and at most one line."""

import importlib
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from janus_shards.cli.interrupt import EXIT_INTERRUPTED, prompt_interrupts
from janus_shards.cli.options import debug_option, is_debugging
from janus_shards.cli.terminal import logs_as_warnings, printable, tolerate_any_text
from janus_shards.errors import (
    ConfigError,
    FormatError,
    JanusShardsError,
    ResumeError,
    SampleBudgetError,
    SampleError,
    StorageError,
)
from janus_shards.writer.publish import writer_name

EXIT_FAULTS = 1
EXIT_USAGE = 2
EXIT_STORAGE = 3
EXIT_INTERNAL = 70  # EX_SOFTWARE: not the user's doing
EXIT_PIPE = 141  # as if ended by SIGPIPE

# Each command is imported when it is run; its help in the list of commands stands here.
_COMMANDS = {
    "pack": "Pack a folder or a table into shards.",
    "index": "Index existing tar shards where they lie.",
    "info": "Show what a data set holds.",
    "ls": "List samples and the sizes of their fields.",
    "cat": "Write one field of one sample to stdout.",
    "get": "Save the fields of one sample as files.",
    "verify": "Check that a data set is what its manifest says.",
    "doctor": "Find what is wrong with a data set, and mend it.",
    "reshard": "Write the samples of existing shards anew.",
    "stream": "Stream batches and measure.",
    "cache": "Show, check or remove a cache.",
}

# Whoever is first counts: errors of the library are several of these at once.
_EXIT_CODES: Mapping[type[BaseException], int] = {
    StorageError: EXIT_STORAGE,
    ConfigError: EXIT_USAGE,
    ResumeError: EXIT_USAGE,
    FormatError: EXIT_FAULTS,
    SampleError: EXIT_FAULTS,
    SampleBudgetError: EXIT_FAULTS,
    OSError: EXIT_STORAGE,
}


class _CommandLine(click.Group):
    """A group that imports a command when it is needed, and ends as the documentation of exit codes says."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are used."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a module of this package."""
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"janus_shards.cli.{cmd_name}").command
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Options before the command."""
        with _ended(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        tolerate_any_text()
        with _ended(ctx):
            with prompt_interrupts(), logs_as_warnings():
                result = super().invoke(ctx)
            # Here and not at exit, where a reader that left could no longer be treated well.
            sys.stdout.flush()
        return result


@contextmanager
def _ended(ctx: click.Context) -> Iterator[None]:
    """Endings of the block become exit codes, each with at most one line on stderr."""
    try:
        yield
    except (click.exceptions.Exit, SystemExit):
        raise
    except BrokenPipeError:
        # What is still buffered must not fail again when the interpreter flushes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(EXIT_PIPE) from None
    except (KeyboardInterrupt, click.Abort):
        _end("interrupted", EXIT_INTERRUPTED)
    except click.UsageError as exc:
        if _is_help(exc):
            raise
        path = exc.ctx.command_path if exc.ctx else "janus-shards"
        message = " ".join(exc.format_message().split()).removesuffix(".")
        _end(f"error: {message} (see {path} --help)", EXIT_USAGE)
    except Exception as exc:  # noqa: BLE001  the border of the program: nothing may get past it
        if is_debugging(ctx):
            click.echo("".join(traceback.format_exception(exc)), err=True, nl=False)
        _end(*_explain(exc))


def _end(message: str, exit_code: int) -> NoReturn:
    click.echo(f"janus-shards: {printable(message)}", err=True)
    raise click.exceptions.Exit(exit_code)


def _is_help(exc: click.UsageError) -> bool:
    """Whether this only shows the help, because nothing else was said; older versions of click do that themselves."""
    return type(exc).__name__ == "NoArgsIsHelpError"


def _explain(exc: Exception) -> tuple[str, int]:
    """Message and exit code."""
    code = next((code for kind, code in _EXIT_CODES.items() if isinstance(exc, kind)), EXIT_INTERNAL)
    if isinstance(exc, JanusShardsError):
        # The user named a key that no sample has; samples without a field that they should have are faults of the data.
        return f"error: {exc.message}", EXIT_USAGE if exc.kind == "missing_key" else code
    if isinstance(exc, OSError):
        return f"error: {exc}", code
    text = str(exc).partition("\n")[0]
    return f"internal error: {type(exc).__name__}: {text}; --debug shows where", code


def _show_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(writer_name())
        ctx.exit()


@click.group("janus-shards", cls=_CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
@debug_option
def main() -> None:
    r"""Pack, index and stream WebDataset tar shards, on local disk or object storage.

    A SOURCE, ROOT or URL is a folder or a URL such as s3://bucket/train. Every command takes the storage options and
    --json; its --help shows them.

    \b
    Exit codes: 0 ok, 1 faults found in data, 2 usage, 3 storage, 130 interrupted.
    """
