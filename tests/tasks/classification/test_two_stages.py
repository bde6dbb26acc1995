"""Methods that continue another method or a run: what they take over, what they refuse, and how they resume."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.cards import made_card
from helpers.commands import checkpoint_files
from helpers.trained import terminate
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

import gpaco
from gpaco.api.compare import shared_settings
from gpaco.api.train import dry_run
from gpaco.errors import UserError
from gpaco.models import backbones, heads
from gpaco.models.classifier import Classifier
from gpaco.models.networks import Network
from gpaco.recipes.recipe import dumps, override, stages
from gpaco.recipes.request import requested
from gpaco.recipes.settings import TWO_STAGES, Recipe, used
from gpaco.system import distributed
from gpaco.system.signals import Stopped
from gpaco.tasks.classification import estimate
from gpaco.tasks.classification.batches import check_pixels
from gpaco.tasks.classification.heads import carry
from gpaco.tasks.classification.probe import Stage, measure
from gpaco.tasks.classification.splits import splits_of
from gpaco.tasks.classification.two_stages import first_run, with_default_stages, with_first_run
from gpaco.training.card import write_card
from gpaco.training.checkpoint import load as load_checkpoint
from gpaco.training.checkpoint import save
from gpaco.training.run import Run

QUICK: dict[str, Any] = {"long_tail": 20, "batch_size": 32, "lr": 0.05, "report": False, "say": lambda line: None}


def train(out: Path, method: str, *settings: str, **more: Any) -> Run:
    return gpaco.train("digits", out=out, method=method, settings=list(settings), **QUICK | {"epochs": 3} | more)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(tmp_path_factory.mktemp("runs") / "first", "ce")


def two(*changes: str) -> Recipe:
    """The recipe of a run on data for which everything is given, with its stages."""
    recipe, _ = requested("digits", None, changes, {})
    return with_default_stages(recipe)


@pytest.mark.slow
def test_the_network_of_a_run_is_continued_as_it_is(first: Run, tmp_path: Path) -> None:
    images = splits_of(first.recipe).test
    pixels = torch.from_numpy(images.images).permute(0, 3, 1, 2)  # type: ignore[arg-type]
    before = gpaco.load(first)
    with torch.no_grad():
        features = before.model.pooled(before.normalized(pixels))
    weight = before.model.centers.weight
    for name in ("tau-norm", "crt", "ncm"):
        after = gpaco.load(train(tmp_path / name, name, f"method.first={first.folder}"))
        assert isinstance(after.model.hidden, nn.Identity)  # no layer that nobody has trained
        for key, value in before.model.backbone.state_dict().items():
            assert torch.equal(after.model.backbone.state_dict()[key], value)
        if name == "tau-norm":
            tau = load_checkpoint(tmp_path / name / "checkpoints", ["extra"]).tensors["extra"]["tau"]
            logits = F.linear(features, weight / weight.norm(dim=1, keepdim=True) ** tau)
            with torch.no_grad():
                torch.testing.assert_close(after(pixels), after.factor * logits, rtol=1e-4, atol=1e-4)
            assert after.card.calibration is not None  # on images that the run has not seen


@pytest.mark.slow
def test_a_run_that_continues_another_ends_with_the_same_bits_after_a_stop(first: Run, tmp_path: Path) -> None:
    given = ("lws", f"method.first={first.folder}", "stage.classifier.train.epochs=3", "method.fuse=true")
    whole = train(tmp_path / "whole", *given)
    with pytest.raises(Stopped):
        train(tmp_path / "parts", *given, show=terminate(1))
    parts = train(tmp_path / "parts", *given)
    assert checkpoint_files(whole.folder) == checkpoint_files(parts.folder)
    assert whole.metrics == parts.metrics
    assert whole.metrics["calibration"]["images"] == len(splits_of(first.recipe).val or ())


@pytest.mark.slow
def test_images_that_trained_the_first_run_are_not_held_out_later(first: Run, tmp_path: Path) -> None:
    for changes in ({"validation": 0.3}, {"settings": ["data.seed=1"]}):
        given = [f"method.first={first.folder}", *changes.pop("settings", [])]  # type: ignore[misc]
        with pytest.raises(UserError, match=r"is not the one that .* held out"):
            train(tmp_path / "second", "tau-norm", *given, **changes)


def test_a_second_stage_has_the_long_tail_of_its_first_run_on_the_same_data(first: Run) -> None:
    settings = ["method.name=crt", f"method.first={first.folder}"]
    for data, flags, expected in (("digits", {}, 20), ("digits", {"long_tail": 5}, 5), (first.folder, {}, 0)):
        recipe, _ = with_first_run(*requested(data, None, settings, flags))
        assert recipe.data.long_tail == expected


def test_the_length_of_a_second_stage_follows_the_first_wherever_that_was_trained(first: Run, tmp_path: Path) -> None:
    long = tmp_path / "long"
    long.mkdir()
    (long / "recipe.toml").write_text(dumps(override(first.recipe, ["train.epochs=400"])))
    for name, short, published in (("crt", 3, 10), ("lws", 3, 5), ("oltr", 6, 800)):
        for run, epochs in ((first.folder, short), (long, published)):
            *_, last = stages(two(f"method.name={name}", f"method.first={run}"))
            assert last.train.epochs == epochs


def test_second_stages_have_a_schedule_of_their_own() -> None:
    for name in (*TWO_STAGES, "supcon"):
        *_, last = stages(two(f"method.name={name}", "schedule.name=step", "schedule.steps=[20]", "train.epochs=30"))
        assert (last.schedule.name, last.schedule.warmup, last.schedule.steps) == ("cosine", 0, ())


def test_a_second_stage_says_if_its_first_run_has_not_finished(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train(tmp_path / "first", "ce", show=terminate(2))
    said: list[str] = []
    train(tmp_path / "second", "ncm", f"method.first={tmp_path / 'first'}", say=said.append)
    assert f"{tmp_path / 'first'} has not finished: 2 of 3 epochs are done" in said


@pytest.mark.slow
def test_folds_have_the_tau_that_was_selected(tmp_path: Path) -> None:
    torch.manual_seed(7)
    save_file(backbones.build("resnet8").module.state_dict(), tmp_path / "resnet8.safetensors")
    common = {"model": "resnet8", "weights": str(tmp_path / "resnet8.safetensors"), "train": "head", "epochs": 2}
    common["validation"] = 0.3
    selected = train(tmp_path / "selected", "tau-norm", **common)
    tau = float(load_checkpoint(selected.folder / "checkpoints", ["extra"]).tensors["extra"]["tau"])
    assert abs(tau - 0.7) > 0.05  # of folds without validation data
    given = train(tmp_path / "given", "tau-norm", f"method.norm_tau={tau}", **common)
    assert selected.metrics["calibration"] == given.metrics["calibration"]
    assert train(tmp_path / "ncm", "ncm", **common).metrics["calibration"]["head"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("crt ride", "network with branches"),
        ("crt bbn", "network with branches"),
        ("lws reslt", "network with branches"),
        ("lws supcon", "supcon trains only features"),
        ("oltr supcon", "supcon trains only features"),
        ("tau-norm gaussian", "trains no network"),
        ("mislas cb-focal", "starts with mixup"),
        ("crt lws", "itself has two stages"),
        ("lws ldam-drw", "lws continues a linear classifier, and that of ldam-drw is cosine"),
        ("mislas ce train.part=head", "mislas changes the network"),
    ],
)
def test_what_cannot_be_continued_is_refused_before_it_is_trained(words: str, message: str) -> None:
    name, first, *more = words.split()
    with pytest.raises(UserError, match=message):
        two(f"method.name={name}", f"method.first={first}", *more)


def test_a_run_that_cannot_be_continued_is_refused(tmp_path: Path) -> None:
    splits = splits_of(override(Recipe(), ["data.path=digits"]))
    stage = override(Recipe(), ["data.path=digits", "method.name=lws", f"method.first={tmp_path}"])
    (tmp_path / "recipe.toml").write_text(dumps(Recipe()))
    for changes, message in (
        ({"classes": ("a", "b", "c")}, "have different classes"),
        ({"classifies": False}, "trains only features"),
        ({"network": Network("cosine")}, "lws continues a linear classifier, and that of .* is cosine"),
    ):
        card = made_card(**{"classes": splits.classes} | changes)
        state = {"card": write_card(card), "position": {"best_step": None, "epoch": 30}}
        save(tmp_path / "checkpoints", 1, {}, state)
        with pytest.raises(UserError, match=message):
            first_run(stage, splits, lambda line: None)


def classifier(width: int = 6, hidden: int = 0, centers: nn.Module | None = None) -> Classifier:
    return Classifier(nn.Linear(4, width), width, 3, projector="none", hidden=hidden, centers=centers)


def test_a_network_of_other_shapes_is_not_continued_with_random_weights() -> None:
    plain = classifier().state_dict()
    for model, method in (
        (classifier(7), "crt"),
        (classifier(hidden=5), "ncm"),
        (classifier(hidden=5), "lws"),
    ):
        with pytest.raises(UserError, match=f"{method} cannot continue the network"):
            carry(model, plain, method)
        carry(model, plain, "ce")  # a stage of its own takes what fits
    for lost in ({"branches.0.weight": torch.ones(6)}, {"hidden.0.weight": torch.ones(6)}):
        with pytest.raises(UserError, match=f"{next(iter(lost))} differs or is missing"):
            carry(classifier(), plain | lost, "crt")
    other = {key: value for key, value in plain.items() if not key.startswith("centers")}
    with pytest.raises(UserError, match=r"centers\.weight differs"):
        carry(classifier(), other, "tau-norm")
    with pytest.raises(UserError, match=r"centers\.hallucinator\.weight differs"):
        carry(classifier(centers=heads.MetaEmbedding(6, 3, 16.0)), other, "oltr")
    new = classifier()
    random = new.centers.weight.clone()
    carry(new, plain, "crt")
    assert torch.equal(new.centers.weight, random)  # cRT starts anew


def test_settings_of_the_first_stage_are_those_of_methods_with_one_only() -> None:
    for name in ("bcl", "reslt", "ride", "bbn"):
        with pytest.raises(UserError, match=r"has no setting method\.mixup"):
            override(Recipe(), [f"method.name={name}", "method.mixup=0.2"])
    assert "mixup" in used("crt", "ce")
    assert "alpha" in used("crt", "gpaco")
    assert "alpha" not in used("ce", "gpaco")
    for given, expected in (((), 0.2), (("method.first_mixup=1",), 1.0), (("method.mixup=0.7",), 0.7)):
        features, last = stages(two("method.name=mislas", *given))
        assert (features.method.mixup, last.method.mixup) == (expected, 0)


def test_second_stages_have_the_published_length_and_ten_epochs_after_short_first_ones() -> None:
    lengths = {"crt": (3, 10, 10, 10), "lws": (3, 10, 5, 5), "mislas": (3, 10, 10, 10), "oltr": (6, 60, 180, 800)}
    for name, expected in lengths.items():
        second = stages(two(f"method.name={name}", "schedule.name=step", "schedule.steps=[9]"))[1]
        assert (second.train.sampler, second.schedule.name) == ("balanced", "cosine"), name
        found = [two(f"method.name={name}", f"train.epochs={epochs}") for epochs in (3, 30, 90, 400)]
        assert tuple(stages(one)[1].train.epochs for one in found) == expected, name


def test_stages_that_a_method_adds_can_be_changed_by_name() -> None:
    for name in (*TWO_STAGES, "supcon"):
        usual = stages(two(f"method.name={name}"))
        features, last = stages(
            two(f"method.name={name}", "stage.classifier.train.epochs=7", "stage.features.optimizer.lr=0.3")
        )
        assert (features.optimizer.lr, last.optimizer.lr) == (0.3, usual[1].optimizer.lr)
        assert (features.train.epochs, last.train.epochs) == (usual[0].train.epochs, 7)
        assert (features.method.name, last.method.name) == tuple(stage.method.name for stage in usual)
    with pytest.raises(UserError, match="there is no stage 'linear'"):
        two("method.name=crt", "stage.linear.train.epochs=7")
    assert stages(two("method.name=oltr", "train.part=last-block"))[1].train.part == "last-block"


def test_settings_for_all_methods_of_a_comparison_reach_first_stages() -> None:
    given = ["method.label_smoothing=0.1", "method.alpha=0.1"]
    of = shared_settings(given, [("crt", []), ("ncm", ["method.first=gpaco"])])
    assert of("crt", []) == given[:1]
    assert of("ncm", ["method.first=gpaco"]) == given
    both = shared_settings([*given, "method.first=gpaco"], [("crt", [])])
    assert both("crt", []) == [*given, "method.first=gpaco"]


def test_gradients_of_methods_without_linear_centers_are_not_measured(tmp_path: Path) -> None:
    for name in ("ride", "oltr", "bbn", "crt"):
        stage = Stage(Run(tmp_path), override(Recipe(), [f"method.name={name}"]), "", tmp_path)
        with pytest.raises(UserError, match=f"ends with {name}, whose gradients are not measured"):
            measure(stage, None)


def test_a_deviation_of_the_centers_is_refused_where_they_are_not_linear(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the classifier of ldam-drw is not linear"):
        train(tmp_path / "run", "ldam-drw", "model.head_std=0.1")
    assert train(tmp_path / "second", "ncm", "model.head_std=0.1").metrics["top1"] > 0  # that of its first stage


def test_two_streams_need_parts_of_equal_size_and_count_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = override(Recipe(), ["method.name=bbn", "train.batch_size=6", "train.accumulate=2"])
    check_pixels(recipe)
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    with pytest.raises(UserError, match="bbn needs batches with parts of equal size"):
        check_pixels(recipe)
    monkeypatch.undo()
    monkeypatch.setattr(estimate, "seconds_of", lambda _: 8.0)  # a second for each image
    found = {}
    for name in ("ce", "bcl", "bbn"):
        given = ["data.path=digits", f"method.name={name}", "train.part=all", "model.size=8", "train.epochs=5"]
        given += ["model.name=resnet8", "model.weights=none", "views.first=plain", "views.second=", "data.validation=0"]
        recipe = override(Recipe(), given)
        splits = splits_of(recipe)
        tested = len(splits.test or ())
        seconds = estimate.estimate_seconds(recipe, splits, torch.device("cpu")) - tested
        found[name] = seconds / len(splits.train) / 5
    assert found == {"ce": 1, "bcl": 3, "bbn": 2}


@pytest.mark.slow
def test_a_dry_run_from_a_run_accepts_what_training_accepts(first: Run) -> None:
    needs = dry_run("digits", settings=["method.name=tau-norm", f"method.first={first.folder}"], say=lambda line: None)
    assert needs["hours"] >= 0


@pytest.mark.slow
def test_without_validation_images_a_second_stage_says_that_the_closed_form_is_not_added(tmp_path: Path) -> None:
    said: list[str] = []
    run = train(tmp_path / "run", "supcon", validation=0.0, epochs=2, say=said.append)
    assert "the closed-form classifier is not added: there are no validation images to weigh it on" in said
    assert run.metrics["parts"] == {}
