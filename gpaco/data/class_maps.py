"""Classes of published data sets: one name per line in `classes/*.txt`, ordered by label.

`imagenet` are the WordNet ids of the 1,000 classes; `imagenet-r` and `imagenet-a` are 200 of them each, 86 in common.
The lists of ImageNet-R and -A are from the evaluation scripts of their authors (hendrycks/imagenet-r,
hendrycks/natural-adv-examples); timm has the same.
"""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

NUMBERS = tuple(map(str, range(1000)))


@cache
def class_map(name: str) -> tuple[str, ...]:
    """Return the class names of imagenet, imagenet-r, imagenet-a, cifar10 or cifar100.

    >>> len(class_map("imagenet-r")), class_map("cifar10")[0]
    (200, 'airplane')
    """
    return tuple((files("gpaco.data") / "classes" / f"{name}.txt").read_text().split())


def is_imagenet(classes: Sequence[str]) -> bool:
    """Return whether these are ImageNet's 1,000 classes, by WordNet id or by number."""
    return set(classes) in (set(class_map("imagenet")), set(NUMBERS))


def translate_classes(names: Sequence[str], classes: Sequence[str]) -> tuple[str, ...]:
    """Translate names of ImageNet classes to those in `classes`, if they are its 1,000; leave other names unchanged.

    List files and the folders of ImageNet-V2 use numbers, all other sets WordNet ids.

    >>> translate_classes(["n01440764", "n15075141"], NUMBERS), translate_classes(["2", "10"], class_map("imagenet"))
    (('0', '999'), ('n01484850', 'n01530575'))
    """
    ids = class_map("imagenet")
    if not is_imagenet(classes):
        return tuple(names)
    words = dict(zip(ids, NUMBERS, strict=True) if classes[0] in NUMBERS else zip(NUMBERS, ids, strict=True))
    return tuple(words.get(name, name) for name in names)


def published_as(names: Sequence[str]) -> str | None:
    """Return the published set with exactly these class folders: imagenet-r, imagenet-a, or imagenet-v2 (numbers)."""
    known = {"imagenet-r": class_map("imagenet-r"), "imagenet-a": class_map("imagenet-a"), "imagenet-v2": NUMBERS}
    return next((name for name, classes in known.items() if set(names) == set(classes)), None)
