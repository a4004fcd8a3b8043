from dataclasses import dataclass, replace

import numpy as np
import pytest

from janus_shards.order.cursor import Cursor, choose_generation
from janus_shards.order.epoch import OrderOptions
from janus_shards.order.serving import next_position, rank_slots
from janus_shards.world import World
from tests.contracts.resume import ResumeContract, take
from tests.order.test_serving import opened

SHARD_ROWS = (40, 0, 33, 1, 58)


@dataclass
class Step:
    """What a loader would deliver, without its bytes."""

    sample_ids: np.ndarray
    valid: np.ndarray


class OrderStream:
    """The order alone, with the manners of a loader."""

    def __init__(self, order, world, *, batch, tail):
        self.order = order
        self.cursor = Cursor.at_start(order, fingerprint="f", num_shards=len(SHARD_ROWS))
        self.rules = {"batch": batch, "tail": tail}
        self.world = world

    def __iter__(self):
        epoch = self.cursor.epoch
        while self.cursor.epoch == epoch:
            place = {"position": self.cursor.position, "world": self.world}
            served = rank_slots(self.order.epoch(epoch), steps=1, **place, **self.rules)
            epoch_and_position = next_position(
                self.order.num_samples, epoch=epoch, position=self.cursor.position, **self.rules
            )
            self.cursor = replace(self.cursor, **dict(zip(("epoch", "position"), epoch_and_position, strict=True)))
            yield Step(served.slots.sample_ids, served.valid)

    def state_dict(self):
        """The cursor."""
        return self.cursor.to_dict()

    def load_state_dict(self, state):
        """Go there, if it fits."""
        cursor = Cursor.from_dict(state)
        choose_generation(cursor, self.cursor)
        self.cursor = cursor


class OrderContract(ResumeContract):
    options = OrderOptions(seed=3, lanes=6, block_rows=4)
    batch = 12
    tail = "drop"
    num_steps = 23
    world_sizes = (1, 3, 4)

    def open_stream(self, world):
        """A stream of this class's options."""
        return OrderStream(opened(SHARD_ROWS, self.options), world, batch=self.batch, tail=self.tail)


class TestLanes(OrderContract):
    world_sizes = (1, 2, 3, 4, 6, 12)


class TestPaddedTail(OrderContract):
    tail = "pad"


class TestUnevenTail(OrderContract):
    tail = "uneven"


class TestMixedLanes(OrderContract):
    options = OrderOptions(lanes="mixed", block_rows=2, window=2)


class TestFullShuffle(OrderContract):
    options = OrderOptions(shuffle="full")


class TestStoredOrder(OrderContract):
    options = OrderOptions(shuffle=None)
    tail = "uneven"


@pytest.mark.parametrize("options", [OrderOptions(lanes=6, block_rows=4), OrderOptions(shuffle="full")])
def test_another_batch_size_goes_on_in_the_same_order(options):
    """Restored with another global batch at any step, the rest of the epoch is the same sequence, cut elsewhere."""
    order = opened(SHARD_ROWS, options)
    whole = order.epoch(0).slots(0, order.num_samples).sample_ids.tolist()
    for step in range(11):
        stream = OrderStream(order, World(), batch=12, tail="drop")
        take(stream, step)
        resumed = OrderStream(order, World(), batch=5, tail="uneven")
        resumed.load_state_dict(stream.state_dict())
        assert np.concatenate([s.sample_ids for s in resumed]).tolist() == whole[12 * step :]
