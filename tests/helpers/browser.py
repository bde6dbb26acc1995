"""A real browser: headless Chromium, and a tab that records requests, errors and warnings."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SWITCHES = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser; a test fails without one."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.fail("no Chromium or Chrome found: apt-get install chromium (make setup does it where it may)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=SWITCHES.split())
        yield browser
        browser.close()


@dataclass
class Tab:
    """An open page; `trouble` lists its errors, warnings, dialogs and requests other than for itself."""

    page: Page
    trouble: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def shows(self, selector: str, text: str) -> None:
        """Wait until the text appears."""
        self.page.locator(selector, has_text=text).wait_for(timeout=5000)

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()


@contextmanager
def opened(browser: Browser, place: Path | str, **options: Any) -> Iterator[Tab]:
    """Open a file, or the page of a server, in its own context and wait until it is drawn.

    Fail at the end if there was trouble. A page may send requests only to its own server.
    """
    context = browser.new_context(**({"viewport": {"width": 1200, "height": 900}} | options))
    tab = Tab(context.new_page())
    address = place.absolute().as_uri() if isinstance(place, Path) else f"{place}/"

    def asked(request: Any) -> None:
        own = request.url == address if isinstance(place, Path) else request.url.startswith(address)
        if not own and not request.url.startswith(("data:", "blob:")):
            tab.trouble.append(f"request: {request.url}")

    tab.page.on("request", asked)
    tab.page.on("console", lambda message: tab.trouble.append(f"console: {message.text}"))
    tab.page.on("pageerror", lambda error: tab.trouble.append(f"error: {error}"))
    tab.page.on("dialog", lambda dialog: (tab.trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    tab.page.goto(address)
    tab.page.wait_for_selector("body[data-ready]", state="attached")
    yield tab
    context.close()
    assert tab.trouble == []
