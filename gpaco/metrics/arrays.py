"""Array types of the metrics, and conversion to numbers for JSON, where NaN is None."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def mean(values: NDArray[Any]) -> float | None:
    """Return the mean of the values that are not NaN; None if all are."""
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else None


def number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
