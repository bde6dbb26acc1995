"""The classical losses against their equations written out, sample by sample."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from gpaco import balanced_softmax_loss, class_balanced_weights, focal_loss

COUNTS = [100, 20, 5, 1]
EXACT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture
def logits() -> torch.Tensor:
    return 2 * torch.randn(9, 4, dtype=torch.float64)


LABELS = torch.tensor([0, 1, 2, 3, 0, 1, -100, 2, 3])
VALID = [i for i, y in enumerate(LABELS.tolist()) if y >= 0]


@pytest.mark.parametrize("tau", [0.0, 1.0, 1.5])
def test_balanced_softmax_multiplies_each_class_by_its_frequency(logits: torch.Tensor, tau: float) -> None:
    costs = []
    for i in VALID:
        scores = [n**tau * math.exp(x) for n, x in zip(COUNTS, logits[i].tolist(), strict=True)]
        costs.append(-math.log(scores[LABELS[i]] / sum(scores)))
    got = balanced_softmax_loss(logits, LABELS, COUNTS, tau=tau)
    assert got.item() == pytest.approx(sum(costs) / len(costs), rel=1e-12)


def test_balanced_softmax_with_equal_counts_is_cross_entropy_with_its_smoothing(logits: torch.Tensor) -> None:
    for smoothing in (0.0, 0.1):
        torch.testing.assert_close(
            balanced_softmax_loss(logits, LABELS, [7, 7, 7, 7], label_smoothing=smoothing),
            F.cross_entropy(logits, LABELS, label_smoothing=smoothing),
            **EXACT,
        )


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("weight", [None, torch.tensor([0.5, 1.0, 2.0, 4.0])])
def test_focal_loss_is_cross_entropy_times_the_power_of_what_is_missing(
    logits: torch.Tensor, gamma: float, weight: torch.Tensor | None
) -> None:
    costs = []
    for i in VALID:
        p = logits[i].softmax(0)[LABELS[i]].item()
        costs.append((1 - p) ** gamma * -math.log(p) * (1 if weight is None else weight[LABELS[i]].item()))
    got = focal_loss(logits, LABELS, gamma=gamma, weight=weight)
    assert got.item() == pytest.approx(sum(costs) / len(costs), rel=1e-12)
    if gamma == 0 and weight is None:
        torch.testing.assert_close(got, F.cross_entropy(logits, LABELS), **EXACT)


def test_focal_loss_has_finite_gradients_where_the_label_is_certain() -> None:
    logits = torch.tensor([[1e4, 0.0], [-1e4, 0.0]], requires_grad=True)
    for gamma in (0.5, 1.0, 2.0):
        (gradient,) = torch.autograd.grad(focal_loss(logits, torch.tensor([0, 0]), gamma=gamma), logits)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.999, 0.9999])
def test_class_balanced_weights_are_inverse_effective_numbers_with_mean_one(beta: float) -> None:
    weights = class_balanced_weights(COUNTS, beta=beta)
    effective = [sum(beta**k for k in range(n)) for n in COUNTS]  # 1 + beta + ... + beta^(n - 1)
    expected = torch.tensor([1 / e for e in effective])
    torch.testing.assert_close(weights, expected / expected.mean())


LOSSES: dict[str, Any] = {
    "balanced softmax": lambda x, y, **k: balanced_softmax_loss(x, y, COUNTS, **k),
    "smoothed": lambda x, y, **k: balanced_softmax_loss(x, y, COUNTS, label_smoothing=0.1, **k),
    "focal": lambda x, y, **k: focal_loss(x, y, gamma=1.5, **k),
}


@pytest.mark.parametrize("name", LOSSES)
def test_each_takes_rows_of_probabilities_reductions_and_ignored_rows(name: str, logits: torch.Tensor) -> None:
    loss = LOSSES[name]
    rows = F.one_hot(LABELS.clamp_min(0), 4).double() * (LABELS >= 0).unsqueeze(1)
    for reduction in ("none", "sum", "mean"):
        torch.testing.assert_close(
            loss(logits, rows, reduction=reduction), loss(logits, LABELS, reduction=reduction), **EXACT
        )
    each = loss(logits, LABELS, reduction="none")
    assert each[6] == 0
    torch.testing.assert_close(loss(logits, LABELS), each.sum() / 8, **EXACT)
    nothing = loss(logits.requires_grad_(), torch.full_like(LABELS, -100))
    assert nothing.item() == 0
    assert not torch.autograd.grad(nothing, logits)[0].any()


@pytest.mark.parametrize("name", LOSSES)
def test_each_refuses_bad_input(name: str, logits: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="labels must be 0 to 3 or ignore_index"):
        LOSSES[name](logits, LABELS.clamp_min(0) + 2)
    with pytest.raises(ValueError, match="logits must be a float tensor"):
        LOSSES[name](logits[0], LABELS)
    with pytest.raises(ValueError, match="reduction must be one of"):
        LOSSES[name](logits, LABELS, reduction="average")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: balanced_softmax_loss(x, LABELS, [1, 2, 3]), "one entry for each of 4 classes"),
        (lambda x: balanced_softmax_loss(x, LABELS, [1, 2, 3, 0]), "above 0, got 0.0 for class 3"),
        (lambda x: balanced_softmax_loss(x, LABELS, COUNTS, tau=math.nan), "tau must be at least 0, got nan"),
        (lambda x: balanced_softmax_loss(x, LABELS, COUNTS, tau=math.inf), "tau must be at least 0, got inf"),
        (lambda x: balanced_softmax_loss(x, LABELS, COUNTS, label_smoothing=1.5), "smoothing .* below 1, got 1.5"),
        (lambda x: focal_loss(x, LABELS, gamma=-1), "gamma must be at least 0"),
        (lambda x: focal_loss(x, LABELS, weight=torch.ones(3)), r"weight must be \(4,\), one per class, got \(3,\)"),
        (lambda x: focal_loss(x, LABELS, weight=torch.ones(9, 4)), r"weight must be \(4,\), .* got \(9, 4\)"),
        (lambda x: focal_loss(x, LABELS, weight=-torch.ones(4)), "weight must be finite and nonnegative"),
        (lambda x: class_balanced_weights(COUNTS, beta=1.0), "beta must be at least 0 and below 1"),
    ],
)
def test_bad_options_are_named(make: Any, message: str, logits: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=message):
        make(logits)
