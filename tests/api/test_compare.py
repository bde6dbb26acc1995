"""Methods against each other, the table, and the demo that has all of it."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.images import class_folders
from helpers.ranks import Results, run_ranks
from scipy import stats

import gpaco
from gpaco.api import demo
from gpaco.api.compare import COLUMNS, interval, parse, split_methods, table
from gpaco.errors import UserError
from gpaco.training.run import Run

RELEASED = "gpaco+prior=counts+start=released"
QUICK = {
    "long_tail": 20,
    "epochs": 1,
    "batch_size": 64,
    "lr": 0.05,
    "settings": ["method.memory=64"],
    "say": lambda line: None,
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    gpaco.compare("digits", ["ce", RELEASED], seeds=2, out=folder, **QUICK)
    return folder


def result_of(folder: Path) -> dict:
    return json.loads((folder / "comparison.json").read_text())


@pytest.mark.slow
def test_every_cell_is_a_run_with_the_settings_of_its_method(compared: Path) -> None:
    rows = result_of(compared)["rows"]
    assert [row["method"] for row in rows] == ["ce", RELEASED]
    for row, (name, prior, start) in zip(
        rows, [("ce", "unbiased", "balanced"), ("gpaco", "counts", "released")], strict=True
    ):
        for seed, place in enumerate(row["runs"]):
            recipe = Run(Path(place)).recipe
            assert recipe.train.seed == seed
            assert (recipe.method.name, recipe.method.prior, recipe.method.start) == (name, prior, start)
            assert recipe.train.epochs == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"methods": "ce"}, r"methods must be a list of strings, got one string, 'ce'\nmethods=\['ce'\]"),
        ({"settings": "method.alpha=0.1"}, "settings must be a list of strings, got one string, 'method.alpha=0.1'"),
        ({"methods": []}, "no method is given"),
        ({"settings": ["train.task=segmentation"]}, "compare trains classifiers"),
        ({"methods": ["ce", "gpaco", "ce"]}, "the method 'ce' is given twice"),
        ({"settings": ["train.seed=1"]}, r"compare sets train.seed for each run\nuse --seeds N instead"),
        ({"methods": ["ce+train.seed=1"]}, "compare sets train.seed for each run"),
        ({"seed": 1}, "compare sets train.seed for each run"),
        ({"settings": ["method.name=ce"]}, "compare sets method.name for each run"),
    ],
)
def test_a_word_for_a_list_and_a_method_given_twice_are_refused(given: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        gpaco.compare("digits", **({"methods": ["ce"], "out": tmp_path / "out"} | given))
    if isinstance(given.get("settings"), str):
        with pytest.raises(UserError, match=message):
            gpaco.train("digits", out=tmp_path / "out", **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_table_has_mean_and_interval_of_the_runs(compared: Path) -> None:
    result = result_of(compared)
    for row in result["rows"]:
        runs = [Run(Path(place)).metrics for place in row["runs"]]
        for key in COLUMNS:
            values = [metrics[key] for metrics in runs]
            assert row[key]["mean"] == pytest.approx(sum(values) / 2)
            assert row[key]["interval"] == pytest.approx(stats.t.ppf(0.975, 1) * stats.sem(values))
    text = table(result)
    assert text in (compared / "comparison.md").read_text()
    lines = text.splitlines()
    assert [word.strip() for word in lines[0].strip("|").split("|")] == ["method", *COLUMNS.values(), "ms"]
    assert len({tuple(k for k, c in enumerate(line) if c == "|") for line in lines[:4]}) == 1, "columns are aligned"
    assert {row["trains"] for row in result["rows"]} == {f"all of resnet8, {sum(runs[0]['counts'])} images"}
    first = result["rows"][0]["top1"]
    assert re.match(rf"\| ce +\| {100 * first['mean']:.1f} ± {100 * first['interval']:.1f} +\|", lines[2])


@pytest.mark.slow
def test_the_page_is_about_the_first_seed_of_each_method(compared: Path) -> None:
    page = (compared / "report.html").read_text()
    for row in result_of(compared)["rows"]:
        assert f"<bdi>{row['method']}</bdi>" in page
        assert str(Path(row["runs"][0]) / "recipe.toml") in page
        assert str(Path(row["runs"][1]) / "recipe.toml") not in page
    assert (compared / "report_files" / "differences.csv").is_file()


@pytest.mark.slow
def test_given_again_it_trains_nothing_and_says_the_same(compared: Path) -> None:
    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in compared.rglob("checkpoints/**/*")}

    before, result = times(), result_of(compared)
    shown: list[dict] = []
    again = gpaco.compare("digits", ["ce", RELEASED], seeds=2, out=compared, show=shown.append, **QUICK)
    assert times() == before
    assert len(before) > 20
    assert all(list(row) == ["title"] for row in shown)
    assert again == result


@pytest.mark.slow
def test_runs_on_other_images_are_not_compared(tmp_path: Path) -> None:
    data = class_folders(tmp_path / "data", {"a": 12, "b": 8})
    common: dict[str, Any] = {"seeds": 1, "out": tmp_path / "out", "model": "resnet8", "epochs": 1}
    gpaco.compare(data, ["ce"], **common)
    class_folders(data, {"c": 6})
    with pytest.raises(UserError, match=r"the data of the run in .* has changed since it started"):
        gpaco.compare(data, ["ce", "balanced-softmax"], **common)


def compared_together(folder: Path) -> Results:
    gpaco.compare("digits", ["ce"], seeds=1, out=folder, **QUICK | {"settings": []})
    return {}


@pytest.mark.process
@pytest.mark.slow
def test_no_process_waits_for_the_page_of_a_single_run(tmp_path: Path) -> None:
    run_ranks(2, partial(compared_together, tmp_path / "out"))
    assert (tmp_path / "out" / "report.html").is_file()
    assert (tmp_path / "out" / "ce" / "seed-0" / "metrics.json").is_file()
    assert not (tmp_path / "out" / "ce" / "seed-0" / "report.html").exists()


@pytest.mark.parametrize("values", [[0.5, 0.6, 0.7], [0.1, 0.9], [0.25, 0.25, 0.5, 1.0]])
def test_the_interval_is_that_of_scipy(values: list[float]) -> None:
    low, high = stats.t.interval(0.95, len(values) - 1, loc=sum(values) / len(values), scale=stats.sem(values))
    found = interval(values)
    assert found["mean"] == pytest.approx((low + high) / 2)
    assert found["interval"] == pytest.approx((high - low) / 2)


def test_one_seed_has_no_interval_and_an_empty_group_no_mean() -> None:
    assert interval([0.5]) == {"mean": 0.5, "interval": None, "values": [0.5]}
    assert interval([None, None])["mean"] is None
    row = {"method": "ce", **dict.fromkeys(COLUMNS, interval([None]))}
    assert "| ce     | none | none |" in table({"seeds": 1, "rows": [row]})


def test_what_each_method_trains_is_a_column_if_it_differs() -> None:
    rows = [
        {"method": word, **dict.fromkeys(COLUMNS, interval([0.5])), "trains": trains}
        for word, trains in (("gpaco", "head of a, 90 images"), ("ride", "all of a, 81 images"))
    ]
    lines = table({"seeds": 1, "rows": rows}).splitlines()
    assert lines[0].split()[-5:] == ["|", "ms", "|", "trains", "|"]
    assert lines[3].endswith("| all of a, 81 images  |")
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert "trains" not in table({"seeds": 1, "rows": rows[:1]})


def test_settings_of_a_method_are_of_the_method_unless_they_name_their_section() -> None:
    word = "gpaco+alpha=0.1+train.ema=0.9"
    assert parse(word) == (word, "gpaco", ["method.alpha=0.1", "train.ema=0.9"])
    with pytest.raises(UserError, match=r"no method 'gpcao'; did you mean 'gpaco'\?"):
        parse("gpcao+alpha=0.1")


def test_a_list_in_brackets_is_one_setting_and_a_plus_in_a_number_splits_nothing() -> None:
    words = split_methods("ce+schedule.steps=[10,20]+lr=1, gpaco+optimizer.lr=1e+2,focal+optimizer.betas=[0.8, 0.9]")
    assert words == ["ce+schedule.steps=[10,20]+lr=1", "gpaco+optimizer.lr=1e+2", "focal+optimizer.betas=[0.8, 0.9]"]
    assert parse(words[0])[1:] == ("ce", ["schedule.steps=[10,20]", "method.lr=1"])
    assert parse(words[1])[1:] == ("gpaco", ["optimizer.lr=1e+2"])


def test_a_cell_with_a_list_is_a_run_in_a_folder_with_a_plain_name(tmp_path: Path) -> None:
    word = "ce+schedule.name=step+schedule.steps=[1,2]"
    result = gpaco.compare("digits", [word], seeds=1, out=tmp_path / "out", **QUICK | {"settings": []})
    (cell,) = result["rows"][0]["runs"]
    assert Run(Path(cell)).recipe.schedule.steps == (1, 2)
    assert Path(cell).parent.name == "ce+schedule.name-step+schedule.steps-1-2"


@pytest.mark.parametrize(
    ("methods", "seeds", "message"),
    [
        (["ce", "gpaco+pior=counts"], 1, "no setting 'pior'; did you mean 'prior'"),
        (["ce", "balanced"], 1, r"no method 'balanced'"),
        (["ce"], 0, "at least 1, got 0"),
    ],
)
def test_what_is_wrong_with_the_last_method_is_said_before_the_first_one_trains(
    methods: list[str], seeds: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        gpaco.compare("digits", methods, seeds=seeds, out=tmp_path / "out", **QUICK)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_demo_compares_three_methods_and_writes_a_page_that_refers_to_no_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "SETTINGS", ("train.epochs=1", "train.batch_size=32", "method.memory=64"))
    said: list[str] = []
    result = demo.run_demo(tmp_path / "demo", say=said.append)
    assert [row["method"] for row in result["rows"]] == ["ce", "balanced-softmax", "gpaco"]
    counts = Run(Path(result["rows"][0]["runs"][0])).metrics["counts"]
    assert max(counts) / min(counts) >= 30  # 50 before a tenth was held back for validation
    budget = {
        (recipe.train.epochs, recipe.train.batch_size, recipe.views, recipe.optimizer)
        for recipe in (Run(Path(row["runs"][0])).recipe for row in result["rows"])
    }
    assert len(budget) == 1
    assert said[:3] == ["ce, seed 0", "balanced-softmax, seed 0", "gpaco, seed 0"]
    assert said[3] == table(result)
    assert str(tmp_path / "demo" / "report.html") in said[-1]
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "://" not in page
    for name in ("ce", "balanced-softmax", "gpaco"):
        assert f"<bdi>{name}</bdi>" in page
