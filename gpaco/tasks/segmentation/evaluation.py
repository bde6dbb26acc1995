"""How good a segmenter is: every picture at its own size, one count of pixels over all of them and all processes."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpaco.errors import Diverged, UserError
from gpaco.metrics.segmentation import Tally, summarize
from gpaco.system import distributed
from gpaco.system.progress import Progress, Say, told
from gpaco.tasks.segmentation.inference import Size, predict_classes
from gpaco.tasks.segmentation.predictor import ScenePredictor, load_segmenter
from gpaco.tasks.segmentation.readers.read import read_scenes
from gpaco.tasks.segmentation.scenes import Scenes, in_order_of
from gpaco.tasks.segmentation.splits import reported, scene_splits
from gpaco.tasks.segmentation.transforms import fitting
from gpaco.training.run import Run, check_split

Pixels = NDArray[np.uint8]
WORST = 12  # pictures that are listed


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
    """Class and its probability at each pixel of a picture (H, W, 3), each (H, W).

    The network sees the picture at the size that it was trained for, times each of the scales.
    """
    card = predictor.card
    factor = fitting(image.shape[:2], (card.base_size[0], card.base_size[1])) if card.base_size else 1.0
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None].to(predictor.mean.device)
    stride = stride or (None if window else _pair(card.stride))
    window = window or _pair(card.window)
    if stride and not window:
        raise UserError(f"a stride of {list(stride)} pixels needs a window that moves", "give the window too")
    classes, probability = predict_classes(
        predictor,
        pixels / 255,
        window=window,
        stride=stride,
        scales=[factor * scale for scale in scales],
        flip=flip,
    )
    return classes[0].to(torch.uint8).cpu().numpy(), probability[0].float().cpu().numpy()


def evaluate_scenes(
    predictor: ScenePredictor,
    scenes: Scenes,
    *,
    change: Callable[[Pixels, int], Pixels] = lambda image, i: image,
    show: Progress | None = None,
    **how: Any,
) -> dict[str, Any]:
    """Figures over all scenes; each process does its share once.

    `change` is done to every picture (with its number) before it is looked at. `how` goes to `segment`: scales, flip,
    window, stride.
    """

    def load(i: int) -> tuple[Pixels, Pixels]:
        image, mask = scenes.load(i)
        return change(image, i), mask

    card = predictor.card
    tally = Tally.empty(len(card.classes))
    mine = distributed.mine(len(scenes))
    finite, each = True, np.zeros(len(scenes))
    with ThreadPoolExecutor(1) as pool:  # decodes a picture while the network works on another
        ahead = deque(pool.submit(load, i) for i in mine[:2])
        for done, index in enumerate(mine, 1):
            image, mask = ahead.popleft().result()
            ahead.extend(pool.submit(load, i) for i in mine[done + 1 : done + 2])
            classes, probability = segment(predictor, image, **how)
            finite &= bool(np.isfinite(probability).all())
            each[index] = tally.add(classes, mask)
            if show is not None:
                show(done, len(mine))
    (bad,) = distributed.agree(int(not finite))
    if bad:
        raise Diverged(
            "the model gives numbers that are not finite; the last checkpoint is kept", "lower the learning rate: --lr"
        )
    for name, counted in vars(tally).items():
        setattr(tally, name, distributed.sum_counts(torch.from_numpy(counted)).numpy())
    result = summarize(tally, card.counts, card.classes, many=card.many, few=card.few)
    each = distributed.sum_counts(torch.from_numpy(each)).numpy()
    worst = [int(i) for i in np.argsort(each, kind="stable")[:WORST] if not np.isnan(each[i])]
    return result | {"n": len(scenes), "worst": [{"name": scenes.names[i], "miou": float(each[i])} for i in worst]}


def _pair(values: Sequence[int]) -> Size | None:
    """Height and width, or None where there are no numbers."""
    return (values[0], values[1]) if values else None


def evaluate_run(
    run: Run,
    data: Path | str | None = None,
    *,
    many: float | None = None,
    few: float | None = None,
    which: str = "best",
    device: str | torch.device = "cpu",
    show: Progress | None = None,
    say: Say = lambda line: None,
    **how: Any,
) -> dict[str, Any]:
    """Figures of a run on its own test scenes, or on others; `how` goes to `segment`."""
    predictor = load_segmenter(run, which=which, device=device)
    card = predictor.card
    many, few = card.many if many is None else many, card.few if few is None else few
    if few > many:
        raise UserError(f"few ({few}) must not be above many ({many})", "--many 1 --few 0.1 is usual")
    predictor.card = replace(card, many=many, few=few)
    part, scenes = scenes_of(run, data, predictor.classes, say)
    say(f"evaluated on: {part}, {len(scenes):,} {'picture' if len(scenes) == 1 else 'pictures'}")
    figures = evaluate_scenes(predictor, scenes, show=show, **how)
    return figures | {"evaluated_on": part, "how": {key: how[key] for key in sorted(how)}}


def scenes_of(
    run: Run, data: Path | str | None, classes: tuple[str, ...], say: Say = lambda line: None
) -> tuple[str, Scenes]:
    """The part that a run is evaluated on: of its own data, or of other data in the order of its classes."""
    if data is None:
        recipe = run.recipe
        splits = scene_splits(recipe, run=run.folder)
        name, _ = reported(recipe, splits)
        check_split(run, splits, name, say)
    else:
        splits = read_scenes(data, told(say, "looking at masks for their classes"))
        name = next(name for name in ("test", "val", "train") if name in dict(splits.parts()))
    scenes = dict(splits.parts()).get(name)
    if not scenes:
        raise UserError(f"there is no picture in the {name} part to evaluate on", "give other data: RUN DATA")
    return name, in_order_of(scenes, classes)
