"""The analysis: formulas against minimisation and identities, measurements against autograd, image by image."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import save
from torch import Tensor
from torch.nn import functional as F

from gpaco import analysis, balanced_softmax_loss, class_balanced_weights, focal_loss, gpaco_loss, supcon_loss
from gpaco.analysis import analyse, class_gradient_norms, extra_loss_curve, log_log_slope, optimal_probabilities
from gpaco.classification import write_analysis
from gpaco.data.loading import class_shares, epoch_order, views_of
from gpaco.data.samples import Samples
from gpaco.data.views import View, normalise
from gpaco.errors import UserError
from gpaco.measuring import CHUNK, measure, stratified
from gpaco.methods import METHODS
from gpaco.preparing import splits_of
from gpaco.recipe import override
from gpaco.run import Run, chosen, load
from gpaco.running import train
from gpaco.settings import Recipe
from gpaco.softmaxes import References, compare, probabilities, softmaxes

# Formulas


def minimum(loss: Any, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Where a loss of free tensors is least, found from zeros in float64."""
    tensors = [torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    optimiser = torch.optim.LBFGS(
        tensors, max_iter=200, tolerance_grad=1e-9, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        value: Tensor = loss(*tensors)
        value.backward()
        return value

    optimiser.step(closure)
    return [tensor.detach() for tensor in tensors]


@pytest.mark.parametrize("alpha", [0.1, 0.6])
def test_remarks_1_and_2_are_where_the_losses_over_free_scores_are_least(alpha: float) -> None:
    counts = [6, 3, 1]
    optimum = optimal_probabilities(counts, alpha=alpha, memory=10, batch=1, views=1)
    assert optimum.positives.tolist() == counts  # a memory as long as the data has each image once
    references, held = torch.eye(10, dtype=torch.float64), torch.tensor([0] * 6 + [1] * 3 + [2])
    for c, positives in enumerate(counts):
        label = torch.tensor([c])

        def parametric(logits: Tensor, anchor: Tensor, label: Tensor = label) -> Tensor:
            return gpaco_loss(logits, anchor, label, references, held, alpha=alpha, temperature=1)

        def contrastive(anchor: Tensor, label: Tensor = label) -> Tensor:
            return supcon_loss(anchor, label, references, held, temperature=1)

        mass = torch.cat(minimum(parametric, (1, 3), (1, 10)), 1).softmax(1)[0]
        assert mass[c].item() == pytest.approx(optimum.centre[c], abs=1e-6)
        assert mass[3:][held == c].numpy() == pytest.approx(optimum.each[c], abs=1e-6)
        assert mass[3:][held == c].sum().item() == pytest.approx(optimum.together[c], abs=1e-6)
        alone = minimum(contrastive, (1, 10))[0].softmax(1)[0][held == c]
        assert len(alone) == positives
        assert alone.numpy() == pytest.approx(optimum.supcon[c], abs=1e-6)


@pytest.mark.parametrize(("batch", "views", "memory"), [(16, 2, 100), (16, 1, 100), (8, 3, 0)])
def test_the_expected_positives_are_those_that_random_batches_have(batch: int, views: int, memory: int) -> None:
    counts, draw = np.array([60, 30, 10]), np.random.default_rng(0)
    expected = optimal_probabilities(counts, alpha=0.05, memory=memory, batch=batch, views=views).positives
    for c in range(3):
        others = draw.choice(3, (20_000, batch - 1), p=counts / 100)
        held = draw.choice(3, (20_000, memory), p=counts / 100)
        found = (views - 1) + views * (others == c).sum(1) + (held == c).sum(1)
        assert found.mean() == pytest.approx(expected[c], rel=0.02)


def test_full_imagenet_has_the_numbers_of_the_paper() -> None:
    curve = extra_loss_curve(1000, alpha=0.05, memory=8192, points=100_000)
    optimum = optimal_probabilities([1281] * 1000, alpha=0.05, memory=8192, batch=1, views=1)
    assert round(0.05 * optimum.positives[0], 2) == 0.41
    assert round(curve.best, 2) == 0.71
    assert curve.best == pytest.approx(optimum.centre[0])
    assert 0.035 <= optimum.each[0] < 0.036
    assert curve.p_sup[curve.loss.argmin()] == pytest.approx(curve.best, abs=1e-5)
    assert curve.loss.min() == pytest.approx(curve.least)
    before = curve.p_sup < curve.best
    assert (np.diff(curve.loss[before]) < 0).all()
    assert (np.diff(curve.loss[~before]) > 0).all()
    assert np.interp(curve.best, curve.p_sup, curve.supcon) == pytest.approx(curve.supcon_least)
    assert (np.diff(curve.supcon) < 0).all()


def test_paco_is_cross_entropy_plus_alpha_supcon_plus_the_extra_loss() -> None:
    alpha, positives = 0.3, 4
    curve = extra_loss_curve(5, alpha=alpha, memory=5 * positives, points=9)
    for p, extra, asked in zip(curve.p_sup, curve.loss, curve.supcon, strict=True):
        logits, similar = torch.randn(5, dtype=torch.float64), torch.randn(20, dtype=torch.float64)
        logits = logits - logits.logsumexp(0) + similar.logsumexp(0) + np.log(p / (1 - p))  # now P_sup is p
        both = torch.cat([logits, similar]).log_softmax(0)
        assert both[:5].exp().sum().item() == pytest.approx(p)
        paco = -both[0] - alpha * both[5 : 5 + positives].sum()
        parts = -logits.log_softmax(0)[0] - alpha * similar.log_softmax(0)[:positives].sum()
        assert (paco - parts).item() == pytest.approx(extra)
        # And SupCon where each positive has the probability of the optimum in the softmax over everything:
        each = alpha / (1 + alpha * positives)
        assert -positives * np.log(each / (1 - p)) == pytest.approx(asked)


def test_the_slope_is_0_for_equal_values_and_1_for_proportional_ones() -> None:
    counts = np.array([500, 211, 40, 7, 1])
    assert log_log_slope(counts, np.full(5, 0.3)) == pytest.approx(0, abs=1e-15)
    assert log_log_slope(counts, 2.5 * counts) == pytest.approx(1)
    assert log_log_slope(counts, 1 / np.sqrt(counts)) == pytest.approx(-0.5)
    holes = np.append(2.5 * counts, [np.nan, 0, 3])
    assert log_log_slope(np.append(counts, [3, 4, 0]), holes) == pytest.approx(1)
    assert log_log_slope([5, 5, 5], [1, 2, 3]) is None
    assert log_log_slope(counts, np.full(5, np.nan)) is None


@pytest.mark.parametrize(
    ("call", "cause"),
    [
        (lambda: optimal_probabilities([], alpha=0.05, memory=8), "counts must be"),
        (lambda: optimal_probabilities([3, -1], alpha=0.05, memory=8), "counts must be"),
        (lambda: optimal_probabilities([3, 1], alpha=-1, memory=8), "alpha must be at least 0, got -1"),
        (lambda: optimal_probabilities([3, 1], alpha=0.1, memory=8, batch=0), "batch must be at least 1, got 0"),
        (lambda: extra_loss_curve(10, alpha=0, memory=8), "alpha must be above 0"),
        (lambda: extra_loss_curve(0, alpha=0.1, memory=8), "num_classes must be at least 1"),
        (lambda: extra_loss_curve(10, alpha=0.1, memory=float("nan")), "memory must be at least 0"),  # type: ignore[arg-type]
    ],
)
def test_impossible_numbers_are_refused(call: Any, cause: str) -> None:
    with pytest.raises(UserError, match=cause):
        call()


def test_without_a_memory_the_formulas_end_at_the_centre() -> None:
    nothing = optimal_probabilities([2, 1], alpha=0.1, memory=0, batch=1, views=1)
    assert nothing.centre.tolist() == [1, 1]
    assert np.isnan(nothing.supcon).all()
    curve = extra_loss_curve(10, alpha=0.1, memory=0)
    assert (curve.best, curve.least, curve.supcon_least) == (1, 0, 0)
    assert np.isfinite(curve.loss).all()


# The losses as softmaxes, against the losses themselves

COUNTS = torch.tensor([20.0, 8.0, 4.0], dtype=torch.float64)
SHARES = (COUNTS / COUNTS.sum()).float()


def settings_of(name: str, *changes: str) -> Any:
    return override(Recipe(), [f"method.name={name}", *changes]).method


def reference_losses(settings: Any, logits: Tensor, labels: Tensor, anchors: Tensor, refs: list[Any]) -> list[Tensor]:
    """Loss of each anchor alone, by the public losses; refs: (embeddings, labels) that each one is compared with."""
    weights = class_balanced_weights(COUNTS, beta=settings.beta)
    mean_weight = (weights * SHARES).sum()
    smoothing, losses = settings.label_smoothing, []
    for k, (held, held_labels) in enumerate(refs):
        x, y, z = logits[k : k + 1], labels[k : k + 1], anchors[k : k + 1]
        contrast = {"memory": held, "memory_labels": held_labels, "temperature": settings.temperature}
        base = settings.base if settings.name == "multitask" else settings.name
        loss = torch.zeros(())
        if settings.name in ("gpaco", "paco"):
            prior = None if settings.prior == "none" else SHARES.log()
            if settings.prior == "unbiased":
                prior = SHARES.log() + torch.tensor([0.2, 0.5, 0.9]).log()
            loss = gpaco_loss(x, z, y, alpha=settings.alpha, log_prior=prior, label_smoothing=smoothing, **contrast)
        elif base == "ce":
            loss = F.cross_entropy(x, y, label_smoothing=smoothing)
        elif base == "balanced-softmax":
            loss = balanced_softmax_loss(x, y, COUNTS, label_smoothing=smoothing)
        elif base == "focal":
            loss = focal_loss(x, y, gamma=settings.gamma)
        elif base == "class-balanced":
            loss = F.cross_entropy(x, y, weights, label_smoothing=smoothing, reduction="sum") / mean_weight
        shown = SHARES.log() if settings.rebalance == "prior" else None
        if settings.name == "supcon":
            loss = supcon_loss(z, y, log_prior=shown, **contrast)
        if settings.name == "multitask":
            own = weights[y] if y.dim() == 1 else y @ weights
            factor = own / mean_weight if settings.rebalance == "weights" else 1
            loss = loss + settings.weight * factor * supcon_loss(z, y, log_prior=shown, **contrast)
        losses.append(loss.sum())
    return losses


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpaco", ["method.prior=counts"]),
        ("gpaco", ["method.prior=unbiased", "method.alpha=0.4", "method.label_smoothing=0.1"]),
        ("gpaco", ["method.prior=none", "method.temperature=0.07"]),
        ("paco", []),
        ("supcon", []),
        ("multitask", ["method.base=ce", "method.label_smoothing=0.1"]),
        ("gpaco", ["method.rebalance=prior"]),  # which is of SupCon
        ("supcon", ["method.rebalance=prior"]),
        ("multitask", ["method.rebalance=prior", "method.temperature=0.5"]),
        ("multitask", ["method.rebalance=weights", "method.weight=0.3"]),
        ("ce", []),
        ("ce", ["method.label_smoothing=0.2"]),
        ("balanced-softmax", ["method.label_smoothing=0.2"]),
        ("focal", ["method.gamma=1.5"]),
        ("class-balanced", ["method.label_smoothing=0.2"]),
    ],
)
@pytest.mark.parametrize("soft", [False, True])
def test_every_method_as_softmaxes_has_the_loss_and_the_gradients_of_the_method(
    name: str, changes: list[str], soft: bool
) -> None:
    settings = settings_of(name, *changes)
    logits = (2 * torch.randn(6, 3)).requires_grad_()
    anchors = F.normalize(torch.randn(6, 4), dim=1).requires_grad_()
    labels, image = torch.tensor([0, 1, 2, 0, 1, 2]), torch.arange(6)
    others = F.normalize(torch.randn(6, 1, 4), dim=2)
    held, owner = F.normalize(torch.randn(9, 4), dim=1), torch.tensor([-1] * 5 + [0, 3, 7, 8])
    held_labels = torch.tensor([0, 0, 1, 2, 1, 0, 0, 1, 2])
    if soft:
        held_labels = torch.rand(9, 3).softmax(1)
    state = {"counts": COUNTS, "class_weights": class_balanced_weights(COUNTS)}
    if settings.prior != "none":
        state |= {"loss.log_prior": SHARES.log(), "loss.centre_share": torch.tensor([0.2, 0.5, 0.9])}
    contrasts = name in ("gpaco", "paco", "supcon", "multitask")
    similar, same = compare(settings, state, anchors, labels, image, others, References(held, held_labels, owner))
    parts = softmaxes(settings, state, SHARES, logits, labels, *((similar, same) if contrasts else (None, None)))
    losses = torch.stack([part.losses() for part in parts]).sum(0)

    own = F.one_hot(labels, 3).float() if soft else labels
    refs = []
    for k in range(6):
        kept = owner != k
        refs.append((torch.cat([others[k], held[kept]]), torch.cat([own[k : k + 1], held_labels[kept]])))
    expected = reference_losses(settings, logits, own, anchors, refs)
    torch.testing.assert_close(losses, torch.stack(expected), rtol=1e-5, atol=1e-6)
    inputs = [logits, anchors]
    for got, wanted in zip(
        torch.autograd.grad(losses.sum(), inputs, allow_unused=True, materialize_grads=True),
        torch.autograd.grad(sum(expected), inputs, allow_unused=True, materialize_grads=True),  # type: ignore[arg-type]
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)


