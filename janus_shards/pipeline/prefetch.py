"""The only place that starts threads: worker pools, and a prefetcher that runs jobs ahead and hands them over in order.

Knows nothing of samples or batches: a job is a list of tasks that may run at once, a price in bytes, and a result.
"""

import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

# Threads are given this long to end when a loader is closed; one that sits in a native call ends with the call.
_JOIN_S = 2.0
# How often a worker process looks whether its parent is still there.
_PARENT_CHECK_S = 1.0
# Nothing delivered for so long is a hang, and the stacks of all threads are the first thing anyone will ask for.
_WATCHDOG_S = 300.0


class Job(Protocol):
    """Work for one place in the delivery order.

    Attributes:
        tasks: Independent pieces of work, safe to run from several threads.
        cost_bytes: Memory the job holds from its admission until it is handed over.
    """

    tasks: Sequence[Callable[[], None]]
    cost_bytes: int


J = TypeVar("J", bound=Job)

# The process that `end_with_parent` was called in.
_watching_pid: int | None = None


class WorkerPool:
    """Threads that run tasks in the order they are submitted.

    A task must not raise; what can fail catches for itself, so that an error reaches the right place in the order.
    """

    def __init__(self, num_threads: int, *, name: str, on_start: Callable[[], None] | None = None) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [
            # Daemons, so that an interpreter that is told to exit never waits for a download; close() joins them.
            threading.Thread(target=_run, args=(self._tasks, on_start), name=f"janus-{name}-{number}", daemon=True)
            for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, task: Callable[[], None]) -> None:
        """Queue a task."""
        self._tasks.put(task)

    def close(self) -> list[Callable[[], None]]:
        """Wait for what has started, but not for ever; returns the tasks that will not run."""
        dropped = []
        while (task := _take(self._tasks)) is not None:
            dropped.append(task)
        for _ in self._threads:
            self._tasks.put(None)
        _join(self._threads)
        return dropped


def _take(tasks: "SimpleQueue[Callable[[], None] | None]") -> Callable[[], None] | None:
    try:
        return tasks.get_nowait()
    except Empty:
        return None


def _run(tasks: "SimpleQueue[Callable[[], None] | None]", on_start: Callable[[], None] | None) -> None:
    if on_start is not None:
        on_start()
    while (task := tasks.get()) is not None:
        task()
        # The name would keep the last batch of an epoch alive while the thread waits.
        del task


def _join(threads: Sequence[threading.Thread]) -> None:
    deadline = time.monotonic() + _JOIN_S
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))


def end_with_parent() -> None:
    """End this process within a second or two of the one that started it, whatever it is doing then.

    A parent that is killed cannot tell its children. Torch's workers look after it between batches only, so that one
    which waits for a store would live on; and one that a fork server started asks whether the server is there, which
    stays as long as its children do. Does nothing in a process that ``multiprocessing`` did not start.
    """
    global _watching_pid
    parent = multiprocessing.parent_process()
    # A forked child inherits the note of its parent, but not its threads.
    if parent is None or _watching_pid == os.getpid():
        return
    _watching_pid = os.getpid()
    threading.Thread(target=_watch, args=(parent.sentinel, os.getppid()), name="janus-parent", daemon=True).start()


def _watch(sentinel: int, starter_pid: int) -> None:
    """Wait for the end of the parent: its end of a pipe is closed, or this process has been adopted by another.

    Forked siblings hold the pipe open for each other, a fork server hides the parent: it takes both.
    """
    while os.getppid() == starter_pid and not multiprocessing.connection.wait([sentinel], _PARENT_CHECK_S):
        pass
    # Nobody is left to clean up for; other threads may hang in native code.
    os._exit(1)


class _Ticket(Generic[J]):
    """A job in flight: how many of its tasks are left, and the first thing that went wrong."""

    __slots__ = ("done", "error", "error_place", "job", "left", "lock")

    def __init__(self, job: J | None, error: BaseException | None = None) -> None:
        self.job = job
        self.error = error
        self.left = self.error_place = len(job.tasks) if job is not None else 0
        self.lock = threading.Lock()
        self.done = threading.Event()
        if not self.left:
            self.done.set()

    def run(self, place: int) -> None:
        # An earlier task still runs: if it fails as well, its error is the one that counts.
        if self.job is not None and (self.error is None or place < self.error_place):
            try:
                self.job.tasks[place]()
            except BaseException as exc:  # noqa: BLE001  thread border: the consumer raises it in its turn
                with self.lock:
                    # The failure of the earliest task counts, so that the same data gives the same error.
                    if self.error is None or place < self.error_place:
                        self.error, self.error_place = exc, place
        with self.lock:
            self.left -= 1
            finished = self.left == 0
        if finished:
            self.done.set()


