"""What the tail report says about corrupted images: its numbers, and the difference between runs."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.made_robustness import COMMON, growing, write_robustness
from helpers.made_runs import tail_run, write_run

import gpaco
from gpaco.errors import UserError
from gpaco.metrics.intervals import wilson
from gpaco.pages.classification.corruptions import combined, images_by_group, robustness
from gpaco.pages.classification.evidence import gather
from gpaco.training.run import Run

Result = dict[str, Any]


@pytest.fixture
def tail(tmp_path: Path) -> Run:
    return tail_run(tmp_path / "gpaco", images=1200)


def shown(*runs: Run) -> list[Any]:
    return robustness(gather(runs))


def page_data(page: Path) -> Result:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    return json.loads(text)


# Numbers


def test_the_page_has_the_errors_of_the_file(tail: Run) -> None:
    written = write_robustness(tail, baseline=("other run", lambda *about: growing(*about) / 2))
    (found,) = shown(tail)
    assert found["names"] == list(COMMON)
    assert found["kinds"] == ["noise"] * 3 + ["blur"] * 4 + ["weather"] * 4 + ["digital"] * 4
    assert found["baseline"] == "other run"
    for panel, key in zip(found["panels"], ("error", "many", "medium", "few"), strict=True):
        home = written if key == "error" else written["groups"][key]
        for figure in ("clean_error", "mean_error", "mce", "relative_mce"):
            assert panel[figure] == home[figure] is not None
        assert panel["added"] == pytest.approx(home["mean_error"] - home["clean_error"])
        for name, row in zip(COMMON, panel["errors"], strict=True):
            cells = written["corruptions"][name]
            assert row == [cells[column][key] for column in ("1", "2", "3", "4", "5", "mean")]


def test_a_clean_error_that_is_not_that_of_the_run_is_noted(tail: Run) -> None:
    right = 1 - tail.metrics["top1"]
    for clean, noted in ((right, False), (right - 0.1, True)):
        errors = {"error": clean, "many": 0.1, "medium": 0.2, "few": 0.3}
        write_robustness(tail, lambda group, name, severity, errors=errors: errors[group] + (0.1 if severity else 0))
        assert (
            any("the checkpoint, the prior or the images differ" in note for note in shown(tail)[0]["notes"]) == noted
        )


def test_images_of_a_group_are_those_that_the_same_seed_chooses(tail: Run) -> None:
    written = write_robustness(tail, subset=100)
    one = gather([tail])[0]
    images = images_by_group(one, written)
    # Of 12 classes with 100 test images each 8 images are chosen, 9 of the first four.
    assert images["all"] == {"images": 100, "effective": 100}
    assert images["many"] == {"images": 18, "effective": pytest.approx(18)}
    assert images["medium"] == {"images": 34, "effective": pytest.approx(16 / (2 / 9 + 2 / 8))}
    assert images["few"] == {"images": 48, "effective": pytest.approx(48)}
    assert images_by_group(one, written | {"n": 99})["few"] is None
    assert images_by_group(one, written | {"groups": written["groups"] | {"many": {"classes": 1}}})["few"] is None


def test_images_of_unequal_classes_are_worth_less(tmp_path: Path) -> None:
    labels = np.repeat([0, 1, 2], [90, 10, 50])
    run = write_run(tmp_path / "run", np.eye(3)[labels], labels, [500, 300, 5])
    images = images_by_group(gather([run])[0], write_robustness(run))
    assert images["many"] == {"images": 100, "effective": pytest.approx(4 / (1 / 90 + 1 / 10))}
    assert images["few"] == {"images": 50, "effective": pytest.approx(50)}
    assert images["medium"] == {"images": 0, "effective": 0}


def test_intervals_are_wilsons_for_the_number_of_images(tail: Run) -> None:
    write_robustness(tail)
    few = shown(tail)[0]["panels"][3]
    assert few["intervals"][0][0] == pytest.approx(wilson(600 * few["errors"][0][0], 600))
    assert few["clean_interval"] == pytest.approx(wilson(600 * 0.42, 600))


def test_what_corruption_adds_has_an_interval_that_holds_95_of_100_times() -> None:
    rng, inside = np.random.default_rng(0), 0
    for _ in range(2000):
        corrupted, clean = rng.binomial(80, 0.5) / 80, rng.binomial(80, 0.1) / 80
        _, low, high = combined([(1, corrupted, 80), (-1, clean, 80)])
        inside += low <= 0.4 <= high
    assert 0.93 <= inside / 2000 <= 0.97


def test_csv_files_have_the_numbers_of_the_page(tail: Run, tmp_path: Path) -> None:
    other = tail_run(tmp_path / "ce", seed=1, images=1200)
    write_robustness(other)
    better = write_robustness(tail, lambda *about: growing(*about) - 0.05)
    gpaco.report([other, tail], tmp_path / "report.html")
    with (tmp_path / "report_files" / "corruptions.csv").open(newline="") as file:
        rows = {(row["run"], row["corruption"], row["severity"], row["group"]): row for row in csv.DictReader(file)}
    assert len(rows) == 2 * 4 * (1 + 15 * 6)
    row = rows["gpaco", "fog", "3", "few"]
    assert float(row["error"]) == better["corruptions"]["fog"]["3"]["few"]
    assert float(row["difference"]) == pytest.approx(-0.05)
    assert (row["against"], row["kind"]) == ("ce", "weather")
    assert rows["ce", "fog", "3", "few"]["difference"] == ""
    assert float(rows["gpaco", "clean", "0", "many"]["error"]) == 0.05


def test_without_a_file_there_is_no_section(tail: Run, tmp_path: Path) -> None:
    page = gpaco.report(tail, tmp_path / "report.html")
    assert shown(tail) == []
    assert page_data(page)["robustness"] == []
    assert "Robustness" not in page.read_text().split("<script")[0]
    assert (tmp_path / "report_files" / "corruptions.csv").read_text().count("\n") == 1


def test_a_choice_of_conditions_leaves_holes_and_has_no_mean(tail: Run) -> None:
    write_robustness(tail, names=("fog", "snow"), severities=(1, 5), notes=["14 are missing"])
    (found,) = shown(tail)
    assert found["names"] == ["snow", "fog"]
    for panel in found["panels"]:
        assert panel["mean_error"] is panel["added"] is panel["mce"] is None
        for row in panel["errors"]:
            assert [value is None for value in row] == [False, True, True, True, False, True]
    assert found["notes"][-1] == "14 are missing"


def test_a_group_without_classes_is_none_everywhere(tmp_path: Path) -> None:
    labels = np.arange(60) % 3
    run = write_run(tmp_path / "run", np.eye(3)[labels], labels, [500, 300, 50])
    write_robustness(run)
    few = shown(run)[0]["panels"][3]
    assert few["classes"] == few["images"] == 0
    assert few["clean_error"] is few["mean_error"] is few["added"] is None
    assert {value for row in few["errors"] for value in row} == {None}


def test_a_file_of_another_version_is_an_error(tail: Run, tmp_path: Path) -> None:
    (tail.folder / "robustness.json").write_text('{"version": 2}')
    with pytest.raises(UserError, match="is damaged, or of another version"):
        gpaco.report(tail, tmp_path / "report.html")


# Several runs


def test_others_are_compared_with_the_first_on_the_same_images_only(tail: Run, tmp_path: Path) -> None:
    other = tail_run(tmp_path / "ce", seed=1, images=1200)
    write_robustness(other)
    write_robustness(tail, lambda *about: growing(*about) + 0.03)
    first, second = shown(other, tail)
    assert first["against"] is first["not_compared"] is None
    assert second["against"] == "ce"
    for panel in second["panels"]:
        assert panel["clean_difference"] == pytest.approx(0.03)
        assert np.asarray(panel["differences"]) == pytest.approx(0.03)
    write_robustness(tail, names=COMMON[:2])
    assert np.asarray(shown(other, tail)[1]["panels"][0]["differences"]) == pytest.approx(0)
    write_robustness(tail, subset=100)
    assert "not tested on the same corrupted images" in shown(other, tail)[1]["not_compared"]
    assert shown(other, tail)[1]["panels"][0]["differences"] is None
    (other.folder / "robustness.json").unlink()
    assert "ce was not tested on corrupted images" in shown(other, tail)[1]["not_compared"]
    assert shown(other, tail)[0] is None


def test_groups_of_other_training_counts_are_not_compared(tail: Run, tmp_path: Path) -> None:
    labels = np.arange(1200) % 12
    other = write_run(tmp_path / "even", np.eye(12)[labels], labels, np.full(12, 50))
    write_robustness(tail)
    write_robustness(other)
    _, found = shown(tail, other)
    assert found["panels"][0]["differences"] is not None
    assert [panel["differences"] for panel in found["panels"][1:]] == [None] * 3
    assert "Groups are not compared" in found["not_compared"]
