import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.batching.buckets import Buckets
from janus_shards.errors import ConfigError
from tests.batching import reference
from tests.batching.test_budget import plan_one_lane
from tests.batching.test_plan import batches

SHAPES = ((384, 512), (512, 384), (448, 448), (256, 768), (224, 224))
ASPECT = Buckets(column=("width", "height"), shapes=SHAPES, batch_size=3)


@given(st.lists(st.integers(1, 64), max_size=100))
def test_rows_go_to_the_shortest_length_that_holds_them(lengths):
    """A batch is padded to the length of its bucket, and no row of it would have fitted a shorter one."""
    shapes, sizes_of = (8, 24, 64), {8: 5, 24: 3, 64: 2}
    sizes, plan = plan_one_lane(Buckets(column="tokens", shapes=shapes, batch_size=(5, 3, 2)), lengths)
    for batch, shape in zip(batches(plan), plan.shapes.tolist(), strict=True):
        assert all(min(s for s in shapes if s >= size) == shape for size in sizes[batch])
        assert len(batch) <= sizes_of[shape]
    closed = batches(plan)[: plan.lanes[-1]]
    assert (
        closed
        == reference.by_class(sizes.tolist(), lambda size: min(s for s in shapes if s >= size), sizes_of.__getitem__)[0]
    )


@given(st.integers(1, 4000), st.integers(1, 4000))
def test_images_go_to_the_nearest_aspect_ratio(width, height):
    """Nearest as a ratio of ratios; of two shapes with one ratio, the first."""
    columns = {"width": np.array([width]), "height": np.array([height])}
    (found,) = ASPECT.sizes(columns).values.tolist()
    distances = [abs(np.log(width / height * h / w)) for h, w in SHAPES]
    assert np.isclose(distances[found], min(distances))
    assert found != 4


def test_images_of_one_shape_share_a_batch():
    """Each batch names the number of its shape; the slots of a shape may be given instead of its rows."""
    columns = {"width": np.array([512, 384, 510, 380, 768, 520]), "height": np.array([384, 512, 384, 500, 256, 380])}
    rule = Buckets(column=("width", "height"), shapes=SHAPES, max_slots=2 * 384 * 512)
    sizes = rule.sizes(columns).values
    plan = rule.plan(sizes, np.array([0, 6]))
    assert sizes.tolist() == [0, 1, 0, 1, 3, 0]
    assert batches(plan) == [[0, 2], [1, 3], [4], [5]]
    assert plan.shapes.tolist() == [0, 1, 3, 0]
    assert plan.waste == 0


def test_long_rows_are_cut_or_refused():
    """A row longer than the last bucket is cut to it on demand, and counted."""
    lengths = {"tokens": np.array([3, 70])}
    with pytest.raises(ConfigError, match="1 of 2 samples"):
        Buckets(column="tokens", shapes=(8, 64), batch_size=2).sizes(lengths)
    sizes = Buckets(column="tokens", shapes=(8, 64), batch_size=2, truncate=True).sizes(lengths)
    assert (sizes.values.tolist(), sizes.num_truncated) == ([3, 64], 1)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"shapes": ()}, r"Buckets\(shapes="),
        ({"shapes": (64, 8)}, "increasing lengths"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": (1, 2, 3)}, "one for each of 2 shapes"),
        ({"batch_size": None}, "exactly one of batch_size and max_slots"),
        ({"max_slots": 100}, "exactly one of batch_size and max_slots"),
        ({"batch_size": None, "max_slots": 60}, "at least 64, the largest shape"),
        ({"column": ("width", "height")}, r"\(height, width\) pairs"),
        ({"column": ("width", "height"), "shapes": ((2, 3),), "truncate": True}, "no length to cut"),
    ],
)
def test_wrong_options_are_named(wrong, match):
    """An option outside its range is refused by name."""
    with pytest.raises(ConfigError, match=match):
        Buckets(**{"column": "tokens", "shapes": (8, 64), "batch_size": 2, **wrong})


def test_images_without_a_side_are_refused():
    """A width or height of 0 has no aspect ratio."""
    with pytest.raises(ConfigError, match="without width or height"):
        ASPECT.sizes({"width": np.array([3, 0]), "height": np.array([3, 3])})
