"""Every loss against Python loops in float64, and low precision against `F.cross_entropy`."""

from collections.abc import Callable

import pytest
import torch
from helpers import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from gpaco import gpaco_loss, supcon_loss

sizes = st.integers(1, 6)
temperatures = st.sampled_from([0.05, 0.07, 0.2, 1.0, 3.0])
label_forms = st.sampled_from(["indices", "probabilities"])


def random_labels(rows: int, num_classes: int, form: str, ignored: float) -> Tensor:
    """Labels of either form; about a share `ignored` of them is to be ignored."""
    dropped = torch.rand(rows) < ignored
    if form == "indices":
        return torch.randint(num_classes, (rows,)).masked_fill(dropped, -100)
    probabilities = torch.rand(rows, num_classes).double() ** 3
    probabilities[torch.rand(rows) < 0.3] = torch.eye(num_classes, dtype=torch.float64)[0]
    return F.normalize(probabilities, p=1, dim=1) * ~dropped.unsqueeze(1)


def unit_rows(rows: int, dim: int) -> Tensor:
    return F.normalize(torch.randn(rows, dim, dtype=torch.float64), dim=1)


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    ours, theirs = ours.detach(), theirs.detach()
    scale = max(1.0, float(theirs.abs().max())) if theirs.numel() else 1.0
    assert ours.shape == theirs.shape
    assert torch.all((ours - theirs).abs() <= 1e-12 * scale), f"{(ours - theirs).abs().max()} over {scale}"


def assert_same_gradients(ours: Tensor, theirs: Tensor, leaves: list[Tensor]) -> None:
    if theirs.requires_grad:  # false where everything is ignored
        some = {"grad_outputs": torch.randn_like(ours), "allow_unused": True, "materialize_grads": True}
        both = (torch.autograd.grad(loss, leaves, **some) for loss in (ours, theirs))
        for mine, yours in zip(*both, strict=True):
            assert_same(mine, yours)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    seed=st.integers(0, 2**31),
    rows=sizes,
    num_classes=st.integers(1, 5),
    dim=sizes,
    memory_rows=st.integers(0, 6),
    form=label_forms,
    memory_form=label_forms,
    alpha=st.sampled_from([0.0, 0.01, 0.05, 0.5, 1.0]),
    temperature=temperatures,
    with_prior=st.booleans(),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    ignored=st.sampled_from([0.0, 0.3, 1.0]),
    reduction=st.sampled_from(["none", "mean", "sum"]),
    memory_gradient=st.booleans(),
)
def test_gpaco_loss_and_its_gradients_equal_the_papers_equation(
    seed: int,
    rows: int,
    num_classes: int,
    dim: int,
    memory_rows: int,
    form: str,
    memory_form: str,
    alpha: float,
    temperature: float,
    with_prior: bool,
    smoothing: float,
    ignored: float,
    reduction: str,
    memory_gradient: bool,
) -> None:
    torch.manual_seed(seed)
    smoothing = smoothing if num_classes > 1 else 0.0
    logits = (3 * torch.randn(rows, num_classes, dtype=torch.float64)).requires_grad_()
    embeddings = unit_rows(rows, dim).requires_grad_()
    memory = unit_rows(memory_rows, dim).requires_grad_(memory_gradient)
    labels = random_labels(rows, num_classes, form, ignored)
    memory_labels = random_labels(memory_rows, num_classes, memory_form, ignored / 2)
    log_prior = torch.rand(num_classes, dtype=torch.float64).log() if with_prior else None
    leaves = [logits, embeddings] + [memory] * memory_gradient

    given_memory = (memory, memory_labels) if memory_rows or seed % 2 else (None, None)
    ours = gpaco_loss(
        logits,
        embeddings,
        labels,
        *given_memory,
        alpha=alpha,
        temperature=temperature,
        log_prior=log_prior,
        label_smoothing=smoothing,
        reduction=reduction,
    )
    prior = torch.zeros(num_classes, dtype=torch.float64) if log_prior is None else log_prior
    costs = reference.gpaco(
        logits, embeddings, labels, memory, memory_labels, alpha, temperature, prior, smoothing, ignore_index=-100
    )
    anchors = reference.as_rows(labels, num_classes, -100).any(1).sum().clamp_min(1)
    theirs = {"none": costs, "sum": costs.sum(), "mean": costs.sum() / anchors}[reduction]
    assert_same(ours, theirs)

    assert_same_gradients(ours, theirs, leaves)


