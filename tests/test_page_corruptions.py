"""Robustness in the tail report, in a real browser: cells, hover, keys, several runs, hostile and damaged files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import chromium, opened
from commands import run as command
from made_robustness import growing, write_robustness
from made_runs import HOSTILE, tail_run, write_run
from playwright.sync_api import Browser

import gpaco
from gpaco.corruption import COMMON, CORRUPTIONS, EXTRA
from gpaco.pages.page import percent

PANELS = ("error", "many", "medium", "few")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


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
        for name in CORRUPTIONS:
            row = found["extra" if name in EXTRA else "corruptions"][name]
            wanted += [row[column][key] for column in ("1", "2", "3", "4", "5", "mean")]
    with opened(browser, pair / "one.html") as tab:
        assert tab.page.locator("#heat text.value").all_text_contents() == [percent(value, 0) for value in wanted]
        shades = tab.page.locator("#heat rect.heat").evaluate_all(
            "nodes => nodes.map(n => +n.getAttribute('fill-opacity'))"
        )
        assert np.allclose(np.asarray(shades) * (np.ceil(10 * max(wanted)) / 10), wanted)
        words = tab.page.locator("#heat text").all_text_contents()
        for word in ("noise", "blur", "weather", "digital", "extra: not in the mean", "jpeg compression", "few"):
            assert word in words
        assert tab.page.locator("#corruption-difference").is_hidden()


def test_hovering_a_cell_shows_the_number_of_the_file(browser: Browser, pair: Path) -> None:
    found = written(pair / "gpaco")
    with opened(browser, pair / "one.html") as tab:
        for panel, name, column in ((0, "gaussian_noise", "1"), (1, "fog", "4"), (3, "saturate", "mean")):
            k, s = CORRUPTIONS.index(name), ("1", "2", "3", "4", "5", "mean").index(column)
            tab.page.mouse.move(*middle(tab, "#heat", panel * (1 + 19 * 6) + 1 + 6 * k + s))
            row = found["extra" if name in EXTRA else "corruptions"][name]
            where, error = tab.text("#tip").splitlines()
            how = "mean over severities" if column == "mean" else f"severity {column}"
            assert where == f"{name.replace('_', ' ')}, {how}"
            who = ("all images", *PANELS[1:])[panel]
            assert error.startswith(f"{who}: {percent(row[column][PANELS[panel]])} % wrong (")
        x, y = middle(tab, "#heat", 3 * (1 + 19 * 6))
        tab.page.mouse.move(x + 70, y)  # anywhere in the wide cell
        assert tab.text("#tip").splitlines() == ["clean", "few: 37.8 % wrong (32.5 to 43.4)"]


def test_the_keyboard_moves_over_cells_and_rows(browser: Browser, pair: Path) -> None:
    with opened(browser, pair / "one.html") as tab:
        tab.page.locator("#heat svg").focus()
        for key, where in (
            ("ArrowRight", "clean\nall images"),
            ("ArrowRight", "gaussian noise, severity 1\nall images"),
            ("ArrowRight", "gaussian noise, severity 2\nall images"),
            ("ArrowDown", "shot noise, severity 2\nall images"),
            ("ArrowDown", "impulse noise, severity 2\nall images"),
            ("ArrowDown", "defocus blur, severity 2\nall images"),
            ("ArrowUp", "impulse noise, severity 2\nall images"),
            ("End", "saturate, mean over severities\nfew"),
            ("ArrowDown", "saturate, mean over severities\nfew"),
            ("ArrowUp", "spatter, mean over severities\nfew"),
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
        tab.page.mouse.move(*middle(tab, "#heat-difference", 3 * (1 + 19 * 6) + 1 + 6 * COMMON.index("fog") + 2))
        a, b = (found["corruptions"]["fog"]["3"]["few"] for found in (first, second))
        words = f"few: \u2212{percent(a - b)} points: {percent(b)} %, ce {percent(a)} %"
        assert tab.text("#tip").splitlines() == ["fog, severity 3", words]
        assert tab.page.locator("#heat-difference .worse").count() == 0
        tab.page.locator("input[name=run]").first.check()
        assert tab.page.locator("#corruption-difference").is_hidden()
        assert tab.page.locator("#heat text.value").first.text_content() == percent(first["clean_error"], 0)


def test_a_real_run_is_shown_after_the_command_that_the_last_line_names(browser: Browser, tmp_path: Path) -> None:
    quick = {"method": "ce", "epochs": 1, "batch_size": 64, "lr": 0.05, "say": lambda line: None}
    folder = gpaco.train("digits", out=tmp_path / "a run", long_tail=20, **quick).folder
    options = ("--subset", 40, "--corruptions", "noise,spatter", "--severities", "1,5", "--workers", 0)
    last = command("robustness", folder, *options).splitlines()[-1]
    assert last == f"on the run's page: gpaco report '{folder}' --out '{folder}/report.html'"
    gpaco.report(folder, folder / "report.html")
    found = written(folder)
    with opened(browser, folder / "report.html") as tab:
        assert tab.page.locator("#heat rect.untried").count() == 4 * 4 * 4  # 3 severities and the mean
        assert tab.page.locator("#heat-legend", has_text="not tried").count() == 1
        tab.page.mouse.move(*middle(tab, "#heat", 1))
        assert f"all images: {percent(found['corruptions']['gaussian_noise']['1']['error'])} %" in tab.text("#tip")
        assert "of the 75 conditions are missing" in tab.text("#corruption-about")
        assert "40 images, a stratified part" in tab.text("#corruption-about")
        assert set(tab.texts("#costs tbody td:nth-last-child(-n+4)")) == {"none"}


def test_numbers_can_be_read_on_every_colour(browser: Browser, pair: Path) -> None:
    contrast = """nodes => nodes.map((node) => {
      const parts = (color) => color.match(/[\\d.]+/g).slice(0, 3).map(Number);
      const page = parts(getComputedStyle(document.body).backgroundColor);
      const rect = node.previousSibling, opacity = +rect.getAttribute("fill-opacity");
      const back = parts(getComputedStyle(rect).fill).map((value, k) => opacity * value + (1 - opacity) * page[k]);
      const light = (color) => color.map((value) => value / 255)
        .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
        .reduce((sum, value, k) => sum + value * [0.2126, 0.7152, 0.0722][k], 0) + 0.05;
      const [a, b] = [light(back), light(parts(getComputedStyle(node).fill))];
      return Math.max(a, b) / Math.min(a, b);
    })"""
    for scheme in ("light", "dark"):
        with opened(browser, pair / "two.html", color_scheme=scheme) as tab:
            assert min(tab.page.locator("#robustness text.value").evaluate_all(contrast)) >= 4.5
            if scheme == "dark":
                tab.page.emulate_media(media="print")
                assert min(tab.page.locator("#robustness text.value").evaluate_all(contrast)) >= 4.5


@pytest.mark.parametrize("width", [390, 820, 1400])
def test_panels_fit_every_width(width: int, browser: Browser, pair: Path) -> None:
    with opened(browser, pair / "two.html", viewport={"width": width, "height": 900}) as tab:
        assert tab.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
        left, right = tab.page.locator("#heat").evaluate(
            "n => [n.getBoundingClientRect().left, n.getBoundingClientRect().right]"
        )
        ends = tab.page.locator("#heat rect.heat").evaluate_all(
            "nodes => nodes.map(n => n.getBoundingClientRect()).flatMap(box => [box.left, box.right, box.width])"
        )
        assert min(ends[0::3]) > left + 100
        assert max(ends[1::3]) <= right + 1
        assert min(ends[2::3]) > 30  # room for three digits


def test_hostile_words_in_the_file_stay_text(browser: Browser, tmp_path: Path) -> None:
    labels = np.arange(80) % 4
    run = write_run(tmp_path / "run", np.eye(4)[labels], labels, [200, 50, 6, 5], classes=HOSTILE)
    evil = "<img src=x onerror=alert(1)>"
    write_robustness(run, notes=[evil], skipped=[evil], baseline=("</script><b>base</b>", growing), prior=evil)
    with opened(browser, gpaco.report(run, tmp_path / "report.html", names=[evil])) as tab:
        assert tab.text("#corruption-about").count(evil) == 3
        assert "</script><b>base</b>" in tab.text("#costs")
        assert tab.page.locator("img, #robustness b").count() == 0
    found = written(run.folder)
    found["corruptions"][evil] = found["corruptions"].pop("fog")
    (run.folder / "robustness.json").write_text(json.dumps(found))
    with opened(browser, gpaco.report(run, tmp_path / "report.html")) as tab:
        assert evil in tab.text("#corruption-problem")
        assert tab.page.locator("img").count() == 0


def test_a_damaged_file_is_a_line_and_nothing_is_drawn(browser: Browser, tmp_path: Path) -> None:
    first, second = tail_run(tmp_path / "ce", seed=1), tail_run(tmp_path / "gpaco")
    write_robustness(first)
    found = write_robustness(second)
    found["groups"]["few"]["mean_error"] -= 0.01
    (second.folder / "robustness.json").write_text(json.dumps(found))
    with opened(browser, gpaco.report([first, second], tmp_path / "report.html")) as tab:
        words = tab.text("#corruption-problem")
        assert words.startswith("robustness.json cannot be used: mean_error of few is")
        assert words.endswith("gpaco robustness RUN writes it again.")
        assert tab.page.locator("#heat svg, #heat-difference svg").count() == 0
        assert "robustness.json cannot be used" in tab.texts("#costs tbody tr")[-1]
        tab.page.locator("input[name=run]").first.check()
        assert tab.page.locator("#corruption-problem").is_hidden()
        assert tab.page.locator("#heat rect.heat").count() == 4 * (1 + 19 * 6)


def test_a_run_without_the_file_beside_one_with_it_is_not_tried(browser: Browser, tmp_path: Path) -> None:
    first, second = tail_run(tmp_path / "ce", seed=1), tail_run(tmp_path / "gpaco")
    write_robustness(second)
    with opened(browser, gpaco.report([first, second], tmp_path / "report.html")) as tab:
        assert "ce has no errors on corrupted images" in tab.text("#not-compared")
        assert tab.texts("#costs tbody tr")[0].split() == ["ce", "not", "tried"]
        tab.page.locator("input[name=run]").first.check()
        assert "not tried on corrupted images" in tab.text("#corruption-problem")
        assert tab.page.locator("#heat svg").count() == 0


def test_an_empty_group_says_none(browser: Browser, tmp_path: Path) -> None:
    labels = np.arange(60) % 3
    run = write_run(tmp_path / "run", np.eye(3)[labels], labels, [500, 300, 50])
    write_robustness(run)
    with opened(browser, gpaco.report(run, tmp_path / "report.html")) as tab:
        assert tab.page.locator("#heat rect").count() == 3 * (1 + 19 * 6)
        assert tab.page.locator("#heat text").all_text_contents()[-2:] == ["no class", "none"]
        assert tab.texts("#costs tbody tr")[-1].split() == ["few", *["none"] * 6]
        assert tab.page.locator("#heat-legend", has_text="not tried").count() == 0


def test_without_a_file_there_is_no_section(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, gpaco.report(tail_run(tmp_path / "run"), tmp_path / "report.html")) as tab:
        assert tab.page.locator("#robustness, a[href='#robustness']").count() == 0
        assert "orruption" not in tab.text("body")
