"""The block-wise logsumexp against the whole matrix, with enough rows for many blocks."""

import pytest
import torch
from helpers import forked
from torch import Tensor
from torch.nn import functional as F

from gpaco.losses.similarity import _block_rows, similarity_logsumexp


def whole_matrix(anchors: Tensor, references: Tensor, own: int | None) -> Tensor:
    scores = anchors @ references.t()
    if own is not None:
        this = torch.arange(len(anchors))
        scores = scores.index_put((this, own + this), torch.tensor(-torch.inf, dtype=scores.dtype))
    return scores.logsumexp(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("anchors", "references", "own"),
    [(150, 20_001, None), (20_001, 150, None), (2_500, 2_500, 0), (1_003, 5_000, 0), (1_003, 5_000, 3_997), (7, 7, 0)],
)
def test_value_and_both_gradients_equal_the_whole_matrix_over_many_blocks(
    anchors: int, references: int, own: int | None
) -> None:
    if anchors > 7:
        assert min(_block_rows(references, torch.device("cpu")), anchors) < anchors or references > anchors
    a = torch.randn(anchors, 3, dtype=torch.float64, requires_grad=True)
    r = torch.randn(references, 3, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(anchors, dtype=torch.float64)
    ours, theirs = similarity_logsumexp(a, r, own), whole_matrix(a, r, own)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for mine, yours in zip(
        torch.autograd.grad(ours, [a, r], upstream), torch.autograd.grad(theirs, [a, r], upstream), strict=True
    ):
        torch.testing.assert_close(mine, yours, rtol=1e-12, atol=1e-12)


def products(grad: bool, anchor_needs: bool = True) -> int:
    """Matrix products in one forward pass of one block."""
    a, r = torch.randn(40, 3, requires_grad=anchor_needs), torch.randn(50, 3)
    with torch.profiler.profile() as watched, torch.set_grad_enabled(grad):
        similarity_logsumexp(a, r)
    return sum(event.count for event in watched.key_averages() if event.key == "aten::mm")


def test_the_product_for_the_gradient_is_left_out_where_nobody_asks_for_one() -> None:
    assert products(grad=True) == 2
    assert products(grad=False) == 1
    assert products(grad=True, anchor_needs=False) == 1


def test_each_side_gets_a_gradient_only_if_it_requires_one() -> None:
    a, r = torch.randn(4, 3), torch.randn(5, 3)
    assert not similarity_logsumexp(a, r).requires_grad
    similarity_logsumexp(a.requires_grad_(), r).sum().backward()
    assert a.grad is not None
    assert r.grad is None
    a, r = torch.randn(4, 3), torch.randn(5, 3, requires_grad=True)
    similarity_logsumexp(a, r).sum().backward()
    assert a.grad is None
    assert r.grad is not None


def test_a_second_derivative_is_refused_with_the_reason() -> None:
    a = torch.randn(4, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"cannot be differentiated twice.*create_graph"):
        torch.autograd.grad(similarity_logsumexp(a, a, 0).sum(), a, create_graph=True)


def test_rows_without_references_are_minus_infinity_and_get_no_gradient() -> None:
    a = torch.randn(1, 3, requires_grad=True)
    lse = similarity_logsumexp(a, a, 0)
    assert lse.item() == -torch.inf
    (gradient,) = torch.autograd.grad(lse.sum(), a)
    assert torch.equal(gradient, torch.zeros(1, 3))
    assert similarity_logsumexp(a, torch.zeros(0, 3)).item() == -torch.inf
    assert similarity_logsumexp(torch.zeros(0, 3), a).shape == (0,)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck itself looks at gradients of its clones
def test_registered_operators_keep_torchs_rules_for_compilers() -> None:
    a, r = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    torch.library.opcheck(torch.ops.gpaco.similarity_logsumexp, (a, r, -1, True))
    torch.library.opcheck(torch.ops.gpaco.similarity_logsumexp, (a, a, 0, True))


PEAK = """
import resource, torch, gpaco
from torch.nn import functional as F
torch.set_num_threads(1)
z = F.normalize(torch.randn(8192, 8), dim=1).requires_grad_()
logits, labels = torch.randn(8192, 10, requires_grad=True), torch.randint(10, (8192,))
gpaco.gpaco_loss(logits[:99], z[:99], labels[:99]).backward()  # libraries are loaded by now
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
gpaco.gpaco_loss(logits, z, labels, z.detach().clone(), labels).backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.process
def test_the_matrix_of_similarities_is_never_held() -> None:
    # 8,192 anchors and 16,384 references: the matrix alone would be 512 MB.
    assert float(forked.output_of(PEAK)) < 100


def test_unit_embeddings_far_apart_at_a_tiny_temperature_do_not_underflow() -> None:
    z = F.normalize(torch.tensor([[1.0, 0.0], [-1.0, 0.1]]), dim=1)
    lse = similarity_logsumexp(z / 1e-3, z, 0)
    torch.testing.assert_close(lse, (z[0] @ z[1] / 1e-3).expand(2))