class Prefetcher(Generic[J]):
    """Runs jobs ahead of the consumer within a number and a byte budget; iterating gives them back in order, finished.

    Args:
        jobs: Made one after the other in a thread of its own; may block and may raise, which ends the order there.
        num_threads: Threads that run tasks.
        depth: Jobs admitted ahead of the consumer.
        limit_bytes: Sum of ``cost_bytes`` of admitted jobs; one job is always admitted.
        on_start: Called first in each worker thread.
        on_close: Called when the prefetcher is closed, to wake tasks that wait for something.
    """

    def __init__(
        self,
        jobs: Iterator[J],
        *,
        num_threads: int,
        depth: int,
        limit_bytes: int,
        on_start: Callable[[], None] | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._state: _State[J] = _State(depth, limit_bytes)
        self._pool = WorkerPool(num_threads, name="decode", on_start=on_start)
        self._scheduler = threading.Thread(
            target=_schedule, args=(self._state, jobs, self._pool), name="janus-plan", daemon=True
        )
        self._scheduler.start()
        # A consumer that just forgets its iterator must not leave threads behind.
        self._finalizer = weakref.finalize(self, _shut_down, self._state, on_close, self._pool, self._scheduler)

    def __iter__(self) -> Iterator[J]:
        return self

    def __next__(self) -> J:
        """The next job, finished.

        Raises:
            StopIteration: All jobs were handed over.
            Exception: What a task of this job, or the making of it, raised.
        """
        ticket = self._state.wait_for_head()
        if ticket is None:
            raise StopIteration
        if ticket.error is not None:
            self.close()
            raise ticket.error
        job = ticket.job
        if job is None:
            raise StopIteration
        self._state.release(job.cost_bytes)
        return job

    def close(self) -> None:
        """Stop all threads; later calls of ``next`` end the iteration."""
        self._finalizer()


class _State(Generic[J]):
    """What the scheduler and the consumer share; apart from ``Prefetcher``, so that threads do not keep that alive."""

    def __init__(self, depth: int, limit_bytes: int) -> None:
        self._depth = depth
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._admitted = 0
        self._closed = False
        self._changed = threading.Condition()
        self._tickets: deque[_Ticket[J] | None] = deque()

    def admit(self, job: J) -> _Ticket[J] | None:
        """Wait until there is room for the job; ``None`` when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_room(job.cost_bytes))
            if self._closed:
                return None
            self._admitted += 1
            self._used_bytes += job.cost_bytes
            ticket = _Ticket(job)
            self._append(ticket)
            return ticket

    def end(self, error: BaseException | None = None) -> None:
        """The order ends here, well or with an error."""
        with self._changed:
            self._append(_Ticket(None, error) if error is not None else None)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._tickets.clear()
            self._changed.notify_all()

    def release(self, cost_bytes: int) -> None:
        with self._changed:
            self._admitted -= 1
            self._used_bytes -= cost_bytes
            self._changed.notify_all()

    def wait_for_head(self) -> _Ticket[J] | None:
        """The first ticket once it is done; ``None`` at the end or when closed."""
        with self._changed:
            self._wait(lambda timeout: self._changed.wait_for(lambda: self._closed or bool(self._tickets), timeout))
            if self._closed:
                return None
            ticket = self._tickets[0]
        if ticket is not None:
            self._wait(ticket.done.wait)
            with self._changed:
                if self._closed:
                    return None
                self._tickets.popleft()
        return ticket

    def _append(self, ticket: _Ticket[J] | None) -> None:
        self._tickets.append(ticket)
        self._changed.notify_all()

    def _has_room(self, cost_bytes: int) -> bool:
        fits = self._used_bytes + cost_bytes <= self._limit_bytes
        return not self._admitted or (self._admitted < self._depth and fits)

    def _wait(self, wait: Callable[[float], bool]) -> None:
        if not wait(_WATCHDOG_S):
            warnings.warn(
                f"no batch was ready for {_WATCHDOG_S:.0f} s; the stacks of all threads are on stderr", stacklevel=4
            )
            faulthandler.dump_traceback(sys.__stderr__ or sys.stderr)
            while not wait(_WATCHDOG_S):
                pass


def _schedule(state: "_State[J]", jobs: Iterator[J], pool: WorkerPool) -> None:
    try:
        for job in jobs:
            ticket = state.admit(job)
            if ticket is None:
                return
            for place in range(len(job.tasks)):
                pool.submit(_Task(ticket, place))
            del job, ticket
        state.end()
    except BaseException as exc:  # noqa: BLE001  thread border: the consumer raises it in its turn
        state.end(exc)


class _Task(Generic[J]):
    __slots__ = ("_place", "_ticket")

    def __init__(self, ticket: _Ticket[J], place: int) -> None:
        self._ticket = ticket
        self._place = place

    def __call__(self) -> None:
        self._ticket.run(self._place)


def _shut_down(state: "_State[J]", on_close: Callable[[], None], pool: WorkerPool, scheduler: threading.Thread) -> None:
    state.close()
    on_close()
    pool.close()
    _join([scheduler])
