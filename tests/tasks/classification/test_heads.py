"""Heads on cached features: fused with the closed form, calibrated, searched; and the closed form alone."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.images import save
from helpers.trained import halt
from safetensors.torch import save_file

import gpaco
from gpaco.api.train import train
from gpaco.data.readers.digits import read_digits
from gpaco.data.samples import Samples, Splits
from gpaco.data.views.views import View
from gpaco.errors import UserError
from gpaco.metrics.calibration import cross_entropy, fit_factor
from gpaco.models import backbones
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.tasks.classification import heads, tuning
from gpaco.tasks.classification.batches import FeatureSource
from gpaco.tasks.classification.calibration import fit_calibration
from gpaco.tasks.classification.card import build_head, describe
from gpaco.tasks.classification.defaults import head_settings, memory_for
from gpaco.tasks.classification.feature_cache import Vectors
from gpaco.tasks.classification.heads import (
    FOLDS,
    HeldOut,
    closed_form,
    folds_used,
    held_out_logits,
    trained_logits,
    without_small_classes,
)
from gpaco.tasks.classification.learner import ClassificationLearner, Earlier
from gpaco.tasks.classification.tuning import candidates
from gpaco.training.run import Run


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(7)
    path = tmp_path_factory.mktemp("weights") / "resnet8.safetensors"
    save_file(backbones.build("resnet8").module.state_dict(), path)
    return path


def head(weights: Path, out: Path, *settings: str, say: Any = lambda _: None, **flags: Any) -> Run:
    common = {"long_tail": 20, "epochs": 2, "model": "resnet8", "report": False, "weights": str(weights)} | flags
    return train("digits", out=out, settings=[f"train.features={weights.parent}", *settings], say=say, **common)


@pytest.fixture(scope="module")
def fused(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return head(weights, tmp_path_factory.mktemp("runs") / "fused")


@pytest.mark.slow
def test_the_model_is_the_sum_of_both_calibrated_logits(fused: Run) -> None:
    predictor = gpaco.load(fused)
    card = predictor.card
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8), np.uint8))
    with torch.inference_mode():
        features = predictor.model.backbone((images / 255 - predictor.mean) / predictor.std)
        one = predictor.model.centers(predictor.model.hidden(features))
        expected = card.calibration.head * one + card.calibration.gaussian * predictor.gaussian(features)
        torch.testing.assert_close(predictor(images), expected)


@pytest.mark.slow
def test_metrics_name_both_parts_and_are_those_of_a_later_evaluation(fused: Run) -> None:
    metrics = fused.metrics
    assert set(metrics["parts"]) == {"head", "gaussian", "fused"}
    assert {key: metrics[key] for key in metrics["parts"]["fused"]} == metrics["parts"]["fused"]
    assert set(metrics["parts"]["head"]) == {"top1", "many", "medium", "few", "macro", "ece"}
    again = gpaco.evaluate(fused, say=lambda _: None)
    assert again["top1"] == pytest.approx(metrics["top1"], abs=3 / metrics["n"])  # half precision in the cache
    assert again["ece"] == pytest.approx(metrics["ece"], abs=0.01)
    assert metrics["assumes"] == "uniform"


@pytest.mark.extensive
def test_without_fusing_the_head_is_calibrated_alone(weights: Path, tmp_path: Path) -> None:
    run = head(weights, tmp_path / "alone", "method.fuse=false")
    predictor = gpaco.load(run)
    assert predictor.gaussian is None
    assert predictor.card.calibration.gaussian == 0
    assert run.metrics["top1"] == run.metrics["parts"]["head"]["top1"]
    assert not (run.folder / "gaussian.safetensors").exists()


def test_a_method_for_the_training_distribution_is_fused_for_a_uniform_one(weights: Path, tmp_path: Path) -> None:
    run = head(weights, tmp_path / "ce", method="ce")
    card = gpaco.load(run).card
    assert card.assumes == "uniform"
    assert card.calibration.assumes == "train"
    log_prior = np.log(np.asarray(card.shown))
    shift = gpaco.load(run).shift.numpy()
    np.testing.assert_allclose(shift, -card.calibration.head * log_prior, rtol=1e-4)


def test_the_closed_form_alone_trains_nothing_and_is_a_run_like_any_other(weights: Path, tmp_path: Path) -> None:
    said: list[str] = []
    run = head(weights, tmp_path / "g", method="gaussian", say=said.append)
    (first,) = [line for line in said if line.startswith("closed-form classifier: ")]
    assert f"{100 * run.metrics['top1']:.1f}% of" in first
    assert run.metrics["ece"] < 0.2
    rows = gpaco.predict(run, digit_files(tmp_path))
    assert all(row["error"] is None for row in rows)
    assert head(weights, tmp_path / "g", method="gaussian").metrics == run.metrics  # again: nothing to do
    with pytest.raises(UserError, match="gaussian does not train"):
        head(weights, tmp_path / "all", method="gaussian", train="all")


def digit_files(folder: Path) -> list[Path]:
    from PIL import Image

    images = read_digits().train.images
    for i in range(3):
        Image.fromarray(images[i]).save(folder / f"{i}.png")
    return sorted(folder.glob("*.png"))


def test_a_changed_closed_form_is_found_when_the_model_is_loaded(weights: Path, tmp_path: Path) -> None:
    run = head(weights, tmp_path / "run", method="gaussian")
    path = run.folder / "gaussian.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="has changed since it was written"):
        gpaco.load(run)
    path.unlink()
    with pytest.raises(UserError, match="is missing"):
        gpaco.load(run)


def test_calibration_never_raises_cross_entropy_on_what_it_was_fitted_on(fused: Run) -> None:
    card = gpaco.load(fused).card
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 300)
    logits = rng.normal(size=(300, 10)).astype(np.float32)
    logits[np.arange(300), labels] += 2
    for factor in (0.05, 1, 30):
        found = fit_calibration(card, labels, factor * logits, None)
        weights = 1 / np.bincount(labels)[labels]
        best = cross_entropy(found.head * factor * logits, labels, weights)
        assert best <= cross_entropy(factor * logits, labels, weights) + 1e-6


def test_calibration_weighs_classes_as_the_logits_assume_whatever_the_held_out_images_have(fused: Run) -> None:
    counts = np.geomspace(1000, 10, 10).astype(int)
    card = replace(gpaco.load(fused).card, assumes="train", counts=tuple(counts.tolist()), shown=None)
    rng = np.random.default_rng(0)
    for held in (np.full(10, 800), counts * 3):  # balanced, as of ImageNet-LT, or like the training images
        labels = np.repeat(np.arange(10), held)
        x = rng.normal(size=(len(labels), 10)) + 1.5 * np.eye(10)[labels]
        posterior = (1.5 * x + np.log(counts)).astype(np.float32)
        assert fit_calibration(card, labels, posterior, None).head == pytest.approx(1, abs=0.06)


def test_classes_with_fewer_images_than_folds_do_not_make_the_model_less_sure() -> None:
    """Of two images a fold leaves one: those logits say little about a classifier that has seen both."""
    rng, counts = np.random.default_rng(0), np.array([40, 40, 4, 4])
    labels = np.repeat(np.arange(4), counts)
    logits = rng.normal(size=(len(labels), 4)).astype(np.float32)
    logits[np.arange(len(labels)), labels] += np.where(counts[labels] < FOLDS, 0, 4)
    held = without_small_classes(HeldOut(labels, logits, None), counts)
    assert set(held.labels) == {0, 1}
    assert fit_factor(held.gaussian, held.labels) > 1.5 * fit_factor(logits, labels, 1 / counts[labels])
    for few in (labels >= 2, labels >= 1, labels != 0):  # none, one of two and one of three classes would remain
        small = HeldOut(labels[few], logits[few], None)
        assert without_small_classes(small, counts) is small
    two = HeldOut(labels[(labels == 0) | (labels == 2)], logits[(labels == 0) | (labels == 2)], None)
    assert without_small_classes(two, counts) is two  # one class says nothing about two


def test_classes_of_one_image_each_give_a_model_that_is_not_sure(weights: Path, tmp_path: Path) -> None:
    """Nothing can be held out: half of the predictions count as wrong; the closed form is the nearest mean."""
    for i, name in enumerate("abc"):
        for split in ("train", "test"):
            save(tmp_path / "data" / split / name / "0.png", seed=10 * i + (split == "test"), width=16, height=16)
    for method in ("gaussian", "ce"):
        run = train(
            tmp_path / "data", out=tmp_path / method, method=method, model="resnet8", weights=str(weights), epochs=1,
            say=lambda _: None, report=False,
        )  # fmt: skip
        calibration = gpaco.load(run).card.calibration
        assert calibration.images == 0
        rows = gpaco.predict(run, sorted((tmp_path / "data").rglob("*.png")))
        assert all(0.3 < row["probability"] < 0.9 for row in rows), method
    assert run.metrics["n"] == 3


def test_a_small_set_of_two_classes_is_not_certain_of_its_errors() -> None:
    """40 + 4 images, the frequent class always right, of the rare one half: it counts too, and no probability is 1."""
    rng, counts = np.random.default_rng(0), np.array([40, 4])
    labels = np.repeat([0, 1], counts)
    margin = np.where(labels == 0, 3 + rng.random(44), [*[0] * 40, 2, 2, -2, -2])
    logits = (margin[:, None] * np.eye(2)[labels]).astype(np.float32)
    held = without_small_classes(HeldOut(labels, logits, None), counts)
    factor = fit_factor(held.gaussian, held.labels, 1 / counts[held.labels])
    assert 0.1 < factor < 1
    frequent = fit_factor(logits[:40], labels[:40])  # all of them right: sure, but not certain
    assert 0.9 < 1 / (1 + np.exp(-frequent * margin[:40].max())) < 0.999


def learner_of_vectors(
    vectors: np.ndarray,
    labels: np.ndarray,
    paths: tuple[str, ...] | None = None,
    images: np.ndarray | None = None,
    **settings: Any,
) -> ClassificationLearner:
    """A learner of the closed form on given vectors."""
    recipe = recipes.change(
        Recipe(),
        {"method.name": "gaussian", "views.first": "plain", "model.name": "resnet8", "model.size": 8} | settings,
    )
    classes = tuple(f"c{c}" for c in range(labels.max() + 1))
    if images is None and paths is None:
        images = np.empty((len(labels), 0, 0, 3), np.uint8)
    splits = Splits(Samples(labels, classes, images=images, paths=paths, names=paths), None, None, "vectors")
    view, card = View("plain", 1), replace(describe(recipe, splits), model="vectors")
    cpu = torch.device("cpu")
    source = FeatureSource(recipe, splits, [view], [view], Vectors(torch.from_numpy(vectors), cpu))
    source.embed_views()
    return ClassificationLearner(recipe, splits, build_head(card, vectors.shape[1]), card, source, select=False)


def test_random_labels_give_held_out_images_an_accuracy_near_chance() -> None:
    """No image that is held out is trained on: here a classifier that has seen it would know its label."""
    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(300, 512)).astype(np.float32), rng.integers(0, 3, 300)
    for method in ("gaussian", "ce"):
        settings = {"method.name": method, "train.epochs": 5, "train.batch_size": 60, "views.second": ""}
        learner = learner_of_vectors(vectors, labels, **settings)
        held = held_out_logits(learner, torch.device("cpu"))
        for logits in (held.gaussian, held.head):
            if logits is not None:
                assert abs((logits.argmax(1) == held.labels).mean() - 1 / 3) < 0.1
    seen = trained_logits(learner, closed_form(learner.source), lambda x: x)
    assert (seen.gaussian.argmax(1) == seen.labels).mean() > 0.9


def test_an_image_is_not_held_out_while_its_copy_is_trained_on(tmp_path: Path) -> None:
    rng, paths = np.random.default_rng(0), list[str]()
    for i in range(300):  # each twice
        paths.append(str(tmp_path / f"{i}.png"))
        Path(paths[-1]).write_bytes(f"image {i // 2:03}".encode())
    vectors, labels = (np.repeat(one, 2, 0) for one in (rng.normal(size=(150, 512)), rng.integers(0, 3, 150)))
    images = np.repeat(rng.integers(0, 256, (150, 4, 4, 3), np.uint8), 2, 0)
    for kind in ({"paths": tuple(paths)}, {"images": images}):
        held = held_out_logits(learner_of_vectors(vectors.astype(np.float32), labels, **kind), torch.device("cpu"))
        assert len(held.labels) == 300
        assert abs((held.gaussian.argmax(1) == held.labels).mean() - 1 / 3) < 0.1


def test_each_stage_of_a_head_has_its_own_batch_size_and_start(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, trained = np.random.default_rng(0), []
    vectors, labels = rng.normal(size=(60, 8)).astype(np.float32), rng.integers(0, 3, 60)
    monkeypatch.setattr(heads, "fit", lambda learner, *_: trained.append(learner))
    learner = learner_of_vectors(vectors, labels, **{"method.name": "ce", "train.batch_size": 64, "views.second": ""})
    first = recipes.change(learner.recipe, {"train.batch_size": 32, "model.head_std": 1e-3})
    heads.fit_head(
        learner.recipe, learner.splits, learner.card, learner.source, torch.device("cpu"), Earlier({}, (first,))
    )
    assert [one.recipe.train.batch_size for one in trained] == [32, 60]
    weight = trained[0].model.centers.weight
    assert weight.std() < 2e-3
    assert torch.equal(trained[1].model.centers.weight, weight)  # carried over


def test_of_a_large_fold_only_some_images_are_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "_ENOUGH", 20)
    monkeypatch.setattr(heads, "BLOCK", 7)
    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(500, 8)).astype(np.float32), rng.integers(0, 15, 500)
    shown: list[tuple[int, int]] = []
    learner = learner_of_vectors(vectors, labels)
    held = held_out_logits(learner, torch.device("cpu"), lambda done, of: shown.append((done, of)))
    assert len(held.labels) == len(held.gaussian) == 30  # two for each class, of a fold of 100
    assert set(held.labels) == set(range(15))
    assert shown == [(0, 1), (1, 1)]  # one fold is enough


@pytest.mark.extensive
def test_a_candidate_that_diverges_is_left_out_of_the_search(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, *_ = candidates(recipes.change(Recipe(), {"method.name": "ce"}))
    wild = usual | {"optimizer.lr": 1e30}
    monkeypatch.setattr(tuning, "candidates", lambda _: [usual, wild])
    run = head(weights, tmp_path / "run", method="ce", tune=1.0)
    stored = json.loads((run.folder / "tuning.json").read_text())
    assert [one["settings"] for one in stored["tried"]] == [usual]


def test_folds_are_used_until_there_are_enough_images() -> None:
    assert [folds_used(images) for images in (50, 2000, 4000, 9000, 1_000_000)] == [5, 5, 3, 2, 1]


@pytest.mark.slow
def test_a_search_changes_the_training_and_is_forgotten_by_another_run(
    fused: Run, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "candidates", lambda _: [{"optimizer.lr": 0.0123, "optimizer.weight_decay": 1e-5}])
    run = head(weights, tmp_path / "run", tune=0.0001)
    assert run.recipe.optimizer.lr == 0.0123
    rate = fused.history[0]["lr"] / fused.recipe.optimizer.lr
    assert run.history[0]["lr"] == pytest.approx(rate * 0.0123)
    shutil.rmtree(run.folder / "checkpoints")  # as if it had been killed before the first one
    (run.folder / "metrics.json").unlink()
    other = head(weights, run.folder, method="ce")
    assert other.recipe.optimizer.lr == fused.recipe.optimizer.lr


def test_a_search_is_stored_used_and_not_repeated(weights: Path, tmp_path: Path) -> None:
    said: list[str] = []
    run = head(weights, tmp_path / "run", tune=0.0001, say=said.append)
    stored = json.loads((run.folder / "tuning.json").read_text())
    assert len(stored["tried"]) == 1  # the settings of the recipe, tried in any case
    assert set(stored["chosen"]) == {"optimizer.lr", "optimizer.weight_decay", "method.alpha", "method.temperature"}
    assert any(line.startswith("no time left to search: one trial took") for line in said)
    stored["chosen"]["method.alpha"] = 0.123
    (run.folder / "tuning.json").write_text(json.dumps(stored))
    assert Run(run.folder).recipe.method.alpha == 0.123


def test_a_search_is_refused_where_it_would_find_nothing(weights: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--tune searches the settings of a head"):
        train("digits", out=tmp_path / "no", tune=1.0, say=lambda _: None)
    for method, message in {"supcon": "with the stages of supcon", "gaussian": "gaussian has no settings"}.items():
        with pytest.raises(UserError, match=f"{message}.*\nleave out --tune"):
            head(weights, tmp_path / "no", tune=1.0, method=method)


def test_candidates_keep_to_what_the_recipe_can_have() -> None:
    changes = {"optimizer.lr": 0.05, "schedule.min_lr": 0.04}
    changes |= {"method.start": "released", "method.center_temperature": True}
    found = candidates(recipes.change(Recipe(), changes))
    assert min(one["optimizer.lr"] for one in found) == 0.04
    assert set(found[0]) == {"optimizer.lr", "optimizer.weight_decay", "method.alpha"}


@pytest.mark.slow
def test_a_search_chooses_the_best_candidate_and_is_not_repeated_by_a_resumed_run(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, common = {"optimizer.lr": 0.1, "optimizer.weight_decay": 5e-4}, {"method": "ce", "tune": 9.0, "long_tail": 1}
    monkeypatch.setattr(tuning, "candidates", lambda _: [usual | {"optimizer.lr": 1e-9}, usual])
    said: list[str] = []

    with pytest.raises(KeyboardInterrupt):
        head(weights, tmp_path / "run", "method.fuse=false", say=said.append, show=halt(1), **common)
    stored = json.loads((tmp_path / "run" / "tuning.json").read_text())
    assert stored["chosen"] == usual
    assert stored["tried"][1]["macro"] > stored["tried"][0]["macro"]
    assert any(line.startswith("tuned on held-out training images, 2 candidates") for line in said)
    monkeypatch.setattr(tuning, "held_out_logits", None)  # a second search would fail
    run = head(weights, tmp_path / "run", "method.fuse=false", **common)
    assert run.recipe.optimizer.lr == 0.1


@pytest.mark.extensive
@pytest.mark.slow
def test_a_search_scores_the_sum_that_the_run_uses_and_fits_the_closed_form_once(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, *_ = candidates(recipes.change(Recipe(), {"method.name": "ce"}))
    monkeypatch.setattr(tuning, "candidates", lambda _: [usual, usual | {"optimizer.lr": 1e-9}])
    fits = []
    monkeypatch.setattr(heads, "closed_form", lambda part: fits.append(len(part.labels)) or closed_form(part))
    seen: dict[str, Any] = {}
    for fuse in (True, False):
        run = head(
            weights, tmp_path / str(fuse), f"method.fuse={str(fuse).lower()}", method="ce", tune=9.0, long_tail=1
        )
        _, untrained = json.loads((run.folder / "tuning.json").read_text())["tried"]
        seen[str(fuse)] = untrained["macro"]
        seen["gaussian"] = run.metrics["parts"]["gaussian"]["macro"]
    assert seen["True"] == pytest.approx(seen["gaussian"], abs=0.05)  # a head that learns nothing takes nothing away
    assert seen["False"] < 0.5
    folds = folds_used(sum(Run(tmp_path / "True").metrics["counts"]))
    assert len(fits) == 2 * (1 + 2 * folds)  # two runs: the first result, the search, the calibration


def test_a_search_ends_before_a_candidate_that_would_take_too_long(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, *(float(second) for second in range(20, 400, 20))])  # 20 seconds a call
    monkeypatch.setattr(tuning, "time", SimpleNamespace(monotonic=lambda: next(clock)))  # of nobody else
    run = head(weights, tmp_path / "run", method="ce", tune=1.0)  # 40 seconds for each candidate, 60 in all
    assert len(json.loads((run.folder / "tuning.json").read_text())["tried"]) == 1


def test_settings_without_finite_logits_end_the_search(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = HeldOut(np.array([0, 1]), np.zeros((2, 10), np.float32), np.full((2, 10), np.nan, np.float32))
    monkeypatch.setattr(tuning, "held_out_logits", lambda *_, **__: nothing)
    with pytest.raises(gpaco.errors.Diverged, match="not finite"):
        head(weights, tmp_path / "run", method="ce", tune=1.0)


def test_candidates_are_always_the_same_and_start_with_the_recipe() -> None:
    recipe = recipes.change(Recipe(), {"method.name": "balanced-softmax"})
    found = candidates(recipe)
    assert found == candidates(recipe)
    assert found[0] == {"optimizer.lr": recipe.optimizer.lr, "optimizer.weight_decay": recipe.optimizer.weight_decay}
    assert len({json.dumps(one) for one in found}) == len(found)


def test_a_head_trains_for_as_many_steps_as_help_between_20_and_60_epochs() -> None:
    numbers = (1, 879, 3_600, 5_000, 10_847, 1_000_000)
    epochs = {images: head_settings(np.array([images]))["train.epochs"] for images in numbers}
    assert epochs == {1: 60, 879: 60, 3_600: 60, 5_000: 43, 10_847: 20, 1_000_000: 20}


def test_the_memory_holds_about_90_embeddings_of_the_most_frequent_class() -> None:
    fashion = [6000, 3596, 2156, 1292, 774, 464, 278, 166, 100, 60]  # Fashion-MNIST-LT
    for counts, size in ((fashion, 256), ([1280] + [113] * 999, 8192), ([500] + [104] * 99, 2048), ([3, 2], 4)):
        assert memory_for(np.array(counts)) == size
