"""Draw the images of docs/explained.md from our own losses and real digits: python docs/figures.py (some minutes).

The runs that the image of gradient norms needs are trained into the folder given with --out, and kept there.
"""

import argparse
from copy import deepcopy
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import gpaco
from gpaco import analysis

matplotlib.use("Agg")
IMAGES = Path(__file__).parent / "images"
COUNTS = (150, 25, 4)  # training images of the digits 0 to 2
COLORS = plt.get_cmap("tab10").colors
STEPS = (0, 40, 150, 1000)


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return long-tailed training digits with their labels, and the rest of the same classes."""
    pixels, labels = load_digits(return_X_y=True)
    rows = [np.flatnonzero(labels == digit) for digit in range(len(COUNTS))]
    train = np.concatenate([row[:count] for row, count in zip(rows, COUNTS, strict=True)])
    test = np.concatenate([row[COUNTS[0] :] for row in rows])
    images = torch.tensor(pixels / 16, dtype=torch.float32)
    return images[train], torch.tensor(labels[train]), images[test], torch.tensor(labels[test])


class Plane(nn.Module):
    """A network with features in the plane, so that embeddings lie on a circle and centers are directions."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2))
        self.centers = nn.Linear(2, len(COUNTS))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(images)
        return self.centers(features), F.normalize(features, dim=1)


def frames(method: str) -> list[tuple[Tensor, Tensor, float]]:
    """Return embeddings of test digits, centers and the accuracy of the rarest class at STEPS."""
    torch.manual_seed(1)
    images, labels, others, truth = digits()
    model = Plane()
    slow = deepcopy(model)  # PaCo's momentum copy
    prior = torch.tensor(COUNTS).float().log() - torch.tensor(float(sum(COUNTS))).log()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    kept = []
    for step in range(STEPS[-1] + 1):
        if step in STEPS:
            with torch.no_grad():
                logits, embeddings = model(others)
            rare = truth == len(COUNTS) - 1
            right = (logits.argmax(1) == truth)[rare].float().mean().item()
            kept.append((embeddings, F.normalize(model.centers.weight.detach(), dim=1), right))
        chosen = torch.randint(len(images), (64,))
        first, second = (images[chosen] + 0.1 * torch.randn(64, 64) for _ in range(2))
        logits, embeddings = model(first if method == "PaCo" else torch.cat([first, second]))
        both = labels[chosen] if method == "PaCo" else labels[chosen].repeat(2)
        with torch.no_grad():
            keys = (slow(second)[1], labels[chosen]) if method == "PaCo" else ()
        if method == "SupCon":
            loss = gpaco.supcon_loss(embeddings, both, temperature=0.2)
        elif method == "cross entropy":
            loss = F.cross_entropy(logits, both)
        else:
            loss = gpaco.gpaco_loss(logits, embeddings, both, *keys, temperature=0.2, alpha=0.05, log_prior=prior)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(slow.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.1)
    return kept


def draw_circle() -> None:
    methods = ("cross entropy", "SupCon", "PaCo", "GPaCo")
    fig, axes = plt.subplots(len(methods), len(STEPS), figsize=(10, 10.4))
    _, _, _, truth = digits()
    for row, method in zip(axes, methods, strict=True):
        for axis, step, (points, centers, right) in zip(row, STEPS, frames(method), strict=True):
            for digit, count in enumerate(COUNTS):
                mine = points[truth == digit]
                label = f"digit {digit}, {count} training images"
                axis.scatter(*mine.T, s=10, color=COLORS[digit], alpha=0.5, label=label if step == 0 else None)
                if method != "SupCon":
                    axis.plot(
                        *(1.18 * centers[digit]), marker="*", ms=13, color=COLORS[digit], mec="black", clip_on=False
                    )
            title = f"{method}, step {step}"
            axis.set_title(title if method == "SupCon" else f"{title}\nrarest class right: {right:.0%}", fontsize=9)
            axis.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal", xticks=[], yticks=[])
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="lower center", ncols=3, fontsize=9, frameon=False)
    fig.tight_layout(rect=(0, 0.045, 1, 1))
    save(fig, "explained-circle")


