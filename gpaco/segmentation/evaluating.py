"""How good a segmenter is: every picture at its own size, one count of pixels over all of them and all processes."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gpaco import distributed
from gpaco.errors import Diverged
from gpaco.segmentation.inference import Size, predict_probabilities
from gpaco.segmentation.network import Segmenter, build
from gpaco.segmentation.scenes import Scenes
from gpaco.segmentation.scoring import Tally, summarise
from gpaco.segmentation.transforms import fitting, rescaled

Show = Callable[[int, int], None]


class ScenePredictor(nn.Module):
    """Pictures to class scores: the trained network with its normalisation, and what it knows of its classes.

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


def build_segmenter(about: dict[str, Any], weights: str = "") -> Segmenter:
    """The network that `about` describes."""
    return build(
        about["model"],
        len(about["classes"]),
        weights=weights,
        dim=about["dim"],
        aux=about["aux"],
        channels=about["channels"],
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
) -> NDArray[np.float32]:
    """Class probabilities (C, H, W) of a picture (H, W, 3), which the network sees at the size it was trained for."""
    about = predictor.about
    window = window or tuple(about["window"]) or None
    stride = stride or tuple(about["stride"]) or None
    height, width = image.shape[:2]
    seen = image
    if about["base_size"]:
        seen, _ = rescaled(image, np.zeros((height, width), np.uint8), fitting((height, width), about["base_size"]))
    pixels = torch.from_numpy(np.ascontiguousarray(seen)).permute(2, 0, 1)[None].to(predictor.mean.device)
    found = predict_probabilities(
        predictor, pixels / 255, size=(height, width), window=window, stride=stride, scales=scales, flip=flip
    )
    result: NDArray[np.float32] = found[0].float().cpu().numpy()
    return result


def evaluate_scenes(
    predictor: ScenePredictor, scenes: Scenes, *, show: Show | None = None, **how: Any
) -> dict[str, Any]:
    """Figures over all scenes; each process does its share once.

    `how` goes to `segment`: scales, flip, window, stride.
    """
    about = predictor.about
    tally = Tally.empty(len(about["classes"]))
    mine = range(distributed.rank(), len(scenes), distributed.world_size())
    for done, (image, mask) in enumerate(_loaded(scenes, mine), 1):
        probabilities = segment(predictor, image, **how)
        if not np.isfinite(probabilities).all():
            raise Diverged(
                "the model gives numbers that are not finite; the last checkpoint is kept",
                "lower the learning rate: --lr",
            )
        tally.add(probabilities.argmax(0), mask)
        if show is not None:
            show(done, len(mine))
    device = predictor.mean.device
    for name, counted in vars(tally).items():
        setattr(tally, name, distributed.total(torch.from_numpy(counted).to(device)).cpu().numpy())
    return summarise(tally, about["counts"], about["classes"], many=about["many"], few=about["few"])


def _loaded(scenes: Scenes, indices: Sequence[int]) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Pictures and masks, decoded by a thread while the network works."""
    with ThreadPoolExecutor(1) as pool:
        ahead: list[Any] = []
        for i in [*indices, None]:
            if i is not None:
                ahead.append(pool.submit(scenes.load, i))
            if i is None or len(ahead) > 2:
                while ahead and (i is None or len(ahead) > 2):
                    yield ahead.pop(0).result()