def test_an_anchor_at_the_optimum_has_the_mass_that_is_asked_for_and_moves_no_centre() -> None:
    alpha, label = 0.4, torch.tensor([1])
    settings = settings_of("gpaco", f"method.alpha={alpha}", "method.prior=none", "method.temperature=1")
    same = torch.tensor([[1.0, 1, 1, 0, 0]])
    asked = optimal_probabilities([1, 3, 1], alpha=alpha, memory=5, batch=1, views=1)
    tiny = 1e-12
    centres = torch.tensor([[tiny, asked.centre[1], tiny]], dtype=torch.float32)
    logits = centres.log().requires_grad_()
    similar = torch.where(same > 0, float(asked.each[1]), tiny).log()
    (part,) = softmaxes(settings, {}, torch.ones(3) / 3, logits, label, similar, same)
    centre, p_sup, together, positives, asked_centre, asked_together = probabilities([part], label, same)
    assert positives.item() == asked.positives[1] == 3
    for got in (centre, p_sup, asked_centre):
        assert got.item() == pytest.approx(asked.centre[1], abs=1e-6)
    for got in (together, asked_together):
        assert got.item() == pytest.approx(asked.together[1], abs=1e-6)
    (gradient,) = torch.autograd.grad(part.losses().sum(), logits)
    assert gradient.abs().max().item() < 1e-6


