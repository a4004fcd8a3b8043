import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.errors import ObjectNotFoundError, TransientError
from janus_shards.storage.base import TransferOptions
from janus_shards.storage.memory import MemoryStorage
from janus_shards.storage.retry import THROTTLED, Clock, RetryingStorage, pause_before, retry_transient


class ManualClock:
    """A clock that sleeping moves on."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        """Move on."""
        self.pauses.append(seconds)
        self.now_s += seconds

    @property
    def clock(self) -> Clock:
        """What the code under test gets."""
        return Clock(now=lambda: self.now_s, sleep=self.sleep, random=lambda: 0.5)


class Failing:
    """A call that fails with each of some errors once, then returns."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        """Fail or return."""
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def test_passing_failures_are_tried_again() -> None:
    """A call that fails for a while gets its pauses, each about twice the one before, and its result."""
    manual, call = ManualClock(), Failing(*[TransientError("x")] * 3)
    assert retry_transient(call, options=TransferOptions(), clock=manual.clock) == "done"
    assert manual.pauses == pytest.approx([0.075, 0.15, 0.3])


def test_throttled_calls_wait_at_least_a_second() -> None:
    """A store that says SlowDown is left alone for growing pauses that begin at a second, under 20 s for three."""
    manual, call = ManualClock(), Failing(*[TransientError("x", kind=THROTTLED)] * 3)
    retry_transient(call, options=TransferOptions(), clock=manual.clock)
    assert min(manual.pauses) >= 1
    assert manual.pauses == sorted(manual.pauses)
    assert sum(manual.pauses) < 20


def test_attempts_are_bounded_and_counted() -> None:
    """The last error says how often it was tried, and keeps the object's name."""
    manual, call = ManualClock(), Failing(*[TransientError("reading x", kind=THROTTLED, shard="x")] * 9)
    with pytest.raises(TransientError, match=r"reading x \(gave up after 4 attempts in \d") as caught:
        retry_transient(call, options=TransferOptions(max_attempts=4), clock=manual.clock)
    assert (call.calls, caught.value.kind, caught.value.shard) == (4, "transfer_failed", "x")


def test_no_try_begins_behind_the_deadline() -> None:
    """A pause that would end behind the deadline is not begun."""
    manual, call = ManualClock(), Failing(*[TransientError("x", kind=THROTTLED)] * 9)
    with pytest.raises(TransientError, match="2 attempts"):
        retry_transient(call, options=TransferOptions(deadline_s=2.0), clock=manual.clock)
    assert manual.now_s <= 2


def test_other_errors_are_not_retried() -> None:
    """What another try would not mend is raised at once."""
    call = Failing(ObjectNotFoundError("x"))
    with pytest.raises(ObjectNotFoundError):
        retry_transient(call, options=TransferOptions(), clock=ManualClock().clock)
    assert call.calls == 1


@given(st.integers(2, 60), st.booleans(), st.floats(0, 1, exclude_max=True))
def test_pauses_keep_their_bounds(attempt: int, throttled: bool, chance: float) -> None:
    """No pause is longer than one and a half times the longest allowed, nor shorter than half the first."""
    pause = pause_before(attempt, throttled=throttled, options=TransferOptions(), chance=chance)
    assert 0.05 <= pause <= 22.5


def test_stream_goes_on_where_it_broke() -> None:
    """Failures in the middle of a stream cost neither bytes nor order, and both versions never mix."""

    class Flaky(MemoryStorage):
        calls = 0

        def read(self, *args: object, **options: object) -> bytes:
            """Fail every other time."""
            self.calls += 1
            if self.calls % 2:
                raise TransientError("cut")
            return super().read(*args, **options)  # type: ignore[arg-type, return-value]

    inner = Flaky()
    inner.put("x", bytes(range(256)) * 2**18)  # 64 MiB: several reads
    storage = RetryingStorage(inner, TransferOptions(), ManualClock().clock)
    pieces = list(storage.stream("x", chunk_bytes=2**22))
    assert len(pieces) == 16
    assert b"".join(pieces) == inner._objects["x"][0]
    assert inner.calls == 8
