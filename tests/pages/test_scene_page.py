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
from helpers.scenes import made_run, scene_folder, tiny_segmenter
from PIL import Image

import gpaco
from gpaco.cli.main import main
from gpaco.errors import UserError
from gpaco.pages.render import percent
from gpaco.pages.segmentation import collect, errors_marked, report_scenes
from gpaco.training.run import Run

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run folder of a network that was not trained, with a class of a hostile name."""
    folder = scene_folder(tmp_path / "data", train=2, val=2, test=3)
    (folder / "classes.txt").write_text(f"ground\n{HOSTILE}\nsky\n")
    monkeypatch.setattr(
        "gpaco.tasks.segmentation.predictor.build_model", lambda card: tiny_segmenter()
    )  # what the checkpoint is of
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
    page = report_scenes([run], tmp_path / "report.html", say=print).read_text()
    found = Tags(page)
    sections = [attributes["id"] for tag, attributes in found.tags if tag == "section"]
    assert sections == ["summary", "frequency", "confusion", "pictures", "provenance"]
    assert sum(tag == "circle" for tag, _ in found.tags) == 3
    assert sum(tag == "img" for tag, _ in found.tags) == 4 * 3
    assert all(str(a["src"]).startswith("data:image/jpeg;base64,") for tag, a in found.tags if tag == "img")
    assert not {"script", "link", "iframe"} & {tag for tag, _ in found.tags}
    assert not re.search(r"https?://", page)
    assert HOSTILE in found.text
    assert f"Mean IoU {percent(run.metrics['miou'])} %" in found.text
    with (tmp_path / "report" / "classes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == ["ground", HOSTILE, "sky"]
    assert float(rows[0]["run iou"]) == run.metrics["per_class"][0]["iou"]


def test_the_worst_pictures_come_first_and_confusions_by_their_pixels(run: Run) -> None:
    facts = collect([run])
    scores = [one["miou"] for one in facts["runs"][0]["worst"]]
    assert scores == sorted(scores)
    assert len(scores) == 3
    pixels = [row["pixels"] for row in facts["confusions"]]
    confusion = np.array(run.metrics["confusion"])
    off = confusion[~np.eye(3, dtype=bool)]
    assert pixels == sorted(off[off > 0].tolist(), reverse=True)
    assert sum(row["of_errors"] for row in facts["confusions"]) == pytest.approx(1)


def test_dots_stand_where_share_and_iou_put_them(run: Run) -> None:
    chart = collect([run])["chart"]
    box = chart["box"]
    shares = [10**6, 10**4, 100]  # of training pixels, as they are known to the network
    xs = [dot["x"] for dot in chart["dots"]]
    assert xs == sorted(xs, reverse=True)
    expected = (box["right"] - box["left"]) * 2 / (len(chart["x"]) - 1)  # two powers of ten
    assert xs[0] - xs[1] == pytest.approx(expected, abs=0.11)
    assert len(shares) == len(xs)
    for dot in chart["dots"]:
        assert box["bottom"] - dot["y"] == pytest.approx((box["bottom"] - box["top"]) * dot["row"]["iou"], abs=0.06)


def test_without_the_data_the_page_has_no_pictures_and_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    said: list[str] = []
    page = report_scenes([run], tmp_path / "report.html", say=said.append).read_text()
    assert "<img" not in page
    assert said[0].startswith("no pictures: there is no folder")


def test_the_command_writes_it_and_two_runs_share_a_page(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["report", str(run.folder), str(run.folder), "--out", str(tmp_path / "two.html")])
    assert left.value.code == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "two.html")
    page = (tmp_path / "two.html").read_text()
    assert page.count("<circle") == 6
    with pytest.raises(UserError, match=r"cannot be called 'page.pdf'"):
        gpaco.report([run], tmp_path / "page.pdf")


def test_what_corrupted_pictures_cost_is_on_the_page_as_the_file_has_it(run: Run, tmp_path: Path) -> None:
    result = gpaco.robustness(run, corruptions="contrast,fog", severities="1,5")
    page = Tags(gpaco.report(run, tmp_path / "report.html", with_pictures=False).read_text())
    sections = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    assert sections == ["summary", "frequency", "confusion", "robustness", "provenance"]
    for name in ("contrast", "fog"):
        assert name in page.text
    worst = result["corruptions"]["contrast"]["5"]["error"]
    assert percent(worst) in page.text
    (run.folder / "robustness.json").write_text(json.dumps(result | {"version": 0}))
    page = Tags(gpaco.report(run, tmp_path / "report.html", with_pictures=False).read_text())
    assert "robustness.json is not shown" in page.text
    assert percent(worst) not in page.text


@pytest.mark.parametrize(("key", "value"), [("counts", [5, 4, 3]), ("cuts", {"many": 2.0, "few": 0.1})])
def test_runs_whose_classes_have_other_groups_share_no_page(key: str, value: Any, run: Run, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run.folder, other)
    (other / "metrics.json").write_text(json.dumps(run.metrics | {key: value}))
    with pytest.raises(UserError, match=r"other has other .* than run, so its classes have other groups"):
        collect([run, Run(other)])


def test_errors_are_red_and_what_is_no_class_is_dark() -> None:
    image = np.full((1, 3, 3), 100, np.uint8)
    marked = errors_marked(image, np.array([[True, False, False]]), np.array([[True, True, False]]))
    assert marked[0, 0, 0] > marked[0, 0, 1] + 80
    assert marked[0, 1].tolist() == [100, 100, 100]
    assert marked[0, 2].tolist() == [25, 25, 25]
    Image.fromarray(marked)
