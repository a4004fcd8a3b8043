import copy
import pickle
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from janus_shards.torch.passes import PassCounter


def in_worker(counter: PassCounter) -> PassCounter:
    """What a worker process has of the counter: the same shared memory, and no passes of its own yet."""
    copied = PassCounter.__new__(PassCounter)
    copied.__setstate__(counter.__getstate__())
    return copied


def test_the_main_process_counts_its_passes() -> None:
    """Without workers the passes are epochs 0, 1, 2, and ``set_next`` chooses any other."""
    counter = PassCounter()
    assert [counter.begin() for _ in range(3)] == [0, 1, 2]
    counter.set_next(7)
    assert [counter.begin() for _ in range(2)] == [7, 8]
    counter.set_next(0)
    assert counter.begin() == 0


def test_workers_that_stay_alive_count_on() -> None:
    """The same processes agree on pass after pass, whoever begins it first, and follow ``set_next``."""
    counter = PassCounter()
    one, other = in_worker(counter), in_worker(counter)
    assert [one.begin_in_worker(0, 5), other.begin_in_worker(1, 5)] == [0, 0]
    assert [other.begin_in_worker(1, 5), one.begin_in_worker(0, 5)] == [1, 1]
    counter.set_next(9)
    assert [one.begin_in_worker(0, 5), other.begin_in_worker(1, 5)] == [9, 9]


def test_torch_seeded_alike_before_each_pass() -> None:
    """``torch.manual_seed(0)`` in front of each pass makes all seeds of workers equal: passes still count."""
    counter = PassCounter()
    found = [[in_worker(counter).begin_in_worker(worker, 5) for worker in range(3)] for _ in range(5)]
    assert found == [[epoch] * 3 for epoch in range(5)]


def test_copies_count_apart() -> None:
    """A copied or pickled counter goes on from the same epoch in memory of its own, which its workers share."""
    counter = PassCounter()
    counter.begin()
    for other in (copy.deepcopy(counter), pickle.loads(pickle.dumps(counter))):
        assert [in_worker(other).begin_in_worker(0, 1), in_worker(other).begin_in_worker(0, 2)] == [1, 2]
    assert counter.begin() == 1


@dataclass(frozen=True)
class Pass:
    """One pass: the workers that begin it in this order, out of those that were started; none is the main process."""

    began: tuple[int, ...]
    set_next: int | None


@st.composite
def passes(draw: st.DrawFn) -> Pass:
    """A pass of up to 4 workers in any order, some of which were ended before they began."""
    order = draw(st.permutations(range(draw(st.integers(0, 4)))))
    return Pass(tuple(order[: draw(st.integers(0, len(order)))]), draw(st.none() | st.integers(0, 20)))


@given(st.lists(passes(), max_size=12))
def test_workers_of_a_pass_agree(history: list[Pass]) -> None:
    """Whatever happened before, all workers of a pass take one epoch: the one set, or the one after the last pass."""
    counter, expected = PassCounter(), 0
    for number, one in enumerate(history):
        if one.set_next is not None:
            counter.set_next(expected := one.set_next)
        found = {in_worker(counter).begin_in_worker(worker, number) for worker in one.began} or {counter.begin()}
        assert found == {expected}
        expected += 1
