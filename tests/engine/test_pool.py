"""Spawned workers give ordered results, and end cleanly however the run ends."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import worker_tasks

from janus_shards.engine.pool import run_ordered, sensible_workers, usable_cores
from janus_shards.errors import ConfigError, DecodeError, JanusShardsError


def wait_until(is_true: Callable[[], bool], *, timeout_s: float = 20.0) -> None:
    """Poll for something that another process does."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("workers", [1, 3])
def test_results_come_in_task_order(workers: int) -> None:
    """Whatever ends first, the order of the results is that of the tasks."""
    found = run_ordered(worker_tasks.square_slowly_at_first, range(9), workers=workers)
    assert list(found) == [number * number for number in range(9)]


def test_tasks_are_taken_as_they_are_needed() -> None:
    """A long plan is not drawn from far ahead of the results."""
    taken = []
    tasks = (taken.append(number) or number for number in range(100))
    results = run_ordered(worker_tasks.square, tasks, workers=2)
    assert next(results) == 0
    assert len(taken) <= 5
    results.close()
    assert not multiprocessing.active_children()


def test_no_tasks_give_no_results_and_no_processes() -> None:
    """An empty plan starts nothing."""
    assert list(run_ordered(worker_tasks.square, [], workers=2)) == []


def test_exception_of_a_task_comes_as_it_is() -> None:
    """The first failing task in order raises in the parent, with kind, shard, key and field; no worker is left."""
    with pytest.raises(DecodeError, match="no picture") as caught:
        list(run_ordered(worker_tasks.fail_at_three, range(10), workers=2))
    assert (caught.value.kind, caught.value.key, caught.value.field) == ("image_decode", "k", "jpg")
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("function", "message"),
    [(worker_tasks.fail_awkwardly, "AwkwardError.*broken 0"), (worker_tasks.return_what_cannot_travel, "pickle")],
)
def test_what_cannot_travel_is_described(function: object, message: str) -> None:
    """An exception or a value that no process can send becomes a library error with its text."""
    with pytest.raises(JanusShardsError, match=message):
        list(run_ordered(function, range(1), workers=2))


def test_dead_worker_is_noticed_and_named() -> None:
    """A killed worker ends the run with the task that it was on, and without waiting for a result that cannot come."""
    with pytest.raises(JanusShardsError, match=r"SIGKILL.*task 3") as caught:
        list(run_ordered(worker_tasks.die_at_three, range(10), workers=2, label=lambda task: f"task {task}"))
    assert caught.value.kind == "worker_died"
    assert not multiprocessing.active_children()


def test_worker_that_leaves_by_itself_is_noticed() -> None:
    """A worker that exits without an answer is a dead worker too."""
    with pytest.raises(JanusShardsError, match="exit code 3"):
        list(run_ordered(worker_tasks.leave_at_once, range(1), workers=2))


def test_leaving_the_loop_lets_running_tasks_clean_up(tmp_path: Path) -> None:
    """Workers end within seconds, by an exception inside of their task, when the caller stops early."""
    results = run_ordered(worker_tasks.note_end, [str(tmp_path)] * 2, workers=2)
    with pytest.raises(KeyboardInterrupt):
        _interrupt_when_started(results, tmp_path)
    assert len(list(tmp_path.glob("ended-*"))) == 2
    assert not multiprocessing.active_children()


def _interrupt_when_started(results: Iterator[None], folder: Path) -> None:
    """SIGINT to this process alone, once both workers are at work."""
    watcher = (
        "import os, pathlib, signal, time\n"
        f"while len(list(pathlib.Path({str(folder)!r}).glob('started-*'))) < 2: time.sleep(0.02)\n"
        f"os.kill({os.getpid()}, signal.SIGINT)\n"
    )
    with subprocess.Popen([sys.executable, "-c", watcher]):
        next(results)


def test_no_worker_hears_an_interrupt() -> None:
    """Ctrl-C is blocked in each worker from its first instruction, in the first that a program starts too."""
    script = (
        "import worker_tasks\n"
        "from janus_shards.engine.pool import run_ordered\n"
        "print(*run_ordered(worker_tasks.hears_interrupts, range(4), workers=2))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.check_output([sys.executable, "-c", script], env=environment) == b"False False False False\n"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent(tmp_path: Path, how: signal.Signals) -> None:
    """Ctrl-C or SIGKILL of the main process leaves no worker behind; Ctrl-C shows one traceback, the parent's."""
    script = (
        "from janus_shards.engine.pool import run_ordered\n"
        "import worker_tasks, pathlib, os, multiprocessing\n"
        "if __name__ == '__main__':\n"
        "    for _ in run_ordered(worker_tasks.square_slowly_at_first, iter(int, 1), workers=2):\n"
        "        print(*(child.pid for child in multiprocessing.active_children()), flush=True)\n"
    )
    path = tmp_path / "main.py"
    path.write_text(script)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, str(path)], env=environment, **pipes) as main:
        assert main.stdout is not None
        assert main.stderr is not None
        workers = next(pids for line in main.stdout if len(pids := line.split()) == 2)
        os.killpg(main.pid, how) if how == signal.SIGINT else main.kill()
        main.stdout.close()
        errors = main.stderr.read()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    assert errors.count("KeyboardInterrupt") == (how == signal.SIGINT)


def test_busy_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    """A worker in the middle of a long task leaves soon after its parent was killed, and may clean up."""
    script = (
        "from janus_shards.engine.pool import run_ordered\n"
        "import worker_tasks, sys\n"
        "if __name__ == '__main__':\n"
        "    list(run_ordered(worker_tasks.note_end, [sys.argv[1]] * 2, workers=2))\n"
    )
    path = tmp_path / "main.py"
    path.write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, str(path), str(tmp_path)], env=environment) as main:
        wait_until(lambda: len(list(tmp_path.glob("started-*"))) == 2)
        main.kill()
    wait_until(lambda: len(list(tmp_path.glob("ended-*"))) == 2, timeout_s=10)


@pytest.mark.parametrize(("tasks", "num_bytes", "workers"), [(0, 0, 1), (1, 1 << 40, 1), (99, 1 << 20, 1)])
def test_little_work_starts_no_processes(tasks: int, num_bytes: int, workers: int) -> None:
    """One task, or a few megabytes, are done sooner than a process starts; much work takes every core."""
    assert sensible_workers(tasks, num_bytes) == workers
    assert sensible_workers(10**6, 1 << 50) == usable_cores()


def test_number_of_workers_is_checked() -> None:
    """Zero workers would wait for ever."""
    with pytest.raises(ConfigError, match="workers=0"):
        run_ordered(worker_tasks.square, [1], workers=0)
