"""The cheap share of every promise; `make torture` has the rest."""

from pathlib import Path

import pytest

from faults.promises import PROMISES
from faults.torture import MARKS, REPORT, table


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what attempts share: data, and runs that nothing disturbed."""
    return tmp_path_factory.mktemp("faults")


CHEAP = [(name, number) for name, promise in PROMISES.items() for number in range(promise.attempts)]
MORE = [(name, number) for name, promise in PROMISES.items() for number in promise.more]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number"), [*CHEAP, *(pytest.param(*one, marks=pytest.mark.extensive) for one in MORE)]
)
def test_a_promise_is_kept(name: str, number: int, home: Path) -> None:
    PROMISES[name].attempt(number, home)


def test_the_table_of_the_docs_has_every_promise_and_no_failure_goes_uncounted() -> None:
    row = {"promise": "kills", "tries": 2, "date": "2026-01-02", "versions": "gpaco 1"}
    rows = [row | {"failure": failure} for failure in ("", "differs", "")]
    lines = table(rows).splitlines()
    assert f"| {PROMISES['kills'].text} | 6 | 1 | 2026-01-02 | gpaco 1 |" in lines
    assert len(lines) == 2 + len(PROMISES)
    text = REPORT.read_text()
    assert all(text.count(mark) == 1 for mark in MARKS)
    assert all(promise.text in text for promise in PROMISES.values())
