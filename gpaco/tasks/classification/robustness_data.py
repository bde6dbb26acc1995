"""The data of a robustness test: images, classes, conditions and sizes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpaco.data.class_maps import class_map, is_imagenet, published_as
from gpaco.data.corruption.corruptions import SEVERITIES, constants_for, corruption_names
from gpaco.data.corruption.images import Corrupting, Images, Source, corrupted_side
from gpaco.data.corruption.published import CLEAN, Arrays, Condition, Tree, read_shifted
from gpaco.data.holdout import stratified_subset
from gpaco.data.samples import Samples
from gpaco.data.views.tested import TestView
from gpaco.errors import UserError, nearest
from gpaco.metrics.corruption import missing_conditions
from gpaco.system.progress import Progress
from gpaco.system.words import some
from gpaco.tasks.classification.class_match import Match, match
from gpaco.tasks.classification.evaluation import evaluation_part
from gpaco.tasks.classification.predictor import Predictor
from gpaco.tasks.robustness import RobustnessSettings
from gpaco.training.run import Run


@dataclass(frozen=True, eq=False)
class Part:
    """Images to test on, labeled with indices of the model's classes, and the conditions to test under."""

    data: str  # where they come from
    source: Source
    match: Match
    indices: NDArray[np.int64]
    conditions: tuple[Condition, ...]


def part_of(
    settings: RobustnessSettings, data: str, source: Source, found: Match, conditions: tuple[Condition, ...]
) -> Part:
    """Return the images of known classes, or a subset of them."""
    indices = found.known
    if settings.subset is not None:
        indices = indices[stratified_subset(found.labels[indices], settings.subset, settings.seed)]
    return Part(data, source, found, indices, conditions)


def source_of(
    settings: RobustnessSettings, predictor: Predictor, others: Sequence[Run], progress: Progress
) -> tuple[Source, str]:
    """Return the images, and a suffix for the result file, which is empty for the test data of the run.

    `others` are runs to be tested on the same images.
    """
    data = settings.data
    shifted = None if data is None else read_shifted(Path(data), progress)
    if shifted is not None:
        return shifted, shifted.reader
    samples = evaluation_part(settings.run, data, others=others, say=settings.say)
    if data is None:
        return corrupted_source(settings, samples, predictor), ""
    place = Path(data).resolve()
    stem = place.name if place.is_dir() else place.stem
    published = published_as(samples.classes)
    if published == "imagenet-v2" and not place.is_dir():  # the classes of lists are numbers too
        published = None
    if published is None and set(samples.classes) == set(class_map("imagenet")) and "sketch" in stem.lower():
        published = "imagenet-sketch"
    if published is not None and is_imagenet(predictor.classes):
        return Images(samples, published), published
    return corrupted_source(settings, samples, predictor), stem


def corrupted_source(settings: RobustnessSettings, samples: Samples, predictor: Predictor) -> Images:
    table = settings.constants or constants_for(corrupted_side(samples, predictor.card.view))
    return Images(samples, "corrupted here", Corrupting(predictor.card.view, table, settings.seed))


def clean_part(settings: RobustnessSettings, classes: tuple[str, ...], corrupted: Match) -> Part:
    """Return the clean images of a published corrupted set: those of the classes that it has."""
    images = Images(evaluation_part(settings.run, settings.clean), "as they are")
    found = match(images.labels, images.classes, classes)
    missing = [classes[c] for c in np.flatnonzero(corrupted.there & ~found.there)]
    if missing:
        raise UserError(
            f"{settings.clean} has no images of {some(missing)}", "give the clean images of the corrupted classes"
        )
    labels = np.where((found.labels >= 0) & corrupted.there[found.labels], found.labels, -1)
    return part_of(settings, str(settings.clean), images, replace(found, labels=labels), (CLEAN,))


def matched_classes(source: Source, classes: tuple[str, ...]) -> Match:
    found = match(source.labels, source.classes, classes)
    if isinstance(source, Tree | Arrays) and found.unknown:
        word = found.unknown[0]
        raise UserError(
            f"the data has a class {word!r} that the model does not know{nearest(word, classes)}",
            "a published set needs a model with its classes; fix the name of the folder, or remove it",
        )
    return found


def conditions_of(settings: RobustnessSettings, source: Source, notes: list[str]) -> tuple[Condition, ...]:
    """Return the conditions to test under. Missing ones are an error if requested by name, otherwise a note."""
    there, corruptions = source.conditions, settings.corruptions
    if there == (CLEAN,):
        if corruptions is not None or settings.severities != SEVERITIES:
            raise UserError(
                f"{source.reader} is used as it is, without corruptions", "leave out --corruptions and --severities"
            )
        return there
    names = corruption_names(corruptions)
    absent = [name for name in names if not any(condition[0] == name for condition in there)]
    if corruptions is not None and absent:
        have = ", ".join(dict.fromkeys(name for name, _ in there))
        raise UserError(f"the data has no {absent[0]}", f"it has {have}")
    wanted = tuple(c for c in there if c == CLEAN or (c[0] in names and c[1] in settings.severities))
    if all(condition == CLEAN for condition in wanted):
        raise UserError("there are no conditions to test", "choose other --corruptions or --severities")
    notes.extend(missing_conditions(wanted))
    return wanted


def for_model(source: Source, model: Predictor) -> Source:
    """Return the same images for another model, corrupted at its size."""
    if isinstance(source, Images) and source.corrupting is not None:
        return replace(source, corrupting=replace(source.corrupting, view=model.card.view))
    return source


def view_for(source: Source, model: Predictor, preprocessing: str) -> TestView:
    """Return how images are resized for the model, by the protocol of the data set."""
    own = model.card.view
    scaled = replace(own, whole=False, resize=round(own.size * 256 / 224))
    if isinstance(source, Tree):  # 224 pixels already
        return scaled if preprocessing == "paper" else replace(own, whole=False, resize=own.size)
    if isinstance(source, Arrays) or source.reader == "as they are":
        return own
    if source.corrupting is not None:  # at the size of the model already, or small and whole
        return replace(own, whole=True)
    return scaled