@pytest.mark.slow
@settings(max_examples=200)
@given(
    seed=st.integers(0, 2**31),
    rows=sizes,
    num_classes=st.integers(1, 5),
    dim=sizes,
    memory_rows=st.integers(0, 6),
    form=label_forms,
    temperature=temperatures,
    ignored=st.sampled_from([0.0, 0.3, 1.0]),
    balanced=st.booleans(),
    reduction=st.sampled_from(["none", "mean", "sum"]),
)
def test_supcon_loss_and_its_gradients_equal_the_papers_equation(
    seed: int,
    rows: int,
    num_classes: int,
    dim: int,
    memory_rows: int,
    form: str,
    temperature: float,
    ignored: float,
    balanced: bool,
    reduction: str,
) -> None:
    torch.manual_seed(seed)
    embeddings = unit_rows(rows, dim).requires_grad_()
    memory = unit_rows(memory_rows, dim).requires_grad_()
    labels = random_labels(rows, num_classes, form, ignored)
    memory_labels = random_labels(memory_rows, num_classes, form, ignored)
    prior = (3 * torch.randn(num_classes, dtype=torch.float64)).log_softmax(0) if balanced else None
    given = (embeddings, labels, memory, memory_labels)
    ours = supcon_loss(*given, temperature=temperature, log_prior=prior, reduction=reduction)
    costs, counted = reference.supcon(*given, num_classes, temperature, -100, prior)
    total = float(counted.sum()) or 1.0
    theirs = {"none": costs, "sum": costs.sum(), "mean": costs.sum() / total}[reduction]
    assert_same(ours, theirs)
    assert_same_gradients(ours, theirs, [embeddings, memory])


def plain_gpaco(logits: Tensor, embeddings: Tensor, labels: Tensor, memory: Tensor, memory_labels: Tensor) -> Tensor:
    """The whole matrix of scores and `F.cross_entropy`, in the precision of the inputs."""
    rows, num_classes = logits.shape
    this = torch.arange(rows)
    scores = torch.cat([logits, embeddings @ torch.cat([embeddings, memory]).t() / 0.1], 1)
    # Not -inf: cross_entropy multiplies it with the target 0.
    scores = scores.index_put((this, num_classes + this), torch.tensor(-1e4, dtype=scores.dtype))
    same = labels.unsqueeze(1) == torch.cat([labels, memory_labels])
    targets = torch.cat([F.one_hot(labels, num_classes).double(), 0.05 * same.double()], 1)
    targets[this, num_classes + this] = 0
    return F.cross_entropy(scores, F.normalize(targets, p=1, dim=1).to(scores.dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seed", range(10))
def test_half_precision_is_no_further_from_float64_than_cross_entropy_of_the_same_scores(
    dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    labels, memory_labels = torch.randint(20, (48,)), torch.randint(20, (200,))
    inputs = [(4 * torch.randn(48, 20)).to(dtype), unit_rows(48, 32).to(dtype), unit_rows(200, 32).to(dtype)]

    def value_and_gradients(loss: Callable[..., Tensor], kind: torch.dtype) -> list[Tensor]:
        logits, embeddings, memory = (x.to(kind).requires_grad_() for x in inputs)
        value = loss(logits, embeddings, labels, memory, memory_labels)
        return [value, *torch.autograd.grad(value, [logits, embeddings, memory])]

    truth = value_and_gradients(plain_gpaco, torch.float64)
    plain = value_and_gradients(plain_gpaco, dtype)
    ours = value_and_gradients(lambda *a: gpaco_loss(*a, alpha=0.05, temperature=0.1), dtype)
    assert ours[0].dtype == torch.float32
    for exact, theirs, mine in zip(truth, plain, ours, strict=True):
        assert (mine - exact).abs().max() <= (theirs - exact).abs().max() + 1e-7


def test_under_autocast_similarities_are_taken_in_float32() -> None:
    embeddings, labels = unit_rows(32, 16).float(), torch.randint(4, (32,))
    logits = torch.randn(32, 4)
    soft = F.normalize(torch.rand(32, 4), p=1, dim=1)
    alone = gpaco_loss(logits, embeddings, labels, temperature=0.05)
    alone_soft = gpaco_loss(logits, embeddings, soft, temperature=0.05)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            inside = gpaco_loss(logits, embeddings, labels, temperature=0.05)
            assert torch.equal(gpaco_loss(logits, embeddings, soft, temperature=0.05), alone_soft)
            z = embeddings.clone().requires_grad_()
            gpaco_loss(logits, z, labels, temperature=0.05).backward()
        assert inside.dtype == torch.float32
        assert torch.equal(inside, alone)
        z2 = embeddings.clone().requires_grad_()
        gpaco_loss(logits, z2, labels, temperature=0.05).backward()
        torch.testing.assert_close(z.grad, z2.grad, rtol=1e-6, atol=1e-8)
