"""Facts and lines of `gpaco check` that both tasks share."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gpaco.recipes.recipe import as_given
from gpaco.recipes.request import overrides
from gpaco.system.words import plural

SHOWN = 10  # entries shown of a long list


def size_facts(sizes: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return the most common image sizes (width, height) and the range of the shorter side."""
    sides = [min(size) for size in sizes] or [0]
    common = Counter(sizes).most_common(SHOWN)
    return {
        "common": [{"width": width, "height": height, "images": number} for (width, height), number in common],
        "smallest": min(sides),
        "median": int(np.median(sides)),
        "largest": max(sides),
    }


def leak_problem(leaks: Sequence[object]) -> str:
    """Return what `check` reports if images are in more than one split."""
    return f"{plural(len(leaks), 'image')} in more than one split (gpaco train --set data.allow_leakage=true allows it)"


def opening(facts: Mapping[str, Any]) -> list[str]:
    """Return lines about how the data was read, and the number of images and classes."""
    images = ", ".join(f"{name} {number:,}" for name, number in facts["images"].items())
    notes = (f"  {note}" for note in facts["notes"])
    return [f"read as: {facts['reader']}", *notes, f"images: {images}; classes: {facts['classes']}"]


def size_lines(sizes: Mapping[str, Any]) -> Iterable[str]:
    """Yield a line with the most common image sizes, if an image could be read."""
    if sizes["common"]:
        common = ", ".join(f"{one['width']} x {one['height']} ({one['images']})" for one in sizes["common"][:5])
        side = f"shorter side {sizes['smallest']} to {sizes['largest']}, median {sizes['median']}"
        yield f"sizes: {common}; {side}"


def titled_list(what: str, items: Sequence[str]) -> list[str]:
    """Return a title with the number of items, and the first of them; nothing without items."""
    more = [f"  and {len(items) - SHOWN} more"] if len(items) > SHOWN else []
    return [f"{what}: {len(items)}", *(f"  {item}" for item in items[:SHOWN]), *more] if items else []


def unreadable(facts: Mapping[str, Any]) -> list[str]:
    """Return lines about files that cannot be used, with the reasons."""
    return titled_list("unreadable", [f"{one['name']} ({one['part']}): {one['what']}" for one in facts["bad"]])


def same_images(where: str, groups: Sequence[Sequence[str]]) -> list[str]:
    """Return lines about groups of equal images."""
    return titled_list(f"same image {where}", [" = ".join(group) for group in groups])


def closing(facts: Mapping[str, Any]) -> list[str]:
    """Return lines about suggested settings, then problems."""
    settings = {f"{key} = {as_given(value)}": overrides(key) for key, value in facts.get("suggested", {}).items()}
    suggested = [f"  {text:<{max(map(len, settings))}}  {flag}" for text, flag in settings.items()]
    title = ["suggested settings, each with the flag that overrides it:"] if suggested else []
    problems = [f"problem: {one}" for one in facts["problems"]] or ["no problems found"]
    return [*facts.get("start", []), *title, *suggested, *problems]
