"""The sections about latency and about the paper's number."""

import json
from pathlib import Path

import pytest
from helpers.made_runs import tail_run
from helpers.scenes import made_run, scene_folder, tiny_segmenter

import gpaco
from gpaco.pages.paper_number import paper_number
from gpaco.pages.segmentation import collect
from gpaco.recipes import recipe as recipes
from gpaco.training.run import Run


def with_latency(run: Run, ms: float) -> Run:
    times = {batch: {"median": ms, "low": 0.9 * ms, "high": 1.1 * ms, "repetitions": 9} for batch in ("1", "64")}
    row = {"device": "cpu", "threads": 1, "parameters": 12345, "flops": 10**9, "batches": times}
    (run.folder / "latency.json").write_text(json.dumps(row))
    return run


def test_a_comparison_plots_accuracy_against_latency_of_the_runs_that_were_measured(tmp_path: Path) -> None:
    runs = [
        with_latency(tail_run(tmp_path / "slow", seed=1), 8.0),
        with_latency(tail_run(tmp_path / "fast", seed=2), 2.0),
    ]
    runs.append(tail_run(tmp_path / "unmeasured", seed=3))
    page = gpaco.report(runs, tmp_path / "report.html", with_images=False).read_text()
    plot = json.loads((tmp_path / "report_files" / "report.json").read_text())["latency"]
    slow, fast = plot["rows"]
    assert (slow["ms"], fast["ms"]) == (8.0, 2.0)
    assert plot["edges"]["left"] < fast["x"] < slow["x"] < plot["edges"]["right"]
    better, worse = sorted(plot["rows"], key=lambda row: -row["top1"])
    assert better["y"] <= worse["y"] <= plot["edges"]["base"]  # up is better
    assert [tick["text"] for tick in plot["ticks"]] == ["2 ms", "5 ms", "10 ms"]
    assert all(int(line["text"].removesuffix("%")) <= 100 for line in plot["grid"])
    section = page.split('<section id="latency">')[1].split("</section>")[0]
    assert section.count('class="mark r') == 2
    assert "12,345" in section
    assert section.count("cpu, 1 thread<") == 2
    same = [runs[0], with_latency(tail_run(tmp_path / "same", seed=5), 8.0)]
    for name, several in {"alone": runs[:1], "same": same}.items():
        page = gpaco.report(several, tmp_path / f"{name}.html", with_images=False).read_text()
        assert 'id="latency"' not in page, name


CHANGED = [  # a recipe, settings, and what the page says about them
    ("cifar100-lt100-resnet32-gpaco-paper", ["train.epochs=2"], ["train.epochs = 2"]),
    (
        "imagenet-lt-resnet50-gpaco",
        ["train.ema=0.99", "optimizer.nesterov=true", "model.resize=300", "data.validation=0.1"],
        ["data.validation = 0.1", "model.resize = 300", "optimizer.nesterov = true", "train.ema = 0.99"],
    ),
    ("imagenet-lt-resnet50-supcon", ["stage.classifier.optimizer.lr=1"], ["stage.classifier.optimizer.lr = 1.0"]),
    ("places-lt-resnet152-gpaco", ["model.weights=/elsewhere/r152.pth"], []),
    ("places-lt-resnet152-gpaco", ["model.weights=none"], ['model.weights = "none"']),
]


def by_recipe(run: Run, name: str, *changes: str) -> Run:
    recipe = recipes.override(recipes.load(name), ["data.path=/somewhere", "train.seed=3", *changes])
    (run.folder / "recipe.toml").write_text(recipes.dumps(recipe))
    return Run(run.folder)


def test_a_run_by_a_recipe_has_its_number_beside_the_papers_and_says_what_was_changed(tmp_path: Path) -> None:
    run = by_recipe(tail_run(tmp_path / "run"), "cifar100-lt100-resnet32-gpaco")
    page = gpaco.report(run, tmp_path / "report.html", with_images=False).read_text()
    section = page.split('<section id="paper">')[1].split("</section>")[0]
    figures = json.loads((tmp_path / "report_files" / "report.json").read_text())["runs"][0]["figures"]
    (top1,) = [row for row in figures if row["figure"] == "top1"]
    assert "<td>52.3</td>" in section
    assert f"{100 * top1['low']:.1f} to {100 * top1['high']:.1f}" in section
    inside = top1["low"] <= 0.523 <= top1["high"]
    assert f"is {'inside' if inside else 'outside'} the 95% interval" in section
    assert "differs from the recipe" not in section
    for name, given, changes in CHANGED:
        changed = paper_number(by_recipe(run, name, *given), 0.5)
        assert changed["changes"] == changes, name
    assert paper_number(tail_run(tmp_path / "other"), 0.5) is None


def test_a_segmenter_has_the_interval_of_its_mean_iou_beside_the_papers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpaco.tasks.segmentation.predictor.build_model", lambda card: tiny_segmenter())
    made = made_run(tmp_path / "run", scene_folder(tmp_path / "data", train=1, val=1, test=6), ("a", "b", "c"))
    run = by_recipe(made, "cityscapes-deeplabv3plus-resnet50-gpaco")
    (row,) = collect([run], ["run"])["paper"]
    assert row["low"] < row["ours"] == run.metrics["miou"] < row["high"]
    assert row["inside"] is not None
