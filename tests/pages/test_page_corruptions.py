"""Robustness in the tail report, in a real browser: cells, hover, keys, several runs, unreadable files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.browser import opened
from helpers.commands import run as command
from helpers.made_robustness import COMMON, growing, write_robustness
from helpers.made_runs import HOSTILE, tail_run, write_run
from playwright.sync_api import Browser

import gpaco
from gpaco.pages.render import percent

pytestmark = pytest.mark.browser

PANELS = ("error", "many", "medium", "few")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with errors on corrupted images, and pages about one and about both."""
    folder = tmp_path_factory.mktemp("pair")
    first, second = tail_run(folder / "ce", seed=1, images=600), tail_run(folder / "gpaco", images=600)
    write_robustness(first)
    write_robustness(second, lambda *about: growing(*about) * 0.9, baseline=("runs/ce", growing))
    gpaco.report(second, folder / "one.html")
    gpaco.report([first, second], folder / "two.html")
    return folder


def written(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "robustness.json").read_text())


def middle(tab: Any, chart: str, number: int) -> tuple[float, float]:
    """Where a cell is; the first of a panel is its clean error, then come six for each corruption."""
    cell = tab.page.locator(f"{chart} rect.heat").nth(number)
    cell.evaluate("node => node.scrollIntoView({ block: 'center' })")
    box = cell.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_every_cell_has_the_error_of_the_file(browser: Browser, pair: Path) -> None:
    found = written(pair / "gpaco")
    wanted = []
    for key in PANELS:
        wanted.append((found if key == "error" else found["groups"][key])["clean_error"])
        for name in COMMON:
            row = found["corruptions"][name]
            wanted += [row[column][key] for column in ("1", "2", "3", "4", "5", "mean")]
    with opened(browser, pair / "one.html") as tab:
        assert tab.page.locator("#heat text.value").all_text_contents() == [percent(value, 0) for value in wanted]
        shades = tab.page.locator("#heat rect.heat").evaluate_all(
            "nodes => nodes.map(n => +n.getAttribute('fill-opacity'))"
        )
        assert np.allclose(np.asarray(shades) * (np.ceil(10 * max(wanted)) / 10), wanted)
        words = tab.page.locator("#heat text").all_text_contents()
        for word in ("noise", "blur", "weather", "digital", "jpeg compression", "few"):
            assert word in words
        assert tab.page.locator("#corruption-difference").is_hidden()


def test_pointer_and_arrow_keys_show_the_numbers_of_the_file(browser: Browser, pair: Path) -> None:
    found = written(pair / "gpaco")
    with opened(browser, pair / "one.html") as tab:
        for panel, name, column in ((0, "gaussian_noise", "1"), (1, "fog", "4"), (3, "pixelate", "mean")):
            k, s = COMMON.index(name), ("1", "2", "3", "4", "5", "mean").index(column)
            tab.page.mouse.move(*middle(tab, "#heat", panel * (1 + 15 * 6) + 1 + 6 * k + s))
            row = found["corruptions"][name]
            where, error = tab.text("#tip").splitlines()
            how = "mean over severities" if column == "mean" else f"severity {column}"
            assert where == f"{name.replace('_', ' ')}, {how}"
            who = ("all images", *PANELS[1:])[panel]
            assert error.startswith(f"{who}: {percent(row[column][PANELS[panel]])}% wrong (")
        x, y = middle(tab, "#heat", 3 * (1 + 15 * 6))
        tab.page.mouse.move(x + 70, y)  # anywhere in the wide cell
        assert tab.text("#tip").splitlines() == ["clean", "few: 37.8% wrong (32.5 to 43.4)"]
        tab.page.locator("#heat svg").focus()
        for key, where in (
            ("Home", "clean\nall images"),
            ("ArrowRight", "gaussian noise, severity 1\nall images"),
            ("ArrowRight", "gaussian noise, severity 2\nall images"),
            ("ArrowDown", "shot noise, severity 2\nall images"),
            ("ArrowDown", "impulse noise, severity 2\nall images"),
            ("ArrowDown", "defocus blur, severity 2\nall images"),
            ("ArrowUp", "impulse noise, severity 2\nall images"),
            ("End", "jpeg compression, mean over severities\nfew"),
            ("ArrowDown", "jpeg compression, mean over severities\nfew"),
            ("ArrowUp", "pixelate, mean over severities\nfew"),
            ("Home", "clean\nall images"),
            ("ArrowUp", "clean\nall images"),
        ):
            tab.page.keyboard.press(key)
            assert tab.text("#tip").startswith(where + ": "), key
        tab.page.keyboard.press("Escape")
        assert tab.page.locator("#tip").is_hidden()


