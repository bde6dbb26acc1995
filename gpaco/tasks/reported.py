"""The split that the final metrics are computed on. It never selects the epoch or tunes the prior."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from gpaco.errors import UserError
from gpaco.recipes.settings import Data, Recipe

Split = TypeVar("Split", covariant=True)


class _Splits(Protocol[Split]):
    @property
    def val(self) -> Split | None: ...
    @property
    def test(self) -> Split | None: ...
    def parts(self) -> Sequence[tuple[str, Split]]: ...


def reported(recipe: Recipe, splits: _Splits[Split]) -> tuple[str, Split | None]:
    """Return the name and the data of the split to report on."""
    return ("val", splits.val) if recipe.data.evaluate_on == "val" else ("test", splits.test)


def check_reported(splits: _Splits[object], settings: Data) -> None:
    """Raise an error if the split that is asked for by name does not exist."""
    names, wanted = [name for name, _ in splits.parts()], settings.evaluate_on
    if wanted != "auto" and wanted not in names:
        other = "test" if wanted == "val" else "val"
        hold_out = ", or hold out some images: --validation 0.1" if wanted == "val" else ""
        raise UserError(
            f"there is no {wanted} split to report on, only {' and '.join(names)}",
            f"add it to the data, or report on another split: --set data.evaluate_on={other}{hold_out}",
        )
