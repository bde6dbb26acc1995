"""The defining equation of every method of other papers, in float64 against loops, and its gradient."""

import pytest
import torch
from helpers import method_reference as reference
from helpers.cards import made_card
from helpers.small_methods import COUNTS as COUNTS_OF_THREE
from helpers.small_methods import batch, make
from torch import Tensor
from torch.nn import functional as F

from gpaco import methods
from gpaco.methods import decoupling
from gpaco.methods.bcl import balanced_contrast
from gpaco.methods.method import Method
from gpaco.models import heads
from gpaco.models.freezing import freeze
from gpaco.models.links import maps
from gpaco.models.networks import Network
from gpaco.recipes.settings import METHODS, MethodSettings
from gpaco.tasks.classification.predictor import Predictor

N = [40, 13, 6, 2]  # images of each class
COUNTS = torch.tensor(N, dtype=torch.float64)
LABELS = torch.tensor([0, 0, 1, 2, 3, 3, 1])
CLOSE = {"rtol": 1e-6, "atol": 1e-9}  # class weights and margins are float32


def random(*shape: int) -> Tensor:
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64
    ).requires_grad_()


def method(name: str, **changes: object) -> Method:
    """A method for four classes, without its network."""
    torch.manual_seed(0)
    settings = MethodSettings(name=name, **changes)  # type: ignore[arg-type]
    network, _ = make(name)
    return methods.METHODS[name](methods.Setup(network, settings, 4, COUNTS, 8, 2, COUNTS))


