import importlib
import re
from pathlib import Path

import click
import pytest

from janus_shards.cli.main import main

DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
COMMANDS = main.list_commands(click.Context(main))


def section(title: str) -> str:
    """The text below a heading."""
    (found,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    return str(found)


def options_in(text: str) -> set[str]:
    """Options in the first column of the tables of a text."""
    cells = re.findall(r"^\| (`-.*?) \|", text.replace("\\|", "/"), re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"--[a-z][a-z-]*", cell)}


def options_of(name: str) -> set[str]:
    """Long options of a command."""
    command: click.Command = importlib.import_module(f"janus_shards.cli.{name}").command
    return {option for parameter in command.params for option in parameter.opts if option.startswith("--")}


SHARED = options_in(section("Options of every command"))


def test_every_command_is_documented() -> None:
    """The document lists all commands, in the order of the help, and has a section for each."""
    assert re.findall(r"^\| \[`(\w+)`\]", DOCUMENT, re.MULTILINE) == COMMANDS
    assert [title for title in re.findall(r"^## (\w+)$", DOCUMENT, re.MULTILINE) if title in COMMANDS] == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented(name: str) -> None:
    """The tables of a command name its options, and none that it does not have."""
    assert options_in(section(name)) == options_of(name) - SHARED
    assert options_of(name) >= SHARED - {"--help"}


@pytest.mark.parametrize("name", COMMANDS)
def test_defaults_are_documented(name: str) -> None:
    """Where an option has a default, its row says so."""
    command: click.Command = importlib.import_module(f"janus_shards.cli.{name}").command
    rows = section(name)
    for option in command.params:
        if isinstance(option, click.Option) and option.show_default:
            (row,) = re.findall(rf"^\| `{option.opts[0]}[ `].*$", rows, re.MULTILINE)
            assert f" {option.default} |" in row.replace("`", "")


@pytest.mark.parametrize("line", re.findall(r"^janus-shards (?!\[).*$", DOCUMENT, re.MULTILINE))
def test_examples_use_options_that_exist(line: str) -> None:
    """The examples name commands and options that exist."""
    name = line.split()[1]
    assert set(re.findall(r"--[a-z][a-z-]*", line)) <= options_of(name)
