"""The warp of SimAugment (Khosla et al., 2020): four points of an image move, and the rest follows smoothly.

As in their code: the points are at a third and two thirds of each side, all moves of an image have the same standard
deviation, drawn between 0 and 23 pixels of 224, and a thin-plate spline through them determines how far every other
pixel moves. Border pixels are repeated.
"""

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

DRAWS_OF_WARP = 10  # whether, how far, and two for each point
LONGEST = 23 / 224  # standard deviation of a move, as a share of the side
_POINTS = np.array([(y, x) for y in (1 / 3, 2 / 3) for x in (1 / 3, 2 / 3)])
_NORMAL = NormalDist()


def drawn_moves(draws: Sequence[float]) -> tuple[float, ...]:
    """Return the moves of the four points, y and x of each as shares of the side; () for half of the images."""
    if draws[0] >= 0.5:
        return ()
    return tuple(draws[1] * LONGEST * _NORMAL.inv_cdf(max(draw, 2.0**-54)) for draw in draws[2:DRAWS_OF_WARP])


def spline_warp(image: Array, moves: Sequence[float]) -> Array:
    """Return the image (H, W, 3) uint8 with the four points moved."""
    height, width = image.shape[:2]
    flow = spline_flow(np.reshape(moves, (4, 2)), height, width)
    across, down = np.arange(width) - flow[..., 1] * width, np.arange(height)[:, None] - flow[..., 0] * height
    maps = across.astype(np.float32), down.astype(np.float32)
    return np.asarray(cv2.remap(image, *maps, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE))


def spline_flow(moves: Array, height: int, width: int) -> Array:
    """Return how far each pixel moves, (H, W, 2): the thin-plate spline with these moves at the end points."""
    ends = _POINTS + moves
    system = np.zeros((7, 7))
    system[:4, :4] = _bending(ends, ends)
    system[:4, 4:] = np.column_stack([ends, np.ones(4)])
    system[4:, :4] = system[:4, 4:].T
    weights, *_ = np.linalg.lstsq(system, np.vstack([moves, np.zeros((3, 2))]), rcond=None)
    rows, columns = np.arange(height)[:, None] / height, np.arange(width) / width
    flow = [own[4] * rows + own[5] * columns + own[6] for own in weights.T]
    for end, weight in zip(ends, weights, strict=False):  # plane by plane, with OpenCV's logarithm: 8 times faster
        squared = (rows - end[0]) ** 2 + (columns - end[1]) ** 2
        bend = 0.5 * squared * cv2.log(np.maximum(squared, 1e-30))
        for plane, share in zip(flow, weight, strict=True):
            plane += share * bend
    return np.stack(flow, axis=2)


def _bending(places: Array, points: Array) -> Array:
    """Return r^2 log r for the distance r of each place to each point."""
    squared = ((places[:, None] - points) ** 2).sum(-1)
    return np.asarray(0.5 * squared * np.log(np.maximum(squared, 1e-30)))
