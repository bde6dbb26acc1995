"""Where the losses have their minimum: the paper's two remarks, the unbiased prior, and the balanced start."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from helpers.minimize import minimize
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco import GPaCoLoss, gpaco_loss, supcon_loss


@pytest.mark.parametrize(("alpha", "positives"), [(0.05, 8), (0.5, 3), (1.0, 1)])
def test_remark_2_the_optimum_gives_the_center_1_and_each_positive_alpha_over_1_plus_alpha_k(
    alpha: float, positives: int
) -> None:
    # A memory of unit vectors makes the similarities of one anchor free numbers: the entries of its embedding.
    references = torch.eye(10, dtype=torch.float64)
    labels = torch.tensor([1] * positives + [0] * (10 - positives))
    logits = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    anchor = torch.zeros(1, 10, dtype=torch.float64, requires_grad=True)
    minimize(
        lambda: gpaco_loss(logits, anchor, torch.tensor([1]), references, labels, alpha=alpha, temperature=1),
        [logits, anchor],
    )
    probabilities = torch.cat([logits, anchor], 1).detach().softmax(1)[0]
    center, samples = probabilities[1], probabilities[3 : 3 + positives]
    assert center.item() == pytest.approx(1 / (1 + alpha * positives), abs=1e-6)
    torch.testing.assert_close(samples, torch.full_like(samples, alpha / (1 + alpha * positives)), rtol=0, atol=1e-6)


def test_remark_1_the_optimum_of_supcon_gives_each_positive_one_over_k() -> None:
    references, labels = torch.eye(10, dtype=torch.float64), torch.tensor([1] * 4 + [0] * 6)
    anchor = torch.zeros(1, 10, dtype=torch.float64, requires_grad=True)
    minimize(lambda: supcon_loss(anchor, torch.tensor([1]), references, labels, temperature=1), [anchor])
    samples = anchor.detach().softmax(1)[0, :4]
    torch.testing.assert_close(samples, torch.full_like(samples, 1 / 4), rtol=0, atol=1e-6)


LIKELIHOOD = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]], dtype=torch.float64)  # p(x | class)
FREQUENCY = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
JOINT = LIKELIHOOD * FREQUENCY  # (x, class): three kinds of image, three classes
MEMORY_LABELS, ALPHA = torch.tensor([0, 0, 1]), 0.4
IMAGES = list(product(range(3), range(3)))


def bias_of_the_optimum(batches: list[tuple[tuple[int, int], ...]], loss: Callable[..., Tensor]) -> Tensor:
    """Minimize the expected loss over free logits (x, class); what they have beside log p(x | class).

    The expectation is over every possible batch, so that nothing is estimated: images are drawn independently, their
    two views are alike, embeddings are fixed. The result is up to a constant for each x, (x, class).
    """
    embeddings = F.normalize(torch.randn(3, 4, dtype=torch.float64), dim=1)
    logits = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)

    def expected_loss() -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for images in batches:
            x, y = torch.tensor(images).t().repeat(1, 2)
            chance = JOINT[x, y].sqrt().prod()  # each image is there twice
            total = total + chance * loss(logits[x], embeddings[x], y, embeddings)
        return total

    minimize(expected_loss, [logits])
    bias = logits.detach() - LIKELIHOOD.log()
    return bias - bias.mean(1, keepdim=True)


def assert_bias(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, (expected - expected.mean()).expand(3, 3), rtol=0, atol=1e-6)


@pytest.mark.parametrize("prior", ["counts", "unbiased"])
def test_with_fixed_positives_unbiased_logits_are_log_likelihoods_and_those_of_counts_are_off_by_log_w(
    prior: str,
) -> None:
    criterion = GPaCoLoss(3, alpha=ALPHA, memory=3, dim=4, prior=prior, class_counts=1000 * FREQUENCY).double()

    def loss(logits: Tensor, embeddings: Tensor, labels: Tensor, memory: Tensor) -> Tensor:
        criterion.memory.push(memory, MEMORY_LABELS)
        return criterion(logits, embeddings, labels)

    log_w = -torch.log1p(ALPHA * torch.tensor([3.0, 2.0, 1.0])).double()  # the other view and 2, 1, 0 rows of memory
    torch.testing.assert_close(criterion.center_share, torch.full((3,), 1 / 1.4).double())
    got = bias_of_the_optimum([(image,) for image in IMAGES], loss)
    assert_bias(got, log_w if prior == "counts" else torch.zeros(3).double())
    torch.testing.assert_close(criterion.center_share.log(), log_w)


@pytest.mark.slow
@pytest.mark.parametrize("unbiased", [True, False])
def test_with_random_positives_the_same_holds_for_the_expectation_of_w(unbiased: bool) -> None:
    # Two images: the other one adds its two views to the positives as often as it is of the class.
    held = 1 + torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)
    log_w = (FREQUENCY / (1 + ALPHA * (held + 2)) + (1 - FREQUENCY) / (1 + ALPHA * held)).log()

    def loss(logits: Tensor, embeddings: Tensor, labels: Tensor, memory: Tensor) -> Tensor:
        log_prior = FREQUENCY.log() + unbiased * log_w
        return gpaco_loss(logits, embeddings, labels, memory, MEMORY_LABELS, alpha=ALPHA, log_prior=log_prior)

    assert_bias(
        bias_of_the_optimum(list(product(IMAGES, IMAGES)), loss), torch.zeros(3).double() if unbiased else log_w
    )


@pytest.mark.extensive
@pytest.mark.slow
def test_the_positives_of_each_batch_itself_would_leave_the_logits_off() -> None:
    # Why w is a mean over steps: a prior that changes with the batch goes with the rest of its softmax.
    def loss(logits: Tensor, embeddings: Tensor, labels: Tensor, memory: Tensor) -> Tensor:
        others = F.one_hot(labels.flip(0), 3)  # rows are image 1, image 2, image 1, image 2
        positives = 1 + torch.tensor([2, 1, 0]) + 2 * others  # had the anchor been of that class
        log_prior = FREQUENCY.log() - torch.log1p(ALPHA * positives.double())
        return gpaco_loss(logits, embeddings, labels, memory, MEMORY_LABELS, alpha=ALPHA, log_prior=log_prior)

    bias = bias_of_the_optimum(list(product(IMAGES, IMAGES)), loss)
    assert 0.004 < bias.abs().max() < 0.012


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "tolerance"), [(10, 0.2), (20, 0.2), (600, 0.05)])
def test_w_follows_a_filling_memory_and_the_sampler_to_its_expectation(steps: int, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(0)
    frequency = torch.tensor([0.6, 0.3, 0.09, 0.01], dtype=torch.float64)
    criterion = GPaCoLoss(4, alpha=0.05, memory=300, dim=2, class_counts=[1, 1, 1, 1])  # told nothing of the sampler
    for _ in range(steps):
        held = len(criterion.memory)
        labels = torch.multinomial(frequency, 16, replacement=True, generator=generator).repeat(2)
        embeddings = F.normalize(torch.randn(32, 2), dim=1)
        criterion(torch.zeros(32, 4), embeddings, labels)

    def binomial(n: int, q: float) -> Tensor:
        k = torch.arange(n + 1, dtype=torch.float64)
        log_choose = torch.lgamma(torch.tensor(n + 1.0)) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
        return (log_choose + k * torch.tensor(q).log() + (n - k) * torch.tensor(1 - q).log()).exp()

    for c, q in enumerate(frequency.tolist()):
        # P = 1 + 2 Bin(15, q) + Bin(what the memory holds, q)
        in_batch, in_memory = binomial(15, q).unsqueeze(1), binomial(held, q)
        positives = 1 + 2 * torch.arange(16.0).unsqueeze(1) + torch.arange(held + 1.0)
        exact = (in_batch * in_memory / (1 + 0.05 * positives)).sum()
        assert criterion.center_share[c].item() == pytest.approx(exact.item(), rel=tolerance)


@pytest.mark.parametrize("prior", ["counts", "unbiased", None])
@pytest.mark.parametrize("temperature", [0.07, 0.2])
@pytest.mark.parametrize("filled", [0, 50])
def test_after_the_balanced_start_the_centers_have_the_share_the_loss_asks_for(
    prior: str | None, temperature: float, filled: int
) -> None:
    layer, counts = nn.Linear(16, 10), torch.arange(10, 0, -1)
    features = 1 + 0.1 * torch.randn(64, 16)  # everything looks alike, as at the start of training
    embeddings, labels = F.normalize(features, dim=1), torch.randint(10, (32,)).repeat(2)
    criterion = GPaCoLoss(10, memory=50, dim=16, temperature=temperature, class_counts=counts, prior=prior)
    if filled:
        criterion.memory.push(embeddings[:filled], labels[:filled])
    before = layer(features)
    assert center_share(criterion, before, embeddings, labels) < 0.2
    shift = criterion.balance(layer, before, embeddings, labels)
    after = layer(features)
    torch.testing.assert_close(after - before, torch.full_like(before, shift), rtol=0, atol=1e-5)

    references = torch.cat([labels, labels[:filled]])
    positives = (labels.unsqueeze(1) == references).sum(1) - 1
    wanted = (1 / (1 + 0.05 * positives)).mean()
    assert center_share(criterion, after, embeddings, labels) == pytest.approx(wanted.item(), abs=1e-4)
    assert len(criterion.memory) == filled


def center_share(criterion: GPaCoLoss, logits: Tensor, embeddings: Tensor, labels: Tensor) -> float:
    """Mean mass of the centers in the softmax, as the gradient shows it: d loss_i / d logit_c = p_c - target_c."""
    held = len(criterion.memory)
    x = logits.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(criterion(x, embeddings, labels), x)
    criterion.memory.rows = held
    references = torch.cat([labels, labels[:held]])
    positives = (labels.unsqueeze(1) == references).sum(1) - 1
    return float((len(x) * gradient.sum(1) + 1 / (1 + criterion.alpha * positives)).mean())


def test_balance_leaves_the_layer_alone_when_numbers_are_not_finite() -> None:
    layer, bad = nn.Linear(4, 3), torch.full((4, 3), float("nan"))
    before = layer.bias.detach().clone()
    with pytest.raises(ValueError, match="nothing was changed"):
        GPaCoLoss(3, dim=4).balance(layer, bad, torch.eye(4), torch.tensor([0, 1, 0, 1]))
    assert torch.equal(layer.bias, before)


def test_balance_refuses_what_it_cannot_balance() -> None:
    criterion = GPaCoLoss(3, dim=4, views=1)
    logits, embeddings = torch.zeros(3, 3), torch.eye(4)[:3]
    with pytest.raises(ValueError, match=r"shape \(3,\), but Linear has no such bias; pass the nn.Linear"):
        criterion.balance(nn.Linear(4, 3, bias=False), logits, embeddings, torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match="some image has a positive; pass all views"):
        criterion.balance(nn.Linear(4, 3), logits, embeddings, torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match="some image has a positive"):
        criterion.balance(nn.Linear(4, 3), logits, embeddings, torch.tensor([-100, -100, -100]))
