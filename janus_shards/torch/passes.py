"""Which epoch a pass is: agreed by the workers of a ``DataLoader``, which start apart and cannot talk to each other."""

from typing import Any

import torch

from janus_shards.order.seeds import derive

# DataLoader numbers its workers from 0; nobody starts more on one machine.
_MAX_WORKERS = 1024
_LOW = (1 << 32) - 1


class PassCounter:
    """Counts passes over all processes that share it.

    ::

        word 0        epoch of the next pass, as the main process set or counted it
        word 1 + w    written by worker w when it begins a pass: tag of that pass << 32 | epoch of the pass after it

    A worker that begins looks for its pass's tag in the words of the others. If one has it, that one's epoch is right;
    else it is the first, and takes the next epoch that any word knows. Two that are first at once take the same. So
    workers agree also when one of an earlier pass was ended before it began, or when there are more or fewer of them
    than before.
    """

    def __init__(self) -> None:
        self._words = torch.zeros(1 + _MAX_WORKERS, dtype=torch.int64)
        self._words.share_memory_()  # type: ignore[no-untyped-call]
        self._passes_here = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"words": self._words}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._words = state["words"]
        # Already shared in a worker; a copy made by copy or pickle shares with its own workers.
        self._words.share_memory_()  # type: ignore[no-untyped-call]
        self._passes_here = 0

    def set_next(self, epoch: int) -> None:
        """Make the next pass epoch ``epoch``."""
        self._words[1:] = 0
        self._words[0] = epoch

    def begin(self) -> int:
        """Epoch of a pass in the main process."""
        epoch = _next_epoch(self._words.tolist())
        self.set_next(epoch + 1)
        return epoch

    def begin_in_worker(self, worker: int, seed: int) -> int:
        """Epoch of a pass of which this process makes a share.

        Args:
            worker: Number of this worker.
            seed: Equal for all workers of a pass; another for each start of workers.
        """
        words = self._words.tolist()
        # Workers that stay alive keep their seed, and count their passes.
        tag = _tag(seed, self._passes_here)
        self._passes_here += 1
        own = words[1 + worker]
        if own >> 32 == tag:
            # The caller seeds torch alike before each pass: this is another pass than the one with this tag.
            tag = _tag(tag, own & _LOW)
        found = [word for word in words[1:] if word >> 32 == tag]
        epoch = (found[0] & _LOW) - 1 if found else _next_epoch(words)
        # One aligned word, written at once: others see all of it or nothing.
        self._words[1 + worker] = tag << 32 | epoch + 1
        return epoch


def _next_epoch(words: list[int]) -> int:
    return max(word & _LOW for word in words)


def _tag(*numbers: int) -> int:
    """31 bits, never 0: words stay positive, and an empty one has no tag."""
    return derive(*numbers) >> 33 | 1
