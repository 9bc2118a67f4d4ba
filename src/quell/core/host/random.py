# SPDX-License-Identifier: Apache-2.0
"""The counter-based random numbers of JAX, bit for bit; a key is one number of 64 bits."""

from typing import Any

import numpy as np

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
PARITY = np.uint32(0x1BD11BDA)
HALF, LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


def threefry(key: Any, high: Any, low: Any) -> tuple[Any, Any]:
    """Twenty rounds of Threefry-2x32 on a counter.

    References: Salmon et al. (2011), "Parallel random numbers: as easy as 1, 2, 3".
    """
    first, second = (key >> HALF).astype(np.uint32), (key & LOW).astype(np.uint32)
    schedule = first, second, first ^ second ^ PARITY
    one, two = high + schedule[0], low + schedule[1]
    for group in range(5):
        for turn in ROTATIONS[group % 2]:
            one = one + two
            two = ((two << np.uint32(turn)) | (two >> np.uint32(32 - turn))) ^ one
        one = one + schedule[(group + 1) % 3]
        two = two + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return one, two


def seed(number: Any) -> Any:
    """The key of a seed; a negative one of 32 bits keeps its bits."""
    number = np.asarray(number)
    return number.astype(f"uint{8 * number.dtype.itemsize}").astype(np.uint64)


def fold_in(key: Any, number: Any) -> Any:
    """A key of a key and a number."""
    data = np.asarray(number, np.uint32)
    return _joined(*threefry(key, np.zeros_like(data), data))


def split(key: Any, shape: tuple[int, ...]) -> Any:
    """Keys of a key, or of each of several."""
    return _joined(*_at_counters(key, shape))


def bits(key: Any, shape: tuple[int, ...], width: int) -> Any:
    """Random bits in unsigned numbers of 32 or 64 bits."""
    high, low = _at_counters(key, shape)
    return high ^ low if width == 32 else _joined(high, low)


def _at_counters(key: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    counter = np.arange(int(np.prod(shape)), dtype=np.uint64).reshape(shape)
    each = np.asarray(key, np.uint64).reshape(np.shape(key) + (1,) * len(shape))
    return threefry(each, (counter >> HALF).astype(np.uint32), (counter & LOW).astype(np.uint32))


def words(key: Any) -> Any:
    """The two words of a key."""
    return np.stack([key >> HALF, key & LOW], axis=-1).astype(np.uint32)


def from_words(pair: Any) -> Any:
    """The key of two words."""
    return _joined(pair[..., 0], pair[..., 1])


def _joined(high: Any, low: Any) -> Any:
    return (high.astype(np.uint64) << HALF) | low.astype(np.uint64)
