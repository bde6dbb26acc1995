"""The table of the long-tailed benchmarks, from a CSV file made by hand."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The file benchmarks/cells.py, which takes its neighbors by name."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return import_module("cells")


def row(cells: Any, method: str, seed: int, tau: str, accuracy: float, **more: str) -> dict[str, str]:
    figures = dict.fromkeys(cells.FIGURES, "0.5") | {"all": f"{accuracy:.4f}", "few": ""}
    cell = {"part": "head", "factor": "100", "method": method, "settings": "optimizer.lr=0.1", "seed": str(seed)}
    return cell | {"tau": tau, **figures, "seconds": "10"} | more


def table(text: str) -> dict[tuple[str, str, str], list[str]]:
    """Columns of each row, by factor, method and tau."""
    rows = [[word.strip() for word in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| head")]
    return {(one[1], one[2], one[3]): one[4:] for one in rows}


def test_rows_with_a_tuned_tau_are_compared_with_those_of_the_baseline_with_its_own(cells: Any, tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.csv"
    for seed, more in ((0, 0.0), (1, 0.1)):
        for method, tau, accuracy in (
            ("balanced-softmax", "0", 0.50),
            ("balanced-softmax", "0.3", 0.56),
            ("gpaco", "0", 0.51),
            ("gpaco", "-0.2", 0.55),
        ):
            cells.append(path, row(cells, method, seed, tau, accuracy + more))
            cells.append(path, row(cells, method, seed, tau, 0.9))  # a cell that is there is not added again
            if (method, tau) != ("balanced-softmax", "0.3"):  # here the tuned tau of the baseline is 0
                cells.append(path, row(cells, method, seed, tau, accuracy + more, factor="10"))
    assert len(cells.read(path)) == 2 * (4 + 3)

    found = table(cells.summary(path, "balanced-softmax"))
    difference = {key: columns[-1] for key, columns in found.items()}
    assert difference == {
        ("100", "balanced-softmax", ""): "",
        ("100", "balanced-softmax", "0.3"): "",
        ("100", "gpaco", ""): "+1.0 ± 0.0",
        ("100", "gpaco", "-0.2"): "-1.0 ± 0.0",
        ("10", "balanced-softmax", ""): "",
        ("10", "gpaco", ""): "+1.0 ± 0.0",
        ("10", "gpaco", "-0.2"): "+5.0 ± 0.0",
    }
    assert found["100", "gpaco", ""][1] == "56.0 ± 63.5"  # two seeds: 12.7 times their standard error
    assert found["100", "gpaco", ""][4] == "none"
    assert found["100", "gpaco", ""][0] == "2"
