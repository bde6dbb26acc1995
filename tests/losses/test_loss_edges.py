"""Hostile but legal input gives finite values and gradients; bad input gives an error that helps."""

from collections import Counter
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gpaco import (
    GPaCoLoss,
    Memory,
    balanced_softmax_loss,
    focal_loss,
    gpaco_loss,
    pixel_gpaco_loss,
    supcon_loss,
)


def unit(rows: int, dim: int = 4) -> Tensor:
    return F.normalize(torch.randn(rows, dim), dim=1)


def built_in_half(make: Any) -> Any:
    torch.set_default_dtype(torch.bfloat16)
    try:
        return make()
    finally:
        torch.set_default_dtype(torch.float32)


def assert_finite(loss: Tensor, *leaves: Tensor) -> None:
    loss.sum().backward()
    assert loss.isfinite().all()
    assert all(leaf.grad is None or leaf.grad.isfinite().all() for leaf in leaves)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "memory_labels"),
    [
        ([0], None),  # a single sample
        ([0], []),  # with an empty memory
        ([0, 1, 2], None),  # no positives
        ([0, 0, 0], [0, 0]),  # nothing but positives
        ([-100, -100], None),  # everything ignored
        ([-100, 1], [-100]),
        ([], [1, 2]),  # no sample at all
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_odd_batches_give_finite_values_and_gradients(
    labels: list[int], memory_labels: list[int] | None, dtype: torch.dtype
) -> None:
    memory: Any = (None, None)
    if memory_labels is not None:
        memory = unit(len(memory_labels)), torch.tensor(memory_labels, dtype=torch.int64)
    y = torch.tensor(labels, dtype=torch.int64)
    for alpha, temperature, reduction in product((0.0, 0.05, 1.0), (1e-3, 0.2, 100.0), ("none", "mean", "sum")):
        logits = torch.randn(len(labels), 3).to(dtype).requires_grad_()
        embeddings = unit(len(labels)).to(dtype).requires_grad_()
        loss = gpaco_loss(logits, embeddings, y, *memory, alpha=alpha, temperature=temperature, reduction=reduction)
        assert_finite(loss, logits, embeddings)
        z = unit(len(labels)).to(dtype).requires_grad_()
        assert_finite(supcon_loss(z, y, *memory, temperature=temperature, reduction=reduction), z)


@pytest.mark.parametrize(("temperature", "alpha"), [(1e-6, 0.05), (0.2, 9e5), (1e-6, 9e5), (1e30, 0.0)])
def test_the_largest_and_smallest_options_that_are_allowed_give_finite_values(temperature: float, alpha: float) -> None:
    logits, embeddings, memory = torch.randn(6, 3).requires_grad_(), unit(6).requires_grad_(), unit(9)
    labels, memory_labels = torch.tensor([0, 1, 2, 0, 1, 0]), torch.arange(9) % 3
    loss = gpaco_loss(logits, embeddings, labels, memory, memory_labels, temperature=temperature, alpha=alpha)
    assert_finite(loss, logits, embeddings)


@pytest.mark.parametrize(
    "loss",
    [
        lambda logits, labels: gpaco_loss(logits, F.normalize(torch.ones(3, 4) + torch.eye(3, 4), dim=1), labels),
        lambda logits, labels: focal_loss(logits, labels),
        lambda logits, labels: balanced_softmax_loss(logits, labels, [3, 2, 1, 1]),
    ],
    ids=["gpaco", "focal", "balanced softmax"],
)
def test_a_class_masked_by_minus_infinity_costs_what_a_very_small_logit_costs(loss: Any) -> None:
    soft = torch.tensor([[0.0, 0.7, 0.3, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])  # the last one is ignored
    hard = torch.tensor([1, 2, -100])
    for labels in (soft, hard):
        logits = torch.randn(3, 4)
        values, gradients = [], []
        for mask in (-torch.inf, -1e4):
            x = logits.clone().requires_grad_()
            values.append(loss(x.index_fill(1, torch.tensor([0, 3]), mask), labels))
            gradients.append(torch.autograd.grad(values[-1], x)[0])
        assert values[0].isfinite()
        torch.testing.assert_close(*values)
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e4), (torch.float16, 6e4), (torch.bfloat16, 6e4)])
def test_huge_logits_give_finite_values_and_gradients(dtype: torch.dtype, size: float) -> None:
    signs = torch.tensor([[1.0, -1.0, 1.0], [-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]])
    logits = (size * signs).to(dtype).requires_grad_()
    embeddings = unit(3).to(dtype).requires_grad_()
    for smoothing in (0.0, 0.1):
        loss = gpaco_loss(logits, embeddings, torch.tensor([1, 1, 0]), label_smoothing=smoothing)
        assert_finite(loss, logits, embeddings)


