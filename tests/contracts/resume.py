"""What every resumable stream of batches must keep: restored at any step, it goes on as if nothing had happened.

A stream is iterated once an epoch; leaving the iteration keeps the place. Subclass ``ResumeContract``, say how a stream
is opened, and all tests below run on it.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from janus_shards.world import World


class ResumableStream(Protocol):
    """One rank's batches; a pass is an epoch, and the first pass after ``load_state_dict`` the rest of one."""

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> Mapping[str, Any]:
        """The place behind the last batch returned."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to such a place."""


def take(stream: ResumableStream, num_steps: int) -> list[Any]:
    """The next batches of a stream, over as many epochs as it takes."""
    batches: list[Any] = []
    while len(batches) < num_steps:
        before = len(batches)
        batches += itertools.islice(stream, num_steps - before)
        assert len(batches) > before, "an epoch without a step"
    return batches


class ResumeContract:
    """Subclass it, with a ``Test`` in front of the name."""

    #: Steps to run; they should reach into a second epoch.
    num_steps: ClassVar[int]
    #: Worlds that take over from one another; the global batch of ``open_stream`` must be a multiple of each.
    world_sizes: ClassVar[Sequence[int]] = (1, 2, 3)

    def open_stream(self, world: World) -> ResumableStream:
        """A new stream at its start, always of the same data and options, with the same global batch."""
        raise NotImplementedError

    def sample_ids(self, batch: Any) -> list[int]:
        """Ids of the samples of a batch of one rank, without those that only fill it up."""
        return batch.sample_ids[batch.valid].tolist()

    def test_restored_at_every_step_it_goes_on_as_if_uninterrupted(self) -> None:
        """A new stream with the state of step n delivers exactly the batches after step n, in the same order."""
        world = World()
        expected = [self.sample_ids(batch) for batch in take(self.open_stream(world), self.num_steps)]
        for step in range(self.num_steps):
            state = self._run_to(step, world)
            batches = take(self._restored(state, world), self.num_steps - step)
            assert [self.sample_ids(batch) for batch in batches] == expected[step:], f"restored at step {step}"

    def test_restored_on_another_world_the_global_batches_stay(self) -> None:
        """Restored at any step with more or fewer ranks, each step delivers the same samples over all ranks."""
        expected = self._global_batches(World().world_size, None, self.num_steps)
        for step, (size_before, size_after) in enumerate(self._changes_of_world()):
            step %= self.num_steps
            state = self._run_to(step, World(rank=size_before - 1, world_size=size_before))
            found = self._global_batches(size_after, state, self.num_steps - step)
            assert found == expected[step:], f"{size_before} -> {size_after} ranks at step {step}"

    def test_every_rank_has_the_same_state(self) -> None:
        """A state taken on one rank restores all of them: rank 0 may save it for everybody."""
        for size, step in itertools.product(self.world_sizes, (0, 1, self.num_steps)):
            states = [self._run_to(step, World(rank=rank, world_size=size)) for rank in range(size)]
            assert all(state == states[0] for state in states)

    def test_loading_a_state_changes_nothing_in_it(self) -> None:
        """Asked right after loading, a stream answers with the state it was given, as often as it is asked."""
        for step in range(self.num_steps + 1):
            state = self._run_to(step, World())
            stream = self._restored(state, World())
            assert stream.state_dict() == stream.state_dict() == state

    def test_the_state_is_small_plain_json(self) -> None:
        """A state takes less than 1 KB as JSON."""
        assert len(json.dumps(self._run_to(self.num_steps, World()))) < 1024

    def _changes_of_world(self) -> list[tuple[int, int]]:
        """Pairs of world sizes, each pair often enough to meet every step."""
        pairs = list(itertools.permutations(self.world_sizes, 2))
        return [pairs[i % len(pairs)] for i in range(max(self.num_steps, len(pairs)))]

    def _run_to(self, step: int, world: World) -> dict[str, Any]:
        """State after some steps, as it comes back from a checkpoint in JSON."""
        stream = self.open_stream(world)
        take(stream, step)
        return json.loads(json.dumps(stream.state_dict()))

    def _restored(self, state: Mapping[str, Any], world: World) -> ResumableStream:
        stream = self.open_stream(world)
        stream.load_state_dict(state)
        return stream

    def _global_batches(self, size: int, state: Mapping[str, Any] | None, num_steps: int) -> list[list[int]]:
        """Sample ids of all ranks together in each step, sorted."""
        ranks = [World(rank=rank, world_size=size) for rank in range(size)]
        streams = [self.open_stream(world) if state is None else self._restored(state, world) for world in ranks]
        steps = zip(*(take(stream, num_steps) for stream in streams), strict=True)
        return [sorted(itertools.chain(*map(self.sample_ids, batches))) for batches in steps]
