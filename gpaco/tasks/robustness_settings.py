"""Settings of a robustness test, the same for both tasks."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from gpaco.data.corruption.distortions import frost_folder
from gpaco.data.corruption.published import Condition
from gpaco.system.progress import Bar, Say
from gpaco.training.run import Run


@dataclass(frozen=True)
class RobustnessSettings:
    """The arguments of `gpaco.robustness`, checked and parsed."""

    run: Run
    data: Path | str | None
    baseline: Path | str | None
    clean: Path | str | None
    corruptions: str | None
    severities: tuple[int, ...]
    subset: int | None
    seed: int
    constants: str | None
    preprocessing: str
    restrict: bool
    prior: str | None
    unbiased: bool
    which: str
    on_bad_image: str
    workers: int | None
    device: torch.device
    out: Path
    say: Say
    bar: Bar

    @property
    def source(self) -> str:
        """Where the images come from."""
        return str(self.data) if self.data is not None else self.run.recipe.data.path


def check_frost(conditions: Iterable[Condition]) -> None:
    """Raise an error if frost is among the conditions and its photographs are not installed."""
    if any(name == "frost" for name, _ in conditions):
        frost_folder()