def test_everything_ignored_costs_zero_and_moves_nothing() -> None:
    logits, embeddings = torch.randn(2, 3, requires_grad=True), unit(2).requires_grad_()
    loss = gpaco_loss(logits, embeddings, torch.tensor([-100, -100]))
    loss.backward()
    assert loss.item() == 0
    assert not logits.grad.any()
    assert not embeddings.grad.any()


def test_ignored_rows_are_references_but_no_anchors_and_no_positives() -> None:
    logits, embeddings = torch.randn(3, 2), unit(3)
    ignored = gpaco_loss(logits, embeddings, torch.tensor([0, 1, -100]), reduction="none")
    assert ignored[2] == 0
    # Nobody's positive: for the others the row might as well be of a class of its own.
    other = gpaco_loss(F.pad(logits, (0, 1), value=-1e9), embeddings, torch.tensor([0, 1, 2]), reduction="none")
    torch.testing.assert_close(ignored[:2], other[:2])
    # A reference: leaving it out makes a difference.
    without = gpaco_loss(logits[:2], embeddings[:2], torch.tensor([0, 1]), reduction="none")
    assert (ignored[:2] - without).abs().min() > 1e-3


def test_ten_thousand_classes_and_one_class() -> None:
    for num_classes in (1, 10_000):
        logits = torch.randn(6, num_classes, requires_grad=True)
        embeddings = unit(6).requires_grad_()
        assert_finite(gpaco_loss(logits, embeddings, torch.zeros(6, dtype=torch.int64)), logits, embeddings)


@pytest.mark.parametrize(
    ("dtype", "num_classes"),
    [(torch.uint8, 200), (torch.uint8, 256), (torch.int8, 128), (torch.int16, 32_000), (torch.int32, 200)],
)
def test_labels_in_narrow_integers_mean_what_they_say(dtype: torch.dtype, num_classes: int) -> None:
    # In uint8 156 would equal -100, in int8 128 classes would end at -128.
    highest = min(num_classes, torch.iinfo(dtype).max + 1) - 1
    labels = torch.tensor([0, 156 if dtype == torch.uint8 else 100, highest], dtype=dtype)
    logits, embeddings = torch.randn(3, num_classes), unit(3)
    expected = gpaco_loss(logits, embeddings, labels.long(), reduction="none")
    assert torch.equal(gpaco_loss(logits, embeddings, labels, reduction="none"), expected)
    assert expected.all()
    assert torch.equal(supcon_loss(embeddings, labels), supcon_loss(embeddings, labels.long()))
    assert torch.equal(focal_loss(logits, labels), focal_loss(logits, labels.long()))
    GPaCoLoss(num_classes, dim=4, views=1, class_counts=[1] * num_classes, prior="unbiased")(logits, embeddings, labels)


def test_soft_supcon_in_float32_is_near_float64_for_confident_rows() -> None:
    embeddings = F.normalize(torch.randn(64, 16), dim=1)
    for sharpness in (5, 20, 60):
        rows = (sharpness * torch.randn(64, 100).double()).softmax(1)
        exact = supcon_loss(embeddings.double(), rows, temperature=0.07, reduction="none")
        ours = supcon_loss(embeddings, rows.float(), temperature=0.07, reduction="none")
        assert (ours - exact).abs().max() < 0.05


def test_validation_under_no_grad_leaves_no_trace_in_a_criterion() -> None:
    criterion = GPaCoLoss(3, dim=4)
    with torch.no_grad():
        criterion(L, E, Y)
    assert len(criterion.memory) == 0
    assert criterion.steps == 0


def test_a_validation_batch_of_single_views_may_have_any_size() -> None:
    criterion = GPaCoLoss(3, dim=4).eval()
    assert criterion(L[:3], E[:3], Y[:3]).isfinite()


