"""The recipes of the package as a list: for the terminal, and as docs/recipes.md."""

from typing import NamedTuple

from gpaco.errors import UserError, nearest
from gpaco.recipe import load, names
from gpaco.settings import Source

NOT_RUN = "not run by us"

# Data by the beginning of a recipe's name, in the order of the list.
DATA = {
    "cifar100-lt100": "CIFAR-100-LT, imbalance factor 100",
    "cifar100-lt50": "CIFAR-100-LT, imbalance factor 50",
    "cifar100-lt10": "CIFAR-100-LT, imbalance factor 10",
    "cifar100": "Full CIFAR-100",
    "imagenet-lt": "ImageNet-LT",
    "inat18": "iNaturalist 2018",
    "places-lt": "Places-LT",
    "imagenet": "Full ImageNet",
    "ade20k": "ADE20K, segmentation",
    "coco-stuff": "COCO-Stuff 10k, segmentation",
    "pascal-context": "PASCAL Context, segmentation",
    "cityscapes": "Cityscapes, segmentation",
}


class Row(NamedTuple):
    """One recipe in the list."""

    name: str
    data: str
    source: Source


def rows(word: str = "") -> list[Row]:
    """The recipes that have the word in their name, table or row, those of one data set after another."""
    every = [Row(name, data_of(name), load(name).source) for name in names()]
    found = [row for row in every if word.lower() in f"{row.name} {row.source.table}, {row.source.row}".lower()]
    if not found:
        raise UserError(
            f"no recipe has {word!r} in its name, table or row{nearest(word, [*DATA, *names()])}",
            "`gpaco recipes` without a word lists them all",
        )
    return sorted(found, key=lambda row: list(DATA).index(row.data))


def data_of(name: str) -> str:
    """The data that a recipe's name begins with: the longest of `DATA` that fits."""
    return max((data for data in DATA if name.startswith(f"{data}-")), key=len)


def table(found: list[Row]) -> str:
    """Lines of at most 120 columns."""
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
    lines.append(f"- under ours: {NOT_RUN}; under paper: the row has no number.")
    lines.append("gpaco show NAME prints one with every setting, its command and notes; docs/recipes.md has all notes.")
    return "\n".join(lines)


def markdown() -> str:
    """The text of docs/recipes.md."""
    every = rows()
    lines = [_ABOUT.format(count=len(every))]
    for data, title in DATA.items():
        mine = [row for row in every if row.data == data]
        first = next((row for row in mine if row.name.endswith("-gpaco")), mine[0])
        lines += [f"## {title}", "", f"    {first.source.command}", ""]
        lines += ["| recipe | paper | ours | row of the paper | hardware; assumed; notes |", "|---|---|---|---|---|"]
        for name, _, source in mine:
            hardware = [] if source.hardware == "not given" else [f"{source.hardware}."]
            assumed = [f"Assumed: {', '.join(source.assumed)}."] if source.assumed else []
            notes = " ".join([*hardware, *assumed, source.note]).strip()
            cells = (f"`{name}`", source.paper or "-", source.ours or NOT_RUN, f"{source.table}, {source.row}", notes)
            lines.append(f"| {' | '.join(cells)} |".replace("*", "\\*"))
        lines.append("")
    return "\n".join([*lines, _WITHOUT])


_ABOUT = """# Recipes

This page is made by `make docs` from the files in `gpaco/recipes`; do not edit it.

A recipe is one row of a table of the paper ("Generalized Parametric Contrastive Learning", Cui et al., TPAMI; its
tables are numbered as they come in the text). There are {count}. "Paper" is the row's number: top-1 accuracy in
percent, of segmentation mIoU at a single scale; "ours" is what we got. Nearly all need days on several GPUs, and we
have not run them. What is tested is that each network is built at its real size, that a step of each recipe works
(docs/decisions.md says which parts of it are real), and that its learning rates, views, losses and parameters are those
that the sources give (`tests/test_recipes.py`, for segmentation `tests/test_segmentation_recipes.py`).

    gpaco recipes [WORD]        the list, or those with a word in their name, table or row
    gpaco show NAME             every setting of one, its command, the authors' hardware, and what is uncertain
    gpaco train DATA --recipe NAME --out RUN [--set section.key=value ...]

- Values are those of the released code. Where the paper's text says otherwise, a second recipe ends in `-paper` (for
  PaCo on Places-LT in `-test`). All rows of the paper with GPaCo or multi-task\\* have one: the text's MLP has two
  layers, the released one three. Two things that the text says have no setting: GPaCo's anchors from the first view
  only, and RandAugStack's blur after RandAugment. Here as released: both views are anchors, and grey and blur come
  before RandAugment.
- "Assumed" are settings that neither gives. Rows that the paper took over from other papers have the settings of their
  authors' code, as far as this package has them; they count as assumed.
- Multi-task rows "+ rw" (Table 12) have no class weights, since the released ones come out as 1; `-paper` has them. The
  row "CE + Re-weighting" (Table 11) has them as it is: there is no released script of it, and without them it would be
  another row.
- What has a memory starts as released (`method.start = "released"`: random rows, centres as initialised), except SupCon
  on CIFAR-100, which has none. All training images are used, and the last epoch counts (`train.select = "last"`; the
  released code reports the best epoch on the test list).
- The released code runs on several GPUs, whose batch norm is not synchronised. `model.ghost_batch` keeps those groups
  on any number of devices. Contrast is among the images of one process, so it is the same only with as many processes
  as the authors had.
- ResNets start as torchvision's. Weights to start from (Places-LT, ViT) are files that you bring; nothing is loaded
  from elsewhere.
- The number of training images, and of many, medium and few classes, is compared with the data before training.
- To change something, say it on the command line, or write a file that begins with `base = "NAME"` and holds only what
  differs.
"""

_WITHOUT = """## Rows without a recipe

- Ensembles (Table 15): train two, then `gpaco evaluate RUN RUN`, which adds their logits. Paper: two ResNeXt-50 61.3
  (many, medium, few: 69.9, 59.5, 43.4), ResNeXt-50 and ResNeXt-101 62.4 (70.1, 61.2, 45.0), two ResNeXt-101 63.2
  (70.9, 62.0, 45.2). The README has 79.8 for two ResNet-152 on iNaturalist.
- Methods of other papers that are not in this package: Decouple, De-confound-TDE, ResLT, MiSLAS, RIDE, OLTR, LDAM-DRW,
  BBN, Causal Norm.
- ImageNet-C, -R and -Sketch (Tables 4 and 14) are evaluations of the same models: `gpaco robustness`.
"""
