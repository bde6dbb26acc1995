"""Counter-based random numbers, without a generator.

A number depends only on (seed, epoch, sample index, view, position), so data order and augmentation are the same for
any batch size, any number of workers and after any restart. The mixing function is the finalizer of SplitMix64 (Steele,
Lea, Flood 2014), applied once per key.
"""

import numpy as np
import numpy.typing as npt

_STEP = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio, odd
_ORDER = -1  # in place of a view: keys of the data order


def uniforms(seed: int, epoch: int, indices: npt.NDArray[np.integer], view: int, count: int) -> npt.NDArray[np.float64]:
    """Return uniform numbers in [0, 1), one row of `count` for each of the `indices` (B,).

    A row depends only on its own index, and its first columns do not depend on `count`.

    >>> uniforms(seed=0, epoch=3, indices=np.array([7, 8]), view=1, count=5).shape
    (2, 5)
    """
    states = _keys(seed, epoch, indices, view)
    bits = _mix(states[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _STEP)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(seed: int, epoch: int, n: int) -> npt.NDArray[np.int64]:
    """Return the order in which an epoch shows `n` samples: (n,) indices, each once."""
    return np.argsort(_keys(seed, epoch, np.arange(n), _ORDER), kind="stable")


def _keys(seed: int, epoch: int, indices: npt.NDArray[np.integer], view: int) -> npt.NDArray[np.uint64]:
    keys = np.zeros(1, np.uint64)
    for part in (seed, epoch, view):
        keys = _mix((keys ^ np.uint64(part % 2**64)) + _STEP)
    return _mix((keys ^ np.asarray(indices, np.int64).astype(np.uint64)) + _STEP)


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
