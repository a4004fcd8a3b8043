"""Runs a function over tasks in spawned processes and gives the results in task order.

Rules:

- One pipe a worker, and nobody else holds its ends: a worker whose parent died meets the end of the pipe and leaves, in
  the middle of a task as well, since it looks once a second; the parent meets it when a worker dies, and names the
  task that it was on.
- Workers never see Ctrl-C. The parent does, and ends them with SIGTERM, which they meet as ``SystemExit``, so that open
  uploads are taken back.
- Which worker runs which task depends on time; the results and their order do not.
"""

import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any, Generic, TypeVar

from janus_shards.errors import ConfigError, JanusShardsError

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")

# A spawned process takes 0.4 s to start on an idle core, and one process hashes and writes 400 MB/s.
_WORKER_BYTES = 512 << 20

# How often a worker looks whether its parent is still there.
_PARENT_CHECK_S = 1.0

# How long a worker may take to clean up after SIGTERM before it is killed.
_GRACE_S = 10.0


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sensible_workers(num_tasks: int, num_bytes: int) -> int:
    """How many processes are worth starting for so many tasks over so many bytes; at least 1."""
    return max(1, min(usable_cores(), num_tasks, 1 + num_bytes // _WORKER_BYTES))


def run_ordered(
    function: Callable[[TaskT], ResultT],
    tasks: Iterable[TaskT],
    *,
    workers: int,
    label: Callable[[TaskT], str] = str,
) -> Generator[ResultT, None, None]:
    """Results of ``function`` over ``tasks``, in their order, each as soon as it and all before it are there.

    Args:
        function: Importable from its module. With one worker it runs in this process.
        tasks: Taken as workers become free, at most ``2 * workers`` ahead of the result that is waited for.
        workers: Processes, started as tasks need them; at least 1.
        label: What a task is called in messages.

    Returns:
        A generator. Close it (``contextlib.closing``) where the loop over it may end early: that ends the workers.

    Raises:
        ConfigError: ``workers`` is below 1.
        JanusShardsError: A worker died (kind ``worker_died``). Exceptions of ``function`` come as they are, that of the
            first task in order. Either way every worker has ended by then.
    """
    if workers < 1:
        raise ConfigError(f"workers={workers}: expected at least 1")
    return _run_here(function, tasks) if workers == 1 else _run_spawned(function, tasks, workers, label)


def _run_here(function: Callable[[TaskT], ResultT], tasks: Iterable[TaskT]) -> Generator[ResultT, None, None]:
    yield from map(function, tasks)


def _run_spawned(
    function: Callable[[TaskT], ResultT], tasks: Iterable[TaskT], workers: int, label: Callable[[TaskT], str]
) -> Generator[ResultT, None, None]:
    queue = enumerate(tasks)
    done: dict[int, _Outcome[ResultT]] = {}
    with _open_pool(function, workers, label) as pool:
        for turn in count():
            pool.fill(queue, stop=turn + 2 * workers)
            while turn not in done:
                if not pool.busy:
                    return
                done.update(pool.collect())
                pool.fill(queue, stop=turn + 2 * workers)
            yield done.pop(turn).result()


@dataclass(frozen=True)
class _Outcome(Generic[ResultT]):
    """What a worker sends back: a value, or an exception with the text of its traceback."""

    value: ResultT | None = None
    error: Exception | None = None
    trace: str = ""

    def result(self) -> ResultT:
        if self.error is None:
            return self.value  # type: ignore[return-value]  # None is a result too
        if not isinstance(self.error, JanusShardsError):
            self.error.add_note(f"Raised in a worker process:\n{self.trace}")
        raise self.error


@dataclass
class _Worker(Generic[TaskT]):
    process: SpawnProcess
    connection: "Connection[Any, Any]"
    number: int = -1
    task: TaskT | None = None


class _Pool(Generic[TaskT, ResultT]):
    def __init__(self, function: Callable[[TaskT], ResultT], workers: int, label: Callable[[TaskT], str]) -> None:
        self.busy: dict[object, _Worker[TaskT]] = {}
        self._idle: list[_Worker[TaskT]] = []
        self._num_started = 0
        self._function = function
        self._workers = workers
        self._label = label

    def fill(self, queue: Iterator[tuple[int, TaskT]], *, stop: int) -> None:
        """Give tasks to free workers until the queue, the workers or the task numbers below ``stop`` end."""
        while len(self.busy) < self._workers and self._num_started < stop:
            entry = next(queue, None)
            if entry is None:
                return
            worker = self._idle.pop() if self._idle else _start_worker(self._function)
            worker.number, worker.task = entry
            self.busy[worker.connection] = worker
            self._num_started += 1
            try:
                worker.connection.send(worker.task)
            except BrokenPipeError:
                raise self._died(worker) from None

    def collect(self) -> dict[int, _Outcome[ResultT]]:
        """Wait until at least one busy worker answers; outcomes by task number."""
        outcomes = {}
        for connection in wait([worker.connection for worker in self.busy.values()]):
            worker = self.busy[connection]
            try:
                outcomes[worker.number] = worker.connection.recv()
            except (EOFError, ConnectionResetError):
                raise self._died(worker) from None
            self._idle.append(self.busy.pop(connection))
        return outcomes

    def _died(self, worker: _Worker[TaskT]) -> JanusShardsError:
        worker.process.join(_GRACE_S)
        code = worker.process.exitcode
        if code is not None and code < 0:
            cause = f"was ended by {signal.Signals(-code).name}" + (
                " (out of memory?)" if code == -signal.SIGKILL else ""
            )
        else:
            cause = f'ended with exit code {code} (a script that uses workers needs `if __name__ == "__main__":`)'
        task = "" if worker.task is None else self._label(worker.task)
        return JanusShardsError(
            f"worker process {worker.process.pid} {cause} while it worked on {task}; nothing was published, start "
            f"again",
            kind="worker_died",
            shard=task,
        )

    def end(self, *, now: bool) -> None:
        """Let the workers leave; with ``now`` they drop what they are working on."""
        workers = [*self._idle, *self.busy.values()]
        for worker in workers:
            worker.connection.close()
            if now:
                worker.process.terminate()
        for worker in workers:
            worker.process.join(_GRACE_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


@contextmanager
def _open_pool(
    function: Callable[[TaskT], ResultT], workers: int, label: Callable[[TaskT], str]
) -> Iterator[_Pool[TaskT, ResultT]]:
    pool = _Pool(function, workers, label)
    try:
        yield pool
    except BaseException:
        pool.end(now=True)
        raise
    pool.end(now=False)


def _start_worker(function: Callable[[TaskT], ResultT]) -> _Worker[TaskT]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, function), daemon=True)
    # Starting the first process starts the tracker too, which would unblock SIGINT again just before that process.
    resource_tracker.ensure_running()
    # Inherited over exec, so that Ctrl-C cannot meet a worker while its interpreter starts.
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        theirs.close()
    return _Worker(process, ours)


def _serve(connection: "Connection[Any, Any]", function: Callable[[Any], Any]) -> None:
    """Main function of a worker process."""
    signal.signal(signal.SIGTERM, _leave)
    _leave_with(os.getppid())
    with connection:
        try:
            while True:
                task = connection.recv()
                _answer(connection, _attempt(function, task))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # the parent ended the pool, or died


def _leave(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def _leave_with(parent_pid: int) -> None:
    """Look once a second, also in the middle of a task, whether this process has been adopted by another parent."""

    def look(number: int, frame: FrameType | None) -> None:
        if os.getppid() != parent_pid:
            _leave(number, frame)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _PARENT_CHECK_S, _PARENT_CHECK_S)


def _attempt(function: Callable[[Any], Any], task: object) -> _Outcome[Any]:
    try:
        return _Outcome(value=function(task))
    except Exception as exc:  # noqa: BLE001  # the border of the process: the parent raises it
        return _Outcome(error=exc, trace=traceback.format_exc())


def _answer(connection: "Connection[Any, Any]", outcome: _Outcome[Any]) -> None:
    try:
        # Some exceptions can be pickled but not built again, which would break the parent.
        pickle.loads(pickle.dumps(outcome.error))
        connection.send(outcome)
    except OSError:
        raise
    except Exception as exc:  # noqa: BLE001  # whatever cannot travel is described instead
        failed = outcome.error or exc
        error = JanusShardsError(f"{type(failed).__name__} in a worker process: {failed}\n{outcome.trace}")
        connection.send(_Outcome(error=error))
