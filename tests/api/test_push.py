"""Shared models: what is written for the hub, and that it loads again."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import forked
from helpers.commands import run as run_command
from PIL import Image
from safetensors.torch import load_file, save

import gpaco
from gpaco.errors import EnvironmentProblem, UserError
from gpaco.pages.render import percent
from gpaco.tasks.classification.calibration import write_calibration
from gpaco.tasks.classification.card import Calibration, Tuned
from gpaco.tasks.classification.priors import write_tuned
from gpaco.training.run import Run, select_checkpoint


@pytest.fixture
def calibrated(trained: Run, tmp_path: Path) -> Run:
    """A copy of a run with a calibration and a tuned prior, which are part of the model."""
    run = Run(shutil.copytree(trained.folder, tmp_path / "run"))
    step = select_checkpoint(run).step
    write_calibration(run.folder, Calibration(step, head=1.3, gaussian=0.0, images=40, assumes="uniform"), None)
    write_tuned(run.folder, Tuned(tau=-0.4, unbiased=False, step=step, val_macro_before=0.4, val_macro=0.5))
    return run


@torch.inference_mode()
def test_a_folder_for_the_hub_has_only_safetensors_and_json_beside_its_card_and_loads_as_the_run(
    calibrated: Run,
) -> None:
    result = gpaco.push(calibrated, "me/digits", dry_run=True)
    folder = Path(result["folder"])
    assert result["address"] is None
    assert set(result["files"]) == {"README.md", "classes.png", "config.json", "model.safetensors"}
    images = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
    given, own = gpaco.load(folder), gpaco.load(calibrated)
    torch.testing.assert_close(given(images), own(images), rtol=0, atol=0)
    assert given.card == own.card
    assert given.card.tuned is not None
    text = (folder / "config.json").read_text() + (folder / "README.md").read_text()
    assert str(calibrated.folder) not in text
    assert gpaco.push(calibrated, "me/digits", dry_run=True)["files"].keys() == result["files"].keys()  # replaced


def test_the_model_card_has_the_numbers_of_the_run_and_says_how_to_load_it(trained: Run, tmp_path: Path) -> None:
    folder = Path(gpaco.push(trained, "me/digits", dry_run=True)["folder"])
    text, metrics = (folder / "README.md").read_text(), trained.metrics
    assert text.startswith("---\nlibrary_name: gpaco\npipeline_tag: image-classification\n")
    assert 'gpaco.load("hub:me/digits")' in text
    for name, key in (("all images", "top1"), ("all classes", "macro"), ("many", "many"), ("few", "few")):
        (line,) = (line for line in text.splitlines() if line.startswith(f"| {name} |"))
        assert f"| {100 * metrics[key]:.1f}% |" in line
        assert " to " in line
    assert f"{100 * metrics['ece']:.1f}%" in text
    calibrated = gpaco.load(trained).card.calibration is not None
    assert ("Logits were scaled" if calibrated else "Logits were not calibrated") in text
    assert f"{sum(metrics['counts']):,} training images" in text
    for heading in ("Use", "Results", "Calibration", "Limits", "Training"):
        assert f"\n## {heading}\n" in text
    other = Path(shutil.copytree(trained.folder, tmp_path / "run"))
    (other / "robustness.json").write_text('{"version": 1, "mean_error": null}')  # of some corruptions only
    folder = Path(gpaco.push(other, "me/digits", dry_run=True)["folder"])
    card = (folder / "README.md").read_text()
    assert "Tested on some corruptions only" in card
    assert "With corrupted images" not in card
    with Image.open(folder / "classes.png") as chart:
        assert chart.size == (1200, 420)
        assert len(chart.convert("RGB").getcolors(2**24) or []) > 3


@pytest.mark.slow
@torch.inference_mode()
def test_a_segmenter_is_shared_too_without_a_path_or_a_name_of_its_data(segmenter: Run) -> None:
    folder = Path(gpaco.push(segmenter, "me/scenes", dry_run=True)["folder"])
    data = Path(segmenter.recipe.data.path)
    secrets = [str(data), data.parent.name, *{file.name for file in data.rglob("*.*")}]
    assert "0.png" in secrets
    for file in folder.iterdir():
        content = file.read_bytes()
        assert not [name for name in secrets if name.encode() in content], file
    images = torch.randint(0, 256, (2, 3, 40, 56), dtype=torch.uint8)
    torch.testing.assert_close(gpaco.load(folder)(images), gpaco.load(segmenter)(images), rtol=0, atol=0)
    text = (folder / "README.md").read_text()
    for name, key in (("all classes", "miou"), ("many", "many")):
        bounds = segmenter.metrics["intervals"][key]
        between = f"{percent(bounds['low'])} to {percent(bounds['high'])}%" if bounds["low"] else "none"
        assert f"| {name} | {percent(segmenter.metrics[key])}% | {between} |" in text
    assert "image-segmentation" in text


@pytest.mark.process
def test_a_name_on_the_hub_is_loaded_from_its_cache_without_a_network(trained: Run, tmp_path: Path) -> None:
    folder = Path(json.loads(run_command("push", trained.folder, "me/digits", "--dry-run", "--json"))["folder"])
    home = tmp_path / "hub" / "models--me--digits"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("0" * 40)
    shutil.copytree(folder, home / "snapshots" / ("0" * 40), ignore=shutil.ignore_patterns("README.md", "*.png"))
    code = "import gpaco; print(*gpaco.load('hub:me/digits').classes)"
    env = forked.ENVIRONMENT | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    assert forked.printed("-c", code, env=env).split() == [str(c) for c in range(10)]


def full_disk(*_: object) -> None:
    raise OSError("no space left on device")


def test_the_folder_is_uploaded_to_its_name(trained: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Hub:
        public = False

        def create_repo(self, name: str, **options: Any) -> str:
            calls.append((name, options))
            return f"https://hub/{name}"

        def repo_info(self, name: str) -> SimpleNamespace:
            return SimpleNamespace(private=not self.public)

        def upload_folder(self, **options: Any) -> None:
            calls.append(options)

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    result = gpaco.push(trained, "me/digits", private=True)
    assert result["address"] == "https://hub/me/digits"
    (name, options), uploaded = calls
    assert (name, options["private"]) == ("me/digits", True)
    assert (uploaded["repo_id"], str(uploaded["folder_path"])) == ("me/digits", result["folder"])
    Hub.public = True  # it was there before, and the hub then ignores the wish
    with pytest.raises(UserError, match="me/digits already exists and is public"):
        gpaco.push(trained, "me/digits", private=True)
    assert len(calls) == 3  # nothing was uploaded


def test_what_a_person_adds_to_the_folder_is_kept(trained: Run, tmp_path: Path) -> None:
    run = Run(shutil.copytree(trained.folder, tmp_path / "run", ignore=shutil.ignore_patterns("hub")))
    folder, said = run.folder / "hub", []
    gpaco.push(run, "me/digits", dry_run=True, say=said.append)
    gpaco.push(run, "me/digits", dry_run=True, say=said.append)
    assert not said
    card = (folder / "README.md").read_text() + "License: mine\n"
    (folder / "README.md").write_text(card)
    (folder / "LICENSE").write_text("mine")
    gpaco.push(run, "me/digits", dry_run=True, say=said.append)
    assert (folder / "README.md").read_text() == card
    assert (folder / "LICENSE").read_text() == "mine"
    assert "README.md has your edits and is kept" in said[0]
    rename = Path.rename

    def stopped(own: Path, to: Path) -> Path:
        if own.name == ".hub.writing":
            raise KeyboardInterrupt
        return rename(own, to)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Path, "rename", stopped)
        with pytest.raises(KeyboardInterrupt):  # as the new folder takes the place of the old one
            gpaco.push(run, "me/digits", dry_run=True)
    gpaco.push(run, "me/digits", dry_run=True)
    assert (folder / "README.md").read_text() == card
    assert (folder / "LICENSE").read_text() == "mine"
    assert not list(run.folder.glob(".hub.*"))


def test_a_model_card_that_nobody_changed_follows_the_name_and_the_run(calibrated: Run) -> None:
    gpaco.push(calibrated, "OWNER/NAME", dry_run=True)
    card = Path(gpaco.push(calibrated, "me/digits", dry_run=True)["folder"]) / "README.md"
    assert "OWNER/NAME" not in card.read_text()
    assert 'gpaco.load("hub:me/digits")' in card.read_text()


def test_the_closed_form_of_a_shared_model_is_read_only_if_its_card_names_one(calibrated: Run) -> None:
    folder = Path(gpaco.push(calibrated, "me/digits", dry_run=True)["folder"])
    (folder / "gaussian.safetensors").write_bytes(b"left by another model")
    model = gpaco.load(folder)
    assert model.gaussian is None
    gpaco.push(calibrated, "me/digits", dry_run=True)
    assert not (folder / "gaussian.safetensors").exists()
    config = json.loads((folder / "config.json").read_text())
    config["card"]["calibration"]["sha256"] = 64 * "0"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="are missing, damaged or from another model"):
        gpaco.load(folder)


def test_what_cannot_be_shared_or_loaded_is_an_error(
    trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished = Run(shutil.copytree(trained.folder, tmp_path / "unfinished"))
    (unfinished.folder / "metrics.json").unlink()
    taken = Run(shutil.copytree(trained.folder, tmp_path / "taken", ignore=shutil.ignore_patterns("hub")))
    (taken.folder / "hub").mkdir()
    (taken.folder / "hub" / "mine.txt").write_text("keep")
    for run, name, message in (
        (trained, "digits", "'digits' is not a name on the hub"),
        (tmp_path, "me/digits", "is not a run"),
        (unfinished, "me/digits", "the run has not finished"),
        (taken, "me/digits", "was not written by this command"),
    ):
        with pytest.raises(UserError, match=message):
            gpaco.push(run, name, dry_run=True)
    assert (taken.folder / "hub" / "mine.txt").read_text() == "keep"
    folder = Path(gpaco.push(trained, "me/digits", dry_run=True)["folder"])
    with monkeypatch.context() as patched:
        patched.setattr("gpaco.api.push.write_model_card", full_disk)
        with pytest.raises(OSError, match="no space"):
            gpaco.push(trained, "me/digits", dry_run=True)
    assert gpaco.load(folder)  # what was there is still whole
    gpaco.push(trained, "me/digits", dry_run=True)  # and the next one works
    config = json.loads((folder / "config.json").read_text())
    others = {key: one for key, one in load_file(folder / "model.safetensors").items() if "layer1" not in key}
    for number, (name, content, message) in enumerate(
        (
            ("config.json", b"{", "has no gpaco model"),
            ("config.json", json.dumps({"task": "classification"}).encode(), "has no gpaco model"),
            ("config.json", json.dumps(config | {"card": []}).encode(), "another version of gpaco"),
            ("model.safetensors", None, "are missing, damaged or from another model"),
            ("model.safetensors", b"0" * 99, "are missing, damaged or from another model"),
            ("model.safetensors", save(others), "are missing, damaged or from another model"),
        )
    ):
        damaged = shutil.copytree(folder, tmp_path / f"damaged-{number}")
        (damaged / name).unlink()
        if content is not None:
            (damaged / name).write_bytes(content)
        with pytest.raises(UserError, match=message):
            gpaco.load(damaged)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match="has no gpaco model"):
        gpaco.load(tmp_path)
    with pytest.raises(UserError, match="is not a name on the hub"):
        gpaco.load("hub:digits")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EnvironmentProblem, match="cannot download me/nothing-of-the-kind"):
        gpaco.load("hub:me/nothing-of-the-kind")
    with pytest.raises(EnvironmentProblem, match="cannot upload to me/digits"):
        gpaco.push(trained, "me/digits")
