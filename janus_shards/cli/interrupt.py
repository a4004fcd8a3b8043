"""Ctrl-C that works at once: also while native code, which Python cannot interrupt, waits for a store."""

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from janus_shards.pipeline.prefetch import WorkerPool

EXIT_INTERRUPTED = 130  # as if ended by SIGINT

# Time to take back what is half-written, before the process ends all the same. Nothing half-written is ever visible.
_GRACE_S = 2.0
_STDERR = 2


@contextmanager
def prompt_interrupts() -> Iterator[None]:
    """Let Ctrl-C raise ``KeyboardInterrupt`` in the block, and end the process if the block is not left soon after.

    A second Ctrl-C ends it at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # no signal arrives here
        return
    wakeups, woken = os.pipe()
    os.set_blocking(woken, False)
    before = signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    pool = WorkerPool(1, name="interrupt")
    pool.submit(lambda: _watch(wakeups))
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(woken)
        pool.close()
        os.close(wakeups)


def _watch(wakeups: int) -> None:
    """Wait for the first SIGINT, then for the block to end. The C handler writes a byte a signal into the pipe."""
    while (received := os.read(wakeups, 1)) != bytes([signal.SIGINT]):
        if not received:
            return
    ready, _, _ = select.select([wakeups], [], [], _GRACE_S)
    if ready and not os.read(wakeups, 1):
        return
    # The progress line hides the cursor of a terminal.
    os.write(_STDERR, b"\x1b[?25h\n" * os.isatty(_STDERR) + b"janus-shards: interrupted\n")
    os._exit(EXIT_INTERRUPTED)
