import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.decode.geometry import MIN_SIDE, Fit, Rounding, place

SIDES = st.integers(1, 5000)
FRAMES = st.tuples(st.integers(1, 600), st.integers(1, 600))
ROUNDINGS = st.sampled_from(["floor", "round"])


@given(SIDES, SIDES)
def test_padding_to_a_square_scales_as_the_janus_processors(height: int, width: int) -> None:
    """Both roundings give the sizes of the original processor and of transformers, for any picture."""
    longest = max(height, width)
    floor = tuple(max(int(side / longest * 384), 14) for side in (height, width))
    nearest = tuple(max(round(side * (384 / longest)), 14) for side in (height, width))
    assert place(height, width, (384, 384), fit="pad", rounding="floor")[:2] == floor
    assert place(height, width, (384, 384), fit="pad", rounding="round")[:2] == nearest


@given(SIDES, SIDES, FRAMES, ROUNDINGS)
def test_padding_shows_the_whole_picture_centred(
    height: int, width: int, frame: tuple[int, int], rounding: Rounding
) -> None:
    """A padded picture lies inside the frame, touches it on one axis, and its borders differ by at most a pixel."""
    placed = place(height, width, frame, fit="pad", rounding=rounding)
    assert placed.height == frame[0] or placed.width == frame[1]
    for side, offset, limit in ((placed.height, placed.top, frame[0]), (placed.width, placed.left, frame[1])):
        assert min(MIN_SIDE, limit) <= side <= limit
        assert 0 <= (limit - side - offset) - offset <= 1


@given(SIDES, SIDES, FRAMES, ROUNDINGS)
def test_cropping_fills_the_frame(height: int, width: int, frame: tuple[int, int], rounding: Rounding) -> None:
    """A cropped picture covers the frame, fits it on one axis, and keeps its aspect to within a pixel."""
    placed = place(height, width, frame, fit="crop", rounding=rounding)
    assert min(placed.height - frame[0], placed.width - frame[1]) >= 0
    assert placed.height == frame[0] or placed.width == frame[1]
    assert max(placed.top, placed.left) <= 0
    if placed.height == frame[0] and placed.width > frame[1]:
        assert abs(placed.width - width * frame[0] / height) <= 1


@pytest.mark.parametrize("fit", ["pad", "crop", "stretch"])
def test_picture_of_the_frames_size_is_untouched(fit: Fit) -> None:
    """A picture that has the size of the frame is neither scaled nor moved."""
    assert place(384, 200, (384, 200), fit=fit, rounding="floor") == (384, 200, 0, 0)


def test_stretching_ignores_the_aspect() -> None:
    """Stretching gives the frame's sides whatever the picture's are."""
    assert place(1, 305, (20, 30), fit="stretch", rounding="floor") == (20, 30, 0, 0)
