"""Probes a trained model: the gradients and probabilities of single images in the loss of the training run.

A training step is reconstructed with the method of the run: its views, its memory and a batch. Gradients are those of
its loss, so a new method needs no code here. The masses are probabilities in the softmax of GPaCo and PaCo over class
centers and samples, computed as a whole matrix, since a step has few anchors. This runs in one process.

Shapes: A anchors (each view of an image; PaCo: the first view), C classes, D the length of an embedding, M references.
"""

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.data.batches import class_shares, epoch_order, shown_counts, views_of
from gpaco.data.holdout import balanced_subset
from gpaco.data.samples import Samples
from gpaco.data.views.views import normalize
from gpaco.errors import UserError
from gpaco.losses.contrast import with_prior
from gpaco.losses.criterion import GPaCoLoss
from gpaco.losses.memory import Memory
from gpaco.losses.pairs import from_pairs, to_pairs
from gpaco.methods import ANALYZED, PARAMETRIC, WITHOUT_CLASSIFIER, build
from gpaco.methods.contrastive import SupCon
from gpaco.methods.method import as_rows
from gpaco.models.classifier import Classifier
from gpaco.models.lora import merged
from gpaco.recipes.settings import Recipe
from gpaco.tasks.classification.batches import FeatureSource, view_of
from gpaco.tasks.classification.card import build_model
from gpaco.tasks.classification.class_match import matched
from gpaco.tasks.classification.predictor import Predictor, load_classifier
from gpaco.tasks.classification.splits import other_data, splits_of
from gpaco.training.run import Run, select_checkpoint

Array = NDArray[Any]
CHUNK = 64  # most images probed in one step
BATCH = 256  # most other images in a step


class Stage(NamedTuple):
    """A stage of a run."""

    run: Run
    recipe: Recipe
    name: str  # empty if the run has only one
    folder: Path  # of the whole run, which lists the images that were left out


class Probe(NamedTuple):
    """Measurements with a row per anchor; nan if a loss has no such value."""

    images: int
    counts: Array  # (C,) training images per class
    shares: Array  # (C,) how often training shows each class
    settings: dict[str, Any] | None  # alpha, memory, batch, views of a parametric method
    labels: Array  # (A,)
    gradients: Array  # (A, C) length of the gradient at each center
    center: Array  # (A,) probability of its own center
    together: Array  # (A,) probability of all positives, as a mean over the anchors of the class in the step
    positives: Array  # (A,) number of positives


class References(NamedTuple):
    """Samples that anchors are compared with."""

    embeddings: Tensor  # (M, D)
    labels: Tensor  # (M,) or (M, C)
    images: Tensor  # (M,) indices of samples; -1 for rows of the saved memory


