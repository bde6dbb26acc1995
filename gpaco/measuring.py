"""A look at a trained model through the loss it was trained with: gradients and probabilities of single images.

A step as training takes it is set up again: the views of training, the saved memory and, beside each image, a batch
drawn as training draws it. Nothing talks to other processes: the first one can look while the others wait.

Shapes: A anchors (each view of an image; PaCo: the first view), C classes, F features, D in an embedding.
"""

import time
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from gpaco.data.loading import class_shares, epoch_order, views_of
from gpaco.data.samples import Samples
from gpaco.data.views import normalise
from gpaco.errors import UserError
from gpaco.lora import merged
from gpaco.matching import matched
from gpaco.methods import WITHOUT_PROJECTOR
from gpaco.model import Classifier
from gpaco.run import Predictor, Run, build_model, chosen, load_classifier
from gpaco.settings import Recipe
from gpaco.softmaxes import References, compare, probabilities, softmaxes
from gpaco.sources import view_of

Array = NDArray[Any]
CHUNK = 64  # images looked at together
FELLOWS = 256  # images of a batch that are looked at for contrast, at most


class Measured(NamedTuple):
    """What was measured, a row for each anchor; nan where a loss has no such thing."""

    images: int
    counts: Array  # (C,) training images of each class
    shares: Array  # (C,) how often training shows each class
    settings: dict[str, Any]  # alpha, memory, batch, views; None without contrast
    centres: Array  # (C, F) weights of the class centres
    labels: Array  # (A,)
    features: Array  # (A, F)
    margins: Array  # (A,) own logit less the best other one
    centre_gradients: Array  # (A, C) length of the gradient at each centre
    feature_gradients: Array  # (A,)
    centre: Array  # (A,) probability of the own centre
    p_sup: Array  # (A,) of all centres
    together: Array  # (A,) of all positives
    positives: Array  # (A,) their number
    asked_centre: Array  # (A,) the same probabilities at the optimum
    asked_together: Array