def test_a_call_that_fails_changes_nothing() -> None:
    criterion = GPaCoLoss(3, dim=4)
    before = {name: value.clone() for name, value in criterion.state_dict().items()}
    with pytest.raises(ValueError, match="float64"):
        criterion(L.double(), E, Y)
    assert all(torch.equal(value, before[name]) for name, value in criterion.state_dict().items())


L, E, Y = torch.zeros(4, 3), torch.eye(4), torch.tensor([0, 1, 2, 0])  # no random numbers while tests are collected
M, YM = torch.eye(4)[[0, 1, 2, 3, 0]], torch.tensor([0, 1, 2, 0, 1])


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((L[0], E, Y), {}, r"logits must be a float tensor of shape \(N, C\), got float32 of shape \(3,\)"),
        ((L.long(), E, Y), {}, "logits must be a float tensor.*got int64"),
        ((L[:3], E, Y), {}, "logits and embeddings must have the same number of rows, one per sample, got 3 and 4"),
        ((L, E[0], Y), {}, r"embeddings must be a float tensor of shape \(N, D\)"),
        ((L, E.long(), Y), {}, "embeddings must be a float tensor.*got int64"),
        ((L, E.double(), Y), {}, "both be float64 or both be narrower.*float32 and torch.float64.*convert"),
        ((L, E.to("meta"), Y), {}, "labels are on cpu but their rows on meta; move"),
        ((L, E, Y, M.to("meta"), YM), {}, "embeddings and memory must be on the same device, got cpu and meta; move"),
        ((L.to("meta"), E, Y), {}, "logits and embeddings must be on the same device, got meta and cpu; move"),
        ((L, E, Y.to("meta")), {}, "labels are on meta but their rows on cpu; move"),
        ((L, E, Y[:3]), {}, "one per sample, got 4 and 3"),
        ((L, E, Y.float()), {}, r"labels must be class indices, integers of shape \(N,\).*got float32"),
        ((L, E, Y.bool()), {}, "labels must be class indices.*got bool"),
        ((L, E, torch.zeros(4, 2)), {}, r"floats of shape \(N, 3\), got float32 of shape \(4, 2\)"),
        ((L, E, Y + 1), {}, r"labels must be 0 to 2 or ignore_index \(-100\), got 3; check the number of classes"),
        ((L, E, Y - 1), {}, "got -1"),
        ((L, E, L + 0.9), {}, "rows of labels must be probabilities.*summing to 1"),
        ((L, E, torch.tensor([[1.5, -0.5, 0.0]]).repeat(4, 1)), {}, "must be probabilities: nonnegative"),
        ((L, E, Y, M), {}, "pass both memory and memory_labels"),
        ((L, E, Y, M[:, :2], YM), {}, "rows of memory must be as long as embeddings, 4, got 2"),
        ((L, E, Y, M.double(), YM), {}, "embeddings and memory must both be float64 or both be narrower"),
        ((L, E, Y, M, YM + 5), {}, "memory_labels must be 0 to 2"),
        ((L, E, Y, M, YM[:3]), {}, "rows and memory_labels"),
        ((L, E, Y), {"temperature": 0.0}, "temperature must be at least 1e-06, got 0.0"),
        ((L, E, Y), {"temperature": -1.0}, "temperature must be at least 1e-06, got -1.0"),
        ((L, E, Y), {"temperature": float("nan")}, "temperature must be at least 1e-06, got nan"),
        ((L, E, Y), {"temperature": torch.tensor(0.3, requires_grad=True)}, "alpha and temperature are constants"),
        ((L, E, Y), {"temperature": 1e-44}, "temperature must be at least 1e-06, got 1e-44"),
        ((L, E, Y), {"alpha": -0.1}, "alpha must be at least 0 and below 1000000.0, got -0.1"),
        ((L, E, Y), {"alpha": 1e38}, "alpha must be at least 0 and below 1000000.0, got 1e"),
        ((L, E, Y), {"label_smoothing": 1.0}, "label_smoothing must be at least 0 and below 1, got 1.0"),
        ((L[:, :1], E, Y * 0), {"label_smoothing": 0.1}, "label_smoothing needs at least two classes"),
        ((L, E, Y), {"log_prior": torch.zeros(4)}, r"log_prior must be \(3,\), one per class, got \(4,\)"),
        ((L, E, Y), {"reduction": "avg"}, "reduction must be one of 'none', 'mean', 'sum', got 'avg'"),
    ],
)
def test_bad_input_to_gpaco_loss_says_what_was_expected_and_what_came(
    arguments: tuple[Tensor, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        gpaco_loss(*arguments, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: supcon_loss(E, Y, temperature=0), "temperature must be at least 1e-06"),
        (lambda: supcon_loss(E, Y, log_prior=torch.zeros(1, 3)), "log_prior must be \\(C,\\)"),
        (lambda: supcon_loss(E, Y, log_prior=torch.zeros(2)), "labels must be 0 to 1"),
        (lambda: supcon_loss(E, Y, reduction="all"), "reduction must be one of"),
        (lambda: supcon_loss(E, Y + 7, M, F.one_hot(YM).float()), "labels must be 0 to 2"),
        (lambda: GPaCoLoss(3, class_counts=[5, 0, 1]), r"above 0, got 0.0 for class 1; .*count one image: .max"),
        (lambda: GPaCoLoss(3, class_counts=[5, 1]), r"one entry for each of 3 classes, got shape \(2,\)"),
        (lambda: GPaCoLoss(2, class_counts=Counter("aab")), r"got Counter; \[class_counts\[c\] for c in range\(2\)\]"),
        (lambda: balanced_softmax_loss(torch.randn(2, 2), torch.tensor([0, 1]), {0: 5, 1: 2}), "got dict; "),
        (lambda: GPaCoLoss(3, prior="unbiased"), 'prior="unbiased" needs class_counts'),
        (lambda: GPaCoLoss(3, prior="uniform"), "prior must be one of 'counts', 'unbiased', None, got 'uniform'"),
        (lambda: GPaCoLoss(3, contrast="all"), "contrast must be one of 'local', 'global'"),
        (lambda: GPaCoLoss(3, temperature=0), "temperature must be at least 1e-06"),
        (lambda: GPaCoLoss(3, alpha=1e38), "alpha must be at least 0 and below"),
        (lambda: GPaCoLoss(0), "num_classes must be at least 1"),
        (lambda: GPaCoLoss(3, memory=-1), "size must be at least 0"),
        (lambda: GPaCoLoss(3, dim=4)(L[:3], E[:3], Y[:3]), r"logits must be \(2 \* B, 3\).*got \(3, 3\); set views"),
        (lambda: GPaCoLoss(5, dim=4)(L, E, Y), r"logits must be \(2 \* B, 5\)"),
        (lambda: GPaCoLoss(3, dim=9)(L, E, Y), r"embeddings have 4 columns, dim is 9: GPaCoLoss\(..., dim=4\)"),
        (lambda: GPaCoLoss(3, dim=4)(L, E, Y[:2]), r"got 2 for 4: repeat them for each view, labels.repeat\(2\)"),
        (lambda: built_in_half(lambda: GPaCoLoss(3, dim=4))(L, E, Y), "must be in float32"),
        (
            lambda: GPaCoLoss(3, dim=4, views=1)(L, E, Y, E[:3]),
            "rows and keys_labels must have the same number of rows",
        ),
        (lambda: gpaco_loss(L, E, torch.full((4, 3), float("nan"))), "must be probabilities"),
        (lambda: GPaCoLoss(3, dim=4)(L.double(), E.double(), Y), r"criterion with its memory with .double\(\)"),
        (lambda: Memory(4, 4).push(E[:, :2], Y), r"takes embeddings of shape \(B, 4\), got \(4, 2\)"),
        (lambda: Memory(4, 4).push(E, Y[:2]), "embeddings and labels must have the same number of rows"),
        (lambda: Memory(4, 4).push(E, F.one_hot(Y)), "labels must be class indices.*or rows of probabilities"),
        (lambda: built_in_half(lambda: Memory(4, 4)).push(E, F.one_hot(Y).float()), "must be in float32"),
        (lambda: Memory(4, 4).push(E.to("meta"), Y.to("meta")), "memory is on cpu, the rows pushed on meta"),
        (lambda: pixel_gpaco_loss(torch.zeros(1, 2, 3, 3), torch.zeros(1, 4, 2, 2), Y), "with the same h and w"),
    ],
)
def test_bad_input_elsewhere_says_what_was_expected_and_what_came(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
