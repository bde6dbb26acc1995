"""How good a segmenter is: every picture at its own size, one count of pixels over all of them and all processes."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gpaco.errors import Diverged, UserError
from gpaco.metrics.segmentation import Tally, summarize
from gpaco.recipes.settings import Recipe
from gpaco.system import distributed
from gpaco.system.progress import Progress, Say, told
from gpaco.tasks.segmentation.inference import Size, predict_classes
from gpaco.tasks.segmentation.network import Segmenter, build
from gpaco.tasks.segmentation.readers.read import read_scenes
from gpaco.tasks.segmentation.scenes import Scenes, SceneSplits, in_order_of
from gpaco.tasks.segmentation.transforms import fitting
from gpaco.training.run import Run, chosen, compare_part

Pixels = NDArray[np.uint8]
WORST = 12  # pictures that are listed


class ScenePredictor(nn.Module):
    """Pictures to class scores: the trained network with its normalization, and what it knows of its classes.

    Takes (N, 3, H, W) of any size, uint8 or floats from 0 to 1; gives (N, C, H, W).
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: Segmenter, about: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.about = about
        self.classes: tuple[str, ...] = tuple(about["classes"])
        self.register_buffer("mean", torch.tensor(about["mean"]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(about["std"]).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        images = images / 255 if images.dtype == torch.uint8 else images
        return self.model.classify((images - self.mean) / self.std)


def load_segmenter(run: Run, *, which: str = "best", device: str | torch.device = "cpu") -> ScenePredictor:
    """The model of a run that segments, ready to predict."""
    found = chosen(run, which)
    about = dict(found.state["about"])
    segmenter = build_segmenter(about)
    segmenter.load_state_dict(found.tensors.get("ema") or found.tensors["model"])
    return ScenePredictor(segmenter, about).to(device).eval()


def build_segmenter(about: dict[str, Any], weights: str = "") -> Segmenter:
    """The network that `about` describes."""
    return build(
        about["model"],
        len(about["classes"]),
        weights=weights,
        dim=about["dim"],
        aux=about["aux"],
        channels=about["channels"],
        output_stride=about["output_stride"],
        drop_path=about["drop_path"],
    )


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
    about = predictor.about
    factor = fitting(image.shape[:2], about["base_size"]) if about["base_size"] else 1.0
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None].to(predictor.mean.device)
    stride = stride or (None if window else _pair(about["stride"]))
    window = window or _pair(about["window"])
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

    about = predictor.about
    tally = Tally.empty(len(about["classes"]))
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
    result = summarize(tally, about["counts"], about["classes"], many=about["many"], few=about["few"])
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
    about = predictor.about
    about |= {"many": about["many"] if many is None else many, "few": about["few"] if few is None else few}
    if about["few"] > about["many"]:
        raise UserError(f"few ({about['few']}) must not be above many ({about['many']})", "--many 1 --few 0.1 is usual")
    part, scenes = scenes_of(run, data, predictor.classes, say)
    say(f"evaluated on: {part}, {len(scenes):,} {'picture' if len(scenes) == 1 else 'pictures'}")
    figures = evaluate_scenes(predictor, scenes, show=show, **how)
    return figures | {"evaluated_on": part, "how": {key: how[key] for key in sorted(how)}}


def scenes_of(
    run: Run, data: Path | str | None, classes: tuple[str, ...], say: Say = lambda line: None
) -> tuple[str, Scenes]:
    """The part that a run is evaluated on: of its own data, or of other data in the order of its classes."""
    from gpaco.tasks.segmentation.splits import scene_splits

    if data is None:
        recipe = run.recipe
        splits = scene_splits(recipe, run=run.folder)
        name = own_part(recipe, splits)
        compare_part(run, splits, name, say)
    else:
        splits = read_scenes(data, told(say, "looking at masks for their classes"))
        name = next(name for name in ("test", "val", "train") if name in dict(splits.parts()))
    scenes = dict(splits.parts()).get(name)
    if not scenes:
        raise UserError(f"there is no picture in the {name} part to evaluate on", "give other data: RUN DATA")
    return name, in_order_of(scenes, classes)


def own_part(recipe: Recipe, splits: SceneSplits) -> str:
    """Which part of its own data a run is evaluated on; it may not be there."""
    return "val" if recipe.data.evaluate_on == "val" or splits.test is None else "test"
