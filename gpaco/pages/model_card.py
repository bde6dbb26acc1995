"""The model card: README.md and a chart of the training data, written from a run."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from gpaco.metrics.groups import GROUPS, imbalance_factor
from gpaco.pages.classification.evidence import gather
from gpaco.pages.classification.summary import summary
from gpaco.pages.render import Facts, rendered
from gpaco.pages.runs import read_robustness
from gpaco.training.run import Run

CHART = "classes.png"
COLORS = {"many": (139, 150, 165), "medium": (95, 107, 123), "few": (176, 74, 0)}
WIDTH, HEIGHT, FINE = 1200, 420, 2  # pixels of the chart, and the factor by which it is drawn larger, for antialiasing


def write_model_card(run: Run, name: str, folder: Path) -> None:
    """Write README.md and the chart to a folder."""
    recipe, metrics = run.recipe, run.metrics
    classifies = recipe.train.task == "classification"
    classes = [row["name"] for row in metrics["per_class"]]
    counts = np.asarray(metrics["counts"], np.int64)
    group = [row["group"] for row in metrics["per_class"]]
    unit = "training images" if classifies else "training pixels"
    class_chart(counts.tolist(), group, unit).save(folder / CHART, optimize=True)
    facts: Facts = {
        "name": name,
        "task": recipe.train.task,
        "metrics": metrics,
        "recipe": recipe,
        "classes": classes,
        "unit": unit,
        "chart": CHART,
        "least": int(counts.min()),
        "most": int(counts.max()),
        "total": int(counts.sum()),
        "imbalance": imbalance_factor(counts),
        "groups": GROUPS,
        "robustness": read_robustness(run.folder),
    }
    if classifies:
        (one,) = gather([run])
        facts |= summary(one)
    (folder / "README.md").write_text(rendered("model_card.md", facts).rstrip() + "\n", encoding="utf-8")


def class_chart(counts: Sequence[int], groups: Sequence[str], unit: str) -> Image.Image:
    """Return a bar chart of the classes, the most frequent first, on a log scale."""
    order = sorted(range(len(counts)), key=lambda c: -counts[c])
    scale = FINE
    image = Image.new("RGB", (WIDTH * scale, HEIGHT * scale), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(17 * scale)
    left, right, top, bottom = 96 * scale, (WIDTH - 24) * scale, 52 * scale, (HEIGHT - 46) * scale
    high = max(1, int(np.ceil(np.log10(max(*counts, 2)))))

    def down(value: float) -> float:
        return float(bottom - (bottom - top) * (np.log10(max(value, 1)) + 0.06) / (high + 0.06))

    for power in range(high + 1):
        y = down(10.0**power)
        draw.line([(left, y), (right, y)], fill=(213, 218, 225), width=scale)
        draw.text((left - 10 * scale, y), f"{10**power:,}", fill=(90, 100, 114), font=font, anchor="rm")
    step = (right - left) / len(order)
    gap = step * 0.16 if step > 4 * scale else 0
    for place, c in enumerate(order):
        if counts[c] > 0:
            x = left + place * step
            draw.rectangle([x + gap, down(counts[c]), x + step - gap, bottom], fill=COLORS[groups[c]])
    draw.line([(left, bottom), (right, bottom)], fill=(90, 100, 114), width=scale)
    draw.text((left, 16 * scale), f"{unit} per class", fill=(26, 29, 33), font=font)
    draw.text(
        (right, bottom + 14 * scale), f"{len(order):,} classes, the most frequent first", (90, 100, 114), font, "ra"
    )
    x = float(right)
    for name in reversed(GROUPS):
        x -= draw.textlength(name, font=font)
        draw.text((x, 16 * scale), name, fill=(26, 29, 33), font=font)
        draw.rectangle([x - 22 * scale, 19 * scale, x - 8 * scale, 33 * scale], fill=COLORS[name])
        x -= 46 * scale
    return image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)
