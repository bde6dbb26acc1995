"""Images and masks drawn for tests: the color of a pixel shows its class."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.tasks.segmentation.card import Card
from gpaco.tasks.segmentation.evaluation import evaluate_scenes
from gpaco.tasks.segmentation.network import STEP, Segmenter
from gpaco.tasks.segmentation.predictor import ScenePredictor
from gpaco.tasks.segmentation.splits import scene_splits
from gpaco.training import checkpoint
from gpaco.training.card import write_card
from gpaco.training.run import Run

COLORS = np.array([[200, 60, 60], [60, 190, 70], [60, 80, 200], [220, 220, 60]], np.uint8)
# A small network of timm's and crops to match: a step takes some hundredths of a second.
MODEL = "deeplabv3plus-test_resnet"
SMALL = (
    *("segmentation.crop=[32,32]", "segmentation.base_size=[40,56]", "segmentation.channels=16", "model.dim=16"),
    *("segmentation.pixels=32", "train.workers=0"),
)


def scene(seed: int, size: tuple[int, int] = (40, 56), classes: int = 3) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return an image of noisy blocks and its mask; the last class is rare, and some pixels have no class."""
    draw = np.random.default_rng(seed)
    shares = 0.3 ** np.arange(classes)
    blocks = draw.choice(classes, (size[0] // 8 + 1, size[1] // 8 + 1), p=shares / shares.sum())
    mask = np.kron(blocks, np.ones((8, 8), int))[: size[0], : size[1]].astype(np.uint8)
    image = COLORS[mask].astype(int) + draw.integers(-20, 21, (*mask.shape, 3))
    mask[:2, :3] = 255
    return image.clip(0, 255).astype(np.uint8), mask


def save_scene(image: Path, mask: Path, seed: int, **options: int) -> None:
    for path, array in zip((image, mask), scene(seed, **options), strict=True):  # type: ignore[arg-type]
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(path)


def scene_folder(root: Path, *, train: int = 8, val: int = 3, test: int = 3) -> Path:
    """images/ and masks/ with three parts and three classes."""
    seed = 0
    for part, number in (("train", train), ("val", val), ("test", test)):
        for k in range(number):
            seed += 1
            save_scene(root / "images" / part / f"{k}.png", root / "masks" / part / f"{k}.png", seed)
    return root


class TinyEncoder(nn.Module):
    """Features at the image's size, 1/2 and 1/4, as encoders of segmentation-models-pytorch give them."""

    out_channels = (3, 6, 8)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, 2, 1), nn.Sequential(nn.BatchNorm2d(6), nn.Conv2d(6, 8, 3, 2, 1))

    def forward(self, images: Tensor) -> list[Tensor]:
        half = self.first(images).relu()
        return [images, half, self.second(half).relu()]


class Last(nn.Module):
    """A decoder that returns the last feature unchanged."""

    def forward(self, features: list[Tensor]) -> Tensor:
        return features[-1]


def tiny_segmenter(classes: int = 3, dim: int = 5, seed: int = 0) -> Segmenter:
    """A network without anything that takes seconds to import."""
    torch.manual_seed(seed)
    return Segmenter(TinyEncoder(), Last(), 8, classes, dim=dim, aux=True, least=STEP)


def card(names: Sequence[str] = ("class 0", "class 1", "class 2"), **changes: Any) -> Card:
    """The card of a segmenter."""
    classes = len(names)
    known = Card(
        gpaco="0",
        classes=tuple(names),
        palette=tuple(map(tuple, COLORS[:classes].tolist())),
        counts=tuple(100 ** (classes - k) for k in range(classes)),
        images={},
        model="unet-resnet18",
        weights="none",
        dim=5,
        aux=True,
        channels=0,
        output_stride=8,
        drop_path=0.0,
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        image_size=(40, 56),
        base_size=(40, 56),
        window=(),
        stride=(),
        many=1.0,
        few=0.1,
    )
    return replace(known, **changes)


def made_run(home: Path, data: Path, names: tuple[str, ...], seed: int = 0) -> Run:
    """A run folder of the untrained tiny network with its metrics; `predictor.build_model` must return that network."""
    home.mkdir()
    recipe = recipes.override(Recipe(), ["train.task=segmentation", f"data.path={data}", "model.name=unet-resnet18"])
    (home / "recipe.toml").write_text(recipes.dumps(recipe))
    known = card(names)
    network = tiny_segmenter(seed=seed)
    state = {"position": {"epoch": 1, "best_step": None}, "card": write_card(known)}
    checkpoint.save(home / "checkpoints", 1, {"model": dict(network.state_dict()), "extra": {}}, state)
    test = scene_splits(recipe).test
    figures = evaluate_scenes(ScenePredictor(network.eval(), known).eval(), test, intervals=True)
    figures |= {"evaluated_on": "test", "selected_on": "val", "seed": 0, "method": "gpaco"}
    figures |= {"counts": list(known.counts), "environment": {"torch": "x"}}
    (home / "metrics.json").write_text(json.dumps(figures))
    return Run(home)
