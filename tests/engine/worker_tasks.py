"""Functions that spawned workers import."""
# ruff: noqa: D103  # their names say it all

import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from janus_shards.errors import DecodeError


def square(number: int) -> int:
    return number * number


def square_slowly_at_first(number: int) -> int:
    """The first tasks end last, as far as several workers allow."""
    time.sleep(0.05 / (1 + number))
    return number * number


def hears_interrupts(_number: int) -> bool:
    return signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def fail_at_three(number: int) -> int:
    if number == 3:
        raise DecodeError("no picture", kind="image_decode", shard="s", key="k", field="jpg")
    return number


class AwkwardError(Exception):
    """Pickles, but cannot be built again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


def fail_awkwardly(number: int) -> NoReturn:
    raise AwkwardError(f"broken {number}", "x")


def return_what_cannot_travel(_number: int) -> object:
    return lambda: None


def die_at_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def leave_at_once(_number: int) -> NoReturn:
    sys.exit(3)


def note_end(folder: str) -> None:
    """Work for longer than the test waits; leave a note when asked to end."""
    (Path(folder) / f"started-{os.getpid()}").touch()
    try:
        time.sleep(60)
    finally:
        (Path(folder) / f"ended-{os.getpid()}").touch()
