"""Each point against all others: the same as the whole matrix, from half of it."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from gpaco.losses import self_similarity
from gpaco.losses.self_similarity import self_similarity_logsumexp
from gpaco.losses.similarity import similarity_logsumexp


def whole_matrix(points: Tensor, scale: float) -> Tensor:
    eye = torch.eye(len(points), dtype=torch.bool)
    return (scale * points @ points.t()).masked_fill(eye, -torch.inf).logsumexp(1)


@pytest.mark.parametrize("scale", [1.0, 14.3, 60.0])  # the last is beyond what one ceiling can hold
@pytest.mark.parametrize("count", [2, 10, 11, 64])  # one block, whole blocks, one row left over, many
def test_value_and_gradient_equal_the_whole_matrix(count: int, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_similarity, "SIDE", 10)
    points = F.normalize(torch.randn(count, 3, dtype=torch.float64), dim=1).requires_grad_()
    upstream = torch.randn(count, dtype=torch.float64)
    ours, theirs = self_similarity_logsumexp(points, scale), whole_matrix(points, scale)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    (mine,), (yours,) = (torch.autograd.grad(value, points, upstream) for value in (ours, theirs))
    torch.testing.assert_close(mine, yours, rtol=1e-11, atol=1e-11)


def test_points_of_any_length_are_taken_also_in_float32() -> None:
    points = (30 * torch.randn(50, 4)).requires_grad_()
    one, other = self_similarity_logsumexp(points, 2.0), similarity_logsumexp(2 * points, points, 0)
    torch.testing.assert_close(one, other)
    (mine,), (yours,) = (torch.autograd.grad(value.sum(), points) for value in (one, other))
    torch.testing.assert_close(mine, yours)


def test_points_far_apart_lose_no_term_at_the_edge_of_the_reach() -> None:
    """Two opposite groups at the lowest temperature of the fast way: products from -40 to 40."""
    points = F.normalize(torch.tensor([[1.0, 1e-3], [-1.0, 1e-3]]), dim=1).requires_grad_()
    scale = 0.999 * self_similarity.REACH / 2
    lse = self_similarity_logsumexp(points, scale)
    torch.testing.assert_close(lse, whole_matrix(points, scale))
    (gradient,) = torch.autograd.grad(lse.sum(), points)
    torch.testing.assert_close(gradient, torch.autograd.grad(whole_matrix(points, scale).sum(), points)[0])


@pytest.mark.slow
def test_products_are_half_of_those_of_the_way_for_any_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_similarity, "SIDE", 8)

    def flops(value: str) -> int:
        points = F.normalize(torch.randn(128, 16), dim=1).requires_grad_()
        with torch.profiler.profile(with_flops=True) as watched:
            both = {"new": lambda: self_similarity_logsumexp(points, 5.0)}
            both["old"] = lambda: similarity_logsumexp(5.0 * points, points, 0)
            both[value]().sum().backward()
        return sum(event.flops for event in watched.key_averages() if event.key in ("aten::mm", "aten::addmm_"))

    assert 0 < flops("new") < 0.56 * flops("old")


def test_one_point_has_nothing_to_be_compared_with() -> None:
    point = torch.randn(1, 3, requires_grad=True)
    lse = self_similarity_logsumexp(point, 2.0)
    assert lse.item() == -torch.inf
    assert torch.equal(torch.autograd.grad(lse.sum(), point)[0], torch.zeros(1, 3))
    assert self_similarity_logsumexp(torch.zeros(0, 3), 2.0).shape == (0,)


def test_what_is_no_number_stays_none() -> None:
    points = torch.randn(4, 3)
    points[2, 1] = torch.nan
    assert self_similarity_logsumexp(points, 1.0).isnan().all()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch itself, in forward mode
def test_a_second_derivative_and_a_forward_one_are_refused_with_the_reason() -> None:
    points = torch.randn(4, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"cannot be differentiated twice.*create_graph"):
        torch.autograd.grad(self_similarity_logsumexp(points, 1.0).sum(), points, create_graph=True)
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="no forward-mode derivative"):
        self_similarity_logsumexp(forward_ad.make_dual(points.detach(), torch.ones(4, 3)), 1.0)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck itself looks at gradients of its clones
def test_registered_operators_keep_torchs_rules_for_compilers() -> None:
    points = F.normalize(torch.randn(5, 3), dim=1).requires_grad_()
    torch.library.opcheck(torch.ops.gpaco.self_similarity_logsumexp, (points, 2.0))
