"""The recipes of the paper's segmentation table: their values against those of the sources, and a step of each."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.scenes import scene_folder

from gpaco.recipes import recipe as recipes
from gpaco.recipes.paper_rows import names
from gpaco.recipes.settings import Recipe
from gpaco.tasks.segmentation.deeplab import default_width
from gpaco.tasks.segmentation.defaults import check_settings, check_sizes
from gpaco.tasks.segmentation.readers.read import read_scenes
from gpaco.tasks.segmentation.scenes import SceneSplits, numbered
from gpaco.tasks.segmentation.task import Segmentation
from gpaco.training.schedule import learning_rate, make_optimizer

# As the paper and RECIPES of the release say, written down a second time. By data set: training images, images per
# step, iterations, crop, base size, classes; then by network: mIoU of the baseline and of GPaCo, single scale.
DATA = {
    "ade20k": (20210, 16, 160_000, (512, 512), (512, 2048), 150),
    "coco-stuff": (9000, 16, 40_000, (512, 512), (512, 2048), 171),
    "pascal-context": (4998, 16, 40_000, (480, 480), (520, 520), 59),
    "cityscapes": (2975, 8, 80_000, (512, 1024), (1024, 2048), 19),
}
ROWS = {
    ("ade20k", "upernet-swin-t"): ("44.5", "45.4"),
    ("ade20k", "upernet-swin-b"): ("50.0", "51.6"),
    ("ade20k", "upernet-swin-l"): ("52.0", "52.8"),
    ("coco-stuff", "deeplabv3plus-resnet50"): ("35.8", "37.0"),
    ("coco-stuff", "deeplabv3plus-resnet101"): ("38.1", "38.8"),
    ("pascal-context", "deeplabv3plus-resnet50"): ("50.5", "51.9"),
    ("pascal-context", "deeplabv3plus-resnet101"): ("52.9", "54.2"),
    ("cityscapes", "deeplabv3plus-resnet18"): ("76.9", "78.1"),
    ("cityscapes", "deeplabv3plus-resnet50"): ("80.1", "80.8"),
    ("cityscapes", "deeplabv3plus-resnet101"): ("81.0", "81.4"),
}
MULTI = {
    "ade20k": ("45.8", "46.8", "51.7", "53.2", "53.5", "54.3"),
    "coco-stuff": ("36.8", "37.9", "39.0", "40.1"),
    "pascal-context": ("52.1", "53.7", "54.5", "56.2"),
    "cityscapes": ("78.8", "79.7", "81.1", "82.0", "82.0", "82.1"),
}
SGD = {"coco-stuff": (0.01, 5e-4), "pascal-context": (0.004, 1e-4), "cityscapes": (0.01, 5e-4)}
ALPHA = {("cityscapes", "deeplabv3plus-resnet50"): 0.03, ("cityscapes", "deeplabv3plus-resnet101"): 0.02}
NAMES = [f"{data}-{network}-{method}" for data, network in ROWS for method in ("ce", "gpaco")]


@cache
def load(name: str) -> Recipe:
    return recipes.load(name)


def parts(name: str) -> tuple[str, str, str]:
    """Data, network and method of a name."""
    start, method = name.rsplit("-", 1)
    data = next(word for word in DATA if start.startswith(word))
    return data, start.removeprefix(f"{data}-"), method


def test_every_row_of_the_table_has_its_two_recipes_and_there_are_no_others() -> None:
    ours = {name for name in names() if load(name).train.task == "segmentation"}
    assert ours == set(NAMES)


def test_each_recipe_has_the_values_of_its_sources() -> None:
    for name in NAMES:
        recipe, scenes = load(name), load(name).segmentation
        data, network, method = parts(name)
        images, batch, iterations, crop, base, _ = DATA[data]
        assert recipe.source.paper == ROWS[data, network][method == "gpaco"]
        place = 2 * [key for key in ROWS if key[0] == data].index((data, network)) + (method == "gpaco")
        assert f"Paper, multi-scale: {MULTI[data][place]}." in recipe.source.note
        assert (recipe.data.expect_images, recipe.data.validation, recipe.train.batch_size) == (images, 0, batch)
        assert (scenes.crop, scenes.base_size) == (crop, base)
        steps = recipe.train.epochs * (images // batch)
        assert abs(steps - iterations) <= images // batch / 2
        assert f"are {steps:,} iterations; the released code runs {iterations:,}" in recipe.source.note
        slides = data == "pascal-context"
        assert (scenes.window, scenes.stride) == (((480, 480), (320, 320)) if slides else ((), ()))
        width = scenes.channels or default_width(recipe.model.name.removeprefix("deeplabv3plus-"))
        assert width == (128 if network.endswith("resnet18") else 512)
        assert (scenes.pixels, scenes.weight, scenes.aux_weight) == (8192, 1.0, 0.4)
        assert (scenes.scale, scenes.max_share) == ((0.5, 2.0), 0.75)
        assert recipe.method.name == method
        if method == "gpaco":
            assert recipe.method.alpha == ALPHA.get((data, network), 0.01)
            assert (recipe.method.temperature, recipe.model.dim) == (0.07, 128)
        assert f"--weights {recipe.model.weights} --recipe {name} --out RUN" in recipe.source.command
        processes = int(recipe.source.command.split("--nproc_per_node ")[1].split()[0])
        assert recipe.source.hardware == f"{processes} GPUs"
        assert batch // processes == (4 if data in ("coco-stuff", "pascal-context") else 2)
        check_settings(recipe)
        check_sizes(recipe)


def test_the_rate_of_every_recipe_goes_as_released() -> None:
    for name in NAMES:
        recipe, optimizer = load(name), load(name).optimizer
        data, *_ = parts(name)
        images, batch, iterations, *_ = DATA[data]
        steps = recipe.train.epochs * (images // batch)
        if data == "ade20k":
            assert (optimizer.name, optimizer.weight_decay, optimizer.decay_bias) == ("adamw", 0.01, False)
            assert recipe.model.drop_path == 0.3
            places = (0, 100, 1499, 1501, 80_000, steps - 1)
            expected = {step: 6e-5 * (1 - step / steps) * min(1, step / 1500) for step in places}
        else:
            lr, decay = SGD[data]
            assert (optimizer.name, optimizer.weight_decay, optimizer.momentum) == ("sgd", decay, 0.9)
            places = (0, 1, iterations // 2, steps - 1)
            expected = {step: (lr - 1e-4) * (1 - step / steps) ** 0.9 + 1e-4 for step in places}
        near = 2e-3 if data == "ade20k" else 1e-9  # its warm-up is rounded
        for step, rate in expected.items():
            found = learning_rate(recipe, step, images // batch)
            assert found == pytest.approx(rate, rel=near, abs=1e-12), (name, step)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> SceneSplits:
    return read_scenes(scene_folder(tmp_path_factory.mktemp("data"), train=2, val=0, test=0))


REAL = {load(name).model.name: name for name in NAMES if name.endswith("-gpaco")}  # one of each network
LARGE = {"upernet-swin-large", "upernet-swin-base"}
SMALL = {f"{load(name).model.name.split('-')[0]}-test_resnet": name for name in NAMES if name.endswith("-ce")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "name"),
    [
        pytest.param(*pair, marks=[pytest.mark.extensive] if pair[0] in LARGE else [])
        for pair in [*REAL.items(), *SMALL.items()]
    ],
)
def test_each_network_takes_a_step_with_gpaco_and_a_small_one_with_cross_entropy(
    network: str, name: str, scenes: SceneSplits, tmp_path: Path
) -> None:
    data, _, method = parts(name)
    classes = tuple(map(str, range(DATA[data][-1])))
    small = {
        "model.name": network,
        "model.weights": "none",
        "segmentation.crop": (32, 64),
        "segmentation.base_size": (40, 56),
        "segmentation.channels": 16,
        "segmentation.pixels": 64,
        "train.batch_size": 2,
        "train.workers": 0,
    }
    recipe = recipes.change(load(name), small)
    train = replace(scenes.train, classes=classes, decode=numbered(len(classes)), palette=())
    splits = replace(scenes, train=train, val=None, test=None, pixels=tuple(range(1, len(classes) + 1)))
    task = Segmentation(recipe, splits, torch.device("cpu"), print).begin(recipe, tmp_path, None)
    model = task.model
    assert (model.projector is not None) == (method == "gpaco")
    assert model.aux is not None
    optimizer = make_optimizer(recipe, model)
    watched = model.classifier[1].weight
    before = watched.detach().clone()
    loss = task.loss(model, next(iter(task.batches(0, 0))))
    loss.backward()
    optimizer.step()
    assert torch.isfinite(loss)
    assert not torch.equal(watched, before)
    assert np.isfinite(float(watched.detach().sum()))
