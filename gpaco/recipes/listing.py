"""The list of recipes, for the terminal and for docs/recipes.md."""

import re
from typing import NamedTuple

from gpaco.errors import UserError, nearest
from gpaco.recipes.paper_rows import differs, names
from gpaco.recipes.recipe import diff, in_toml, load
from gpaco.recipes.settings import METHODS, MethodSettings, PaperRow, used
from gpaco.recipes.validation import FIELDS

NOT_RUN = "not run by us"

# Data sets by the first words of a recipe's name, in the order of the list.
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
    """Return the data set of a recipe: the longest key of `DATA` that its name begins with."""
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


def markdown() -> str:
    """Return the tables of docs/recipes.md, which follow the text of docs/recipes.head.md."""
    every, lines = rows(), []
    for data, title in DATA.items():
        mine = [row for row in every if row.data == data]
        first = next((row for row in mine if row.name.endswith("-gpaco")), mine[0])
        lines += ["", f"## {title}", "", f"    {first.source.command}", "", f"Hardware: {first.source.hardware}.", ""]
        lines += ["| recipe | paper | ours | row of the paper | `--paper`; assumed; notes |", "|---|---|---|---|---|"]
        for name, _, source in mine:
            assumed = [f"Assumed: {', '.join(source.assumed)}."] if source.assumed else []
            notes = " ".join([*by_the_text(name), *assumed, source.note]).strip()
            cells = (f"`{name}`", source.paper or "-", source.ours or NOT_RUN, f"{source.table}, {source.row}", notes)
            lines.append(f"| {' | '.join(cells)} |".replace("*", "\\*"))
    return "\n".join([*lines, ""])


def coverage() -> str:
    """Return the table of docs/paper_to_code.md that says which recipes belong to which table and figure."""
    found: dict[str, list[str]] = {}
    for name, _, source in rows():
        noted = re.findall(r"(?:Also in|\() ?Tables? (\d+)(?: and (\d+))?", source.note)
        also = [f"Table {number}" for pair in noted for number in pair if number]
        for table in (source.table, *also):
            found.setdefault(table, []).append(name)
    places = sorted(found, key=lambda place: (place.split()[0], int("".join(filter(str.isdigit, place)) or 0)))
    lines = [f"| {place} | {', '.join(f'`{name}`' for name in sorted(found[place]))} |" for place in places]
    return "\n".join(["| in the paper | recipes |", "|---|---|", *lines])


def by_the_text(name: str) -> list[str]:
    """Return a sentence with what --paper changes, if anything."""
    if not differs(name):
        return []
    changed = diff(load(name), load(name, paper=True))
    values = [f"{key} = {in_toml(text)}" for key, (_, text) in changed.items() if not key.startswith("source.")]
    return [f"Text: {', '.join(values)}."]


def method(name: str) -> str:
    """Return a method as text: what it does, where it was published, and its settings with their defaults."""
    about, lines = METHODS[name], []
    defaults = MethodSettings()
    for key, field in FIELDS["method"].items():
        if key != "name" and key in used(name):
            lines.append(f"  method.{key} = {in_toml(getattr(defaults, key))}  # {field.metadata['about']}")
    paper = [about.paper] if about.paper else []
    return "\n".join([f"{name}: {about.idea}", *paper, "settings (--set KEY=VALUE):", *lines, ""])


def methods_markdown() -> str:
    """Return the table of methods of docs/methods.md."""
    lines = ["| method | reference | idea | settings |", "|---|---|---|---|"]
    for name, about in METHODS.items():
        settings = ", ".join(f"`{key}`" for key in about.uses)
        lines.append(f"| `{name}` | {about.paper or '-'} | {about.idea} | {settings or '-'} |")
    return "\n".join(lines)