def measure(
    run: Run,
    recipe: Recipe,
    which: str,
    samples: Samples,
    images: int,
    seed: int,
    predictor: Predictor | None = None,
    seconds: float | None = None,
) -> Measured:
    """Look at up to `images` samples, as evenly spread over the classes as there are any, for about `seconds`."""
    predictor = predictor or load_classifier(run, which=which)
    if samples.classes != predictor.classes:
        samples, _ = matched(samples, predictor.classes)
    order = stratified(samples.labels, images, seed)
    device, about = predictor.mean.device, predictor.about
    found = chosen(run, which, parts=["extra"])
    state = {name: tensor.to(device) for name, tensor in found.tensors["extra"].items()}
    counts = np.asarray(about["counts"])
    shares = class_shares(counts, recipe.train.sampler)
    eye = _Eye(recipe, predictor, state, samples, seed)
    contrasts = recipe.method.name not in WITHOUT_PROJECTOR
    began, settings, fellows = time.monotonic(), dict.fromkeys(("alpha", "memory", "batch", "views")), None
    if contrasts:
        apart = found.state["environment"]["processes"] if recipe.method.contrast == "local" else 1
        batch = max(recipe.train.batch_size // recipe.train.accumulate // apart, 1)
        # SupCon has no alpha; two views of PaCo are its queries and keys.
        alpha = recipe.method.alpha if recipe.method.name in ("gpaco", "paco") else None
        views = 2 if recipe.method.name == "paco" else len(eye.views)
        settings |= {"alpha": alpha, "memory": recipe.method.memory, "batch": batch, "views": views}
        epochs = recipe.train.epochs
        drawn, _ = epoch_order(samples.labels, recipe.train.sampler, seed, epochs // 2)
        fellows = eye.references(drawn[: min(batch - 1, FELLOWS)], None if seconds is None else began + seconds / 3)
    rows, seen = [], 0
    for number, start in enumerate(range(0, len(order), CHUNK)):
        if number and seconds is not None and time.monotonic() - began > seconds:
            break
        chunk = order[start : start + CHUNK]
        rows.append(_look(eye, chunk, fellows, torch.from_numpy(shares).to(device)))
        seen += len(chunk)
    columns = [torch.cat(column).cpu().numpy() for column in zip(*rows, strict=True)]
    centres = predictor.model.centres.weight.detach().float().cpu().numpy()
    return Measured(seen, counts, shares, settings, centres, *columns)


def stratified(labels: Array, images: int, seed: int) -> Array:
    """Indices of up to `images` samples: one of every class, then a second one of every class, and so on.

    Each class in an order of its own, so that any beginning is spread over the classes as evenly as it can be.

    >>> labels = np.array([0] * 50 + [1, 1, 2])
    >>> labels[stratified(labels, 7, seed=0)].tolist()
    [1, 2, 0, 1, 0, 0, 0]
    """
    if images < 1 or len(labels) == 0:
        raise UserError(
            f"{images} of {len(labels)} images leave nothing to measure", "give at least one image to look at"
        )
    draw = np.random.default_rng(seed)
    mixed = draw.permutation(len(labels))
    mixed = mixed[np.argsort(labels[mixed], kind="stable")]
    ordered = labels[mixed]
    turn = np.arange(len(labels)) - np.searchsorted(ordered, ordered)  # the how-manieth of its class
    place = draw.permutation(int(labels.max()) + 1)[ordered]
    return np.asarray(mixed[np.lexsort((place, turn))][:images])


class _Eye:
    """The network of a run with the views that it was trained on."""

    def __init__(
        self, recipe: Recipe, predictor: Predictor, state: dict[str, Tensor], samples: Samples, seed: int
    ) -> None:
        self.method = recipe.method
        self.views = [view_of(recipe, name) for name in (recipe.views.first, recipe.views.second) if name]
        self.model, self.about, self.device = predictor.model, predictor.about, predictor.mean.device
        self.state, self.samples, self.seed = state, samples, seed
        self.keys: Classifier | None = None
        if recipe.method.name == "paco" or recipe.method.momentum_keys:
            own = {name.removeprefix("key_network."): t for name, t in state.items() if name.startswith("key_network.")}
            self.keys = build_model(self.about).to(self.device).eval()
            self.keys.load_state_dict(self.model.state_dict() | merged(own))  # a frozen backbone is kept only once

    @torch.no_grad()
    def see(self, rows: Array) -> tuple[Tensor, list[Tensor], Tensor | None]:
        """Labels of some images, features of each view, and keys (PaCo: the anchors are views of the first kind)."""
        (pixels,) = views_of(self.samples, self.views, [(rows, rows)], seed=self.seed, epoch=0)
        views = [normalise(view, self.about["mean"], self.about["std"]).to(self.device) for view in pixels]
        keys = None if self.keys is None else self.keys(views[-1])[1]
        seen = views if keys is None else views[:1]
        labels = torch.from_numpy(self.samples.labels[rows]).to(self.device)
        return labels, [self.model.features(view).float() for view in seen], keys

    @torch.no_grad()
    def references(self, rows: Array, until: float | None) -> References:
        """The memory of the run, and all views of the given images."""
        prefix = "memory." if "memory.pushed" in self.state else "loss.memory."
        written = min(int(self.state[f"{prefix}pushed"]), len(self.state[f"{prefix}embeddings"]))
        held, labels = (self.state[f"{prefix}{name}"][:written] for name in ("embeddings", "labels"))
        parts = [held.float()]
        images = [torch.full((written,), -1, device=self.device)]
        all_labels = [labels]
        for number, start in enumerate(range(0, len(rows), CHUNK)):
            if number and until is not None and time.monotonic() > until:
                break
            some = rows[start : start + CHUNK]
            y, features, keys = self.see(some)
            looks = [self.model.embed(view) for view in features] + ([] if keys is None else [keys])
            parts += looks
            images += [torch.from_numpy(some).to(self.device)] * len(looks)
            y = y if labels.dim() == 1 else F.one_hot(y, labels.shape[1]).to(labels.dtype)
            all_labels += [y] * len(looks)
        return References(torch.cat(parts), torch.cat(all_labels), torch.cat(images))


@torch.enable_grad()
def _look(eye: _Eye, rows: Array, fellows: References | None, shares: Tensor) -> tuple[Tensor, ...]:
    """The columns of `Measured`, from labels on, of the anchors that these images make."""
    labels, views, keys = eye.see(rows)
    features = torch.cat(views).requires_grad_()
    labels, image = labels.repeat(len(views)), torch.from_numpy(rows).to(eye.device).repeat(len(views))
    logits = eye.model.centres(features)
    similar = same = None
    if fellows is not None:
        anchors = eye.model.embed(features)
        others = _other_views(anchors.detach(), len(views)) if keys is None else keys.unsqueeze(1)
        similar, same = compare(eye.method, eye.state, anchors, labels, image, others, fellows)
    parts = softmaxes(eye.method, eye.state, shares.float(), logits, labels, similar, same)
    loss = torch.stack([part.losses() for part in parts]).sum()
    at_logits, at_features = torch.autograd.grad(loss, [logits, features], allow_unused=True, materialize_grads=True)
    own = logits.gather(1, labels.unsqueeze(1)).squeeze(1)
    best = logits.scatter(1, labels.unsqueeze(1), -torch.inf).amax(1)
    lengths = at_logits.abs() * features.norm(dim=1, keepdim=True)
    if eye.method.name == "supcon":
        lengths = torch.full_like(lengths, torch.nan)  # the centres are not in its loss
    masses = probabilities(parts, labels, same)
    return tuple(x.detach() for x in (labels, features, own - best, lengths, at_features.norm(dim=1), *masses))


def _other_views(anchors: Tensor, views: int) -> Tensor:
    """The other views of each anchor's image: (A, views - 1, D)."""
    looks = anchors.view(views, -1, anchors.shape[1])
    others = [looks.roll(k, 0).flatten(0, 1) for k in range(1, views)]
    return torch.stack(others, 1) if others else anchors.new_zeros(len(anchors), 0, anchors.shape[1])