def measure(
    stage: Stage,
    data: Samples | Path | str | None,
    images: int = 1000,
    seed: int = 0,
    predictor: Predictor | None = None,
    seconds: float | None = None,
    cached: FeatureSource | None = None,
) -> Probe:
    """Probe up to `images` samples, spread over the classes as evenly as possible, for about `seconds`.

    Args:
        data: images to use instead of the training split of the stage.
        predictor: the model of the stage, if it is already loaded.
        cached: features of the same views, if the stage was trained on them.
    """
    run, recipe, _, folder = stage
    if recipe.method.name not in ANALYZED:
        raise UserError(
            f"{run.folder} ends with {recipe.method.name}, whose gradients are not measured",
            f"choose a run of {', '.join(ANALYZED)}",
        )
    if data is None:
        samples = splits_of(recipe, run=folder).train
    else:
        samples = data if isinstance(data, Samples) else other_data(data, recipe).train
    began = time.monotonic()
    predictor = predictor or load_classifier(run)
    if samples.classes != predictor.classes:
        samples, _ = matched(samples, predictor.classes)
    order = balanced_subset(samples.labels, images, seed)
    found = select_checkpoint(run, parts=["extra"])
    counts = np.asarray(predictor.card.counts)
    shares = class_shares(counts, recipe.train.sampler)
    network = _Network(recipe, predictor, found.tensors["extra"], samples, seed, cached)
    settings, size, references = None, CHUNK, None
    if recipe.method.name in PARAMETRIC:
        apart = found.state["environment"]["processes"] if recipe.method.contrast == "local" else 1
        batch = max(recipe.train.batch_size // recipe.train.accumulate // apart, 1)
        views = 2 if recipe.method.name == "paco" else len(network.views)  # PaCo: queries and keys
        settings = {"alpha": recipe.method.alpha, "memory": recipe.method.memory, "batch": batch, "views": views}
        # Few probes per step, mostly of different classes; the rest of the batch is drawn as in training.
        size = max(min(CHUNK, len(counts), batch // 4), 1)
        drawn, _ = epoch_order(samples.labels, recipe.train.sampler, seed, recipe.train.epochs // 2)
        until = None if seconds is None else began + seconds / 3
        references = network.references(drawn[: min(batch - size, BATCH)], until)
    rows, seen = [], 0
    for start in range(0, len(order), size):
        if start and seconds is not None and time.monotonic() - began > seconds:
            break
        chunk = order[start : start + size]
        rows.append(network.probe(chunk, references))
        seen += len(chunk)
    columns = [torch.cat(column).cpu().numpy() for column in zip(*rows, strict=True)]
    return Probe(seen, counts, shares, settings, *columns)


class _Given(nn.Module):
    """Replaces a network, and returns precomputed outputs."""

    def __init__(self, logits: Tensor, embeddings: Tensor) -> None:
        super().__init__()
        self.logits, self.embeddings = logits, embeddings

    def forward(self, *views: Tensor) -> tuple[Tensor, Tensor]:
        return self.logits, self.embeddings


class _Network:
    """The network and the method of a run, with the views it was trained on."""

    def __init__(
        self,
        recipe: Recipe,
        predictor: Predictor,
        state: dict[str, Tensor],
        samples: Samples,
        seed: int,
        cached: FeatureSource | None,
    ) -> None:
        self.settings, self.samples, self.seed, self.cached = recipe.method, samples, seed, cached
        self.views = [view_of(recipe, name) for name in (recipe.views.first, recipe.views.second) if name]
        self.model, self.card, self.device = predictor.model, predictor.card, predictor.mean.device
        counts = np.asarray(self.card.counts)
        self.shown = torch.from_numpy(shown_counts(counts, recipe.train.sampler))
        self.method = build(recipe, self.model, len(self.shown), self.shown, torch.from_numpy(counts))
        self.keys: Classifier | None = None  # network of the keys, if only the first view is an anchor
        if recipe.method.anchors == "first" and len(self.views) > 1:
            self.keys = self.model
        own = {name.removeprefix("key_network."): t for name, t in state.items() if name.startswith("key_network.")}
        if own:
            self.keys = build_model(self.card).to(self.device).eval()
            self.keys.load_state_dict(self.model.state_dict() | merged(own))  # a frozen backbone is saved only once
            self.method.key_network = nn.Identity()
            self.method.shuffle = False  # type: ignore[assignment] # of methods with keys
        self.method.load_state_dict({name: t for name, t in state.items() if not name.startswith("key_network.")})
        self.method.to(self.device).train()
        for part in self.method.modules():  # a probe must not change state or communicate with other processes
            if isinstance(part, Memory):
                self.memory = part
                part.push = lambda *rows: None  # type: ignore[method-assign]
            if isinstance(part, GPaCoLoss):
                part.contrast = "local"
                part._center_share = lambda *_, share=part.center_share: share  # type: ignore[method-assign]
            if isinstance(part, SupCon):
                part.gathers = False

    @torch.no_grad()
    def features(self, rows: Array) -> tuple[Tensor, list[Tensor], Tensor | None]:
        """Return the labels of some images, the features of each anchor view, and the keys."""
        labels = torch.from_numpy(self.samples.labels[rows]).to(self.device)
        if self.cached is None:
            (pixels,) = views_of(self.samples, self.views, [(rows, rows)], seed=self.seed, epoch=0)
            views = [normalize(view, self.card.mean, self.card.std).to(self.device) for view in pixels]
        else:  # the backbone is frozen: these are what it makes of the same views
            numbers = (np.full_like(rows, k % len(self.cached.cached)) for k in range(len(self.views)))
            views = [self.cached.features.take(rows, number).to(self.device) for number in numbers]

        def seen(model: Classifier, view: Tensor) -> Tensor:
            return model.features(view) if self.cached is None else model.hidden(view)

        keys = None if self.keys is None else self.keys.embed(seen(self.keys, views[-1]))
        anchors = views if keys is None else views[:1]
        return labels, [seen(self.model, view).float() for view in anchors], keys

    @torch.no_grad()
    def references(self, batch: Array, until: float | None) -> References:
        """Return the memory of the run, and all views of the images in a batch."""
        held, labels = (part.clone() for part in self.memory.read())
        parts = [References(held, labels, torch.full((len(held),), -1, device=self.device))]
        for start in range(0, len(batch), CHUNK):
            if start and until is not None and time.monotonic() > until:
                break
            rows = batch[start : start + CHUNK]
            own, features, keys = self.features(rows)
            own = own if labels.dim() == 1 else to_pairs(own, labels.dtype)
            views = [self.model.embed(view) for view in features] + ([] if keys is None else [keys])
            parts += [References(view, own, torch.from_numpy(rows).to(self.device)) for view in views]
        return References(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def probe(self, rows: Array, references: References | None) -> tuple[Tensor, ...]:
        """Return the columns of `Probe`, starting with labels, for the anchors of these images."""
        labels, views, keys = self.features(rows)
        features = torch.cat(views)
        with torch.no_grad():
            step = _Step(labels, len(views), self.model.centers(features), self.model.embed(features), keys)
        step.logits.requires_grad_()
        if references is None:
            (gradient,) = torch.autograd.grad(self._loss(step), step.logits)
            masses = [torch.full_like(features[:, 0], torch.nan)] * 3
        else:
            other = ~torch.isin(references.images, torch.from_numpy(rows).to(self.device))
            gradient, *masses = self._masses(step, references.embeddings[other], references.labels[other])
        # Logits may be divided by a temperature.
        lengths = gradient.abs() * features.norm(dim=1, keepdim=True) / getattr(self.model.centers, "temperature", 1.0)
        if self.settings.name in WITHOUT_CLASSIFIER:
            lengths = torch.full_like(lengths, torch.nan)
        return tuple(x.detach() for x in (step.anchor_labels, lengths, *masses))

    def _loss(self, step: "_Step") -> Tensor:
        """Return the loss of the method, summed over the anchors."""
        labels, seen = step.anchor_labels, _Given(step.logits, step.embeddings)
        if step.keys is not None and self.keys is self.model:
            seen = _Given(step.logits, torch.cat([step.embeddings, step.keys]))
        elif step.keys is not None:
            self.method.key_network = _Given(step.logits, step.keys)
        own = step.labels
        if isinstance(self.method, SupCon) and self.memory.labels.dim() == 3:  # pairs: it must know all classes
            own = as_rows(own, step.logits)
        loss: Tensor = self.method(seen, [step.logits] * step.views, own)
        return loss * len(labels)

    def _masses(self, step: "_Step", held: Tensor, held_labels: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient at the logits, the mass on the own center and on the positives, and their number."""
        self.memory.embeddings, self.memory.labels, self.memory.rows = held, held_labels, len(held)
        (gradient,) = torch.autograd.grad(self._loss(step), step.logits)
        labels, (anchors, num_classes) = step.anchor_labels, step.logits.shape
        criterion = next(part for part in self.method.modules() if isinstance(part, GPaCoLoss))
        own = [(step.embeddings, labels), *([] if step.keys is None else [(step.keys, step.labels)])]
        references = torch.cat([*(embeddings for embeddings, _ in own), held])
        shares = torch.cat([_rows(one, num_classes) for one in (*(one for _, one in own), held_labels)])
        similarities = step.embeddings @ references.t() / criterion.temperature
        similarities[:, :anchors].fill_diagonal_(-torch.inf)  # not with itself
        logits = with_prior(step.logits, criterion._prior(criterion.center_share))
        masses = torch.cat([logits, similarities], 1).softmax(1)
        positive = shares[:, labels].t()  # (A, references)
        same = F.one_hot(labels, num_classes).to(masses)
        each = (masses[:, num_classes:] * positive).sum(1)
        together = same @ ((each @ same) / same.sum(0).clamp_min(1))
        return gradient, masses.gather(1, labels.unsqueeze(1)).squeeze(1), together, positive.sum(1) - 1


def _rows(labels: Tensor, num_classes: int) -> Tensor:
    """Return labels as rows of shares (N, C); those of a memory may be pairs of classes and shares."""
    if labels.dim() == 1:
        return F.one_hot(labels, num_classes).float()
    classes, shares = from_pairs(labels)
    return torch.zeros(len(labels), num_classes, device=labels.device).scatter_add(1, classes, shares.float())


class _Step(NamedTuple):
    """Outputs of the network for images that are probed together."""

    labels: Tensor  # one for each image
    views: int
    logits: Tensor  # of the anchors
    embeddings: Tensor
    keys: Tensor | None

    @property
    def anchor_labels(self) -> Tensor:
        return self.labels.repeat(self.views)
