"""Where a picture lands in a frame of fixed size: pure arithmetic, no pixels."""

from typing import Literal, NamedTuple

Fit = Literal["pad", "crop", "stretch"]
Rounding = Literal["floor", "round"]

#: No side is scaled below this many pixels: one patch of Janus's vision encoder.
MIN_SIDE = 14


class Placement(NamedTuple):
    """A picture scaled to ``height`` x ``width`` and laid into a frame at (``top``, ``left``); negative when
    cropped.
    """

    height: int
    width: int
    top: int
    left: int


def place(height: int, width: int, frame: tuple[int, int], *, fit: Fit, rounding: Rounding) -> Placement:
    """Scaled size and offset of a picture in a frame.

    Args:
        height: Height of the picture in pixels, upright.
        width: Its width.
        frame: (height, width) of the frame.
        fit: ``pad``: the whole picture, scaled until one side fills the frame, and centred. ``crop``: the frame is
            filled, and what sticks out is cut off equally. ``stretch``: both sides are scaled to the frame.
        rounding: How the free side is rounded.

    Source: ``VLMImageProcessor.resize`` of deepseek-ai/Janus for ``floor``; ``JanusImageProcessor`` of transformers 5
    for ``round``.
    """
    if fit == "stretch":
        return Placement(*frame, 0, 0)
    frame_height, frame_width = frame
    scale = _scaled_as_janus if fit == "pad" else _scaled
    # The side that is scaled exactly: with pad the tighter one, with crop the looser one.
    if (height * frame_width >= width * frame_height) == (fit == "pad"):
        scaled = (frame_height, scale(width, height, frame_height, rounding))
    else:
        scaled = (scale(height, width, frame_width, rounding), frame_width)
    if fit == "pad":
        scaled = (min(max(scaled[0], MIN_SIDE), frame_height), min(max(scaled[1], MIN_SIDE), frame_width))
    else:
        scaled = (max(scaled[0], frame_height), max(scaled[1], frame_width))
    return Placement(*scaled, (frame_height - scaled[0]) // 2, (frame_width - scaled[1]) // 2)


def _scaled_as_janus(side: int, fixed_side: int, target: int, rounding: Rounding) -> int:
    # In floating point and in the origin's order of operations: another order rounds differently for some sizes.
    if rounding == "floor":
        return int(side / fixed_side * target)
    return round(side * (target / fixed_side))


def _scaled(side: int, fixed_side: int, target: int, rounding: Rounding) -> int:
    if rounding == "floor":
        return side * target // fixed_side
    return (2 * side * target + fixed_side) // (2 * fixed_side)
