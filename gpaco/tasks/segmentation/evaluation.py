"""Metrics of a segmenter: every image at its own size, with pixels summed over all images and processes."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpaco.data.walk import real_paths
from gpaco.errors import Diverged, Problem, UserError
from gpaco.metrics.segmentation import Tally, image_iou, iou_intervals, mean_ious, share_groups, summarize
from gpaco.system import distributed
from gpaco.system.prefetch import prefetch
from gpaco.system.progress import Progress, Say, as_progress, no_progress, quiet
from gpaco.system.words import plural
from gpaco.tasks.segmentation.inference import Size, check_scales, predict_classes, predict_logits
from gpaco.tasks.segmentation.predictor import ScenePredictor, load_segmenter
from gpaco.tasks.segmentation.readers.read import read_scenes
from gpaco.tasks.segmentation.scenes import Scenes, in_order_of
from gpaco.tasks.segmentation.splits import scene_splits
from gpaco.tasks.segmentation.transforms import fitting
from gpaco.training.run import Run, check_data, check_split, newest

Pixels = NDArray[np.uint8]
WORST = 12  # images listed


@torch.inference_mode()
def segment(
    predictor: ScenePredictor,
    image: NDArray[np.uint8],
    *,
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
    window: Size | None = None,
    stride: Size | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return the class of each pixel of an image (H, W, 3) and its probability, each (H, W).

    The network sees the image at the size it was trained for, times each of the scales.
    """
    card = predictor.card
    check_scales(scales)
    factor = fitting(image.shape[:2], card.base_size)
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None].to(predictor.mean.device)
    stride = stride or (() if window else card.stride)
    window = window or card.window
    if stride and not window:
        raise UserError(f"a stride of {list(stride)} pixels needs a sliding window", "give the window too")
    classify = partial(predict_logits, predictor, window=window, stride=stride)
    scales = [factor * scale for scale in scales]
    classes, probability = predict_classes(classify, pixels / 255, scales=scales, flip=flip)
    return classes[0].to(torch.uint8).cpu().numpy(), probability[0].float().cpu().numpy()


def evaluate_scenes(
    predictor: ScenePredictor,
    scenes: Scenes,
    *,
    change: Callable[[Pixels, int], Pixels] = lambda image, i: image,
    progress: Progress = no_progress,
    intervals: bool = False,
    **how: Any,
) -> dict[str, Any]:
    """Return the metrics over all scenes, optionally with `intervals`. Each process evaluates its share.

    `change` is first applied to every image (with its index). `how` goes to `segment`: scales, flip, window, stride.
    """

    def load(i: int) -> tuple[Pixels, Pixels]:
        image, mask = scenes.load(i)
        return change(image, i), mask

    card = predictor.card
    tally = Tally.empty(len(card.classes))
    mine = distributed.own_share(len(scenes))
    finite, each = True, np.zeros((len(scenes), 3, len(card.classes)), np.int64)
    loaded = prefetch(load, mine, ahead=2, threads=1)
    for done, (index, (image, mask)) in enumerate(zip(mine, loaded, strict=True), 1):
        classes, probability = segment(predictor, image, **how)
        finite &= bool(np.isfinite(probability).all())
        each[index] = tally.add(classes, mask)
        progress(done, len(mine))
    (bad,) = distributed.agree(int(not finite))
    if bad:
        raise Diverged(
            "the outputs of the model are not finite; the last checkpoint is kept", "lower the learning rate: --lr"
        )
    for name, pixels in vars(tally).items():
        setattr(tally, name, distributed.sum_counts(torch.from_numpy(pixels)).numpy())
    result = summarize(tally, card.counts, card.classes, many=card.many, few=card.few)
    each = distributed.sum_counts(torch.from_numpy(each)).numpy()
    own = mean_ious(image_iou(each))
    worst = [int(i) for i in np.argsort(own, kind="stable")[:WORST] if not np.isnan(own[i])]
    result |= {"n": len(scenes), "worst": [{"name": scenes.names[i], "miou": float(own[i])} for i in worst]}
    if intervals:
        result["intervals"] = iou_intervals(each, share_groups(card.counts, card.many, card.few))
    return result


def evaluation_part(
    run: Run, data: Path | str | None, classes: tuple[str, ...], *, others: Sequence[Run] = (), say: Say = quiet
) -> tuple[str, Scenes]:
    """Return the name and scenes of the split to evaluate on, labeled with the classes of the model.

    It is the reported split of the run's own data, or the last split of other data. Neither the run nor the `others`
    that are compared with it may have been trained on any of them.
    """
    if data is None:
        check_data(run)
        splits = scene_splits(run.recipe, run=run.folder)
        name, scenes = splits.reported(run.recipe.data.evaluate_on)
        for one in (run, *others):
            check_split(one, splits, name, say)
    else:
        parts = read_scenes(data, as_progress(say, "reading classes from masks")).parts()
        name, scenes = parts[-1]
        name = "all" if name == "train" else name
        for one in (run, *others) if say is not quiet else ():
            if known := _trained_on(one, data, scenes):
                who = one.folder if others else "the run"
                what = "it" if known == len(scenes) else f"{known:,} of these {plural(len(scenes), 'image')}"
                say(f"{who} was trained on {what}: `gpaco evaluate {one.folder}` alone uses only held-out images")
    if not scenes:
        raise UserError(f"the {name} split has no images to evaluate on", "give other data: gpaco evaluate RUN DATA")
    return name, in_order_of(scenes, classes)


def _trained_on(run: Run, data: Path | str, scenes: Scenes) -> int:
    """Return how many of the images are training images of the run; 0 if that cannot be known.

    They are the same files, or, if the data was moved or copied, files of the same names in the same splits.
    """
    files, moved = real_paths(scenes.images), replace(run.recipe.data, path=str(data))
    for recipe in (run.recipe, replace(run.recipe, data=moved)):
        with suppress(Problem):  # the data of the run may be gone
            train = scene_splits(recipe, run=run.folder).train
            if recipe is run.recipe or train.list_hash == newest(run).state["card"]["images"].get("train"):
                known = set(real_paths(train.images))
                if found := sum(file in known for file in files):
                    return found
    return 0


def evaluate_runs(
    runs: Sequence[Run],
    data: Path | str | None,
    *,
    many: float | None,
    few: float | None,
    which: str,
    device: torch.device,
    progress: Progress,
    say: Say,
    **how: Any,
) -> dict[str, Any]:
    """Return the metrics of one run; see `gpaco.evaluate`. `how` goes to `segment`."""
    if len(runs) > 1:
        raise UserError("segmenters are evaluated one at a time", "give one run")
    predictor = load_segmenter(runs[0], which=which, device=device)
    card = predictor.card
    many, few = card.many if many is None else many, card.few if few is None else few
    if not few <= many:
        raise UserError(f"few ({few}) must not be above many ({many})", "for example --many 1 --few 0.1")
    predictor.card = replace(card, many=many, few=few)
    split, scenes = evaluation_part(runs[0], data, card.classes, say=say)
    say(f"evaluated on: {split}, {plural(len(scenes), 'image')}")
    metrics = evaluate_scenes(predictor, scenes, progress=progress, intervals=True, **how)
    return metrics | {"evaluated_on": split, "how": {key: how[key] for key in sorted(how)}}