def test_the_table_has_the_figures_of_each_group_and_names_the_baseline(browser: Browser, pair: Path) -> None:
    with opened(browser, pair / "two.html") as tab:
        rows = tab.page.locator("#costs tbody tr")
        assert rows.count() == 8
        for r, name in enumerate(("ce", "gpaco")):
            found = written(pair / name)
            for g, key in enumerate(PANELS):
                home = found if key == "error" else found["groups"][key]
                cells = [words.split("\n")[0] for words in rows.nth(4 * r + g).locator("td").all_inner_texts()]
                added = f"+{percent(home['mean_error'] - home['clean_error'])}"
                rates = [percent(home[figure]) for figure in ("clean_error", "mean_error", "mce", "relative_mce")]
                assert [cells[0], *cells[2:]] == [key.replace("error", "all"), *rates[:2], cells[4], *rates[2:]]
                assert cells[4].split()[0] == added
        heads = tab.texts("#costs tbody th")
        assert "no baseline" in heads[0]
        assert "baseline: runs/ce" in heads[1]


def test_with_several_runs_the_difference_to_the_first_is_shown(browser: Browser, pair: Path) -> None:
    first, second = written(pair / "ce"), written(pair / "gpaco")
    with opened(browser, pair / "two.html") as tab:
        assert tab.texts("#robustness h2 .of") == ["\u2013 gpaco"]
        tab.page.mouse.move(*middle(tab, "#heat-difference", 3 * (1 + 15 * 6) + 1 + 6 * COMMON.index("fog") + 2))
        a, b = (found["corruptions"]["fog"]["3"]["few"] for found in (first, second))
        words = f"few: \u2212{percent(a - b)} points: {percent(b)}%, ce {percent(a)}%"
        assert tab.text("#tip").splitlines() == ["fog, severity 3", words]
        assert tab.page.locator("#heat-difference .worse").count() == 0
        tab.page.locator("input[name=run]").first.check()
        assert tab.page.locator("#corruption-difference").is_hidden()
        assert tab.page.locator("#heat text.value").first.text_content() == percent(first["clean_error"], 0)


@pytest.mark.process
def test_a_real_run_is_shown_after_the_command_that_the_last_line_names(browser: Browser, tmp_path: Path) -> None:
    quick = {"method": "ce", "epochs": 1, "batch_size": 64, "lr": 0.05, "say": lambda line: None}
    folder = gpaco.train("digits", out=tmp_path / "a run", long_tail=20, **quick).folder
    options = ("--subset", 40, "--corruptions", "noise,fog", "--severities", "1,5", "--workers", 0)
    last = command("robustness", folder, *options).splitlines()[-1]
    assert last == f"Add these results to the report of the run: gpaco report '{folder}' --out '{folder}/report.html'"
    gpaco.report(folder, folder / "report.html")
    found = written(folder)
    with opened(browser, folder / "report.html") as tab:
        assert tab.page.locator("#heat rect.untested").count() == 4 * 4 * 4  # 3 severities and the mean
        assert tab.page.locator("#heat-legend", has_text="not tested").count() == 1
        tab.page.mouse.move(*middle(tab, "#heat", 1))
        assert f"all images: {percent(found['corruptions']['gaussian_noise']['1']['error'])}%" in tab.text("#tip")
        assert "of the 75 conditions are missing" in tab.text("#corruption-about")
        assert "40 images, a stratified subset" in tab.text("#corruption-about")
        assert set(tab.texts("#costs tbody td:nth-last-child(-n+4)")) == {"none"}


def test_hostile_words_in_the_file_stay_text(browser: Browser, tmp_path: Path) -> None:
    labels = np.arange(80) % 4
    run = write_run(tmp_path / "run", np.eye(4)[labels], labels, [200, 50, 6, 5], classes=HOSTILE)
    evil = "<img src=x onerror=alert(1)>"
    write_robustness(run, notes=[evil], skipped=[evil], baseline=("</script><b>base</b>", growing), prior=evil)
    with opened(browser, gpaco.report(run, tmp_path / "report.html", names=[evil])) as tab:
        assert tab.text("#corruption-about").count(evil) == 3
        assert "</script><b>base</b>" in tab.text("#costs")
        assert tab.page.locator("img, #robustness b").count() == 0


def test_a_run_that_was_not_tested_is_a_line(browser: Browser, tmp_path: Path) -> None:
    first, second, third = (tail_run(tmp_path / name, seed=k) for k, name in enumerate(("ce", "paco", "gpaco")))
    write_robustness(third)
    with opened(browser, gpaco.report([first, second, third], tmp_path / "report.html")) as tab:
        assert "ce was not tested on corrupted images" in tab.text("#not-compared")
        assert tab.page.locator("#heat rect.heat").count() == 4 * (1 + 15 * 6)
        rows = tab.texts("#costs tbody tr")
        assert rows[0].split() == ["ce", "not", "tested"]
        assert rows[1].split() == ["paco", "not", "tested"]
        for number in (0, 1):
            tab.page.locator("input[name=run]").nth(number).check()
            assert "not tested on corrupted images" in tab.text("#corruption-missing")
            assert tab.page.locator("#heat svg, #heat-difference svg").count() == 0
