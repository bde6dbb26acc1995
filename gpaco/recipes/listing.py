"""The list of recipes, for the terminal."""

from typing import NamedTuple

from gpaco.errors import UserError, nearest
from gpaco.recipes.paper_rows import names
from gpaco.recipes.recipe import in_toml, load
from gpaco.recipes.settings import METHODS, MethodSettings, PaperRow, used
from gpaco.recipes.validation import FIELDS

NOT_RUN = "not run by us"

# Data sets by the start of a recipe's name, in list order.
DATA = {
    "cifar100-lt100": "CIFAR-100-LT, imbalance factor 100",
    "cifar100-lt50": "CIFAR-100-LT, imbalance factor 50",
    "cifar100-lt10": "CIFAR-100-LT, imbalance factor 10",
    "cifar100": "Full CIFAR-100",
    "imagenet-lt": "ImageNet-LT",
    "inat18": "iNaturalist 2018",
    "places-lt": "Places-LT",
    "imagenet": "Full ImageNet",
    "imagenet-vit": "Full ImageNet, ViT",
    "ade20k": "ADE20K, segmentation",
    "coco-stuff": "COCO-Stuff 10k, segmentation",
    "pascal-context": "PASCAL Context, segmentation",
    "cityscapes": "Cityscapes, segmentation",
}


class Row(NamedTuple):
    """One recipe in the list."""

    name: str
    data: str
    source: PaperRow


def rows(word: str = "") -> list[Row]:
    """Return the recipes with a word in their name, table or row, grouped by data set."""
    every = [Row(name, data_of(name), load(name).source) for name in names()]
    found = [row for row in every if word.lower() in f"{row.name} {row.source.table}, {row.source.row}".lower()]
    if not found:
        raise UserError(
            f"no recipe has {word!r} in its name, table or row{nearest(word, [*DATA, *names()])}",
            "`gpaco recipes` lists all of them",
        )
    return sorted(found, key=lambda row: list(DATA).index(row.data))


def data_of(name: str) -> str:
    """Return the data set of a recipe: the longest key of `DATA` that its name starts with."""
    return max((data for data in DATA if name.startswith(f"{data}-")), key=len)


def table(found: list[Row]) -> str:
    """Return the list as text of at most 120 columns."""
    wide = max(len(row.name) for row in found)
    lines = []
    for data, title in DATA.items():
        mine = [row for row in found if row.data == data]
        lines += [f"{title:<{wide}} paper  ours  row of the paper"] if mine else []
        for name, _, source in mine:
            lines.append(
                f"{name:<{wide}} {source.paper or '-':>5}  {source.ours or '-':<4}  {source.table}, {source.row}"
            )
        lines += [""] if mine else []
    lines.append(f"A dash under ours: {NOT_RUN}. A dash under paper: the row has no number.")
    lines.append(
        "`gpaco show NAME` prints every setting of a recipe, its command and notes. docs/recipes.md has all notes."
    )
    lines.append("--paper selects the values of the paper's text where the released code differs.")
    return "\n".join(lines)


def method(name: str) -> str:
    """Return a method as text: what it does, where it was published, and its settings with their defaults."""
    about, lines = METHODS[name], []
    defaults = MethodSettings()
    for key, field in FIELDS["method"].items():
        if key != "name" and key in used(name):
            lines.append(f"  method.{key} = {in_toml(getattr(defaults, key))}  # {field.metadata['about']}")
    paper = [about.paper] if about.paper else []
    return "\n".join([f"{name}: {about.idea}", *paper, "settings (--set KEY=VALUE):", *lines, ""])
