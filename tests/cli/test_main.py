"""The command as a whole: what it finds, and how it ends."""

import importlib
import subprocess
import sys
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner, Result

from janus_shards.cli import main as module
from janus_shards.cli.main import main
from janus_shards.errors import (
    AccessDeniedError,
    ConfigError,
    DecodeError,
    FormatError,
    IndexFormatError,
    IntegrityError,
    JanusShardsError,
    MissingFieldError,
    ObjectNotFoundError,
    ResumeError,
    SampleBudgetError,
)

Run = Callable[..., Result]
COMMANDS = main.list_commands(click.Context(main))


def failing(error: BaseException) -> click.Group:
    """The group with one command, which raises."""

    def raise_it() -> None:
        raise error

    group = click.Group("janus-shards")
    group.add_command(click.Command("fail", callback=raise_it))
    ending = type(main)("janus-shards", params=main.params, callback=main.callback)
    ending.get_command = lambda ctx, cmd_name: group.get_command(ctx, cmd_name)  # type: ignore[method-assign]
    return ending


def end(error: BaseException, *options: str) -> Result:
    """How a command ends that raises ``error``."""
    return CliRunner().invoke(failing(error), [*options, "fail"])


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_commands_say(name: str) -> None:
    """The help in the list of commands is the first sentence of the command's own help."""
    command = importlib.import_module(f"janus_shards.cli.{name}").command
    assert command.name == name
    assert command.get_short_help_str(limit=100) == module._COMMANDS[name].rstrip(".") or (
        command.help.splitlines()[0] == module._COMMANDS[name]
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_the_shared_options(name: str) -> None:
    """Storage settings, ``--json`` and ``--debug`` are the same everywhere."""
    command = importlib.import_module(f"janus_shards.cli.{name}").command
    names = {option for parameter in command.params for option in parameter.opts}
    assert {"--endpoint-url", "--anonymous", "--requester-pays", "--profile", "--region", "--json", "--debug"} <= names


def test_help_fits_eighty_columns(run: Run) -> None:
    """No help is wider than a terminal of 80 columns."""
    for arguments in ([], *([name] for name in COMMANDS)):
        assert max(map(len, run(*arguments, "--help").stdout.splitlines())) <= 80


def test_version(run: Run) -> None:
    """``--version`` names the program."""
    assert run("--version").stdout.startswith("janus-shards")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (ResumeError("x"), 2),
        (MissingFieldError("x", kind="missing_key"), 2),
        (FormatError("x"), 1),
        (IndexFormatError("x"), 1),
        (DecodeError("x"), 1),
        (MissingFieldError("x"), 1),
        (SampleBudgetError("x"), 1),
        (ObjectNotFoundError("x"), 3),
        (AccessDeniedError("x"), 3),
        (IntegrityError("x"), 3),
        (OSError(28, "No space left on device"), 3),
        (JanusShardsError("x"), 70),
        (RuntimeError("x"), 70),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value,
)
def test_errors_have_exit_codes(error: BaseException, code: int) -> None:
    """Faults of data, of usage and of storage can be told apart by scripts; each is one line without a traceback."""
    result = end(error)
    assert result.exit_code == code
    assert result.stderr.startswith("janus-shards: ")
    assert result.stderr.count("\n") == 1
    assert not result.stdout


def test_messages_cannot_steer_the_terminal() -> None:
    """Control characters and line ends of a message arrive as escapes."""
    result = end(FormatError("key 'a\x1b[2J\n'"))
    assert result.stderr == "janus-shards: error: key 'a\\x1b[2J\\n'\n"


def test_debug_shows_the_traceback() -> None:
    """``--debug`` shows where an error came from, before the line that says what it was."""
    result = end(ConfigError("wrong"), "--debug")
    assert result.stderr.startswith("Traceback")
    assert result.stderr.endswith("janus-shards: error: wrong\n")


def test_debug_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """``JANUS_DEBUG=1`` does the same."""
    monkeypatch.setenv("JANUS_DEBUG", "1")
    assert end(ConfigError("wrong")).stderr.startswith("Traceback")


def test_debug_behind_the_command(run: Run) -> None:
    """``--debug`` may stand behind the command as well."""
    result = CliRunner().invoke(main, ["info", "/nowhere", "--debug"])
    assert "Traceback" in result.stderr
    assert result.exit_code == 3


@pytest.mark.parametrize("arguments", [["--wrong"], ["wrong"], ["info"], ["info", "a", "b"], ["info", "a", "--wrong"]])
def test_usage_errors_are_one_line(error_line: Callable[..., str], arguments: list[str]) -> None:
    """An unknown command or option, or a missing argument, is one line that names the help."""
    assert "--help)" in error_line(*arguments, code=2)


def test_nothing_said_shows_the_help(run: Run) -> None:
    """The bare command shows what there is."""
    assert "Commands:" in CliRunner().invoke(main, []).output


def test_help_and_packing_load_neither_torch_nor_obstore() -> None:
    """What takes seconds to import is imported by the commands that need it."""
    script = (
        "import sys\nfrom janus_shards.cli.main import main\n"
        "main(['pack', '--help'], standalone_mode=False)\nimport janus_shards.cli.stream\n"
        "sys.exit(bool({'torch', 'obstore', 'boto3', 'fsspec'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)
