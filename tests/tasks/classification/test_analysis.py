"""The analysis: formulas against minimization and identities, measurements against autograd, image by image."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.images import save
from helpers.small_methods import of_method
from torch import Tensor
from torch.nn import functional as F

from gpaco import analysis, balanced_softmax_loss, class_balanced_weights, focal_loss, gpaco_loss, supcon_loss
from gpaco.api.load import load
from gpaco.api.train import train
from gpaco.data.batches import class_shares, epoch_order, views_of
from gpaco.data.holdout import balanced_subset
from gpaco.data.samples import Samples
from gpaco.data.views.views import View, normalize
from gpaco.errors import UserError
from gpaco.losses.pairs import from_pairs
from gpaco.methods import ANALYZED
from gpaco.metrics.optimum import extra_loss_curve, log_log_slope, optimal_probabilities
from gpaco.tasks.classification.analysis import analyze, class_gradient_norms
from gpaco.tasks.classification.probe import Stage, measure
from gpaco.tasks.classification.results import write_analysis
from gpaco.tasks.classification.splits import splits_of
from gpaco.training.run import Run, select_checkpoint

# Formulas


def minimum(loss: Any, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Where a loss of free tensors is least, found from zeros in float64."""
    tensors = [torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    optimizer = torch.optim.LBFGS(
        tensors, max_iter=200, tolerance_grad=1e-9, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value: Tensor = loss(*tensors)
        value.backward()
        return value

    optimizer.step(closure)
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
        assert mass[c].item() == pytest.approx(optimum.center[c], abs=1e-6)
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
    assert curve.best == pytest.approx(optimum.center[0])
    assert 0.035 <= optimum.each[0] < 0.036
    assert curve.p_sup[curve.loss.argmin()] == pytest.approx(curve.best, abs=1e-5)
    assert curve.loss.min() == pytest.approx(curve.least)
    before = curve.p_sup < curve.best
    assert (np.diff(curve.loss[before]) < 0).all()
    assert (np.diff(curve.loss[~before]) > 0).all()
    assert np.interp(curve.best, curve.p_sup, curve.supcon) == pytest.approx(8.192 * np.log(8.192))  # its minimum
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


def test_without_a_memory_the_formulas_end_at_the_center() -> None:
    nothing = optimal_probabilities([2, 1], alpha=0.1, memory=0, batch=1, views=1)
    assert nothing.center.tolist() == [1, 1]
    assert np.isnan(nothing.supcon).all()
    curve = extra_loss_curve(10, alpha=0.1, memory=0)
    assert (curve.best, curve.least) == (1, 0)
    assert np.isfinite(curve.loss).all()


# Runs


def trained(out: Path, method: str, *settings: str, epochs: int = 1, **flags: Any) -> Run:
    usual = {"long_tail": 50, "batch_size": 32, "validation": 0.0, "say": lambda line: None}
    own = of_method(method, ["method.memory=64", *settings])
    return train("digits", out=out, method=method, epochs=epochs, settings=own, **(usual | flags))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A short run of every method, with time to measure all images."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gpaco.tasks.classification.analysis.SECONDS", 600)
        return {method: trained(folder / method, method) for method in ANALYZED}


def everything(value: Any) -> list[Any]:
    if isinstance(value, dict | list):
        return [x for item in (value.values() if isinstance(value, dict) else value) for x in everything(item)]
    return [value]


@pytest.mark.slow
@pytest.mark.parametrize("method", ANALYZED)
def test_training_leaves_an_analysis_with_all_that_the_method_has(
    method: str, runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpaco.tasks.classification.analysis.SECONDS", 600)
    text = (runs[method].folder / "analysis.json").read_text()
    found = json.loads(text)
    assert "NaN" not in text
    assert "Infinity" not in text
    assert found["method"] == method
    assert found["counts"] == runs[method].metrics["counts"]
    assert all(x is None or isinstance(x, str) or np.isfinite(x) for x in everything(found))
    gradients, mass = found["gradients"], found["mass"]
    assert gradients["images"] == sum(found["counts"])  # there are less than a thousand: all are looked at
    assert all(len(gradients[key]) == 10 for key in ("centers", "pull", "push"))
    assert min(gradients["centers"]) > 0
    sums = [pull + push for pull, push in zip(gradients["pull"], gradients["push"], strict=True)]
    assert gradients["centers"] == pytest.approx(sums, rel=1e-4)
    assert gradients["slope"] == pytest.approx(log_log_slope(found["counts"], gradients["centers"]), abs=1e-4)
    parametric = method in ("gpaco", "paco")
    for key in ("center", "together", "each", "positives"):
        assert (None not in mass[key]) if parametric else set(mass[key]) == {None}
    assert all(0 <= x <= 1 for key in ("center", "together") for x in mass[key] if x is not None)
    settings = {"alpha": runs[method].recipe.method.alpha, "memory": 64, "batch": 32, "views": 2}
    assert found["settings"] == (settings if parametric else None)
    again = analyze(runs[method].folder)
    if method == "supcon":  # its second stage was measured on cached features, which are rounded
        here, there = ([x for x in everything(one) if isinstance(x, int | float)] for one in (again, found))
        assert here == pytest.approx(there, rel=1e-3)
    else:
        assert again == found  # from the folder alone, bit for bit


def features_of(run: Run, samples: Samples, rows: Any, seed: int) -> list[Tensor]:
    """Features of each view of some images, with keys in place of the last view in PaCo."""
    recipe, predictor = run.recipe, load(run)
    names = [name for name in (recipe.views.first, recipe.views.second) if name]
    views = [View(name, recipe.model.size, flip=recipe.views.flip) for name in names]
    (pixels,) = views_of(samples, views, [(rows, rows)], seed=seed, epoch=0)
    images = [normalize(view, predictor.card.mean, predictor.card.std) for view in pixels]
    found = [predictor.model.features(view).detach() for view in images]
    if recipe.method.name != "paco":
        return found
    keys, extra = copy.deepcopy(predictor.model), select_checkpoint(run, parts=["extra"]).tensors["extra"]
    keys.load_state_dict(
        {k.removeprefix("key_network."): v for k, v in extra.items() if k.startswith("key_network.")}, strict=False
    )
    return [found[0], keys(images[-1])[1].detach()]


def dense(
    logits: Tensor, similar: Tensor, label: int, same: Tensor, alpha: float, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Probabilities and targets of one anchor over all centers and references, with every number written out."""
    p = torch.cat([logits, similar]).softmax(0)
    centers = torch.full_like(logits, smoothing / (len(logits) - 1))
    centers[label] = 1 - smoothing
    return p, torch.cat([centers, alpha * same]) / (1 + alpha * same.sum())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("gpaco", ["method.prior=unbiased"]),
        ("gpaco", ["method.prior=counts", "method.alpha=0.4", "method.label_smoothing=0.1", "method.mixup=0.5"]),
        ("gpaco", ["method.prior=none", "views.second=", "method.memory=4096"]),  # which is not full
        ("paco", ["method.temperature=0.07"]),
    ],
    ids=str,
)
def test_gradients_and_mass_are_those_of_one_softmax_over_centers_and_samples(
    method: str, settings: list[str], tmp_path: Path
) -> None:
    run = trained(tmp_path / "run", method, *settings)
    norms = class_gradient_norms(run, images=24, seed=3)
    mass = analysis.measured_mass(run, images=24, seed=3)
    assert norms.images == mass.images == 24

    recipe, samples, model = run.recipe, splits_of(run.recipe).train, load(run).model
    order = balanced_subset(samples.labels, 24, 3)
    batch = epoch_order(samples.labels, "shuffle", 3, 0)[0][:24]
    extra = select_checkpoint(run, parts=["extra"]).tensors["extra"]
    prior = extra.get("loss.log_prior", torch.zeros(10))
    if recipe.method.prior == "unbiased":
        prior = prior + extra["loss.center_share"].log()
    written = int(extra["loss.memory.pushed"])
    memory, memory_labels = (extra[f"loss.memory.{name}"][:written] for name in ("embeddings", "labels"))
    if memory_labels.dim() == 3:
        classes, shares = from_pairs(memory_labels)
        memory_labels = (F.one_hot(classes, 10) * shares.unsqueeze(2)).sum(1)
    else:
        memory_labels = F.one_hot(memory_labels, 10).float()

    def embedded(rows: Any) -> list[Tensor]:
        found = features_of(run, samples, rows, 3)
        return [model.embed(found[0]), found[1]] if method == "paco" else [model.embed(view) for view in found]

    columns: dict[str, list[list[Any]]] = {key: [[] for _ in range(10)] for key in ("norms", "own", "shared", "number")}
    for start in range(0, 24, 8):  # a quarter of a batch of 32 in each step
        rows = order[start : start + 8]
        others = batch[~np.isin(batch, rows)]
        references = torch.cat([*embedded(rows), *embedded(others), memory]).detach()
        views = len(embedded(rows))
        whose = torch.cat([F.one_hot(torch.from_numpy(samples.labels[r]), 10).float() for r in [rows] * views])
        whose = torch.cat([whose, *[F.one_hot(torch.from_numpy(samples.labels[others]), 10).float()] * views])
        whose = torch.cat([whose, memory_labels])
        for v, features in enumerate(features_of(run, samples, rows, 3)[: 1 if method == "paco" else None]):
            for k, x in enumerate(features):
                label, rest = int(samples.labels[rows[k]]), torch.arange(len(references)) != v * len(rows) + k
                similar = references[rest] @ references[v * len(rows) + k] / recipe.method.temperature
                same = whose[rest][:, label]
                logits = model.centers(x).detach() + prior
                p, t = dense(logits, similar, label, same, recipe.method.alpha, recipe.method.label_smoothing)
                columns["norms"][label].append(((p - t)[:10].abs() * x.norm()).numpy())
                columns["own"][label].append(p[label].item())
                columns["shared"][label].append((p[10:] * same).sum().item())
                columns["number"][label].append(same.sum().item())

    share = class_shares(samples.counts, "shuffle")
    by_class = np.stack([np.mean(columns["norms"][c], 0) for c in range(10)]) * share[:, None]
    assert norms.centers == pytest.approx(by_class.sum(0), rel=1e-3)
    assert norms.pull == pytest.approx(by_class.diagonal(), rel=1e-3)
    assert norms.push == pytest.approx(by_class.sum(0) - by_class.diagonal(), rel=1e-3)
    assert mass.center == pytest.approx([np.mean(columns["own"][c]) for c in range(10)], rel=1e-3)
    assert mass.together == pytest.approx([np.mean(columns["shared"][c]) for c in range(10)], rel=1e-3)
    assert mass.positives == pytest.approx([np.mean(columns["number"][c]) for c in range(10)], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ce", "balanced-softmax", "focal", "class-balanced", "multitask"])
def test_gradients_of_methods_without_samples_in_the_softmax_are_those_of_each_image_alone(
    method: str, runs: dict[str, Run]
) -> None:
    run = runs[method]
    norms = class_gradient_norms(run, images=40)
    samples, model, settings = splits_of(run.recipe).train, load(run).model, run.recipe.method
    rows, share = balanced_subset(samples.labels, 40, 0), class_shares(samples.counts, "shuffle")
    labels = torch.from_numpy(samples.labels[rows])
    weights = class_balanced_weights(torch.from_numpy(samples.counts), beta=settings.cb_beta)
    total: list[list[Any]] = [[] for _ in range(10)]
    for features in features_of(run, samples, rows, 0):
        for x, label in zip(features, labels, strict=True):
            logits = model.centers(x[None]).detach().requires_grad_()
            y, counts = label[None], torch.from_numpy(samples.counts)
            loss = {
                "ce": lambda z, y=y: F.cross_entropy(z, y),
                "balanced-softmax": lambda z, y=y, n=counts: balanced_softmax_loss(z, y, n),
                "focal": lambda z, y=y: focal_loss(z, y, gamma=settings.gamma),
                "class-balanced": lambda z, y=y: weights[y] * F.cross_entropy(z, y),
                "multitask": lambda z, y=y, n=counts: (
                    balanced_softmax_loss(z, y, n) if settings.base == "balanced-softmax" else F.cross_entropy(z, y)
                ),
            }[method](logits)
            (gradient,) = torch.autograd.grad(loss.sum(), logits)
            total[int(label)].append((gradient[0].abs() * x.norm()).numpy())
    by_class = np.stack([np.mean(total[c], 0) for c in range(10)]) * share[:, None]
    assert norms.centers == pytest.approx(by_class.sum(0), rel=1e-3)


@pytest.mark.extensive
@pytest.mark.slow
def test_cross_entropy_moves_frequent_centers_more_and_gpaco_moves_them_more_evenly(tmp_path: Path) -> None:
    settings = ("method.memory=256", "method.alpha=0.2")
    slopes = [class_gradient_norms(trained(tmp_path / m, m, *settings, epochs=2)).slope for m in ("ce", "gpaco")]
    plain, parametric = (slope for slope in slopes if slope is not None)
    assert plain > 0.6
    assert abs(parametric) < plain - 0.2


@pytest.mark.extensive
@pytest.mark.slow
def test_training_brings_the_mass_of_frequent_classes_to_the_optimum(runs: dict[str, Run], tmp_path: Path) -> None:
    def distance(run: Run) -> float:
        mass = analysis.measured_mass(run)
        asked = 1 / (1 + run.recipe.method.alpha * mass.positives)
        return float(np.abs(np.stack([mass.center - asked, mass.together - (1 - asked)]))[:, :3].mean())

    long = distance(trained(tmp_path / "run", "gpaco", epochs=8, lr=0.1))
    assert long < 0.1
    assert long < distance(runs["gpaco"]) / 2


@pytest.mark.slow
def test_a_run_in_stages_shows_the_centers_of_the_last(runs: dict[str, Run]) -> None:
    found = json.loads((runs["supcon"].folder / "analysis.json").read_text())
    assert (found["gradients"]["stage"], found["gradients"]["method"]) == ("classifier", "balanced-softmax")
    alone = analyze(runs["supcon"].folder / "stage-1-features")  # its own folder is a run too
    assert alone["gradients"]["slope"] is None  # the centers are not in its loss


@pytest.mark.extensive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("paco", ["views.second="]),
        ("gpaco", ["method.memory=0", "method.contrast=global"]),
        ("gpaco", ["train.sampler=balanced", "train.ema=0.9", "method.start=released", "train.accumulate=2"]),
        ("multitask", ["method.rebalance=weights"]),
        ("supcon", ["method.rebalance=prior", "method.momentum_keys=true"]),
    ],
    ids=str,
)
def test_single_views_no_memory_and_samplers_can_be_analyzed(method: str, settings: list[str], tmp_path: Path) -> None:
    run = trained(tmp_path / "run", method, *settings)
    found = json.loads((run.folder / "analysis.json").read_text())
    assert None not in found["gradients"]["centers"]
    if "train.sampler=balanced" in settings:
        assert len(set(found["shown"])) == 1
        assert found["settings"]["batch"] == 16
    if method in ("gpaco", "paco"):
        assert found["settings"]["views"] == 2
        assert max(found["mass"]["positives"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("keys", ["false", "true"])
def test_multitask_with_a_memory_of_mixed_labels_can_be_analyzed(keys: str, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "multitask", "method.mixup=0.4", f"method.momentum_keys={keys}")
    assert None not in json.loads((run.folder / "analysis.json").read_text())["gradients"]["centers"]


@pytest.mark.slow
def test_other_images_can_be_looked_at_and_strange_ones_are_refused(runs: dict[str, Run], tmp_path: Path) -> None:
    test_part = splits_of(runs["ce"].recipe).test
    other = class_gradient_norms(runs["ce"], test_part)
    assert other.images == min(len(test_part), 1000)
    assert other.centers.tolist() != class_gradient_norms(runs["ce"]).centers.tolist()
    with pytest.raises(UserError, match="cannot be sampled"):
        class_gradient_norms(runs["ce"], images=0)
    with pytest.raises(UserError, match="cannot be sampled"):
        class_gradient_norms(runs["ce"], test_part.subset([]))
    strange = Samples(np.zeros(1, np.int64), ("zebra",), images=np.zeros((1, 8, 8, 3), np.uint8))
    with pytest.raises(UserError, match="'zebra'"):
        class_gradient_norms(runs["ce"], strange)
    with pytest.raises(UserError, match="not a run"):
        class_gradient_norms(tmp_path)
    with pytest.raises(UserError):
        class_gradient_norms(runs["ce"], tmp_path / "gone")


@pytest.mark.slow
def test_classes_that_were_not_looked_at_have_no_number(runs: dict[str, Run]) -> None:
    samples = splits_of(runs["gpaco"].recipe).train
    norms = class_gradient_norms(runs["gpaco"], samples.subset(np.flatnonzero(samples.labels < 7)))
    assert np.isnan(norms.centers).tolist() == [False] * 7 + [True] * 3
    assert norms.slope is not None
    few = class_gradient_norms(runs["gpaco"], images=4)
    assert few.images == 4
    assert np.isfinite(few.centers).sum() == 4


@pytest.mark.slow
def test_a_slow_model_is_looked_at_for_a_limited_time(runs: dict[str, Run]) -> None:
    run = runs["gpaco"]
    samples = splits_of(run.recipe).train
    assert measure(Stage(run, run.recipe, "", run.folder), samples, seconds=0).images == 8  # a quarter of a batch
    assert len(set(samples.labels[balanced_subset(samples.labels, 10, 0)].tolist())) == 10


@pytest.mark.slow
def test_a_training_image_that_is_gone_costs_the_analysis_but_not_the_run(runs: dict[str, Run], tmp_path: Path) -> None:
    classes, said = splits_of(runs["ce"].recipe).train.classes, list[str]()
    samples = Samples(np.zeros(1, np.int64), classes, paths=(tmp_path / "gone.png",))
    write_analysis(Run(runs["ce"].folder), samples, load(runs["ce"]), None, said.append)
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
