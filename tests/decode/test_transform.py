from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from janus_shards.decode.transform import Augment, FieldTransform, SampleTransform, TensorSpec, takes_rng


class Flip:
    """A sample transform with a random part, as a user would write it."""

    fingerprint = "flip/1"
    outputs: ClassVar = {"x": TensorSpec((2,), np.dtype(np.float32))}

    def apply(self, sample: Mapping[str, object], out: Mapping[str, np.ndarray]) -> None:
        """Write the output."""
        out["x"][:] = 1

    def augment(self, out: Mapping[str, np.ndarray], rng: np.random.Generator) -> None:
        """Change its sign or not."""
        out["x"] *= rng.choice([-1, 1])


def test_transforms_are_told_apart_by_their_members() -> None:
    """A class needs no base: its members say whether it is a sample transform and has a random part."""
    assert isinstance(Flip(), SampleTransform)
    assert isinstance(Flip(), Augment)
    assert not isinstance(Flip(), FieldTransform)
    assert not isinstance(len, SampleTransform | FieldTransform)


def test_callables_say_whether_they_want_a_generator() -> None:
    """A parameter named rng asks for one; builtins without a signature do not."""
    assert takes_rng(lambda sample, rng: sample)
    assert takes_rng(Flip().augment)
    assert not takes_rng(lambda sample: sample)
    assert not takes_rng(dict)
