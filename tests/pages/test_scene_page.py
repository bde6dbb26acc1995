"""The page about segmenters: complete, offline, and nothing from data becomes part of it but text."""

import csv
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.browser import opened
from helpers.scenes import made_run, scene_folder, tiny_segmenter
from playwright.sync_api import Browser

import gpaco
from gpaco.errors import UserError
from gpaco.pages.render import percent
from gpaco.pages.segmentation import MARKED, collect, errors_marked
from gpaco.system.words import some
from gpaco.tasks.segmentation import predictor
from gpaco.training.run import Run

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run folder of a network that was not trained, with a class of a hostile name."""
    folder = scene_folder(tmp_path / "data", train=2, val=2, test=3)
    (folder / "classes.txt").write_text(f"ground\n{HOSTILE}\nsky\n")
    monkeypatch.setattr(predictor, "build_model", lambda card: tiny_segmenter())  # what the checkpoint is of
    return made_run(tmp_path / "run", folder, ("ground", HOSTILE, "sky"))


class Tags(HTMLParser):
    """Every tag with its attributes, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_has_every_part_and_needs_nothing_from_outside(run: Run, tmp_path: Path) -> None:
    page = gpaco.report(run, tmp_path / "report.html", say=print).read_text()
    found = Tags(page)
    sections = [attributes["id"] for tag, attributes in found.tags if tag == "section"]
    assert sections == ["summary", "frequency", "confusion", "images", "provenance"]
    assert sum(tag == "img" for tag, _ in found.tags) == 4 * 3
    assert all(str(a["src"]).startswith("data:image/jpeg;base64,") for tag, a in found.tags if tag == "img")
    assert not {"link", "iframe"} & {tag for tag, _ in found.tags}
    assert sum(tag == "script" for tag, _ in found.tags) == 2  # data and ours; the policy lets no other run
    assert not re.search(r"https?://", page)
    assert HOSTILE in found.text
    low = min(row["iou"] for row in run.metrics["per_class"])
    worst = [row["name"] for row in run.metrics["per_class"] if row["iou"] == low]
    assert f"Mean IoU is {percent(run.metrics['miou'])}% over 3 of 3 classes." in found.text
    which = f"The worst class is {worst[0]}" if len(worst) == 1 else f"The worst classes are {some(worst)}"
    assert f"{which}: {percent(low)}%." in found.text
    with (tmp_path / "report_files" / "classes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == ["ground", HOSTILE, "sky"]
    assert float(rows[0]["run iou"]) == run.metrics["per_class"][0]["iou"]


def test_the_worst_images_come_first_and_confusions_by_their_pixels(run: Run) -> None:
    facts = collect([run], ["run"])
    scores = [one["miou"] for one in facts["runs"][0]["worst"]]
    assert scores == sorted(scores)
    assert len(scores) == 3
    pixels = [row["pixels"] for row in facts["confusions"]]
    confusion = np.array(run.metrics["confusion"])
    off = confusion[~np.eye(3, dtype=bool)]
    assert pixels == sorted(off[off > 0].tolist(), reverse=True)
    assert sum(row["of_errors"] for row in facts["confusions"]) == pytest.approx(1)


@pytest.mark.browser
def test_the_chart_is_readable_on_a_phone_and_names_each_class_once(run: Run, tmp_path: Path, browser: Browser) -> None:
    shutil.copytree(run.folder, tmp_path / "seed-0" / "a")
    shutil.copytree(run.folder, tmp_path / "seed-0" / "b")
    gpaco.report([tmp_path / "seed-0" / "a", tmp_path / "seed-0" / "b"], tmp_path / "two.html", with_images=False)
    for width in (360, 1280):
        with opened(browser, tmp_path / "two.html", viewport={"width": width, "height": 800}) as tab:
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
            assert tab.texts("h1 bdi") == ["a", "b"]
            assert tab.page.locator("#scatter path[data-mark]").count() == 6
            shapes = tab.page.locator("#scatter path[data-mark]").evaluate_all("all => all.map((one) => one.outerHTML)")
            assert len(set(shapes)) == 6  # of two shapes, beside each other
            scale = "one => one.getBoundingClientRect().width / one.viewBox.baseVal.width"
            assert tab.page.locator("#scatter svg").evaluate(scale) == pytest.approx(1, abs=0.1)
            written = tab.page.locator("#scatter text").all_text_contents()
            names = [text for text in written if text in ("ground", "sky")]
            assert len(names) == len(set(names)) > 0
            tab.page.locator("#scatter svg").focus()
            tab.page.keyboard.press("ArrowRight")
            assert "% of the training pixels" in tab.text("#tip")
            high = tab.page.locator(".tall").evaluate("one => one.offsetHeight") if width == 1280 else 0
            assert high < 8.5 * 16  # the hostile name is cut off, its title has all of it


def test_without_the_data_the_page_has_no_images_and_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    said: list[str] = []
    page = gpaco.report(run, tmp_path / "report.html", say=said.append).read_text()
    assert "<img" not in page
    assert said[0].startswith("no images: the data of the run is no longer at")


def test_the_command_writes_it_and_two_runs_share_a_page(run: Run, tmp_path: Path, prints: Any) -> None:
    assert prints("report", run.folder, run.folder, "--out", tmp_path / "two.html") == f"{tmp_path / 'two.html'}\n"
    page = (tmp_path / "two.html").read_text()
    assert page.count('colspan="4"') == 2
    with pytest.raises(UserError, match=r"cannot be written to 'page.pdf'"):
        gpaco.report([run], tmp_path / "page.pdf")


def test_what_corrupted_images_cost_is_on_the_page_as_the_file_has_it(run: Run, tmp_path: Path) -> None:
    result = gpaco.robustness(run, corruptions="contrast,fog", severities="1,5")
    page = Tags(gpaco.report(run, tmp_path / "report.html", with_images=False).read_text())
    sections = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    assert sections == ["summary", "frequency", "confusion", "robustness", "provenance"]
    for name in ("contrast", "fog"):
        assert name in page.text
    worst = result["corruptions"]["contrast"]["5"]["error"]
    assert percent(worst) in page.text
    (run.folder / "robustness.json").write_text(json.dumps(result | {"version": 0}))
    with pytest.raises(UserError, match="is damaged, or of another version"):
        gpaco.report(run, tmp_path / "report.html", with_images=False)


@pytest.mark.parametrize(
    ("key", "value"), [("counts", [5, 4, 3]), ("cuts", {"many": 2.0, "few": 0.1}), ("evaluated_on", "val")]
)
def test_runs_with_other_groups_or_test_images_share_no_page(key: str, value: Any, run: Run, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run.folder, other)
    (other / "metrics.json").write_text(json.dumps(run.metrics | {key: value}))
    with pytest.raises(UserError, match=r"other and run have different"):
        collect([run, Run(other)], ["run", "other"])


def test_errors_are_striped_and_what_is_no_class_is_dark() -> None:
    image = np.full((120, 120, 3), 100, np.uint8)
    wrong, labeled = np.zeros((120, 120), bool), np.ones((120, 120), bool)
    wrong[:60], labeled[60:, :60] = True, False
    marked = errors_marked(image, wrong, labeled)
    assert {tuple(color) for color in marked[:60].reshape(-1, 3).tolist()} == {MARKED, (178, 50, 150)}
    assert (marked[60:, 60:] == 100).all()
    assert (marked[60:, :60] == 25).all()


def test_what_was_tested_is_said_beside_the_errors_on_corrupted_images(run: Run, tmp_path: Path) -> None:
    gpaco.robustness(run, corruptions="fog", severities="2", subset=2, seed=7)
    page = Tags(gpaco.report(run, tmp_path / "report.html", with_images=False).read_text())
    assert "2 images (a subset), seed 7, constants of CIFAR-C." in page.text
    assert "74 of the 75 conditions are missing" in page.text
    assert {"href": "#robustness"} in [attributes for tag, attributes in page.tags if tag == "a"]
