"""The tail report in a real browser: what it draws, what it answers, and that it stays offline and harmless."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import chromium, opened
from made_runs import HOSTILE, tail_run, write_run
from playwright.sync_api import Browser

import gpaco
from gpaco.analysis import extra_loss_curve, optimal_probabilities
from gpaco.metrics import reweighted_accuracy
from gpaco.pages.page import percent
from gpaco.run import Run

COLUMNS = ("top1", "macro", "many", "medium", "few")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


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


def test_the_page_opens_without_a_complaint_or_a_request_and_draws_every_chart(browser: Browser, trained: Path) -> None:
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


def test_a_summary_says_what_metrics_json_says(browser: Browser, trained: Path) -> None:
    with opened(browser, trained / "report.html") as tab:
        rows = tab.page.locator("#summary tbody").first.locator("tr")
        for k, name in enumerate(("ce", "gpaco")):
            metrics = Run(trained / name).metrics
            for key in COLUMNS:
                shown = rows.nth(k).locator(f"[data-figure={key}]").inner_text().split()[0]
                assert shown == percent(metrics[key])


def test_hovering_shows_the_class_and_a_click_opens_its_card(browser: Browser, trained: Path) -> None:
    metrics = Run(trained / "gpaco").metrics
    with opened(browser, trained / "report.html") as tab:
        chart = tab.page.locator("#scatter svg")
        chart.scroll_into_view_if_needed()
        spot = tab.page.evaluate(
            "() => { const box = document.querySelector('#scatter [data-marks]').getBoundingClientRect();"
            " return [box.right - 5, box.top + 5]; }"
        )
        tab.page.mouse.move(*spot)
        assert tab.text("#tip").splitlines()[:2] == ["0", f"{metrics['counts'][0]} training images, many"]
        assert f"gpaco: {percent(metrics['per_class'][0]['recall'])} % of 45" in tab.text("#tip")
        tab.page.mouse.click(*spot)
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
        assert "1 % of the way from equal to reversed" in tab.text("#prior-text")
        tab.page.locator("input[name=run]").last.focus()
        tab.page.keyboard.press("ArrowLeft")
        assert tab.texts("h2 .of")[0] == "\u2013 ce"
        tab.page.locator("#class-table summary").focus()
        tab.page.keyboard.press("Enter")
        tab.page.locator("#classes thead button").nth(2).focus()
        tab.page.keyboard.press("Enter")
        assert tab.texts("#classes tbody th")[0] == "9"
        assert tab.page.locator("#classes th[aria-sort=ascending]").inner_text() == "training images"


def test_classes_are_found_by_name(browser: Browser, hostile: Path) -> None:
    with opened(browser, hostile) as tab:
        tab.page.locator("#class-table summary").click()
        assert len(tab.texts("#classes tbody tr")) == 4
        tab.page.locator("#find").fill("QUOTES")
        assert tab.texts("#classes tbody th") == [HOSTILE[1]]


@pytest.mark.parametrize("position", [0, 37, 100, 150, 200])
def test_the_slider_gives_what_python_gives_for_the_saved_prior(
    position: int, browser: Browser, trained: Path, tmp_path: Path
) -> None:
    with opened(browser, trained / "report.html") as tab:
        tab.page.locator("#prior").fill(str(position))
        shown = outcome(tab)
        with tab.page.expect_download() as download:
            tab.page.locator("#save").click()
        download.value.save_as(tmp_path / "prior.csv")
    with (tmp_path / "prior.csv").open(newline="") as file:
        prior = [float(row["probability"]) for row in csv.DictReader(file)]
    assert sum(prior) == pytest.approx(1)
    for name, row in zip(("ce", "gpaco"), shown, strict=True):
        result = gpaco.evaluate(trained / name, prior=str(tmp_path / "prior.csv"))
        assert {key: row[key] for key in COLUMNS} == {key: percent(result[key]) for key in COLUMNS}
        recalls = [one["recall"] for one in result["per_class"]]
        assert row["under"] == percent(reweighted_accuracy(recalls, prior))


def test_a_prior_from_a_file_is_exact_and_a_wrong_one_is_explained(
    browser: Browser, trained: Path, tmp_path: Path
) -> None:
    shares = {str(c): 0.5 ** (c % 4) * (1 + c) for c in range(10)}
    (tmp_path / "mine.csv").write_text("\ufeffclass,count\r\n" + "".join(f'"{c}",{p}\r\n' for c, p in shares.items()))
    (tmp_path / "wrong.csv").write_text("0,1\n1,1\neleven,3\n")
    (tmp_path / "short.csv").write_text("0,1\n1,1\n")
    with opened(browser, trained / "report.html") as tab:
        before = outcome(tab)
        for name, problem in (("wrong", "no class “eleven”"), ("short", "no row for class “2”")):
            tab.page.locator("#file").set_input_files(tmp_path / f"{name}.csv")
            tab.shows("#prior-text", problem)
            assert outcome(tab) == before
        tab.page.locator("#file").set_input_files(tmp_path / "mine.csv")
        tab.shows("#prior-text", "Exact: every class")
        shown = outcome(tab)
        tab.page.locator("button[data-position='100']").click()
        assert outcome(tab) == before
    for name, row in zip(("ce", "gpaco"), shown, strict=True):
        result = gpaco.evaluate(trained / name, prior=str(tmp_path / "mine.csv"))
        assert {key: row[key] for key in COLUMNS} == {key: percent(result[key]) for key in COLUMNS}


def test_a_page_without_room_for_all_logits_says_when_a_prior_is_approximate(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpaco.pages.collecting._LOGITS", 12_000)
    page = gpaco.report(tail_run(tmp_path / "run"), tmp_path / "report.html")
    with opened(browser, page) as tab:
        for name, factor, word in (("mild", 1.01, "Exact"), ("wild", 30.0, "Approximate")):
            rows = "".join(f"class {c},{factor**c}\n" for c in range(12))
            (tmp_path / f"{name}.csv").write_text(rows)
            tab.page.locator("#file").set_input_files(tmp_path / f"{name}.csv")
            tab.shows("#prior-text", word)


def test_another_run_can_be_looked_at(browser: Browser, trained: Path) -> None:
    with opened(browser, trained / "report.html") as tab:
        before = tab.text("#sankey")
        tab.page.locator("input[name=run]").first.check()
        assert tab.texts("h2 .of") == ["\u2013 ce"] * 5
        assert tab.text("#sankey") != before
        assert "not trained with parametric contrast" in tab.text("#optimum-text")


def test_hostile_names_stay_text(browser: Browser, hostile: Path) -> None:
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


def test_a_saved_prior_with_hostile_names_can_be_read_again(browser: Browser, hostile: Path, tmp_path: Path) -> None:
    from gpaco.priors import read_prior

    with opened(browser, hostile) as tab:
        tab.page.locator("button[data-position='200']").click()
        before = outcome(tab)
        with tab.page.expect_download() as download:
            tab.page.locator("#save").click()
        download.value.save_as(tmp_path / "prior.csv")
        assert read_prior(tmp_path / "prior.csv", HOSTILE).shape == (4,)
        tab.page.locator("#file").set_input_files(tmp_path / "prior.csv")
        tab.shows("#prior-text", "prior.csv")
        assert outcome(tab) == before


def test_the_optimum_of_the_page_is_that_of_the_analysis(browser: Browser, trained: Path) -> None:
    run = json.loads((trained / "gpaco" / "analysis.json").read_text())
    with opened(browser, trained / "report.html") as tab:
        asked = optimal_probabilities(run["shown"], **run["settings"])
        tab.page.evaluate("chooseRun(1)")
        found = tab.page.evaluate("runs[1].optimum.asked")
        for key in ("centre", "each", "supcon"):
            np.testing.assert_allclose(found[key], getattr(asked, key), rtol=1e-12)
        best = extra_loss_curve(10, alpha=run["settings"]["alpha"], memory=run["settings"]["memory"]).best
        assert tab.page.locator("#least").text_content() == f"least at {best:.2f}"
        assert f"memory {run['settings']['memory']:,}" in tab.text("#settings")


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (820, "light"), (1400, "dark")])
def test_no_width_makes_the_page_scroll_sideways(width: int, scheme: Any, browser: Browser, trained: Path) -> None:
    size = {"width": width, "height": 900}
    with opened(browser, trained / "report.html", viewport=size, color_scheme=scheme) as tab:
        tab.page.locator("#class-table summary").click()
        assert tab.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
        light = tab.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert light == (scheme == "light")
        tab.page.set_viewport_size({"width": 600, "height": 900})
        tab.page.locator("#scatter svg[viewBox^='0 0 5']").wait_for()


def test_it_prints_on_white_without_its_controls(browser: Browser, trained: Path) -> None:
    with opened(browser, trained / "report.html", color_scheme="dark") as tab:
        tab.page.emulate_media(media="print")
        assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert tab.page.locator("nav").is_hidden()
        assert tab.page.locator("#save").is_hidden()
        assert tab.page.locator("#scatter svg").is_visible()


@pytest.mark.parametrize(
    ("labels", "counts"),
    [([0, 0, 1, 1], [50, 30, 0]), ([0, 1, 2, 2], [500, 300, 200]), ([], [50, 30, 5]), ([0], [7])],
    ids=["absent class", "one group", "no test images", "one class"],
)
def test_what_is_missing_does_not_stop_the_page(
    labels: list[int], counts: list[int], browser: Browser, tmp_path: Path
) -> None:
    logits = np.random.default_rng(0).normal(0, 1, (len(labels), len(counts)))
    run = write_run(tmp_path / "run", logits, labels, counts)
    with opened(browser, gpaco.report(run, tmp_path / "report.html")) as tab:
        assert tab.page.locator("#counts svg").is_visible()
        tab.page.locator("#prior").fill("150")
        tab.page.locator("#class-table summary").click()
        assert "NaN" not in tab.text("body")
        assert "undefined" not in tab.text("body")
        assert "Infinity" not in tab.page.content().split('id="data"')[0]
