"""One browser for all tests of the pages."""

from collections.abc import Iterator

import pytest
from helpers.browser import chromium
from playwright.sync_api import Browser


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started
