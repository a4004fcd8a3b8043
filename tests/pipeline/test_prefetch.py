import gc
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from janus_shards.pipeline.prefetch import Prefetcher


@dataclass
class Job:
    """A job that notes which of its tasks ran."""

    number: int
    tasks: Sequence[Callable[[], None]] = ()
    cost_bytes: int = 1
    done: list[int] = field(default_factory=list)


def make_job(number: int, *, num_tasks: int = 3, cost_bytes: int = 1) -> Job:
    """A job whose tasks append their place to ``done``."""
    job = Job(number, cost_bytes=cost_bytes)
    job.tasks = [lambda place=place: job.done.append(place) for place in range(num_tasks)]
    return job


def failing(number: int, places: Sequence[int], num_tasks: int = 4) -> Job:
    """A job whose tasks at ``places`` raise a ``ValueError`` with their place."""
    job = make_job(number, num_tasks=num_tasks)

    def fail(place: int) -> None:
        raise ValueError(f"task {place}")

    job.tasks = [(lambda place=place: fail(place)) if place in places else task for place, task in enumerate(job.tasks)]
    return job


def open_prefetcher(
    jobs: Iterator[Job], *, depth: int = 3, limit_bytes: int = 100, threads: int = 2
) -> Prefetcher[Job]:
    """A prefetcher with small bounds."""
    return Prefetcher(jobs, num_threads=threads, depth=depth, limit_bytes=limit_bytes)


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_jobs_come_back_in_order_and_finished(threads: int) -> None:
    """Jobs are handed over in the order they were made, each with all its tasks run once."""
    jobs = list(open_prefetcher((make_job(number) for number in range(50)), threads=threads))
    assert [job.number for job in jobs] == list(range(50))
    assert all(sorted(job.done) == [0, 1, 2] for job in jobs)


def test_job_without_tasks_is_handed_over() -> None:
    """A job with nothing to do is done at once."""
    assert [job.number for job in open_prefetcher(iter([make_job(0, num_tasks=0)]))] == [0]


def test_no_more_jobs_are_made_than_allowed_ahead() -> None:
    """The jobs admitted ahead of the consumer never exceed the depth; one more may be waiting at the door."""
    made = itertools.count()
    prefetcher = open_prefetcher((make_job(next(made)) for _ in range(100)), depth=3)
    for number in range(20):
        next(prefetcher)
        assert next(made) - number <= 3 + 3 + 2 * number  # each look at the counter counts, too
    prefetcher.close()


def test_byte_budget_limits_jobs_but_admits_one() -> None:
    """A job larger than the whole budget still runs, alone."""
    jobs = [make_job(number, cost_bytes=1000) for number in range(5)]
    assert [job.number for job in open_prefetcher(iter(jobs), limit_bytes=10)] == [0, 1, 2, 3, 4]


def test_error_of_a_task_is_raised_in_its_turn() -> None:
    """Jobs before a failing one are delivered, then its error is raised, then the iteration is over."""
    prefetcher = open_prefetcher(iter([make_job(0), make_job(1), failing(2, [1]), make_job(3)]))
    assert [next(prefetcher).number, next(prefetcher).number] == [0, 1]
    with pytest.raises(ValueError, match="task 1"):
        next(prefetcher)
    assert next(prefetcher, None) is None


def test_earliest_failing_task_counts() -> None:
    """With one thread, the error of a job is that of its first failing task, whatever fails later."""
    prefetcher = open_prefetcher(iter([failing(0, [1, 3])]), threads=1)
    with pytest.raises(ValueError, match="task 1"):
        next(prefetcher)


def test_error_of_the_maker_is_raised_behind_its_jobs() -> None:
    """When making jobs fails, those made before are delivered first."""

    def jobs() -> Iterator[Job]:
        yield make_job(0)
        raise OSError("index is gone")

    prefetcher = open_prefetcher(jobs())
    assert next(prefetcher).number == 0
    with pytest.raises(OSError, match="index is gone"):
        next(prefetcher)


def test_forgetting_a_prefetcher_ends_its_threads() -> None:
    """Dropping the last reference stops and joins all threads."""
    before = threading.active_count()
    prefetcher = open_prefetcher(make_job(number) for number in itertools.count())
    next(prefetcher)
    assert threading.active_count() > before
    del prefetcher
    gc.collect()
    assert threading.active_count() == before


def test_closing_runs_the_callback_before_waiting_for_workers() -> None:
    """A task that waits is woken by ``on_close``, so closing does not wait for it."""
    gate = threading.Event()
    job = Job(0, tasks=[lambda: bool(gate.wait(30)) and None])
    prefetcher = Prefetcher(iter([job]), num_threads=1, depth=1, limit_bytes=10, on_close=gate.set)
    prefetcher.close()
    assert gate.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("janus-")]
