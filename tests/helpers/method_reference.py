"""The losses of the methods of other papers as loops over single numbers, straight from their equations."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def cross_entropy(row: Sequence[Tensor], y: int) -> Tensor:
    top = max(float(z.detach()) for z in row)
    return torch.log(sum(torch.exp(z - top) for z in row)) + top - row[y]  # type: ignore[arg-type,return-value]


def effective_weights(counts: Sequence[float], beta: float) -> list[float]:
    """v_j = (1 - beta) / (1 - beta^n_j), then C v_j / sum v."""
    v = [(1 - beta) / (1 - beta**n) for n in counts]
    return [len(v) * one / sum(v) for one in v]


def margins(counts: Sequence[float], largest: float = 0.5) -> list[float]:
    return [largest * (min(counts) / n) ** 0.25 for n in counts]


def ldam(logits: Tensor, labels: Tensor, counts: Sequence[float], *, drw: bool, scale: float = 30.0) -> Tensor:
    """CE_w(s (cos - m_y e_y), y) of logits s cos, divided by the weights in the batch."""
    m, w = margins(counts), effective_weights(counts, 0.9999) if drw else [1.0] * len(counts)
    total, weights = torch.zeros((), dtype=logits.dtype), 0.0
    for row, y in zip(logits, labels.tolist(), strict=True):
        moved = [scale * (z / scale - (m[j] if j == y else 0)) for j, z in enumerate(row)]
        total = total + w[y] * cross_entropy(moved, y)
        weights += w[y]
    return total / weights


def cb_focal(logits: Tensor, labels: Tensor, counts: Sequence[float], beta: float, gamma: float) -> Tensor:
    w, total = effective_weights(counts, beta), torch.zeros((), dtype=logits.dtype)
    for row, y in zip(logits, labels.tolist(), strict=True):
        for j, z in enumerate(row):
            p = 1 / (1 + torch.exp(-z))
            pt = p if j == y else 1 - p
            total = total + w[y] * (1 - pt) ** gamma * -torch.log(pt)
    return total / len(logits)


def bcl(logits: Tensor, embeddings: Tensor, labels: Tensor, counts: Sequence[float], t: float) -> tuple[Tensor, Tensor]:
    """The logit-compensated loss and the balanced contrast; the last rows of the embeddings are the prototypes."""
    total, c, b = sum(counts), len(counts), len(labels)
    first = torch.zeros((), dtype=logits.dtype)
    for row, y in zip(logits, labels.tolist(), strict=True):
        first = first + cross_entropy([z + math.log(n / total) for z, n in zip(row, counts, strict=True)], y)
    views = embeddings[:-c]
    classes = [labels.tolist()[i % b] for i in range(len(views))] + list(range(c))
    second = torch.zeros((), dtype=logits.dtype)
    for i, q in enumerate(views):
        members = {j: [k for k in range(len(classes)) if classes[k] == j and k != i] for j in range(c)}
        inner = torch.zeros((), dtype=logits.dtype)
        for ks in members.values():
            inner = inner + sum(torch.exp((q * embeddings[k]).sum() / t) for k in ks) / len(ks)
        own = members[classes[i]]
        second = second - sum((q * embeddings[a]).sum() / t - torch.log(inner) for a in own) / len(own)
    return first / b, second / len(views)


def mislas(logits: Tensor, labels: Tensor, counts: Sequence[float], head: float, tail: float) -> Tensor:
    total, low, high = torch.zeros((), dtype=logits.dtype), min(counts), max(counts)
    for row, y in zip(logits, labels.tolist(), strict=True):
        eps = tail + (head - tail) * math.sin(math.pi * (counts[y] - low) / (2 * (high - low)))
        every = [cross_entropy(list(row), j) for j in range(len(row))]
        total = total + (1 - eps) * every[y] + eps * sum(every) / len(every)
    return total / len(logits)


def bbn(logits: Tensor, common: Tensor, reversed_: Tensor, a: float) -> Tensor:
    total = torch.zeros((), dtype=logits.dtype)
    for row, yc, yr in zip(logits, common.tolist(), reversed_.tolist(), strict=True):
        total = total + a * cross_entropy(list(row), yc) + (1 - a) * cross_entropy(list(row), yr)
    return total / len(logits)


def reslt(logits: Tensor, labels: Tensor, groups: Sequence[set[int]], alpha: float) -> Tensor:
    """`groups`: the classes of the branches H, M and T."""
    fused, alone, number = torch.zeros((), dtype=logits.dtype), torch.zeros((), dtype=logits.dtype), 0
    for branches, y in zip(logits, labels.tolist(), strict=True):
        fused = fused + cross_entropy(list(branches.sum(0)), y)
        for branch, group in zip(branches, groups, strict=True):
            if y in group:
                alone = alone - torch.log(torch.exp(-cross_entropy(list(branch), y)) + 1e-7)
                number += 1
    return alpha * alone / number + (1 - alpha) * fused / len(labels)


def ride(logits: Tensor, labels: Tensor, counts: Sequence[float], *, drw: bool, diversity: float, r: float) -> Tensor:
    n, experts, c = logits.shape
    u = [c * one / sum(counts) * r + 1 - r for one in counts]
    t = [one / max(u) for one in u] if drw else [1.0] * c
    mean_t = sum(t) / c
    total = torch.zeros((), dtype=logits.dtype)
    for k in range(experts):
        total = total + ldam(logits[:, k], labels, counts, drw=drw)
        apart = torch.zeros((), dtype=logits.dtype)
        for i in range(n):
            target = [float(logits[i, :, j].detach().mean()) / t[j] for j in range(c)]
            own = [logits[i, k, j] / t[j] for j in range(c)]
            norm = sum(math.exp(z) for z in target)
            for j in range(c):
                p = math.exp(target[j]) / norm
                apart = apart + p * (math.log(p) + cross_entropy(own, j))
        total = total - diversity * mean_t**2 * apart / n
    return total


def causal(x: Tensor, w: Tensor, e: Tensor, *, pieces: int, tau: float, gamma: float, alpha: float) -> Tensor:
    """Logits at test time; with alpha = 0 those of training."""
    size, out = x.shape[1] // pieces, torch.zeros(len(x), len(w), dtype=x.dtype)
    for i in range(len(x)):
        for j in range(len(w)):
            for k in range(pieces):
                part = slice(k * size, (k + 1) * size)
                xk, wk, ek = x[i, part], w[j, part], e[part]
                unit = xk / xk.norm()
                q = ek / ek.norm()
                cosine = (xk * ek).sum() / (xk.norm() * ek.norm())
                out[i, j] += tau / pieces * (wk / (wk.norm() + gamma) * (unit - alpha * cosine * q)).sum()
    return out


def meta_embedding(
    f: Tensor, c: Tensor, hallucinate: Tensor, h: Tensor, select: Tensor, t: Tensor, w: Tensor
) -> Tensor:
    """OLTR's logits."""
    out = torch.zeros(len(f), len(w), dtype=f.dtype)
    for i, x in enumerate(f):
        o = torch.softmax(hallucinate @ x + h, 0)
        memory = sum(o[j] * c[j] for j in range(len(c)))
        r = 10 / min((x - one).norm() for one in c)
        v = r * (x + torch.tanh(select @ x + t) * memory)
        for j in range(len(w)):
            out[i, j] = 16 * (v / (1 + v.norm()) * w[j] / w[j].norm()).sum()
    return out


