"""Finds unlabeled images to label next: probable candidates for some classes, without near-duplicates."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gpaco.data.images import Pixels, read_image
from gpaco.data.members import File
from gpaco.data.views.eval import as_tested
from gpaco.errors import Problem, UserError, nearest
from gpaco.metrics.groups import groups
from gpaco.system import distributed
from gpaco.system.prefetch import prefetch
from gpaco.system.progress import Progress, no_progress
from gpaco.tasks.classification.card import Card
from gpaco.tasks.classification.logits import check_finite, softmax
from gpaco.tasks.classification.predictor import Predictor
from gpaco.tasks.classification.priors import check_correction, final_logits

RARE = "rare"
_BATCH = 64
_BLOCK = 4096  # rows of probabilities at a time
_ALIKE = 0.01  # 1 minus the cosine between the features of near-duplicates
_AHEAD = 2  # consider this many times as many images as wanted, and choose probable and different ones


class Pool(NamedTuple):
    """The model's outputs for N unlabeled images."""

    logits: NDArray[np.float32]  # (N, C), for uniform classes; NaN for an unreadable image
    features: NDArray[np.float32]  # (N, F)


class Candidate(NamedTuple):
    """An image that may belong to a class."""

    image: int
    label: int
    probability: float
    predicted: int  # the most probable class
    its_probability: float


