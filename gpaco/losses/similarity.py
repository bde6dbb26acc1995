"""Row-wise logsumexp of dot products, in blocks, so that the matrix of products is never stored.

With p the softmax over the references of one anchor, the two gradients of lse = logsumexp(anchor . references) are

    d lse_i / d anchor_i    = sum_k p_ik reference_k        a mean of the references: the forward pass has p
    d lse_i / d reference_k = p_ik anchor_i                 needs lse_i of every anchor: recomputed in the backward pass

so references without a gradient, such as a memory, cost two matrix products and nothing in the backward pass.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual


def similarity_logsumexp(anchors: Tensor, references: Tensor, own: int | None = None) -> Tensor:
    """Return the logsumexp of the dot products of each anchor with the references, (N,), in memory linear in N + R.

    Equals ``(anchors @ references.T).logsumexp(1)``; with `own`, the product of anchor i and reference own + i is left
    out, since an anchor is not its own reference. A row without references is -inf.

    Args:
        anchors: (N, D), float32 or float64.
        references: (R, D).
        own: row of `references` that is anchor 0, or None.
    """
    refuse_forward_mode(anchors, references)
    with_mean = torch.is_grad_enabled() and anchors.requires_grad
    lse: Tensor = logsumexp_and_mean(anchors, references, -1 if own is None else own, with_mean)[0]
    return lse


def refuse_forward_mode(*tensors: Tensor) -> None:
    if not torch.compiler.is_compiling() and any(unpack_dual(x).tangent is not None for x in tensors):
        raise RuntimeError(
            "The contrastive losses of gpaco have no forward-mode derivative (jvp, jacfwd): use backward() or grad()."
        )


def refuse_second_derivative() -> None:
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            "The contrastive losses of gpaco cannot be differentiated twice: their backward pass recomputes "
            "similarities in blocks. Call backward() without create_graph=True."
        )


def _block_rows(columns: int, device: torch.device) -> int:
    # A block of products should fit in the CPU cache, but keep an accelerator busy; matrix products with fewer than 64
    # rows are slow.
    elements = 2**20 if device.type == "cpu" else 2**24
    return max(64, elements // max(columns, 1))


@torch.library.custom_op("gpaco::similarity_logsumexp", mutates_args=())
def logsumexp_and_mean(anchors: Tensor, references: Tensor, own: int, with_mean: bool) -> tuple[Tensor, Tensor]:
    """Return the logsumexp (N,), and the softmax-weighted mean of the references (N, D) or an empty tensor."""
    size = min(len(anchors), _block_rows(len(references), anchors.device))
    lse = anchors.new_empty(len(anchors))
    mean = anchors.new_empty(len(anchors) if with_mean else 0, anchors.shape[1])
    block = anchors.new_empty(size, len(references))
    if len(references) == 0:
        return lse.fill_(-math.inf), mean.zero_()
    for start in range(0, len(anchors), max(size, 1)):
        rows = slice(start, min(start + size, len(anchors)))
        scores = block[: rows.stop - start]
        torch.mm(anchors[rows], references.t(), out=scores)
        if own >= 0:
            scores.diagonal(own + start).fill_(-math.inf)
        top = scores.amax(1, keepdim=True)
        top.masked_fill_(top == -math.inf, 0)
        weights = scores.sub_(top).exp_()
        weight = weights.sum(1, keepdim=True)
        lse[rows] = (weight.log() + top).squeeze(1)
        if with_mean:
            torch.mm(weights, references, out=mean[rows])
            mean[rows].div_(weight.clamp_min_(torch.finfo(weight.dtype).tiny))
    return lse, mean


@torch.library.custom_op("gpaco::similarity_reference_gradient", mutates_args=())
def reference_gradient(anchors: Tensor, references: Tensor, own: int, lse: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of ``(lse * grad).sum()`` for the references, (R, D): the same blocks, transposed."""
    size = min(len(references), _block_rows(len(anchors), anchors.device))
    result = torch.empty_like(references)
    block = anchors.new_empty(size, len(anchors))
    lse = lse.masked_fill(lse == -math.inf, math.inf)  # a row without references: its weights are 0, not nan
    for start in range(0, len(references), max(size, 1)):
        rows = slice(start, min(start + size, len(references)))
        scores = block[: rows.stop - start]
        torch.mm(references[rows], anchors.t(), out=scores)
        weights = scores.sub_(lse).exp_()
        if own >= 0 and start - own < len(anchors) and rows.stop > own:
            weights.diagonal(start - own).zero_()
        torch.mm(weights.mul_(grad), anchors, out=result[rows])
    return result


@logsumexp_and_mean.register_fake
def _(anchors: Tensor, references: Tensor, own: int, with_mean: bool) -> tuple[Tensor, Tensor]:
    rows, dim = anchors.shape  # not len(), which would fix the size in a compiled graph
    return anchors.new_empty(rows), anchors.new_empty(rows if with_mean else 0, dim)


@reference_gradient.register_fake
def _(anchors: Tensor, references: Tensor, own: int, lse: Tensor, grad: Tensor) -> Tensor:
    return torch.empty_like(references)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, int, bool], output: tuple[Tensor, Tensor]) -> None:
    anchors, references, ctx.own, _ = inputs
    lse, mean = output
    ctx.mark_non_differentiable(mean)
    ctx.set_materialize_grads(False)
    needed = (lse, anchors, references) if ctx.needs_input_grad[1] else ()
    ctx.save_for_backward(mean, *needed)


def _backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None]:
    refuse_second_derivative()
    if grad is None:
        return None, None, None, None
    mean, *rest = ctx.saved_tensors
    grad_anchors = mean * grad.unsqueeze(1) if ctx.needs_input_grad[0] else None
    grad_references = None
    if rest:
        lse, anchors, references = rest
        grad_references = reference_gradient(anchors, references, ctx.own, lse, grad.contiguous())
    return grad_anchors, grad_references, None, None


logsumexp_and_mean.register_autograd(_backward, setup_context=_setup)
