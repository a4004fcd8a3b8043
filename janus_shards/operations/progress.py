"""What a running operation tells its caller."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far an operation is.

    Attributes:
        stage: What it is doing, as a word for the user: ``plan``, ``compare``, ``write``, ``copy``, ``scan`` or
            ``verify``.
        done: Shards finished in this stage.
        total: Shards that this stage has.
        num_samples: Samples in the finished shards.
        num_bytes: Bytes of the finished shards.
    """

    stage: str
    done: int
    total: int
    num_samples: int = 0
    num_bytes: int = 0


#: Called in the caller's process after each step; what it raises ends the operation.
ProgressCallback: TypeAlias = Callable[[Progress], None]


def no_progress(_progress: Progress) -> None:
    """Tell nobody."""