def draw_gradients(out: Path) -> None:
    """Draw Fig. 2 of the paper: the mean gradient norm of each class at its center."""
    fig, axis = plt.subplots(figsize=(6.4, 4))
    shapes = {"ce": "o", "balanced-softmax": "s", "supcon": "v", "paco": "^", "gpaco": "D"}
    for method, shape in shapes.items():
        run = gpaco.train("digits", out=out / method, long_tail=50, method=method, epochs=30, say=lambda _: None)
        norms = analysis.class_gradient_norms(run)
        counts = [row["train"] for row in run.metrics["per_class"]]
        axis.plot(counts, norms.centers, shape, label=f"{method}: slope {norms.slope:+.2f}", alpha=0.8)
        print(method, dict(zip(counts, norms.centers.round(3).tolist(), strict=True)))
    axis.set(
        xscale="log", yscale="log", xlabel="training images of the class", ylabel="mean gradient norm at its center"
    )
    axis.legend(fontsize=9, frameon=False)
    save(fig, "explained-gradients")


def draw_prior() -> None:
    counts = np.geomspace(500, 5, 100)
    fig, axis = plt.subplots(figsize=(6.4, 3.6))
    for alpha in (0.01, 0.05, 0.2):
        for memory, style in ((1024, "-"), (8192, "--")):
            share = analysis.optimal_probabilities(counts, alpha=alpha, memory=memory).center
            axis.plot(counts, np.log(share), style, label=f"alpha {alpha}, memory {memory:,}", lw=1.5)
    axis.set(xscale="log", xlabel="training images of the class", ylabel="bias of the logit, log w")
    axis.legend(fontsize=8, frameon=False)
    save(fig, "explained-prior")


def draw_extra_loss() -> None:
    fig, axis = plt.subplots(figsize=(6.4, 3.4))
    for name, classes, memory in (("ImageNet, as in the paper", 1000, 8192), ("CIFAR-100", 100, 1024)):
        curve = analysis.extra_loss_curve(classes, alpha=0.05, memory=memory)
        label = f"{name}: {classes:,} classes, memory {memory:,}, least at {curve.best:.2f}"
        (line,) = axis.plot(curve.p_sup, curve.loss, label=label)
        axis.axvline(curve.best, ymax=0.75, ls=":", color=line.get_color())
    axis.set(xlabel="probability mass on all centers", ylabel="extra loss")
    axis.legend(fontsize=9, frameon=False, loc="upper right")
    save(fig, "explained-extra-loss")


def draw_start() -> None:
    """Draw the share of the softmax that the centers have in the first steps."""
    fig, axis = plt.subplots(figsize=(6.4, 3.4))
    images, labels, _, _ = digits()
    for balanced in (False, True):
        torch.manual_seed(0)
        model = gpaco.Classifier(nn.Sequential(nn.Linear(64, 128), nn.ReLU()), 128, len(COUNTS), dim=32)
        criterion = gpaco.GPaCoLoss(
            len(COUNTS), temperature=0.07, memory=256, dim=32, class_counts=torch.tensor(COUNTS)
        )
        optimizer = torch.optim.SGD([*model.parameters()], lr=0.05, momentum=0.9)
        shares = []
        for step in range(150):
            chosen = torch.randint(len(images), (64,))
            views = [images[chosen] + 0.1 * torch.randn(64, 64) for _ in range(2)]
            logits, embeddings = model(*views)
            both = labels[chosen].repeat(2)
            if balanced and step == 0:
                criterion.balance(model.centers, logits, embeddings, both)
                logits, embeddings = model(*views)
            shares.append(center_share(logits, embeddings, criterion))
            loss = criterion(logits, embeddings, both)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        axis.plot(shares, label="balanced start" if balanced else "as published")
    axis.set(xlabel="step", ylabel="share of the softmax on centers", yscale="log")
    axis.legend(fontsize=9, frameon=False)
    save(fig, "explained-start")


@torch.no_grad()
def center_share(logits: Tensor, embeddings: Tensor, criterion: gpaco.GPaCoLoss) -> float:
    past, _ = criterion.memory.read()
    similar = embeddings @ torch.cat([embeddings, past]).T / criterion.temperature
    similar[:, : len(embeddings)].fill_diagonal_(-torch.inf)
    mass = logits.logsumexp(1) - torch.logaddexp(logits.logsumexp(1), similar.logsumexp(1))
    return float(mass.exp().mean())


def save(fig: plt.Figure, name: str) -> None:
    fig.tight_layout() if name != "explained-circle" else None
    fig.savefig(IMAGES / f"{name}.png", dpi=110)
    plt.close(fig)
    print(IMAGES / f"{name}.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("figure-runs"), help="folder of the runs")
    arguments = parser.parse_args()
    draw_circle()
    draw_prior()
    draw_extra_loss()
    draw_start()
    draw_gradients(arguments.out)
