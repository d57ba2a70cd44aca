"""A summary of the keys of a part, a Bloom filter: it says of a key that it is not there, or that it may be.

Ids of traces are random, so that every part has some on either side of any other: least and greatest key tell
nothing. With these, who looks for a few keys need not open the parts that have none of them.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from tracelake.shards.buckets import Hashes

Bits: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
_BITS_A_KEY: Final = 24
_PROBES: Final = 6
"""With so many bits a key, one key of 8,500 that are not there seems to be. Summaries of fewer bits are read alike."""
_HALF: Final = np.uint64(32)


def key_filter(hashes: Hashes) -> bytes:
    """Return the summary of distinct keys, given by their hashes (`buckets.hashes_of`). Part of the format."""
    size = -(-len(hashes) * _BITS_A_KEY // 8) * 8
    bits: Bits = np.zeros(size, np.bool_)
    if size:
        bits[_places(hashes, size)] = True
    return np.packbits(bits).tobytes()


def may_hold(summary: bytes, hashes: Hashes) -> Bits:
    """Return for each key whether it may be among those of a summary; False is certain."""
    if not summary:
        return np.zeros(len(hashes), np.bool_)
    eights, places = np.frombuffer(summary, np.uint8), _places(hashes, 8 * len(summary))
    masks = np.uint8(128) >> (places & np.uint64(7)).astype(np.uint8)
    bits_set: Bits = (eights[places >> np.uint64(3)] & masks).all(axis=1)
    return bits_set


def _places(hashes: Hashes, size: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return which bits stand for each key, one row a key."""
    # The halves of a hash tell buckets too, by its remainder, so the lower one is stirred before it is a stride.
    strides = (hashes * np.uint64(0x9E3779B97F4A7C15)) >> _HALF | np.uint64(1)
    steps = np.arange(_PROBES, dtype=np.uint64)
    places = ((hashes >> _HALF)[:, None] + steps * strides[:, None]) % np.uint64(size)
    return np.asarray(places, np.uint64)