# Runs


def trained(out: Path, method: str, *settings: str, epochs: int = 1, **flags: Any) -> Run:
    usual = {"long_tail": 50, "batch_size": 32, "validation": 0.0, "say": lambda line: None}
    return train(
        "digits", out=out, method=method, epochs=epochs, settings=["method.memory=64", *settings], **(usual | flags)
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A short run of every method."""
    folder = tmp_path_factory.mktemp("runs")
    return {method: trained(folder / method, method) for method in METHODS}


def everything(value: Any) -> list[Any]:
    if isinstance(value, dict | list):
        return [x for item in (value.values() if isinstance(value, dict) else value) for x in everything(item)]
    return [value]


@pytest.mark.parametrize("method", METHODS)
def test_training_leaves_an_analysis_with_all_that_the_method_has(method: str, runs: dict[str, Run]) -> None:
    text = (runs[method].folder / "analysis.json").read_text()
    found = json.loads(text)
    assert "NaN" not in text
    assert "Infinity" not in text
    assert found["method"] == method
    assert found["counts"] == runs[method].metrics["counts"]
    assert all(x is None or isinstance(x, str) or np.isfinite(x) for x in everything(found))
    gradients, mass = found["gradients"], found["mass"]
    assert gradients["images"] == sum(found["counts"])  # there are less than a thousand: all are looked at
    assert all(len(gradients[key]) == 10 for key in ("centres", "pull", "push", "features"))
    assert min(gradients["centres"] + gradients["features"]) > 0
    sums = [pull + push for pull, push in zip(gradients["pull"], gradients["push"], strict=True)]
    assert gradients["centres"] == pytest.approx(sums, rel=1e-4)
    assert gradients["slope"] == pytest.approx(log_log_slope(found["counts"], gradients["centres"]), abs=1e-4)
    contrasts = method in ("gpaco", "paco", "supcon", "multitask")
    for key in ("together", "each", "asked_together", "asked_each", "positives"):
        assert (None not in mass[key]) if contrasts else set(mass[key]) == {None}
    for key in ("centre", "asked_centre"):
        assert set(mass[key]) == {None} if method == "supcon" else None not in mass[key]
    assert (None not in mass["p_sup"]) if method in ("gpaco", "paco") else set(mass["p_sup"]) == {None}
    assert (found["settings"]["memory"] == 64) if contrasts else set(found["settings"].values()) == {None}
    assert (found["settings"]["alpha"] is None) == (method not in ("gpaco", "paco"))
    assert all(0 <= x <= 1 for key in ("centre", "together") for x in mass[key] if x is not None)
    assert None not in everything(found["geometry"])
    again = analyse(runs[method].folder)
    assert again == found  # from the folder alone, bit for bit


def test_gradients_and_mass_of_a_run_are_those_of_autograd_image_by_image(runs: dict[str, Run]) -> None:
    run = runs["gpaco"]
    norms = class_gradient_norms(run, images=24, seed=3)
    mass = analysis.measured_mass(run, images=24, seed=3)

    recipe, samples, predictor = run.recipe, splits_of(run.recipe).train, load(run)
    model, method = predictor.model, recipe.method
    order = stratified(samples.labels, 24, 3)
    assert np.bincount(samples.labels[order]).min() == 2
    fellows = epoch_order(samples.labels, "shuffle", 3, 0)[0][: recipe.train.batch_size - 1]
    extra = chosen(run).tensors["extra"]
    prior = extra["loss.log_prior"] + extra["loss.centre_share"].log()
    mean, std = predictor.about["mean"], predictor.about["std"]

    def seen(i: int) -> list[Tensor]:
        """Features of both views of one image."""
        names = (recipe.views.first, recipe.views.second)
        views = [View(name, recipe.model.size, flip=recipe.views.flip) for name in names]
        (pixels,) = views_of(samples, views, [(np.array([i]), np.array([i]))], seed=3, epoch=0)
        return [model.features(normalise(view, mean, std)).detach() for view in pixels]

    looks = {int(i): seen(int(i)) for i in {*order.tolist(), *fellows.tolist()}}
    assert len(extra["loss.memory.embeddings"]) == int(extra["loss.memory.pushed"].clamp_max(64)) == 64
    centres: dict[int, list[Tensor]] = {c: [] for c in range(10)}
    at_features: dict[int, list[float]] = {c: [] for c in range(10)}
    own: dict[int, list[float]] = {c: [] for c in range(10)}
    shared: dict[int, list[float]] = {c: [] for c in range(10)}
    for i in order.tolist():
        label = int(samples.labels[i])
        others = [j for j in fellows.tolist() if j != i]
        for v in range(2):
            held = [model.embed(looks[i][1 - v])] + [model.embed(looks[j][u]) for j in others for u in range(2)]
            held = torch.cat([*held, extra["loss.memory.embeddings"]]).detach()
            its = [label] + [int(samples.labels[j]) for j in others for u in range(2)]
            held_labels = torch.cat([torch.tensor(its), extra["loss.memory.labels"]])
            features = looks[i][v].clone().requires_grad_()
            model.zero_grad()
            logits, anchor = model.centres(features), model.embed(features)
            gpaco_loss(
                logits,
                anchor,
                torch.tensor([label]),
                held,
                held_labels,
                alpha=method.alpha,
                temperature=method.temperature,
                log_prior=prior,
            ).backward()
            centres[label].append(model.centres.weight.grad.norm(dim=1).clone())  # type: ignore[union-attr]
            at_features[label].append(features.grad.norm().item())  # type: ignore[union-attr]
            p = torch.cat([logits + prior, anchor @ held.t() / method.temperature], 1).softmax(1)[0].detach()
            own[label].append(p[label].item())
            shared[label].append(p[10:][held_labels == label].sum().item())

    share = class_shares(samples.counts, "shuffle")
    by_class = torch.stack([torch.stack(centres[c]).mean(0) for c in range(10)]).numpy() * share[:, None]
    assert norms.centres == pytest.approx(by_class.sum(0), rel=1e-3)
    assert norms.pull == pytest.approx(by_class.diagonal(), rel=1e-3)
    assert norms.push == pytest.approx(by_class.sum(0) - by_class.diagonal(), rel=1e-3)
    assert norms.features == pytest.approx([np.mean(at_features[c]) for c in range(10)], rel=1e-3)
    assert mass.centre == pytest.approx([np.mean(own[c]) for c in range(10)], rel=1e-3)
    assert mass.together == pytest.approx([np.mean(shared[c]) for c in range(10)], rel=1e-3)
    assert norms.images == mass.images == 24


def test_the_keys_of_paco_are_references_of_its_queries(runs: dict[str, Run]) -> None:
    mass = analysis.measured_mass(runs["paco"], images=10)
    extra = chosen(runs["paco"]).tensors["extra"]
    samples = splits_of(runs["paco"].recipe).train
    fellows = epoch_order(samples.labels, "shuffle", 0, 0)[0][:31]
    chosen_images = stratified(samples.labels, 10, 0)  # one of each class
    for i in chosen_images:
        c = samples.labels[i]
        others = fellows[(fellows != i) & (samples.labels[fellows] == c)]
        held = int((extra["loss.memory.labels"] == c).sum())
        assert mass.positives[c] == 1 + 2 * len(others) + held  # its own key, their queries and keys
    assert mass.asked_centre == pytest.approx(1 / (1 + 0.05 * mass.positives))


def test_the_geometry_is_that_of_the_features_and_centres(runs: dict[str, Run]) -> None:
    run = runs["ce"]
    recipe = run.recipe
    found = analysis.feature_geometry(run, images=40)
    measured = measure(run, recipe, "best", splits_of(recipe).train, 40, 0)
    weight = load(run).model.centres.weight.detach().numpy()
    assert found.centre_norm == pytest.approx(np.linalg.norm(weight, axis=1))
    away = weight - weight.mean(0)
    for c in range(10):
        cosines = [away[c] @ away[k] / np.linalg.norm(away[c]) / np.linalg.norm(away[k]) for k in range(10) if k != c]
        assert found.nearest_centre[c] == pytest.approx(max(cosines), abs=1e-5)
        features = measured.features[measured.labels == c]
        within = features.var(0, ddof=1).sum() / measured.features.var(0).sum()
        assert found.spread[c] == pytest.approx(within**0.5, rel=1e-3)


def test_cross_entropy_moves_frequent_centres_more_and_gpaco_moves_them_more_evenly(tmp_path: Path) -> None:
    settings = ("method.memory=256", "method.alpha=0.2")
    slopes = [class_gradient_norms(trained(tmp_path / m, m, *settings, epochs=2)).slope for m in ("ce", "gpaco")]
    plain, parametric = (slope for slope in slopes if slope is not None)
    assert plain > 0.6
    assert abs(parametric) < plain - 0.2


def test_training_brings_the_mass_of_frequent_classes_to_the_optimum(runs: dict[str, Run], tmp_path: Path) -> None:
    def distance(run: Run) -> float:
        mass = analysis.measured_mass(run)
        return float(
            np.abs(np.stack([mass.centre - mass.asked_centre, mass.together - mass.asked_together]))[:, :3].mean()
        )

    long = distance(trained(tmp_path / "run", "gpaco", epochs=8, lr=0.1))
    assert long < 0.1
    assert long < distance(runs["gpaco"]) / 2


def test_a_run_in_stages_shows_the_centres_of_the_last_and_the_contrast_of_the_one_before(
    runs: dict[str, Run], tmp_path: Path
) -> None:
    found = json.loads((runs["supcon"].folder / "analysis.json").read_text())
    assert (found["gradients"]["stage"], found["gradients"]["method"]) == ("classifier", "balanced-softmax")
    assert (found["mass"]["stage"], found["mass"]["method"]) == ("features", "supcon")
    assert found["mass"]["asked_together"] == [1] * 10
    alone = analyse(runs["supcon"].folder / "stage-1-features")  # its own folder is a run too
    assert alone["gradients"]["slope"] is None  # the centres are not in its loss
    assert None not in alone["gradients"]["features"]
    without = tmp_path / "run"
    shutil.copytree(runs["supcon"].folder, without, ignore=shutil.ignore_patterns("stage-*"))
    assert analyse(without)["mass"]["method"] == "balanced-softmax"


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("gpaco", ["views.second="]),
        ("paco", ["views.second="]),
        ("supcon", ["views.second="]),
        ("gpaco", ["method.memory=0", "method.contrast=global"]),
        ("gpaco", ["method.mixup=0.5", "method.label_smoothing=0.1"]),
        ("gpaco", ["train.sampler=balanced", "train.ema=0.9", "method.start=released"]),
        ("multitask", ["method.rebalance=weights", "train.accumulate=2"]),
        ("supcon", ["method.rebalance=prior", "method.momentum_keys=true"]),
    ],
    ids=str,
)
def test_single_views_no_memory_mixed_labels_and_samplers_can_be_analysed(
    method: str, settings: list[str], tmp_path: Path
) -> None:
    run = trained(tmp_path / "run", method, *settings)
    found = json.loads((run.folder / "analysis.json").read_text())
    assert None not in found["gradients"]["centres"]
    views = found["settings"]["views"]
    assert views == (1 if "views.second=" in settings and method != "paco" else 2)
    if "train.sampler=balanced" in settings:
        assert len(set(found["shown"])) == 1
    if "train.accumulate=2" in settings:
        assert found["settings"]["batch"] == 16
    held = found["mass"]["positives"]
    assert max(x for x in held if x is not None) > 0


def test_other_images_can_be_looked_at_and_strange_ones_are_refused(runs: dict[str, Run], tmp_path: Path) -> None:
    test_part = splits_of(runs["ce"].recipe).test
    assert test_part is not None
    other = class_gradient_norms(runs["ce"], test_part)
    assert other.images == min(len(test_part), 1000)
    assert other.centres.tolist() != class_gradient_norms(runs["ce"]).centres.tolist()
    with pytest.raises(UserError, match="nothing to measure"):
        class_gradient_norms(runs["ce"], images=0)
    with pytest.raises(UserError, match="nothing to measure"):
        class_gradient_norms(runs["ce"], test_part.subset([]))
    strange = Samples(np.zeros(1, np.int64), ("zebra",), images=np.zeros((1, 8, 8, 3), np.uint8))
    with pytest.raises(UserError, match="'zebra'"):
        class_gradient_norms(runs["ce"], strange)
    with pytest.raises(UserError, match="not a run"):
        class_gradient_norms(tmp_path)
    with pytest.raises(UserError):
        class_gradient_norms(runs["ce"], tmp_path / "gone")


def test_classes_that_were_not_looked_at_have_no_number(runs: dict[str, Run]) -> None:
    samples = splits_of(runs["gpaco"].recipe).train
    norms = class_gradient_norms(runs["gpaco"], samples.subset(np.flatnonzero(samples.labels < 7)))
    assert np.isnan(norms.centres).tolist() == [False] * 7 + [True] * 3
    assert norms.slope is not None
    few = class_gradient_norms(runs["gpaco"], images=4)
    assert few.images == 4
    assert np.isfinite(few.centres).sum() == 4


def test_a_slow_model_is_looked_at_for_a_limited_time(runs: dict[str, Run]) -> None:
    run = runs["gpaco"]
    samples = splits_of(run.recipe).train
    assert len(samples) > CHUNK
    assert measure(run, run.recipe, "best", samples, 1000, 0, seconds=0).images == CHUNK
    beginning = samples.labels[stratified(samples.labels, CHUNK, 0)]
    assert len(set(beginning.tolist())) == 10


def test_a_training_image_that_is_gone_costs_the_analysis_but_not_the_run(runs: dict[str, Run], tmp_path: Path) -> None:
    classes, said = splits_of(runs["ce"].recipe).train.classes, list[str]()
    samples = Samples(np.zeros(1, np.int64), classes, paths=(tmp_path / "gone.png",))
    write_analysis(Run(runs["ce"].folder), samples, load(runs["ce"]), said.append)
    assert "no analysis.json" in said[-1]
    assert "gone.png" in said[-1]


def test_files_are_looked_at_as_training_sees_them(tmp_path: Path) -> None:
    for c, count in enumerate((12, 6, 3)):
        for k in range(count):
            save(tmp_path / "images" / "abc"[c] / f"{k}.png", seed=100 * c + k, width=80, height=70)
    train(
        tmp_path / "images",
        out=tmp_path / "run",
        model="resnet8",
        size=32,
        batch_size=8,
        epochs=1,
        workers=0,
        say=lambda line: None,
    )
    found = json.loads((tmp_path / "run" / "analysis.json").read_text())
    assert found["gradients"]["images"] == sum(found["counts"])
    assert None not in found["mass"]["together"]
