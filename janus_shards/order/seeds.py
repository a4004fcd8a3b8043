"""64-bit keys and the permutations made from them: the only randomness of the library.

The bytes, so that anyone can make the same order again. All numbers are unsigned, 64 bits wide, and wrap around::

    splitmix64(s):  z = s + 9E3779B97F4A7C15
                    z = (z ^ (z >> 30)) * BF58476D1CE4E5B9
                    z = (z ^ (z >> 27)) * 94D049BB133111EB
                    return z ^ (z >> 31)

    derive(seed, t1, ..., tn):  h = splitmix64(seed);  for each t:  h = splitmix64(h ^ t);  return h

    keys(h, n)[i]         = splitmix64(h + i * 9E3779B97F4A7C15)         i = 0 .. n-1: the first n outputs of
                                                                         the generator SplitMix64 with state h
    permutation(h, n)     = keys(h, n), the low b bits of key i replaced by i, sorted upwards; the low b bits are the
                            permutation. b = bit length of n - 1: a stable argsort of the other 64 - b bits.

NumPy's generators are not used: their streams may change between versions. ``derive`` takes integer tags and never adds
them up, so that (epoch 1, lane 2) and (epoch 2, lane 1) have nothing in common.

Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014; constants of Vigna's
splitmix64.c. docs/design/0001-epoch-order.md.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB

# Keys are mixed in stretches that stay in the second-level cache: 2.5 times as fast as whole arrays at 4e6 keys.
_STRETCH = 1 << 14


class Tag(IntEnum):
    """What a derived key is for. Numbers are part of the frozen order: new ones are added, none is changed."""

    DEAL = 1  # (seed, DEAL) or, with lanes="mixed", (seed, DEAL, epoch): blocks onto lanes
    BLOCKS = 2  # (seed, BLOCKS, epoch, lane): blocks inside a lane
    ROWS = 3  # (seed, ROWS, epoch, lane, window): rows inside a window
    FULL = 4  # (seed, FULL, epoch, round): the keyed bijection of shuffle="full"
    AUGMENT = 5  # (seed, AUGMENT, source, source epoch, sample id, occurrence): random numbers of a transform
    SPLIT = 6  # (seed, SPLIT): salt of the key hashes that split a data set
    TAKE = 7  # (seed, TAKE, sample id): which samples a subset of given size takes
    SOURCE = 8  # (seed, SOURCE, source): seed of the own order of a mixture's source


def splitmix64(state: int) -> int:
    """First output of the generator SplitMix64 with this 64-bit state."""
    z = (state + _GAMMA) & _MASK
    z = ((z ^ (z >> 30)) * _MULTIPLIER_1) & _MASK
    z = ((z ^ (z >> 27)) * _MULTIPLIER_2) & _MASK
    return z ^ (z >> 31)


def derive(seed: int, *tags: int) -> int:
    """64-bit key of a sequence of integer tags, each in ``0 .. 2**64 - 1``; a permutation of the last tag."""
    key = splitmix64(seed)
    for tag in tags:
        key = splitmix64(key ^ tag)
    return key


def derive_each(keys: NDArray[np.uint64] | int, tags: NDArray[np.integer]) -> NDArray[np.uint64]:
    """The same step for many tags at once: ``derive(..., t)`` for each ``t``, given ``derive(...)``.

    Args:
        keys: One key, or one a tag.
        tags: Shape ``(n,)``, not negative.

    Returns:
        Shape ``(n,)``, uint64.
    """
    z = tags.astype(np.uint64)
    z ^= np.uint64(keys) if isinstance(keys, int) else keys
    z += np.uint64(_GAMMA)
    return _finalise(z)


def keys(key: int, count: int) -> NDArray[np.uint64]:
    """The first ``count`` outputs of the generator SplitMix64 with state ``key``, shape ``(count,)``."""
    out = np.empty(count, np.uint64)
    for start in range(0, count, _STRETCH):
        part = out[start : start + _STRETCH]
        part[:] = _counters(start, len(part))
        part += np.uint64(key)
        _finalise(part)
    return out


def permutation(key: int, count: int) -> NDArray[np.int64]:
    """Numbers ``0 .. count - 1`` in an order fixed by ``key``, shape ``(count,)``."""
    mask = np.uint64(_index_mask(count))
    packed = keys(key, count)
    packed &= ~mask
    packed |= np.arange(count, dtype=np.uint64)
    packed.sort()
    packed &= mask
    return packed.view(np.int64)


def permutations(keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> NDArray[np.uint64]:
    """``permutation(keys[i], counts[i])`` for many short permutations at once.

    Args:
        keys: Shape ``(m,)``.
        counts: Shape ``(m,)``, each at least 1.

    Returns:
        Shape ``(m, max(counts))``; row i holds a permutation of ``0 .. counts[i] - 1``, then values without meaning.
    """
    width = int(counts.max())
    even = int(counts.min()) == width
    packed = keys[:, None] + _counters(0, width)  # [m, width]
    _finalise(packed)
    if even:
        mask = np.uint64(_index_mask(width))
        packed &= ~mask
        packed |= np.arange(width, dtype=np.uint64)
        packed.sort(axis=1)
        packed &= mask
        return packed
    masks = _index_masks(counts)[:, None]  # [m, 1]
    packed &= ~masks
    packed |= np.arange(width, dtype=np.uint64)
    # What lies past the end of a row is the largest number there is and so stays behind it.
    packed[np.arange(width) >= counts[:, None]] = _MASK
    packed.sort(axis=1)
    packed &= masks
    return packed


def _counters(start: int, count: int) -> NDArray[np.uint64]:
    """State increments of outputs ``start .. start + count - 1``, shape ``(count,)``."""
    z = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    z *= np.uint64(_GAMMA)
    return z


def _finalise(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of SplitMix64, in place."""
    high = z >> 30
    z ^= high
    z *= np.uint64(_MULTIPLIER_1)
    np.right_shift(z, 27, out=high)
    z ^= high
    z *= np.uint64(_MULTIPLIER_2)
    np.right_shift(z, 31, out=high)
    z ^= high
    return z


def _index_mask(count: int) -> int:
    return (1 << (count - 1).bit_length()) - 1 if count > 1 else 0


def _index_masks(counts: NDArray[np.int64]) -> NDArray[np.uint64]:
    """``_index_mask`` of each count, shape ``(m,)``: the highest bit of ``count - 1``, smeared downwards."""
    mask = (counts - 1).astype(np.uint64)
    for shift in (1, 2, 4, 8, 16, 32):
        mask |= mask >> shift
    return mask