def check(loss: Tensor, expected: Tensor, *inputs: Tensor) -> None:
    torch.testing.assert_close(loss, expected, **CLOSE)
    ours, theirs = (torch.autograd.grad(one, inputs, retain_graph=True) for one in (loss, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


def ldam_drw() -> None:
    logits = 30 * torch.tanh(random(7, 4))
    ldam = method("ldam-drw")
    for epoch in range(10):
        ldam.begin_epoch(epoch, 10)
        expected = reference.ldam(logits, LABELS, N, drw=epoch >= 8)
        check(ldam.loss(logits, LABELS), expected, logits)  # type: ignore[operator]
    m = ldam.margins / 30  # type: ignore[operator]
    assert m.max().item() == pytest.approx(0.5)
    x, head = random(3, 5), heads.Cosine(5, 4, 30.0).double()
    cosines = [[(a @ w / a.norm() / w.norm()) for w in head.weight] for a in x]
    torch.testing.assert_close(head(x), 30 * torch.stack([torch.stack(row) for row in cosines]))


def cb_focal() -> None:
    logits = random(7, 4)
    for gamma in (0.0, 0.5, 2.0):
        found = method("cb-focal", cb_gamma=gamma).loss(logits, LABELS)  # type: ignore[operator]
        check(found, reference.cb_focal(logits, LABELS, N, 0.9999, gamma), logits)


def bcl() -> None:
    logits, raw = random(7, 4), random(18, 6)
    embeddings = F.normalize(raw, dim=1)
    first, second = reference.bcl(logits, embeddings, LABELS, N, 0.1)
    check(balanced_contrast(embeddings, LABELS, 4, 0.1), second, raw)

    class Given(torch.nn.Module):
        def forward(self, *views: Tensor) -> tuple[Tensor, Tensor]:
            return logits, embeddings

    found = method("bcl", bcl_logits=2.0, bcl_weight=0.6, bcl_temperature=0.1)(Given(), [logits] * 3, LABELS)
    torch.testing.assert_close(found, (2 * first + 0.6 * second), rtol=1e-5, atol=1e-6, check_dtype=False)


def mislas() -> None:
    logits = random(7, 4)
    found = method("mislas", smooth_head=0.4, smooth_tail=0.1)
    check(found.loss(logits, LABELS), reference.mislas(logits, LABELS, N, 0.4, 0.1), logits)  # type: ignore[operator]
    assert found.smoothing[[0, 3]].tolist() == pytest.approx([0.4, 0.1])  # type: ignore[index]
    images = torch.rand(6, 3, 8, 8) + 3
    for shifts in (True, False):
        model, _ = make("mislas", f"method.shift_norms={str(shifts).lower()}")
        freeze(model, "head")
        before = {key: value.clone() for key, value in model.backbone.state_dict().items()}
        model.train()(images)
        moved = {key for key, value in model.backbone.state_dict().items() if not torch.equal(value, before[key])}
        assert all("running" in key or "num_batches" in key for key in moved)  # the statistics, and only those
        assert bool(moved) == shifts
        used = model.pooled(images).mean(0)
        model.eval()
        assert torch.allclose(used, model.pooled(images).mean(0), rtol=1e-3) != shifts  # those of the batch in training


def bbn() -> None:
    logits, other = random(7, 4), LABELS.flip(0)
    found = method("bbn")
    for epoch in range(5):
        found.begin_epoch(epoch, 5)
        expected = reference.bbn(logits, LABELS, other, 1 - (epoch / 5) ** 2)
        check(found.loss(logits, LABELS, other), expected, logits)  # type: ignore[operator]
    model, _ = make("bbn")
    model.eval()
    one, two = torch.rand(2, 3, 8, 8), torch.rand(2, 3, 8, 8)
    for a in (0.2, 0.5):
        left, right = model.pooled(one)[:, :64], model.pooled(two)[:, 64:]
        weight, bias = model.centers.weight, model.centers.bias
        mixed = F.linear(2 * torch.cat([a * left, (1 - a) * right], 1), weight, bias)
        torch.testing.assert_close(model(one, two, weight=a)[0], mixed)
    torch.testing.assert_close(model.classify(one), model(one, one, weight=0.5)[0])  # at test time


def reslt() -> None:
    logits = random(7, 3, 4)
    found = method("reslt", branch_share=0.7, medium=0.5, tail=0.25)
    expected = reference.reslt(logits, LABELS, [{0, 1, 2, 3}, {2, 3}, {3}], 0.7)
    check(found.loss(logits, LABELS), expected, logits)  # type: ignore[operator]
    two = method("reslt", branch_share=0.7, medium=0.5, tail=0.0)  # as released for iNaturalist
    expected = reference.reslt(logits[:, :2], LABELS, [{0, 1, 2, 3}, {2, 3}], 0.7)
    check(two.loss(logits[:, :2], LABELS), expected, logits)  # type: ignore[operator]
    x, head = random(5, 12), heads.Shared(4, 3, 3, 0.0).double()
    parts = [F.linear(x[:, k : k + 4], head.weight, head.bias) for k in (0, 4, 8)]
    torch.testing.assert_close(head(x), parts[0] + parts[1] + parts[2])
    head.power = 0.7
    weight = head.weight / head.weight.norm(dim=1, keepdim=True) ** 0.7
    torch.testing.assert_close(head(x), F.linear(x[:, :4] + x[:, 4:8] + x[:, 8:], weight))
    assert head(x[:0]).shape == (0, 3)  # of a process without a share


def ride() -> None:
    logits = random(7, 3, 4)
    found = method("ride", diversity=0.45, spread=0.05)
    for epoch in (0, 7, 8, 9):
        found.begin_epoch(epoch, 10)
        expected = reference.ride(logits, LABELS, N, drw=epoch >= 8, diversity=0.45, r=0.05)
        check(found.loss(logits, LABELS), expected, logits)  # type: ignore[operator]
    head = heads.ExpertCosines(5, 4, 3, 30.0).double()
    x = random(2, 15)
    torch.testing.assert_close(head(x), head.parts(x).mean(1))
    assert head(x[:0]).shape == (0, 4)


def causal_norm() -> None:
    x, w = random(6, 8), random(4, 8)
    head = heads.CausalHead(8, 4, pieces=2, scale=16.0, effect=1.5).double()
    head.weight.data = w.detach()
    options = {"pieces": 2, "tau": 16.0, "gamma": 1 / 32}
    torch.testing.assert_close(head.parts(x), reference.causal(x, w, x[0], alpha=0, **options))  # type: ignore[arg-type]
    e, head.direction = torch.zeros(8, dtype=torch.float64), torch.zeros(8, dtype=torch.float64)
    for k in range(3):
        head.parts(x + k)
        e = 0.9 * e + (x + k).mean(0)
    torch.testing.assert_close(head.direction, e.detach())
    torch.testing.assert_close(head(x), reference.causal(x, w, e, alpha=1.5, **options))  # type: ignore[arg-type]
    assert head(x[:0]).shape == (0, 4)


def oltr() -> None:
    model, _ = make("oltr")
    model.eval()
    images = torch.rand(2, 3, 8, 8)
    attended = [reference.modulated_attention(one, model) for one in maps(model.backbone, images)]
    torch.testing.assert_close(model.pooled(images), torch.stack(attended).mean((2, 3)), rtol=1e-4, atol=1e-5)
    f, head = random(7, 5), heads.MetaEmbedding(5, 4, 16.0).double()
    head.centroids.data = torch.randn(4, 5, dtype=torch.float64)
    h, s = head.hallucinator, head.selector
    logits = reference.meta_embedding(f, head.centroids.detach(), h.weight, h.bias, s.weight, s.bias, head.directions)
    torch.testing.assert_close(head(f), logits)
    found = method("oltr").loss(head.parts(f), LABELS)  # type: ignore[operator]
    expected = reference.oltr(logits, f, head.centroids.detach(), LABELS)
    check(found, expected, f)
    (pull,) = torch.autograd.grad(found, head.centroids)
    far = ((f[:, None] - head.centroids) ** 2).sum(2)
    far = sum(far[i, j] for i, y in enumerate(LABELS) for j in range(4) if j != y)
    (push,) = torch.autograd.grad(1e-4 * F.relu(10 - far / 28), head.centroids)
    for j in range(4):
        own = f[j == LABELS].detach()
        by_hand = 0.01 * (head.centroids[j] - own).sum(0) / (1 + len(own)) / 7
        torch.testing.assert_close(pull[j], (by_hand + push[j]).detach())


def balanced_softmax() -> None:
    logits = random(7, 4)
    for tau in (0.5, 1.0, 2.0):

        class Given(torch.nn.Module):
            def forward(self, *views: Tensor) -> tuple[Tensor, Tensor]:
                return logits, logits

        found = method("balanced-softmax", tau=tau)(Given(), [logits], LABELS)
        moved = logits + tau * (COUNTS / COUNTS.sum()).log()
        expected = sum(reference.cross_entropy(list(row), y) for row, y in zip(moved, LABELS.tolist(), strict=True)) / 7
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def lift() -> None:
    model, one = make("lift")
    x = torch.randn(9, 64)
    labels = torch.arange(9) % 3
    one.prepare(model, lambda: iter([(x[:5], labels[:5]), (x[5:], labels[5:])]), None)
    means = torch.stack([x[labels == j].mean(0) for j in range(3)])
    torch.testing.assert_close(model.centers.weight, F.normalize(means, dim=1))
    assert model.centers.scale == 25
    views, own = batch()
    model.eval()
    logits = model.classify(views[0])
    moved = logits + (COUNTS_OF_THREE / COUNTS_OF_THREE.sum()).log()
    rows = [reference.cross_entropy(list(row), y) for row, y in zip(moved, own.tolist(), strict=True)]
    torch.testing.assert_close(one(model, views[:1], own), torch.stack(rows).mean())
    card = made_card(hidden=0, network=Network("cosine", scale=25.0, border=4))
    predictor = Predictor(model, card).eval()
    large = torch.rand(2, 3, 12, 12)
    corners = [(0, 0), (0, 4), (4, 0), (4, 4), (2, 2)]
    crops = [model.classify(predictor.normalized(large[:, :, y : y + 8, x : x + 8])) for y, x in corners]
    torch.testing.assert_close(predictor(large), torch.stack(crops).mean(0))


def decoupled() -> None:
    x, labels = torch.randn(40, 64), torch.arange(40) % 3
    blocks = lambda: iter([(x[:25], labels[:25]), (x[25:], labels[25:])])  # noqa: E731
    model, one = make("tau-norm")
    weight = model.centers.weight.detach().clone()
    one.prepare(model, blocks, blocks)
    tau = one.tau.item()  # type: ignore[operator,union-attr]
    recalls = []
    for candidate in decoupling.NORM_TAUS:
        found = (x @ (weight / weight.norm(dim=1, keepdim=True) ** candidate).t()).argmax(1)
        recalls.append(sum((found[labels == j] == j).double().mean() for j in range(3)) / 3)
    assert tau == pytest.approx(decoupling.NORM_TAUS[int(torch.stack(recalls).argmax())])
    torch.testing.assert_close(model.centers.weight, weight / weight.norm(dim=1, keepdim=True) ** tau)
    assert not model.centers.bias.any()

    model, one = make("ncm")
    one.prepare(model, blocks, None)
    u = F.normalize(x - x.mean(0), dim=1)
    means = torch.stack([u[labels == j].mean(0) for j in range(3)])
    expected = torch.stack([-((u - mean) ** 2).sum(1) for mean in means], 1)
    torch.testing.assert_close(model.centers(x), expected, rtol=1e-4, atol=1e-5)

    model, _ = make("lws")
    model.centers.scale.data = torch.tensor([0.5, 1.0, 2.0])
    plain = F.linear(x, model.centers.weight, model.centers.bias)
    torch.testing.assert_close(model.centers(x), plain * torch.tensor([0.5, 1.0, 2.0]))
    trained = [name for name, parameter in model.centers.named_parameters() if parameter.requires_grad]
    assert trained == ["scale"]


EQUATIONS = {
    "cb-focal": cb_focal,
    "ldam-drw": ldam_drw,
    "bcl": bcl,
    "mislas": mislas,
    "bbn": bbn,
    "causal-norm": causal_norm,
    "reslt": reslt,
    "ride": ride,
    "oltr": oltr,
    "lift": lift,
    "balanced-softmax": balanced_softmax,
    **dict.fromkeys(("crt", "lws", "tau-norm", "ncm"), decoupled),
}
BEFORE = {
    "gpaco",
    "paco",
    "supcon",
    "multitask",
    "ce",
    "focal",
    "class-balanced",
    "gaussian",
}  # have tests of their own


@pytest.mark.parametrize("equation", dict.fromkeys(EQUATIONS.values()), ids=lambda one: one.__name__)
def test_a_method_is_its_equation_and_has_the_gradient_of_it(equation) -> None:  # type: ignore[no-untyped-def]
    equation()


def test_every_method_has_its_equation_tested() -> None:
    assert set(EQUATIONS) | BEFORE == set(METHODS)


def test_under_autocast_cosine_classifiers_compute_in_float32() -> None:
    torch.manual_seed(0)
    for head in (
        heads.Cosine(64, 10, 30.0),
        heads.CausalHead(64, 10, 2, 16.0, 3.0),
        heads.ExpertCosines(32, 10, 2, 30.0),
        heads.NearestMean(64, 10),
    ):
        features = torch.randn(20, 64)
        with torch.autocast("cpu", torch.bfloat16):
            found = head(features)
        torch.testing.assert_close(found, head(features), rtol=1e-6, atol=1e-6)


def test_under_autocast_distances_of_oltr_and_similarities_of_bcl_are_taken_in_float32() -> None:
    head, x = heads.MetaEmbedding(64, 4, 16.0), 1 + 0.02 * torch.randn(7, 64)
    torch.nn.init.constant_(head.centroids, 1.0)
    embeddings = F.normalize(torch.randn(18, 6), dim=1)

    def distances_and_contrast() -> tuple[Tensor, Tensor]:
        return head.parts(x)[:, 1], balanced_contrast(embeddings, LABELS, 4, 0.07)

    with torch.autocast("cpu", torch.bfloat16):
        found = distances_and_contrast()
    for one, other in zip(found, distances_and_contrast(), strict=True):
        assert torch.equal(one, other)