def oltr(logits: Tensor, f: Tensor, c: Tensor, labels: Tensor) -> Tensor:
    b, classes = logits.shape
    first = sum(cross_entropy(list(row), y) for row, y in zip(logits, labels.tolist(), strict=True)) / b
    attract = sum(((f[i] - c[y]) ** 2).sum() for i, y in enumerate(labels.tolist())) / (2 * b)
    far = sum(((f[i] - c[j]) ** 2).sum() for i, y in enumerate(labels.tolist()) for j in range(classes) if j != y)
    repel = torch.clamp(10 - torch.as_tensor(far) / (b * classes), min=0)
    return first + 0.01 * (attract + 0.01 * repel)


def modulated_attention(f: Tensor, layers: Any) -> Tensor:
    """OLTR's maps F + MA * SA of one image, F being (channels, height, width)."""
    places = [(y, x) for y in range(f.shape[1]) for x in range(f.shape[2])]
    theta, phi, g, back = (layer.weight[:, :, 0, 0] for layer in (layers.theta, layers.phi, layers.g, layers.back))
    where = torch.softmax(layers.spatial.weight @ f.reshape(-1) + layers.spatial.bias, 0)
    out = f.clone()
    for k, (y, x) in enumerate(places):
        query = theta @ f[:, y, x] + layers.theta.bias
        scores = torch.stack([(query * (phi @ f[:, v, u] + layers.phi.bias)).sum() for v, u in places])
        shares = torch.softmax(scores, 0)
        seen = sum(share * (g @ f[:, v, u] + layers.g.bias) for share, (v, u) in zip(shares, places, strict=True))
        out[:, y, x] = f[:, y, x] + where[k] * (back @ seen)
    return out
