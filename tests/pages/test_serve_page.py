"""The page of the server, in a real browser."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.browser import Tab, opened
from helpers.made_runs import HOSTILE
from helpers.serving import png, serving_here
from playwright.sync_api import Browser, FileChooser, Page, TimeoutError

from gpaco.metrics.classification import reversed_prior
from gpaco.metrics.groups import groups
from gpaco.tasks.classification.logits import log_prior, softmax
from gpaco.tasks.classification.rows import ImageClassifier
from gpaco.tasks.segmentation.masks import ImageSegmenter

pytestmark = [pytest.mark.browser, pytest.mark.extensive]
COUNTS = (500, 60, 5, 1)


def brightness(images: Any) -> Any:
    """Logits that only depend on how bright an image is."""
    bright = np.array([image[0].mean() / 255 for image in images], np.float32)
    return bright[:, None] * np.array([3, 2, 1, 0], np.float32) + np.array([0, 0.5, 1, 1.5], np.float32)


def classifier(**changes: Any) -> ImageClassifier:
    found = tuple(groups(COUNTS).tolist())
    facts = {"name": HOSTILE[0], "classes": HOSTILE, "counts": COUNTS, "groups": found, "assumed": log_prior(COUNTS)}
    return ImageClassifier(**facts | {"least": 8, "see": lambda image: [image], "logits": brightness} | changes)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("dropped")
    for name, value in (("dark", 20), ("bright", 250)):
        (folder / f"{name}.png").write_bytes(png(np.full((30, 40, 3), value)))
    return [folder / "dark.png", folder / "bright.png"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving_here(classifier()) as found:
        yield found


def shares(tab: Tab, card: int) -> dict[str, str]:
    """The classes that a card shows, with their probabilities as text."""
    rows = tab.page.locator("#cards > li").nth(card).locator(".top li")
    rows.first.wait_for()
    return {row.locator(".name").inner_text(): row.locator(".share").inner_text() for row in rows.all()}


def expected(value: int, log_prior_wanted: Any) -> dict[str, str]:
    logits = brightness([[np.full((1, 1, 3), value)]]) - log_prior(COUNTS) + log_prior_wanted
    found = softmax(logits)[0]
    texts = ["< 0.1%" if share < 0.0005 else f"{100 * share:.1f}%" for share in found]
    return {HOSTILE[c]: texts[c] for c in np.argsort(-found)}


def opened_by_key(page: Page) -> FileChooser:
    """Press Space on the focused input. On a busy machine, a browser without a window may lose the first key."""
    for _ in range(3):
        with suppress(TimeoutError):
            with page.expect_file_chooser(timeout=10_000) as chooser:
                page.keyboard.press("Space")
            return chooser.value
    raise AssertionError("Space opens no dialog")


def test_files_are_answered_and_the_slider_moves_to_every_prior_by_keyboard(
    browser: Browser, address: str, images: list[Path]
) -> None:
    with opened(browser, address) as tab:
        page = tab.page
        assert tab.text("h1") == HOSTILE[0]
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "files"
        opened_by_key(page).set_files(images)
        tab.shows("#count", "2 images")
        train, uniform, reverse = log_prior(COUNTS), np.zeros(4), np.log(reversed_prior(np.array(COUNTS)))
        assert page.locator("[aria-pressed=true]").all_inner_texts() == ["Training"]
        assert [shares(tab, k) for k in (0, 1)] == [expected(value, train) for value in (20, 250)]
        assert "few · 1 training image" in " ".join(tab.texts(".rare"))
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "position"
        for key, prior in (("End", reverse), ("Home", train)):
            page.keyboard.press(key)
            assert shares(tab, 0) == expected(20, prior)
        for _ in range(30):
            page.keyboard.press("ArrowRight")
        assert shares(tab, 1) == expected(250, 0.7 * train)
        assert "70% of the way" in tab.text("#prior-text")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Space")
        assert tab.text("#prior-text") == "All classes are equally frequent."
        assert shares(tab, 0) == expected(20, uniform)
        page.locator("#clear").focus()
        page.keyboard.press("Enter")
        assert page.locator("#results").is_hidden()


def test_dropped_files_are_answered_and_a_broken_one_says_why(browser: Browser, address: str) -> None:
    with opened(browser, address) as tab:
        transfer = tab.page.evaluate_handle(
            """() => {
            const transfer = new DataTransfer();
            transfer.items.add(new File(["no image"], "<b>broken</b>.png", { type: "image/png" }));
            return transfer;
        }"""
        )
        tab.page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})
        tab.shows(".wrong", "not a JPEG, PNG")
        assert tab.texts("#cards h3") == ["<b>broken</b>.png"]
        assert all("422" in line for line in tab.trouble), tab.trouble  # the browser reports the answer itself
        tab.trouble.clear()


def test_light_and_dark_have_readable_text_and_narrow_screens_do_not_scroll_sideways(
    browser: Browser, address: str, images: list[Path]
) -> None:
    seen = set()
    for scheme in ("light", "dark"):
        with opened(browser, address, color_scheme=scheme, viewport={"width": 360, "height": 700}) as tab:
            tab.page.set_input_files("#files", images)
            tab.shows("#count", "2 images")
            wide = tab.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= 360
            colors = "getComputedStyle(document.body)"
            back, text = (tab.page.evaluate(f"{colors}.{name}") for name in ("backgroundColor", "color"))
            seen.add(back)
            light, dark = sorted((luminance(back), luminance(text)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) > 7
    assert len(seen) == 2


def luminance(color: str) -> float:
    values = [int(word) / 255 for word in color[color.index("(") + 1 : -1].split(",")[:3]]
    linear = [value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_model_that_does_not_know_its_training_images_has_no_slider(browser: Browser, images: list[Path]) -> None:
    with (
        serving_here(classifier(counts=None, groups=None, assumed=None)) as place,
        opened(browser, place) as tab,
    ):
        assert tab.page.locator("#position").count() == 0
        tab.page.set_input_files("#files", images)
        tab.page.locator(".top li").nth(7).wait_for()
        tab.shows("#count", "2 images")
        assert tab.page.locator(".top li").count() == 8
        assert tab.page.locator(".rare").count() == 0


def test_a_segmenter_lays_its_mask_over_the_image(browser: Browser, images: list[Path]) -> None:
    def halves(image: Any) -> Any:
        classes = np.zeros(image.shape[:2], np.uint8)
        classes[:, 10:] = 1
        return classes, np.full(classes.shape, 0.75, np.float32)

    model = ImageSegmenter(
        "scenes", ("sky", "road"), ((10, 20, 200), (90, 90, 90)), (9000, 100), ("many", "few"), halves
    )
    with serving_here(model) as place, opened(browser, place) as tab:
        tab.page.set_input_files("#files", images[:1])
        tab.shows("#count", "1 image")
        assert shares(tab, 0) == {"road": "75.0%", "sky": "25.0%"}
        assert tab.page.evaluate("document.querySelector('.view img').naturalWidth") == 40
        tab.page.locator("#strength").focus()
        tab.page.keyboard.press("Home")
        assert tab.page.evaluate("document.querySelector('.view img').style.opacity") == "0"
