"""Row-wise logsumexp of the dot products of points with each other, computing each product once for both rows.

With s_ij = scale * z_i . z_j and E_ij = exp(s_ij - c), where c is no less than any s_ij, lse_i = c + log sum_j E_ij, j
not i, and for a weight g_i on each lse_i

    d / d z_i = scale * sum_j E_ij (a_i + a_j) z_j        a_i = g_i exp(c - lse_i)

E is symmetric, so blocks on and above its diagonal are enough: half of the products and exponentials that similarity.py
needs for the same gradient. With one c for all rows, small terms could underflow: if products may differ by more than
REACH, which for points of unit length happens only at temperatures below 0.025, similarity.py is used instead. The same
goes for accelerators, where finding the range of the products would synchronize with the host in every step.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gpaco.losses.similarity import (
    logsumexp_and_mean,
    reference_gradient,
    refuse_forward_mode,
    refuse_second_derivative,
    similarity_logsumexp,
)

REACH = 80.0  # exp(-80) and exp(80) are within the range of float32
SIDE = 1024  # a block should fit in the CPU cache


def self_similarity_logsumexp(points: Tensor, scale: float) -> Tensor:
    """Return the logsumexp of the scaled dot products of each point with all others, (N,), in memory linear in N.

    Equals ``(scale * points @ points.T).fill_diagonal_(-inf).logsumexp(1)``.

    Args:
        points: (N, D), float32 or float64.
        scale: factor on every product, 1 / temperature.
    """
    if points.device.type != "cpu":
        return similarity_logsumexp(points * scale, points, own=0)
    refuse_forward_mode(points)
    lse: Tensor = _logsumexp(points, scale)
    return lse


def _ceiling(points: Tensor, scale: float) -> float | None:
    """Return an upper bound on the scaled products; None if it may be too far above the smallest."""
    most = abs(scale) * float(points.square().sum(1).max())
    return most if 2 * most <= REACH else None


@torch.library.custom_op("gpaco::self_similarity_logsumexp", mutates_args=())
def _logsumexp(points: Tensor, scale: float) -> Tensor:
    count = len(points)
    if count < 2:
        return points.new_full((count,), -math.inf)
    ceiling = _ceiling(points, scale)
    if ceiling is None:
        lse: Tensor = logsumexp_and_mean(points * scale, points, 0, False)[0]
        return lse
    scaled, total = points * scale, points.new_zeros(count)
    for rows, columns, block in _blocks(points):
        weights = torch.mm(scaled[rows], points[columns].t(), out=block).sub_(ceiling).exp_()
        if rows == columns:
            weights.fill_diagonal_(0)
        else:
            total[columns] += weights.sum(0)
        total[rows] += weights.sum(1)
    return total.log_().add_(ceiling)


@torch.library.custom_op("gpaco::self_similarity_gradient", mutates_args=())
def _gradient(points: Tensor, scale: float, lse: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of ``(lse * grad).sum()`` with respect to the points, (N, D)."""
    if len(points) < 2:
        return torch.zeros_like(points)
    ceiling, scaled = _ceiling(points, scale), points * scale
    if ceiling is None:
        as_anchors: Tensor = scale * grad.unsqueeze(1) * logsumexp_and_mean(scaled, points, 0, True)[1]
        as_references: Tensor = reference_gradient(scaled, points, 0, lse, grad)
        return as_anchors + as_references
    result, factor = torch.zeros_like(points), grad * (ceiling - lse).exp()
    for rows, columns, block in _blocks(points):
        weights = torch.mm(scaled[rows], points[columns].t(), out=block).sub_(ceiling).exp_()
        weights.mul_(factor[rows].unsqueeze(1) + factor[columns])
        if rows == columns:
            weights.fill_diagonal_(0)
        else:
            result[columns].addmm_(weights.t(), points[rows])
        result[rows].addmm_(weights, points[columns])
    return result.mul_(scale)


def _blocks(points: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield rows and columns of the blocks on and above the diagonal, and a shared buffer of their shape."""
    count, side = len(points), SIDE
    parts = [slice(start, min(start + side, count)) for start in range(0, count, side)]
    room = points.new_empty(min(side, count) ** 2)
    for number, rows in enumerate(parts):
        for columns in parts[number:]:
            tall, wide = rows.stop - rows.start, columns.stop - columns.start
            yield rows, columns, room[: tall * wide].view(tall, wide)


@_logsumexp.register_fake
def _(points: Tensor, scale: float) -> Tensor:
    return points.new_empty(points.shape[0])


@_gradient.register_fake
def _(points: Tensor, scale: float, lse: Tensor, grad: Tensor) -> Tensor:
    return torch.empty_like(points)


def _setup(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    points, ctx.scale = inputs
    ctx.save_for_backward(points, output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    refuse_second_derivative()
    points, lse = ctx.saved_tensors
    return _gradient(points, ctx.scale, lse, grad.contiguous()), None


_logsumexp.register_autograd(_backward, setup_context=_setup)