def chosen_classes(words: str | Sequence[str], card: Card) -> list[int]:
    """Return the classes that `words` names, the rarest first: "rare", a list, or names separated by commas.

    "rare" means the few-shot classes or, if there are none, the rarest third.
    """
    counts = np.zeros(len(card.classes)) if card.counts is None else np.asarray(card.counts)
    if words != RARE:
        several = [name.strip() for name in words.split(",") if name.strip()] if isinstance(words, str) else list(words)
        names = [words] if isinstance(words, str) and words in card.classes else several  # names may have commas
        for name in names:
            if name not in card.classes:
                known = [*card.classes, RARE]
                raise UserError(
                    f"the run has no class {name!r}{nearest(name, known)}", "--classes rare, or names of classes: a,b"
                )
        if not names:
            raise UserError("no class is given", "--classes rare, or names of classes: a,b")
        found = np.array([card.classes.index(name) for name in dict.fromkeys(names)])
    elif card.counts is None:
        raise UserError(
            "this run does not have the number of training images per class", "name the classes: --classes a,b"
        )
    else:
        found = np.flatnonzero(groups(counts, card.many, card.few) == "few")
        if not len(found):
            found = np.argsort(counts, kind="stable")[: max(len(counts) // 3, 1)]
    rarest_first: list[int] = found[np.argsort(counts[found], kind="stable")].tolist()
    return rarest_first


@torch.inference_mode()
def look_at(
    predictor: Predictor, files: Sequence[File], *, progress: Progress = no_progress
) -> tuple[Pool, dict[int, str]]:
    """Return the model's outputs for all files, and why some cannot be read. Each process reads its share."""
    card, device = predictor.card, predictor.mean.device
    check_correction(card, "uniform", unbiased=False)
    own = list(distributed.own_share(len(files)))
    wide = predictor.model.num_features
    logits = np.full((len(own), len(card.classes)), np.nan, np.float32)
    features = np.zeros((len(own), wide), np.float32)
    errors: dict[int, str] = {}
    loaded = prefetch(lambda i: read_as_tested(files[i], predictor), own, ahead=_BATCH)
    for start in range(0, len(own), _BATCH):
        chunk = own[start : start + _BATCH]
        images = list(islice(loaded, len(chunk)))
        good = [k for k, image in enumerate(images) if not isinstance(image, str)]
        errors |= {i: image for i, image in zip(chunk, images, strict=True) if isinstance(image, str)}
        if good:
            pixels = np.stack([images[k] for k in good])
            tensor = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(device)
            border, size = card.network.border, card.size
            middle = slice(border // 2, border // 2 + size)
            found = predictor.model.pooled(predictor.normalized(tensor)[:, :, middle, middle])
            answers = predictor(tensor) if border else predictor.logits(found)
            rows = np.array(good) + start
            logits[rows], features[rows] = answers.float().cpu(), found.float().cpu()
            check_finite(logits[rows])
        progress(min(start + _BATCH, len(own)), len(own))
    whole = [distributed.in_order(torch.from_numpy(part), len(files)).numpy() for part in (logits, features)]
    everyones = {int(i): reason for i, reason in distributed.collect(list(errors.items()))}
    return Pool(final_logits(whole[0], card, prior="uniform"), whole[1]), everyones


def read_as_tested(path: File, predictor: Predictor) -> Pixels | str:
    """Return the test view of an image, or why it cannot be read."""
    view = predictor.card.view
    try:
        return as_tested(read_image(path, view.least), view)
    except Problem as error:
        return error.cause


def candidates(pool: Pool, classes: Sequence[int], number: int) -> list[Candidate]:
    """Return up to `number` images, about equally many per class, class by class, the most probable first.

    Candidates for a class are spread evenly over all images predicted as that class, from the most to the least
    probable: the most probable ones alone would only confirm what the model knows. If too few are predicted, the next
    most probable ones are added, as long as the class is more probable than chance and the image is not predicted as
    another of these classes. An image is a candidate for one class only, and near-duplicates are left out.
    """
    good = np.flatnonzero(~np.isnan(pool.logits[:, 0]))
    probabilities = np.zeros((len(good), len(classes)))
    predicted, highest = np.zeros(len(good), np.int64), np.zeros(len(good))
    center = np.zeros(pool.features.shape[1])
    for start in range(0, len(good), _BLOCK):  # of a large pool, nothing else fits into memory twice
        block, rows = slice(start, start + _BLOCK), good[start : start + _BLOCK]
        whole = softmax(pool.logits[rows])
        probabilities[block] = whole[:, list(classes)]
        predicted[block], highest[block] = whole.argmax(1), whole.max(1)
        center += pool.features[rows].sum(0, dtype=np.float64) / len(good)

    def directions(chosen: NDArray[np.int64]) -> NDArray[np.float32]:
        away = pool.features[good[chosen]] - center.astype(np.float32)
        unit: NDArray[np.float32] = away / np.maximum(np.linalg.norm(away, axis=1, keepdims=True), 1e-12)
        return unit

    free = np.ones(len(good), bool)
    found = []
    for k, label in enumerate(classes):
        wanted = number // len(classes) + (k < number % len(classes))
        own, sure = probabilities[:, k], predicted == label
        maybe = free & (own > 1 / pool.logits.shape[1]) & ~np.isin(predicted, classes)
        order = np.lexsort((-own, ~sure, ~(sure | maybe)))  # those predicted as the class first
        last = min(max(int(sure.sum()), _AHEAD * wanted), int((sure | maybe).sum()))
        evenly = ((np.arange(min(_AHEAD * wanted, last)) + 0.5) * last / (_AHEAD * wanted or 1)).astype(int)
        evenly = order[:last] if last <= _AHEAD * wanted else order[evenly]
        picked = evenly[list(_different(own[evenly], directions(evenly), wanted))]
        free[picked] = False
        picked = picked[np.argsort(-own[picked], kind="stable")]
        found += [Candidate(int(good[i]), label, float(own[i]), int(predicted[i]), float(highest[i])) for i in picked]
    return found


def _different(probability: NDArray[np.float64], features: NDArray[np.float32], wanted: int) -> Iterator[int]:
    """Yield indices one by one: each with the highest probability times the distance to earlier ones.

    The distance is 1 minus the cosine of the angle. Images nearer than `_ALIKE` to an earlier one are left out.
    """
    distance = np.ones(len(probability))
    for _ in range(wanted):
        new = np.where(distance > _ALIKE, probability * distance, -1)
        if not (new >= 0).any():
            return
        place = int(new.argmax())
        yield place
        distance = np.minimum(distance, 1 - features @ features[place])
        distance[place] = 0
