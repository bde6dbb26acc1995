"""What logits are right for: at the optimum of a known problem, after training, tuned, and under a prior."""

import json
import shutil
from dataclasses import asdict, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cards import made_card
from helpers.commands import here
from helpers.minimize import minimize
from helpers.saving import largest_file, tree
from helpers.small_methods import of_method
from torch import Tensor, nn
from torch.nn import functional as F

import gpaco
from gpaco.data.batches import class_shares
from gpaco.data.readers.read import read
from gpaco.errors import EnvironmentProblem, UserError
from gpaco.methods import METHODS, assumed_prior
from gpaco.methods.method import Method, Setup
from gpaco.metrics.classification import summarize
from gpaco.recipes.recipe import override
from gpaco.recipes.settings import Recipe
from gpaco.tasks.classification.calibration import for_uniform
from gpaco.tasks.classification.card import Card
from gpaco.tasks.classification.evaluation import logits_of
from gpaco.tasks.classification.logits import log_prior
from gpaco.tasks.classification.priors import TAUS, best_tau, final_logits, read_tuned
from gpaco.tasks.classification.splits import splits_of
from gpaco.training.run import Run

# Three Gaussians on a line, looked at in three places: the posterior is known.
PLACES, MEANS = torch.tensor([-1.7, 0.2, 2.0]).double(), torch.tensor([-1.0, 0.0, 1.5]).double()
DENSITY = torch.exp(-((PLACES.unsqueeze(1) - MEANS) ** 2) / 4)
LIKELIHOOD = DENSITY / DENSITY.sum(0)  # p(x | class), (3, 3)
FREQUENCY = torch.tensor([0.7, 0.2, 0.1]).double()
REMEMBERED = torch.tensor([24, 5, 1])  # rows of each class in the memory
ALPHA = 0.05


class Table(nn.Module):
    """A network with a free score for every place and class, and fixed embeddings: the loss alone decides."""

    embeddings: Tensor

    def __init__(self, places: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(places, 3))
        self.register_buffer("embeddings", F.normalize(torch.randn(places, 4), dim=1))

    def forward(self, *views: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat(views)
        return self.scores[x], self.embeddings[x]


def method_for(name: str, model: Table, counts: Tensor, *settings: str) -> Method:
    own = of_method(name, [f"method.alpha={ALPHA}", *settings])
    recipe = override(Recipe(), [f"method.name={name}", *own])
    setup = Setup(model, recipe.method, 3, counts, 4, 2, counts)  # type: ignore[arg-type]
    return METHODS[name](setup).double()


def beside(scores: Tensor, likelihood: Tensor) -> Tensor:
    """What scores have beside log p(x | class); a constant for each x is left out."""
    bias = scores.detach().double() - likelihood.log()
    return bias - bias.mean(1, keepdim=True)


def assert_bias(got: Tensor, expected: Tensor | float) -> None:
    wanted = torch.as_tensor(expected).double().expand(3)
    torch.testing.assert_close(got, (wanted - wanted.mean()).expand_as(got), rtol=0, atol=1e-3)


@cache
def optimum(name: str, *settings: str) -> tuple[Tensor, Method]:
    """The free scores that minimize the expected loss of a method over one image with a memory: positives are fixed."""
    model = Table(len(PLACES)).double()
    rows, labels = F.normalize(torch.randn(30, 4), dim=1).double(), torch.arange(3).repeat_interleave(REMEMBERED)
    method = method_for(name, model, 100 * FREQUENCY, "method.memory=30", *settings)

    def expected_loss() -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for x, y in product(range(len(PLACES)), range(3)):
            method.loss.memory.push(rows, labels)  # type: ignore[union-attr, operator]
            place = torch.tensor([x])
            total = total + LIKELIHOOD[x, y] * FREQUENCY[y] * method(model, [place, place], torch.tensor([y]))
        return total

    minimize(expected_loss, [model.scores])
    return model.scores.detach(), method


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["unbiased", "counts", "none"])
@pytest.mark.parametrize("name", ["gpaco", "paco"])
def test_with_fixed_positives_raw_logits_are_log_likelihood_ratios_or_off_by_log_w(name: str, prior: str) -> None:
    log_w = -torch.log1p(ALPHA * (1 + REMEMBERED).double())  # the other view or the key, and the memory
    assert log_w.max() - log_w.min() > 0.5
    scores, method = optimum(name, f"method.prior={prior}")
    expected = {"unbiased": 0 * log_w, "counts": log_w, "none": log_w + FREQUENCY.log()}[prior]
    assert_bias(beside(scores, LIKELIHOOD), expected)
    torch.testing.assert_close(method.loss.center_share.log(), log_w)  # type: ignore[union-attr, operator]


