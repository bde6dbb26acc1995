"""The tail report in a real browser: what it draws, what it answers, and that it stays offline and harmless."""

import csv
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.browser import opened
from helpers.made_runs import HOSTILE, write_run
from PIL import Image
from playwright.sync_api import Browser

import gpaco
from gpaco.metrics.classification import reweighted_accuracy
from gpaco.metrics.optimum import extra_loss_curve, optimal_probabilities
from gpaco.pages.render import percent
from gpaco.tasks.classification.logits import read_prior
from gpaco.training.run import Run

pytestmark = pytest.mark.browser

SVG = "{http://www.w3.org/2000/svg}"
COLUMNS = ("top1", "macro", "many", "medium", "few")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small real runs and the page about both."""
    folder = tmp_path_factory.mktemp("trained")
    quick = {"long_tail": 20, "epochs": 2, "batch_size": 64, "lr": 0.05, "say": lambda line: None}
    runs = [
        gpaco.train("digits", out=folder / name, method=name, settings=["data.validation=0"], **quick)
        for name in ("ce", "gpaco")
    ]
    gpaco.report(runs, folder / "report.html")
    return folder


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    labels = np.arange(120) % 4
    logits = np.random.default_rng(0).normal(0, 1, (120, 4)) + 1.2 * np.eye(4)[labels]
    names = tuple(f"<img src=x onerror=alert({i})>" for i in range(120))
    run = write_run(folder / "run", logits, labels, [200, 50, 6, 5], classes=HOSTILE, names=names)
    return gpaco.report(run, folder / "report.html", names=["<b>run</b>"])


def outcome(tab: Any) -> list[dict[str, str]]:
    """The table of the what-if section: for each run its figures as they are written."""
    rows = tab.page.locator("#outcome tbody tr")
    return [
        {key: rows.nth(k).locator(f"[data-figure={key}]").inner_text().split()[0] for key in (*COLUMNS, "under")}
        for k in range(rows.count())
    ]


def test_the_page_opens_without_a_complaint_or_a_request_and_shows_everything(browser: Browser, trained: Path) -> None:
    with opened(browser, trained / "report.html") as tab:
        for chart in ("forest", "scatter", "sankey", "along", "reliability", "norms", "asked", "extra", "counts"):
            box = tab.page.locator(f"#{chart} svg").bounding_box()
            assert box
            assert box["width"] > 300
            assert box["height"] > 100
            assert tab.page.locator(f"#{chart} svg path").count() > 0, chart
        marks = [int(node.get_attribute("data-marks") or 0) for node in tab.page.locator("#scatter [data-marks]").all()]
        assert marks == [10, 10]
        assert tab.page.locator("#confused img").count() > 5
        widths = tab.page.locator("#confused img").evaluate_all("nodes => nodes.map(node => node.naturalWidth)")
        assert set(widths) == {8}
        rows = tab.page.locator("#summary tbody").first.locator("tr")
        for k, name in enumerate(("ce", "gpaco")):
            metrics = Run(trained / name).metrics
            for key in COLUMNS:
                shown = rows.nth(k).locator(f"[data-figure={key}]").inner_text().split()[0]
                assert shown == percent(metrics[key])


def test_every_chart_can_be_saved_as_svg_and_png(browser: Browser, trained: Path, tmp_path: Path) -> None:
    with opened(browser, trained / "report.html", color_scheme="dark") as tab:
        charts = tab.page.locator("figure.chart:has(> svg)")
        assert charts.count() == 10
        for chart in charts.all():
            assert chart.locator(".save button").all_inner_texts() == ["SVG", "PNG"]
        for suffix in ("svg", "png"):
            with tab.page.expect_download() as download:
                tab.page.locator("#scatter .save button", has_text=suffix.upper()).click()
            assert download.value.suggested_filename == f"scatter.{suffix}"
            download.value.save_as(tmp_path / f"scatter.{suffix}")
        tab.page.emulate_media(media="print")
        assert tab.page.locator(".save").first.is_hidden()
    root = ElementTree.parse(tmp_path / "scatter.svg").getroot()  # noqa: S314
    assert root.tag == f"{SVG}svg"
    words = [node.text for node in root.iter(f"{SVG}text")]
    assert {"ce", "gpaco", "training images of the class"} <= set(words)  # the legend is in it
    assert {"rgb(11, 87, 176)", "rgb(176, 74, 0)"} <= {node.get("fill") for node in root.iter()}  # light, as on paper
    assert not any(node.get("class") for node in root.iter())
    with Image.open(tmp_path / "scatter.png") as image:
        assert image.format == "PNG"
        assert image.size == tuple(2 * int(root.attrib[side]) for side in ("width", "height"))
        assert image.getpixel((0, 0))[:3] == (255, 255, 255)
        colors = {color[:3] for _, color in image.convert("RGB").getcolors(1 << 24)}
    assert {(11, 87, 176), (176, 74, 0)} <= colors


def test_hovering_shows_the_class_and_a_click_opens_its_card(browser: Browser, trained: Path) -> None:
    metrics = Run(trained / "gpaco").metrics
    with opened(browser, trained / "report.html") as tab:
        chart = tab.page.locator("#scatter svg")
        chart.scroll_into_view_if_needed()
        spot = tab.page.evaluate(
            "() => { const box = document.querySelector('#scatter [data-marks]').getBoundingClientRect();"
            " return [box.right - 5, box.top, box.bottom]; }"
        )
        for y in range(int(spot[1]), int(spot[2]), 3):  # down the rightmost column, to the most frequent class
            tab.page.mouse.move(spot[0], y)
            if tab.page.locator("#tip").is_visible():
                break
        assert tab.text("#tip").splitlines()[:2] == ["0", f"{metrics['counts'][0]} training images, many"]
        assert f"gpaco: {percent(metrics['per_class'][0]['recall'])}% of 45" in tab.text("#tip")
        tab.page.mouse.click(spot[0], y)
        assert tab.text("#card h3").split()[0] == "0"
        assert percent(metrics["per_class"][0]["precision"]) in tab.text("#card table")


def test_everything_can_be_done_with_the_keyboard(browser: Browser, trained: Path) -> None:
    counts = Run(trained / "gpaco").metrics["counts"]
    with opened(browser, trained / "report.html") as tab:
        tab.page.locator("#scatter svg").focus()
        tab.page.keyboard.press("ArrowRight")
        assert tab.text("#tip").splitlines()[0] == "9"
        tab.page.keyboard.press("End")
        assert tab.text("#tip").splitlines()[0] == "0"
        tab.page.keyboard.press("ArrowLeft")
        tab.page.keyboard.press("Enter")
        assert f"{counts[1]} training images" in tab.text("#card")
        tab.page.locator("#card button").focus()
        tab.page.keyboard.press("Enter")
        assert tab.page.locator("#card").is_hidden()
        tab.page.locator("#prior").focus()
        tab.page.keyboard.press("ArrowRight")
        assert "1% of the way from equally likely classes to the reversed" in tab.text("#prior-text")
        before = tab.text("#sankey")
        tab.page.locator("input[name=run]").last.focus()
        tab.page.keyboard.press("ArrowLeft")
        assert set(tab.texts("h2 .of")) == {"\u2013 ce"}
        assert tab.text("#sankey") != before
        assert "not trained with parametric contrast" in tab.text("#optimum-text")
        tab.page.locator("#class-table summary").focus()
        tab.page.keyboard.press("Enter")
        tab.page.locator("#classes thead button").nth(2).focus()
        tab.page.keyboard.press("Enter")
        assert tab.texts("#classes tbody th")[0] == "9"
        assert tab.page.locator("#classes th[aria-sort=ascending]").inner_text() == "training images"


def test_the_slider_gives_what_python_gives_for_the_saved_prior(
    browser: Browser, trained: Path, tmp_path: Path
) -> None:
    shown = {}
    with opened(browser, trained / "report.html") as tab:
        for position in (0, 37, 100, 150, 200):
            tab.page.locator("#prior").fill(str(position))
            shown[position] = outcome(tab)
            with tab.page.expect_download() as download:
                tab.page.locator("#save").click()
            download.value.save_as(tmp_path / f"{position}.csv")
    for position, rows in shown.items():
        with (tmp_path / f"{position}.csv").open(newline="") as file:
            prior = [float(row["probability"]) for row in csv.DictReader(file)]
        assert sum(prior) == pytest.approx(1)
        for name, row in zip(("ce", "gpaco"), rows, strict=True):
            result = gpaco.evaluate(trained / name, prior=str(tmp_path / f"{position}.csv"))
            assert {key: row[key] for key in COLUMNS} == {key: percent(result[key]) for key in COLUMNS}
            recalls = [one["recall"] for one in result["per_class"]]
            assert row["under"] == percent(reweighted_accuracy(recalls, prior))


def test_hostile_names_stay_text_and_can_be_found_and_saved(browser: Browser, hostile: Path, tmp_path: Path) -> None:
    with opened(browser, hostile) as tab:
        everything = tab.text("body")
        for name in (*HOSTILE[:2], "<b>run</b>", "<img src=x onerror=alert("):
            assert name in everything
        assert tab.page.locator("img, body b").count() == 0
        assert tab.page.locator("script").count() == 2
        tab.page.locator("#scatter svg").focus()
        found = set()
        for _ in range(4):
            tab.page.keyboard.press("ArrowRight")
            found.add(tab.page.locator("#tip").evaluate("node => node.textContent").split("\n")[0])
            tab.page.keyboard.press("Enter")
        assert found == set(HOSTILE)
        tab.page.locator("#class-table summary").click()
        tab.page.locator("#find").fill("QUOTES")
        assert tab.texts("#classes tbody th") == [HOSTILE[1]]
        with tab.page.expect_download() as download:
            tab.page.locator("#save").click()
        download.value.save_as(tmp_path / "prior.csv")
        assert read_prior(tmp_path / "prior.csv", HOSTILE).shape == (4,)
        with tab.page.expect_download() as download:
            tab.page.locator("#counts .save button").first.click()
        names = [node.text for node in ElementTree.parse(download.value.path()).iter(f"{SVG}text")]  # noqa: S314
        assert set(HOSTILE) <= set(names)


def test_the_optimum_of_the_page_is_that_of_the_analysis(browser: Browser, trained: Path) -> None:
    run = json.loads((trained / "gpaco" / "analysis.json").read_text())
    with opened(browser, trained / "report.html") as tab:
        asked = optimal_probabilities(run["shown"], **run["settings"])
        tab.page.evaluate("chooseRun(1)")
        found = tab.page.evaluate("runs[1].optimum.asked")
        for key in ("center", "each", "supcon"):
            np.testing.assert_allclose(found[key], getattr(asked, key), rtol=1e-12)
        best = extra_loss_curve(10, alpha=run["settings"]["alpha"], memory=run["settings"]["memory"]).best
        assert tab.page.locator("#least").text_content() == f"lowest at {best:.2f}"
        assert f"memory {run['settings']['memory']:,}" in tab.text("#settings")


def test_one_error_and_the_limits_of_groups_read_naturally(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 9 * np.eye(2)[[0, 1, 0]], [0, 1, 1], [50, 5])
    (run.folder / "metrics.json").write_text(json.dumps(run.metrics | {"cuts": {"many": 100.0, "few": 20.0}}))
    with opened(browser, gpaco.report(run, tmp_path / "page.html")) as tab:
        assert tab.text("#pull") == "The one error in the group “few” goes to a class with more training images."
        assert tab.page.locator("#matrix tbody td").all_inner_texts() == ["1", "", "1", "1"]
        assert "many above 100, few below 20" in tab.text("#summary")


def test_what_is_missing_does_not_stop_the_page(browser: Browser, tmp_path: Path) -> None:
    for case, labels, counts in (
        ("absent class", [0, 0, 1, 1], [50, 30, 0]),
        ("one group", [0, 1, 2, 2], [500, 300, 200]),
        ("no test images", [], [50, 30, 5]),
        ("one class", [0], [7]),
    ):
        logits = np.random.default_rng(0).normal(0, 1, (len(labels), len(counts)))
        run = write_run(tmp_path / case, logits, labels, counts)
        with opened(browser, gpaco.report(run, tmp_path / f"{case}.html")) as tab:
            assert tab.page.locator("#counts svg").is_visible(), case
            tab.page.locator("#prior").fill("150")
            tab.page.locator("#class-table summary").click()
            for word in ("NaN", "undefined"):
                assert word not in tab.text("body"), case
            assert "Infinity" not in tab.page.content().split('id="data"')[0], case