@pytest.mark.parametrize(("name", "prior"), [("gpaco", "counts"), ("gpaco", "unbiased"), ("paco", "none")])
def test_the_correction_afterwards_gives_log_likelihood_ratios(name: str, prior: str) -> None:
    scores, method = optimum(name, f"method.prior={prior}")
    card = made_card(
        counts=tuple((100 * FREQUENCY).tolist()),
        assumes="train" if prior == "none" else "uniform",
        prior=prior,
        center_share=tuple(method.loss.center_share.tolist()),  # type: ignore[union-attr, operator]
    )
    for wanted, shift in (("uniform", torch.zeros(3)), ("train", FREQUENCY.log())):
        corrected = final_logits(scores.float().numpy(), card, prior=wanted, unbiased=True)
        assert_bias(beside(torch.from_numpy(corrected), LIKELIHOOD), shift)
    for change, cause in (({"label_smoothing": 0.1}, "label smoothing"), ({"mixed": True}, "mixup or cutmix")):
        with pytest.raises(UserError, match=rf"learned with {cause} cannot be corrected.*\n.*--tune-prior"):
            final_logits(scores.float().numpy(), replace(card, **change), unbiased=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("tau", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("name", ["balanced-softmax", "lift"])
def test_with_any_tau_a_prior_gives_log_likelihood_ratios_and_so_does_the_head_in_a_sum(name: str, tau: float) -> None:
    model = Table(len(PLACES)).double()
    method = method_for(name, model, 100 * FREQUENCY, f"method.tau={tau}")

    def expected_loss() -> Tensor:
        pairs = product(range(len(PLACES)), range(3))
        losses = [
            LIKELIHOOD[x, y] * FREQUENCY[y] * method(model, [torch.tensor([x])], torch.tensor([y])) for x, y in pairs
        ]
        return torch.stack(losses).sum()

    minimize(expected_loss, [model.scores])
    assumes = assumed_prior(override(Recipe(), [f"method.name={name}", f"method.tau={tau}"]))
    card = made_card(counts=tuple((100 * FREQUENCY).tolist()), assumes=assumes)
    scores = model.scores.detach().float().numpy()
    uniform = final_logits(scores, card, prior="uniform")
    assert_bias(beside(torch.from_numpy(uniform), LIKELIHOOD), 0.0)
    assert_bias(beside(torch.from_numpy(for_uniform(card, scores)), LIKELIHOOD), 0.0)


TWO_PLACES = torch.tensor([[0.7, 0.3, 0.4], [0.3, 0.7, 0.6]], dtype=torch.float64)  # p(x | class)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "prior"), [("gpaco", "unbiased"), ("paco", "counts"), ("paco", "unbiased")])
def test_with_random_positives_the_same_holds_for_the_exact_w(name: str, prior: str) -> None:
    model, frequency = Table(2).double(), FREQUENCY
    method = method_for(name, model, 100 * FREQUENCY, "method.memory=0", f"method.prior={prior}", "method.alpha=0.4")
    # Of two images, the other one adds two positives as often as it is of the class.
    w = frequency / (1 + 0.4 * 3) + (1 - frequency) / (1 + 0.4)
    method.loss.center_share.copy_(w)  # type: ignore[union-attr, operator]
    method.eval()  # w stays what it is: its mean over all batches
    joint = TWO_PLACES * frequency
    images = list(product(range(2), range(3)))

    def expected_loss() -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for pair in product(images, images):
            x, y = torch.tensor(pair).t()
            total = total + joint[x, y].prod() * method(model, [x, x], y)
        return total

    minimize(expected_loss, [model.scores])
    assert_bias(beside(model.scores, TWO_PLACES), w.log() if prior == "counts" else 0.0)


def binomial(n: int, q: float) -> Tensor:
    k = torch.arange(n + 1, dtype=torch.float64)
    log_choose = torch.lgamma(torch.tensor(n + 1.0)) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    return (log_choose + k * np.log(q) + (n - k) * np.log(1 - q)).exp()


def share_by_formula(card: Card, alpha: float, *, images: int, appearances: int, memory: int) -> Tensor:
    """E[1 / (1 + alpha P)] for P = a - 1 + a Bin(B - 1, q) + Bin(M, q), from what a model says of its training."""
    shares = []
    for q in card.shown:
        positives = appearances * torch.arange(images).unsqueeze(1) + appearances - 1 + torch.arange(memory + 1)
        chance = binomial(images - 1, q).unsqueeze(1) * binomial(memory, q)
        shares.append(float((chance / (1 + alpha * positives)).sum()))
    return torch.tensor(shares)


# Runs

QUICK: dict[str, Any] = {"long_tail": 20, "epochs": 3, "batch_size": 64, "lr": 0.05, "report": False}
QUICK |= {"say": lambda line: None}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("runs")
    published = ["method.memory=64", "method.prior=counts"]
    wanted: dict[str, dict[str, Any]] = {
        "gpaco": {"settings": published, "report": True},
        "paco": {"method": "paco", "settings": [*published, "train.seed=1"], "sampler": "sqrt"},  # few steps: noisy
        "ce": {"method": "ce", "sampler": "balanced"},
        "tuned": {"method": "ce", "tune_prior": True},
    }
    return {name: gpaco.train("digits", out=folder / name, **(QUICK | more)) for name, more in wanted.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpaco", "paco"])
def test_what_a_run_stores_gives_its_w_by_the_formula(name: str, runs: dict[str, Run]) -> None:
    card, alpha = gpaco.load(runs[name]).card, runs[name].recipe.method.alpha
    counts = np.array(card.counts)
    np.testing.assert_allclose(card.shown, class_shares(counts, "sqrt" if name == "paco" else "shuffle"))
    expected = share_by_formula(card, alpha, images=64, appearances=2, memory=64)
    torch.testing.assert_close(torch.tensor(card.center_share), expected, rtol=0.06, atol=0)


# Tuning


def test_the_best_tau_is_found_and_ties_go_to_the_nearest_to_0() -> None:
    generator = np.random.default_rng(0)
    counts = np.array([500, 100, 20])
    labels = np.repeat(np.arange(3), 400)
    logits = 2 * np.eye(3)[labels] + generator.normal(size=(1200, 3))
    tau, before, after = best_tau((logits - 0.7 * log_prior(counts)).astype(np.float32), labels, counts)
    assert tau == pytest.approx(0.7, abs=0.15)
    by_hand = summarize(logits, labels, counts, ["a", "b", "c"])["macro"]
    assert after == pytest.approx(by_hand, abs=0.01)
    assert after > before + 0.05
    sure = (50 * np.eye(3)[labels]).astype(np.float32)
    assert best_tau(sure, labels, counts) == (0, 1, 1)
    some = labels < 2  # a class without validation images has no recall
    assert best_tau(sure[some], labels[some], counts) == (0, 1, 1)


@pytest.mark.slow
def test_a_tuned_prior_is_chosen_on_validation_data_alone_and_is_part_of_the_model(runs: dict[str, Run]) -> None:
    run = runs["tuned"]
    tuned = read_tuned(run.folder)
    splits, raw = splits_of(run.recipe), gpaco.load(run, tuned=False)
    log_q = log_prior(raw.card.counts).astype(np.float32)

    def macro(samples: Any, tau: float) -> float:
        logits = logits_of(raw, samples) + np.float32(tau) * log_q
        return float(summarize(logits, samples.labels, raw.card.counts, raw.classes)["macro"])

    on_validation = {float(tau): macro(splits.val, tau) for tau in TAUS}
    assert tuned.val_macro == pytest.approx(max(on_validation.values()))
    assert on_validation[tuned.tau] == max(on_validation.values())
    assert tuned.val_macro_before == pytest.approx(on_validation[0.0])
    assert tuned.tau < 0  # cross entropy favors what is frequent

    model, samples = gpaco.load(run), splits.test
    np.testing.assert_allclose(logits_of(model, samples), logits_of(raw, samples) + tuned.tau * log_q, atol=1e-5)
    assert run.metrics["tuned"] == asdict(tuned)
    assert run.metrics["macro"] == pytest.approx(macro(samples, tuned.tau))
    assert gpaco.evaluate(run)["macro"] == run.metrics["macro"]
    np.testing.assert_array_equal(np.load(run.folder / "predictions.npz")["logits"], logits_of(model, samples))


@pytest.mark.slow
def test_a_prior_goes_on_top_of_a_tuned_one_which_is_right_for_uniform_classes(runs: dict[str, Run]) -> None:
    run = runs["tuned"]
    stored = np.load(run.folder / "predictions.npz")
    assert run.metrics["assumes"] == "uniform"
    assert gpaco.evaluate(run, prior="uniform")["per_class"] == run.metrics["per_class"]
    shifted = stored["logits"] + log_prior(run.metrics["counts"])
    by_hand = summarize(shifted, stored["labels"], run.metrics["counts"], [str(c) for c in range(10)])
    assert gpaco.evaluate(run, prior="train")["top1"] == pytest.approx(by_hand["top1"], abs=1e-9)
    with pytest.raises(UserError, match="not trained with parametric contrast"):
        gpaco.evaluate(run, unbiased=True)


@pytest.mark.slow
def test_a_finished_run_is_tuned_afterwards_and_its_figures_and_page_follow(
    runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs["gpaco"].folder, folder)
    page = (folder / "report.html").read_text()
    out, errors = here(capsys, "evaluate", folder, "--tune-prior", "--json")
    tuned = read_tuned(folder)
    assert not tuned.unbiased
    assert f"{tuned.tau:+.2f} * log prior" in errors
    result, metrics = json.loads(out), Run(folder).metrics
    assert metrics["tuned"] == result["tuned"] == asdict(tuned)
    assert {key: metrics[key] for key in result} == result
    assert ((folder / "report.html").read_text() != page) == (
        metrics["per_class"] != runs["gpaco"].metrics["per_class"]
    )

    with pytest.raises(UserError, match="was tuned on uncorrected logits") as caught:
        gpaco.evaluate(folder, unbiased=True)
    assert "--unbiased --tune-prior" in caught.value.remedy
    both = gpaco.evaluate(folder, unbiased=True, tune_prior=True)
    assert both["tuned"]["unbiased"]
    assert gpaco.evaluate(folder) == gpaco.evaluate(folder, unbiased=True) == both
    raw = gpaco.load(folder, tuned=False)
    samples = read("digits").test
    by_hand = logits_of(raw, samples) - raw.card.calibration.head * np.log(raw.card.center_share)
    by_hand += both["tuned"]["tau"] * log_prior(raw.card.counts)
    np.testing.assert_allclose(logits_of(gpaco.load(folder), samples), by_hand, atol=1e-4)

    same = gpaco.train("digits", out=folder, **QUICK, settings=["method.memory=64", "method.prior=counts"])
    assert same.metrics == Run(folder).metrics  # a finished run given again stays as it is
    again = {"settings": ["method.memory=64", "method.prior=counts"], "tune_prior": True}
    with pytest.raises(UserError, match="holds a run without a tuned prior") as caught:
        gpaco.train("digits", out=folder, **QUICK, **again)
    assert caught.value.remedy == f"tune it: gpaco evaluate {folder} --tune-prior"
    with pytest.raises(UserError, match="needs the best checkpoint"):
        gpaco.evaluate(folder, tune_prior=True, which="last")
    (folder / "prior.json").write_text("{}")
    with pytest.raises(UserError, match=r"prior\.json was written by another version"):
        gpaco.load(folder)


@pytest.mark.slow
def test_a_disk_that_is_full_while_a_prior_is_tuned_leaves_the_run_as_it_was(
    runs: dict[str, Run], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs["ce"].folder, folder)
    before = tree(folder)
    with (
        largest_file(len(before["predictions.npz"]) // 2),
        pytest.raises(EnvironmentProblem, match=r"predictions\.npz"),
    ):
        gpaco.evaluate(folder, tune_prior=True)
    assert tree(folder) == before


@pytest.mark.slow
def test_without_validation_data_there_is_nothing_to_tune_on(runs: dict[str, Run], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="validation data, and there is none") as caught:
        gpaco.train("digits", out=tmp_path / "run", validation=0, tune_prior=True, **QUICK)
    assert "--validation 0.1" in caught.value.remedy
    assert not (tmp_path / "run").exists()  # said before anything is trained
    run = gpaco.train("digits", out=tmp_path / "run", validation=0, method="ce", **(QUICK | {"epochs": 1}))
    with pytest.raises(UserError, match="validation data, and there is none"):
        gpaco.evaluate(run, tune_prior=True)
    assert read_tuned(run.folder) is None


@pytest.mark.slow
def test_predictions_follow_the_tuned_model_and_the_command_says_so(
    runs: dict[str, Run], tmp_path: Path, prints: Any
) -> None:
    from PIL import Image

    samples = read("digits").test
    Image.fromarray(samples.load(0)).save(tmp_path / "0.png")
    said = prints("predict", runs["tuned"].folder, tmp_path / "0.png", "--out", tmp_path / "rows.jsonl")
    assert "prior tuned on validation data" in said
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    logits = np.load(runs["tuned"].folder / "predictions.npz")["logits"][0]
    assert row["class"] == str(logits.argmax())
    assert row["probability"] == pytest.approx(np.exp(logits.max()) / np.exp(logits).sum(), abs=1e-5)
