"""Views: each operation against Pillow and torchvision, the policies, and that a view is a function of its keys."""

from collections import Counter
from itertools import product

import cv2
import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from scipy.interpolate import RBFInterpolator
from scipy.stats import norm
from sklearn.datasets import load_digits
from torchvision import transforms as T
from torchvision.transforms import functional as TF

from gpaco.data.counter_random import uniforms
from gpaco.data.samples import Samples
from gpaco.data.views import eval as eval_views
from gpaco.data.views import photo_ops
from gpaco.data.views.policies import (
    AUTO_AUGMENT,
    CIFAR10_POLICY,
    ENHANCING,
    GEOMETRIC,
    IMAGENET_MEAN,
    RAND_AUGMENT,
    RAND_INCREASING,
    Box,
    Step,
    affine,
    auto_augment,
    auto_value,
    crop_box,
    rand_augment,
    rand_value,
)
from gpaco.data.views.spline import drawn_moves, spline_flow, spline_warp
from gpaco.data.views.views import VIEWS, View, batch_view, normalize, photo_view
from gpaco.recipes import settings

PILLOW_RESAMPLE = {"nearest": Image.NEAREST, "bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC}


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth colors, some discs, some noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / max(height, width)
    image = np.stack([120 + 90 * np.sin(5 * x + 2 * y), 110 + 100 * np.cos(4 * y - 3 * x), 60 + 140 * x * y], -1)
    for _ in range(6):
        top, left, size = rng.random(3)
        image[(y - top) ** 2 + (x - left) ** 2 < (0.05 + 0.15 * size) ** 2] = rng.random(3) * 255
    return np.clip(image + rng.normal(0, 4, image.shape), 0, 255).astype(np.uint8)


def by_pillow(image: Image.Image, step: Step) -> Image.Image:
    name, value = step.name, step.value
    if name == "rotate":
        return image.rotate(value, PILLOW_RESAMPLE[step.resample], fillcolor=step.fill)
    if name in GEOMETRIC:
        width, height = image.size
        coefficients = {
            "shear_x": (1, value, 0, 0, 1, 0),
            "shear_y": (1, 0, 0, value, 1, 0),
            "translate_x": (1, 0, value * width, 0, 1, 0),
            "translate_y": (1, 0, 0, 0, 1, value * height),
        }[name]
        resample = PILLOW_RESAMPLE[step.resample]
        return image.transform(image.size, Image.AFFINE, coefficients, resample, fillcolor=step.fill)
    if name == "sharpness":
        return ImageEnhance.Sharpness(image).enhance(value)
    by_torchvision = {
        "brightness": TF.adjust_brightness,
        "contrast": TF.adjust_contrast,
        "color": TF.adjust_saturation,
        "hue": TF.adjust_hue,
    }
    if name in by_torchvision:
        return by_torchvision[name](image, value)
    if name == "blur":
        return image.filter(ImageFilter.GaussianBlur(value))
    if name == "solarize_add":
        return image.point([min(255, i + int(value)) if i < 128 else i for i in range(256)] * 3)
    if name == "posterize":
        return ImageOps.posterize(image, int(value))
    if name == "solarize":
        return ImageOps.solarize(image, value)
    return {"autocontrast": ImageOps.autocontrast, "equalize": ImageOps.equalize, "invert": ImageOps.invert}[name](
        image
    )


def difference(one: object, other: object) -> float:
    return float(np.abs(np.asarray(one).astype(float) - np.asarray(other).astype(float)).mean())


def center(image: np.ndarray) -> np.ndarray:
    """Row and column of the bright spot."""
    weight = np.asarray(image).astype(float).sum(2)
    weight = np.where(weight > weight.max() / 2, weight, 0)
    rows, columns = np.mgrid[: weight.shape[0], : weight.shape[1]]
    return np.array([(rows * weight).sum(), (columns * weight).sum()]) / weight.sum()


def spot(height: int, width: int, row: float, column: float, spread: float = 2.0) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    value = 255 * np.exp(-((y - row) ** 2 + (x - column) ** 2) / (2 * spread**2))
    return np.repeat(value[..., None], 3, 2).astype(np.uint8)


STEPS = [
    *(Step(name) for name in ("autocontrast", "equalize", "invert")),
    *(Step("posterize", bits) for bits in (3, 4, 7)),
    *(Step("solarize", threshold) for threshold in (0, 100.5, 256)),
    *(Step("solarize_add", add) for add in (30, 110)),
    *(Step(name, value) for name in sorted(ENHANCING) for value in (0.0, 0.1, 0.6, 1.0, 1.4, 1.9)),
    *(Step("hue", value) for value in (-0.1, 0.03, 0.1)),
    *(Step("blur", value) for value in (0.1, 0.3, 0.7, 1.0, 1.5, 2.0)),
]
WARPS = [
    Step(name, value, resample, IMAGENET_MEAN)
    for (name, value), resample in product(
        [
            ("rotate", 30.0),
            ("rotate", -17.3),
            ("shear_x", 0.3),
            ("shear_y", -0.21),
            ("translate_x", 0.23),
            ("translate_y", -0.301),
            ("translate_x", -0.45),
        ],
        PILLOW_RESAMPLE,
    )
]


def test_an_operation_does_what_pillow_does() -> None:
    large, small = noise(160, 224), noise(32, 32, seed=1)
    for step in STEPS + WARPS:
        assert difference(photo_ops.apply(large, step), by_pillow(Image.fromarray(large), step)) < 1.0, step
        assert difference(photo_ops.apply(small, step), by_pillow(Image.fromarray(small), step)) < 2.0, step


def test_a_marked_point_goes_where_pillow_puts_it() -> None:
    image = spot(90, 120, 45, 60, 3.0)
    for step in WARPS:
        step = step._replace(fill=(0, 0, 0))
        row, column = center(by_pillow(Image.fromarray(image), step))
        assert np.abs(center(photo_ops.apply(image, step)) - (row, column)).max() < 0.1, step
        a, b, c, d, e, f = affine(step.name, step.value, 90, 120)  # and so says the matrix
        back = d * (column + 0.5) + e * (row + 0.5) + f, a * (column + 0.5) + b * (row + 0.5) + c
        assert np.abs(np.array(back) - (45.5, 60.5)).max() < 0.5, step


def test_operations_on_flat_and_extreme_images_do_what_pillow_does() -> None:
    flat, black = np.full((20, 20, 3), 77, np.uint8), np.zeros((20, 20, 3), np.uint8)
    two = np.where(np.arange(20)[:, None, None] < 10, 3, 250).astype(np.uint8) * np.ones((20, 20, 3), np.uint8)
    for image, step in product((flat, black, two), STEPS):
        assert difference(photo_ops.apply(image, step), by_pillow(Image.fromarray(image), step)) < 2, step


def test_a_resized_crop_is_pillows() -> None:
    image = noise(150, 200)
    boxes = [Box(0, 0, 150, 200), Box(10, 20, 37, 51), Box(0, 30, 149, 60), Box(100, 3, 1, 1), Box(5, 5, 64, 64)]
    for box, size, resample in product(boxes, (24, 64, 180), ("bilinear", "bicubic")):
        top, left, height, width = box
        part = Image.fromarray(image).crop((left, top, left + width, top + height))
        expected = part.resize((size, size), PILLOW_RESAMPLE[resample])
        found = photo_ops.resized_crop(image, box, size, size, resample)
        assert difference(found, expected) < 0.5, (box, size, resample)


def test_a_crop_box_has_torchvisions_distribution() -> None:
    height, width, scale = 300, 400, (0.08, 1.0)
    draws = uniforms(0, 0, np.arange(4000), 0, 22).tolist()
    ours = np.array([crop_box(height, width, scale, row) for row in draws], float)
    still = torch.zeros(3, height, width)
    theirs = np.array([T.RandomResizedCrop.get_params(still, scale, (3 / 4, 4 / 3)) for _ in range(4000)], float)

    def features(boxes: np.ndarray) -> np.ndarray:
        top, left, h, w = boxes.T
        return np.stack([h * w, np.log(w / h), top + h / 2, left + w / 2, (h * w) ** 2, top * left], 1)

    one, other = features(ours), features(theirs)
    error = np.sqrt((one.var(0) + other.var(0)) / 4000)
    assert (np.abs(one.mean(0) - other.mean(0)) < 4 * error).all()
    assert (ours[:, :2] >= 0).all()
    assert (ours[:, :2] + ours[:, 2:] <= (height, width)).all()


def test_a_crop_that_fits_nowhere_is_central_and_of_the_nearest_aspect_ratio() -> None:
    draws = [0.999, 0.5] * 10 + [0.3, 0.7]  # as large as can be: never fits a strip
    assert crop_box(10, 1000, (0.9, 1.0), draws) == Box(0, 493, 10, 13)
    assert crop_box(1000, 10, (0.9, 1.0), draws) == Box(493, 0, 13, 10)
    assert crop_box(30, 30, (1.0, 1.0), draws) == Box(0, 0, 30, 30)
    late = [0.999, 0.5] * 9 + [0.0, 0.5, 0.0, 0.0]  # the tenth try counts
    assert crop_box(20, 100, (0.1, 1.0), late) == Box(0, 0, 14, 14)


def test_rand_augment_levels_are_timms() -> None:
    from timm.data import auto_augment as timm

    names = {"translate_x": "TranslateXRel", "translate_y": "TranslateYRel", "autocontrast": "AutoContrast"}
    names |= {"shear_x": "ShearX", "shear_y": "ShearY", "solarize_add": "SolarizeAdd"}
    assert [names.get(name, name.title()) for name in RAND_AUGMENT] == timm._RAND_TRANSFORMS
    for name, level in product(RAND_AUGMENT, (0, 2.5, 7.3, 9.99, 10)):
        level_map = timm.LEVEL_TO_ARG[names.get(name, name.title())]
        expected = abs(level_map(level, {})[0]) if level_map else 0
        assert rand_value(name, level) == pytest.approx(expected), name
    growing = {name: f"{name.title()}Increasing" for name in ("posterize", "solarize", *ENHANCING)}
    assert [growing.get(n, names.get(n, n.title())) for n in RAND_INCREASING] == timm._RAND_INCREASING_TRANSFORMS
    for name, level in product(RAND_INCREASING, (0, 2.5, 7.3, 9, 9.99)):
        level_map = timm.LEVEL_TO_ARG[growing.get(name, names.get(name, name.title()))]
        expected = abs(level_map(level, {})[0] - (name in ENHANCING)) if level_map else 0
        assert rand_value(name, level, increasing=True) == pytest.approx(expected), name


def test_the_growing_rand_augment_has_enhancements_both_ways_and_bicubic_resampling() -> None:
    rows = uniforms(0, 0, np.arange(3000), 0, 10).tolist()
    steps = [step for row in rows for step in rand_augment(row, 2, 9, increasing=True)]
    assert {step.name for step in steps} == set(RAND_INCREASING)
    assert {step.resample for step in steps} == {"bicubic"}
    factors = np.array([step.value for step in steps if step.name in ENHANCING])
    assert np.mean(factors > 1) == pytest.approx(0.5, abs=0.05)
    assert np.abs(factors - 1).mean() == pytest.approx(0.81, abs=0.01)
    assert {step.value for step in steps if step.name == "posterize"} == {0, 1}


def test_rand_augment_draws_as_released() -> None:
    rows = uniforms(0, 0, np.arange(6000), 0, 15).tolist()
    drawn = [rand_augment(row, 3, 10) for row in rows]
    lengths = Counter(len(steps) for steps in drawn)  # three operations, each with probability 0.5
    assert [lengths[k] / 6000 for k in range(4)] == pytest.approx([1 / 8, 3 / 8, 3 / 8, 1 / 8], abs=0.02)
    steps = [step for each in drawn for step in each]
    names = Counter(step.name for step in steps)
    assert set(names) == set(RAND_AUGMENT)
    assert all(count / len(steps) == pytest.approx(1 / 15, abs=0.01) for count in names.values())
    assert any(one.name == other.name for one, other, *_ in (each for each in drawn if len(each) > 1))
    bits = Counter(step.value for step in steps if step.name == "posterize")
    assert set(bits) == {3, 4}
    assert bits[4] / bits.total() == pytest.approx(0.5, abs=0.06)
    assert np.mean([step.value == 256 for step in steps if step.name == "solarize"]) == pytest.approx(0.5, abs=0.06)
    for step in steps:
        assert step.fill == (124, 116, 104)
        if step.name in GEOMETRIC:
            assert abs(step.value) <= RAND_AUGMENT[step.name][1]
    signs = [step.value > 0 for step in steps if step.name in GEOMETRIC]
    cubic = [step.resample == "bicubic" for step in steps]
    assert np.mean(signs) == pytest.approx(0.5, abs=0.03)
    assert np.mean(cubic) == pytest.approx(0.5, abs=0.03)
    levels = [step.value / 3 for step in (s for row in rows for s in rand_augment(row, 3, 5)) if step.name == "rotate"]
    assert np.std(np.abs(levels)) == pytest.approx(0.5, abs=0.06)
    assert np.mean(np.abs(levels)) == pytest.approx(5, abs=0.08)


def test_auto_augment_has_torchvisions_policy_and_the_released_levels() -> None:
    theirs = T.AutoAugment(T.AutoAugmentPolicy.CIFAR10)
    names = {"autocontrast": "AutoContrast", "shear_y": "ShearY", "translate_x": "TranslateX"}
    names |= {"translate_y": "TranslateY"}
    ours = [tuple((names.get(n, n.title()), p, level) for n, p, level in pair) for pair in CIFAR10_POLICY]
    without_level = ("AutoContrast", "Equalize", "Invert")
    for pair, expected in zip(ours, theirs.policies, strict=True):
        for (name, probability, level), (their_name, their_probability, their_level) in zip(
            pair, expected, strict=True
        ):
            assert (name, probability) == (their_name, their_probability)
            assert name in without_level or level == their_level
    assert len(CIFAR10_POLICY) == 25
    assert {name for pair in CIFAR10_POLICY for name, _, _ in pair} == set(AUTO_AUGMENT)

    space = theirs._augmentation_space(10, (331, 331))
    for name in AUTO_AUGMENT:
        levels = space[names.get(name, name.title())][0]
        for level in range(10):
            if names.get(name, name.title()) in without_level:
                assert auto_value(name, level) == 0
            elif name == "solarize":
                assert auto_value(name, level) == pytest.approx(256 - 256 * level / 9)  # theirs starts from 255
            else:
                scale = 331 if name.startswith("translate") else 1
                assert auto_value(name, level) * scale == pytest.approx(float(levels[level]))


def test_auto_augment_draws_as_released() -> None:
    drawn = [auto_augment(row) for row in uniforms(0, 0, np.arange(20_000), 0, 5).tolist()]
    expected = Counter[str]()
    for pair in CIFAR10_POLICY:
        for name, probability, _ in pair:
            expected[name] += probability / 25
    found = Counter(step.name for steps in drawn for step in steps)
    for name, share in expected.items():
        assert found[name] / 20_000 == pytest.approx(share, abs=0.012), name
    resample = {"shear_y": "bicubic"}
    for step in (step for steps in drawn for step in steps):
        assert step.resample == resample.get(step.name, "nearest")
        assert step.fill == (128, 128, 128)
        assert step.name != "rotate" or step.value == pytest.approx(30 * 2 / 9)  # the one without a sign
    signs = [step.value > 0 for steps in drawn for step in steps if step.name.startswith("translate")]
    factors = [step.value for steps in drawn for step in steps if step.name == "brightness"]
    assert np.mean(signs) == pytest.approx(0.5, abs=0.02)
    assert {round(factor, 3) for factor in factors} == {0.1, 0.3, 0.4, 0.7, 1.3, 1.6, 1.7, 1.9}


def test_the_steps_of_each_view_come_in_the_released_order() -> None:
    def names(view: str, draws: list[float]) -> list[str]:
        found = [step.name for step in VIEWS[view].steps(View(view, 32), draws)]
        return ["jitter" if name in ("brightness", "contrast", "hue") else name for name in found]

    everything = [0.0] * 200  # whatever may happen does; jitter in its own order, RandAugment's first operation twice
    rand = ["autocontrast", "autocontrast"]
    jitter, gray = ["jitter", "jitter", "color"], ["color"]
    assert names("sim", everything) == [*jitter, *gray, "blur"]
    assert names("rand", everything) == [*jitter, *rand]
    assert names("rand_stack", everything) == [*jitter, *gray, "blur", *rand]
    assert names("rand_blur", everything) == [*jitter, *rand, "blur"]
    assert names("sim_warp", everything) == [*jitter, *gray, "warp", "blur"]
    assert names("mae", everything) == rand
    assert names("cifar_sim", everything) == [*jitter, "jitter", *gray, "blur"]
    assert names("cifar_aug", everything) == [*jitter, "jitter", *gray, "blur"]
    assert names("cifar_regular", everything) == ["invert", "jitter"]
    assert names("plain", everything) == []
    nothing = [0.999] * 200
    assert (
        names("sim", nothing) == names("rand", nothing) == names("rand_stack", nothing) == ["jitter", "jitter", "color"]
    )
    assert names("cifar_sim", nothing) == names("cifar_aug", nothing) == names("cifar_regular", nothing) == []
    assert names("mae", nothing) == []
    scales = dict.fromkeys(("sim", "sim_warp", "rand", "rand_stack", "rand_blur", "mae"), (0.08, 1))
    scales |= dict.fromkeys(("cifar_sim", "cifar_aug"), (0.2, 1)) | {"plain": (0.25, 1)}
    assert {name: kind.scale for name, kind in VIEWS.items() if kind.scale} == scales
    assert [name for name, kind in VIEWS.items() if kind.hole] == ["cifar_regular"]
    for name in ("rand_blur", "sim_warp"):  # half of the time
        assert "blur" in names(name, [0.45] * 200)
        assert "blur" not in names(name, [0.55] * 200)


def test_the_steps_of_a_view_are_as_likely_as_released() -> None:
    released = {
        "sim": (1, 0.5, 0),
        "rand_stack": (1, 0.5, 0),
        "cifar_sim": (0.8, 0.5, 0.8),
        "cifar_aug": (0.8, 0.2, 0.8),
    }
    for name, (jitter, blur, hue) in released.items():
        view = View(name, 32, ops=0)
        rows = uniforms(3, 0, np.arange(3000), 0, view.draws).tolist()
        drawn = [step for row in rows for step in VIEWS[name].steps(view, row)]
        ranges = [
            (wanted, low, low + 0.4, jitter / 2) for wanted in ("brightness", "contrast", "color") for low in (0.6, 1)
        ]
        ranges += [("color", 0, 0.01, 0.2), ("blur", 0.1, 1.05, blur / 2), ("blur", 1.05, 2, blur / 2)]
        ranges += [("hue", -0.1, 0, hue / 2), ("hue", 0, 0.1, hue / 2)]
        for wanted, low, high, share in ranges:
            found = sum(step.name == wanted and low <= step.value < high for step in drawn) / len(rows)
            assert found == pytest.approx(share, abs=0.03), (name, wanted, low)


def test_color_jitter_comes_in_every_order_equally_often() -> None:
    rows = uniforms(0, 0, np.arange(4800), 0, View("cifar_sim", 32).draws).tolist()
    orders = Counter[tuple[str, ...]]()
    for row in rows:
        steps = [step.name for step in VIEWS["cifar_sim"].steps(View("cifar_sim", 32), row)]
        if "hue" in steps:
            orders[tuple(steps[:4])] += 1
    assert len(orders) == 24
    assert min(orders.values()) > 110  # 160 expected, standard deviation 12
    assert max(orders.values()) < 215


def by_pillow_whole(image: np.ndarray, view: View, draws: list[float]) -> np.ndarray:
    """A view of a 32 px image in memory."""
    kind = VIEWS[view.name]
    if kind.scale:
        top, left, height, width = crop_box(32, 32, kind.scale, draws)
        part = Image.fromarray(image).crop((left, top, left + width, top + height))
        out = part.resize((32, 32), PILLOW_RESAMPLE[kind.resample])
    else:
        left, top = int(draws[21] * 9), int(draws[20] * 9)
        out = ImageOps.expand(Image.fromarray(image), 4).crop((left, top, left + 32, top + 32))
    if draws[22] < 0.5:
        out = ImageOps.mirror(out)
    for step in kind.steps(view, draws):
        out = by_pillow(out, step)
    pixels = np.array(out)
    if kind.hole:
        row, column = int(draws[35] * 32), int(draws[36] * 32)
        pixels[max(row - 8, 0) : row + 8, max(column - 8, 0) : column + 8] = 0
    return pixels


def test_a_whole_view_is_what_pillow_makes_of_the_same_draws() -> None:
    images = np.stack([noise(32, 32, seed) for seed in range(24)])
    for name in set(VIEWS) - {"plain", "sim_warp"}:
        view = View(name, 32, ops=1)
        u = uniforms(0, 0, np.arange(24), 0, view.draws)
        found = batch_view(images, view, u).permute(0, 2, 3, 1).numpy()
        wanted = [by_pillow_whole(image, view, draws) for image, draws in zip(images, u.tolist(), strict=True)]
        differences = [difference(one, other) for one, other in zip(found, wanted, strict=True)]
        assert np.mean(differences) < 2, name
        assert max(differences) < 3, name


def test_the_warp_moves_four_points_where_it_says_and_bends_the_rest_as_a_thin_plate_spline() -> None:
    side = 90
    moves = np.array([[4, -6], [0, 3], [-5, 0], [2, 7]]) / side
    flow = spline_flow(moves, side, side)
    points = np.array([(y, x) for y in (30, 60) for x in (30, 60)])
    for (y, x), move in zip(points, moves, strict=True):  # whole pixels, so that the ends are on the grid
        ends = (np.array([y, x]) + np.rint(move * side)).astype(int)
        np.testing.assert_allclose(flow[tuple(ends)], move, atol=1e-9)
    sources, ends = points / side, points / side + moves
    spline = RBFInterpolator(ends, ends - sources, kernel="thin_plate_spline")
    grid = np.column_stack([index.ravel() for index in np.mgrid[:side, :side]]) / side
    np.testing.assert_allclose(flow.reshape(-1, 2), spline(grid), atol=1e-9)
    image = noise(side, side, 0)
    assert np.array_equal(spline_warp(image, (0.0,) * 8), image)
    spot = np.zeros((side, side, 3), np.uint8)
    spot[28:33, 28:33] = 255  # around the first point
    row, column, _ = np.argwhere(spline_warp(spot, moves.ravel()) > 128).mean(0)
    assert (row, column) == (pytest.approx(34, abs=1), pytest.approx(24, abs=1))
    assert drawn_moves([0.5, 1, *[0.9] * 8]) == ()
    places = np.linspace(0.01, 0.99, 8)
    for share in (0, 0.5, 1):  # of the largest standard deviation, 23 pixels of 224
        moves = drawn_moves([0, share, *places])
        np.testing.assert_allclose(moves, share * 23 / 224 * norm.ppf(places), rtol=1e-6)


def test_recipes_know_every_view_and_no_other() -> None:
    assert sorted(settings.VIEWS) == sorted(VIEWS)


def test_any_view_works_on_photographs_and_on_images_in_memory() -> None:
    for name, (height, width) in product(VIEWS, ((97, 131), (131, 60), (40, 40), (8, 8), (1, 30), (1, 1))):
        view = View(name, 40)
        u = uniforms(0, 0, np.arange(6), 0, view.draws)
        images = np.stack([noise(height, width, seed) for seed in range(6)])
        images.flags.writeable = False  # data is never written to
        out = batch_view(images, view, u)
        assert out.shape == (6, 3, 40, 40)
        assert out.dtype == torch.uint8
        assert out.is_contiguous()
        single = photo_view(images[0], view, u[0])
        assert single.shape == (40, 40, 3)
        assert single.dtype == np.uint8
        assert single.flags.c_contiguous
        assert batch_view(images[:0], view, u[:0]).shape == (0, 3, 40, 40)


def test_the_bits_of_a_view_do_not_depend_on_the_batch_it_is_in() -> None:
    images = np.stack([noise(32, 32, seed) for seed in range(48)])
    order = np.random.default_rng(0).permutation(48)
    for name in VIEWS:
        view = View(name, 32)
        together, mixed = (
            batch_view(images[chosen], view, uniforms(5, 1, chosen, 0, view.draws)) for chosen in (np.arange(48), order)
        )
        assert torch.equal(together[torch.from_numpy(order)], mixed), name
        alone = batch_view(images[7:8], view, uniforms(5, 1, np.array([7]), 0, view.draws))
        assert torch.equal(together[7:8], alone), name


def test_the_bits_of_a_view_do_not_depend_on_the_number_of_threads() -> None:
    images = np.stack([noise(200, 260, seed) for seed in range(8)])
    small = np.stack([noise(32, 32, seed) for seed in range(64)])
    threads, cv_threads = torch.get_num_threads(), cv2.getNumThreads()

    def everything() -> list[np.ndarray]:
        found = []
        for name in VIEWS:
            view = View(name, 160, ops=4)
            u = uniforms(0, 0, np.arange(64), 0, view.draws)
            found += [photo_view(image, view, row) for image, row in zip(images, u, strict=False)]
            found.append(batch_view(small, View(name, 32), u).numpy())
        return found

    try:
        torch.set_num_threads(1)
        cv2.setNumThreads(1)
        alone = everything()
        torch.set_num_threads(3)
        cv2.setNumThreads(4)
        several = everything()
    finally:
        torch.set_num_threads(threads)
        cv2.setNumThreads(cv_threads)
    assert all(np.array_equal(one, other) for one, other in zip(alone, several, strict=True))


def test_another_seed_epoch_index_or_view_gives_another_image() -> None:
    image = noise(64, 64)
    for name in VIEWS:
        view = View(name, 32)
        seen = set()
        for seed, epoch, index, number in [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)] * 2:
            u = uniforms(seed, epoch, np.array([index]), number, view.draws)
            seen.add(photo_view(image, view, u[0]).tobytes())
        assert len(seen) == 5, name


def test_half_of_the_images_are_mirrored_unless_flip_is_off() -> None:
    image = np.zeros((32, 32, 3), np.uint8)
    image[:, :16] = 200
    images = np.repeat(image[None], 400, 0)
    for view, share in ((View("plain", 32), 0.5), (View("plain", 32, flip=False), 0.0)):
        out = batch_view(images, view, uniforms(0, 0, np.arange(400), 0, view.draws)).float()
        mirrored = out[..., 16:].mean((1, 2, 3)) > out[..., :16].mean((1, 2, 3))
        assert mirrored.float().mean().item() == pytest.approx(share, abs=0.08)


def test_digits_are_shifted_by_one_pixel_and_never_mirrored() -> None:
    digits = (load_digits().images[:60] * 15).astype(np.uint8)
    images = np.repeat(digits[..., None], 3, 3)
    view = View("plain", 8)
    out = batch_view(images, view, uniforms(0, 0, np.arange(60), 0, view.draws))[:, 0].numpy()
    padded = np.pad(digits, ((0, 0), (1, 1), (1, 1)))
    seen = Counter[tuple[int, int]]()
    for whole, shown in zip(padded, out, strict=True):
        places = [(y, x) for y in range(3) for x in range(3) if np.array_equal(whole[y : y + 8, x : x + 8], shown)]
        assert places
        seen[places[0]] += 1
    assert len(seen) == 9
    for name in VIEWS:  # the same two images whatever the flip draw says
        u = np.full((1, View(name, 8).draws), 0.7)
        u[0, 22] = 0.1
        flipped = batch_view(images[:1], View(name, 8), u)
        u[0, 22] = 0.9
        assert torch.equal(flipped, batch_view(images[:1], View(name, 8), u))


def test_small_images_are_shifted_by_up_to_an_eighth_with_a_black_border() -> None:
    images = np.repeat(spot(32, 32, 15.5, 15.5)[None], 500, 0)
    view = View("plain", 32, flip=False)
    out = batch_view(images, view, uniforms(0, 0, np.arange(500), 0, view.draws)).permute(0, 2, 3, 1).numpy()
    moves = Counter(tuple(np.rint(center(image) - center(images[0])).astype(int).tolist()) for image in out)
    assert {move for pair in moves for move in pair} == set(range(-4, 5))
    white = np.full((1, 32, 32, 3), 255, np.uint8)
    u = np.zeros((1, view.draws))
    corner = batch_view(white, view, u)[0]
    assert not corner[:, :4].any()
    assert not corner[:, :, :4].any()
    assert (corner[:, 4:, 4:] == 255).all()


def test_small_images_that_are_enlarged_are_cropped_and_have_no_border() -> None:
    white = np.full((50, 32, 32, 3), 255, np.uint8)
    view = View("plain", 96)
    assert (batch_view(white, view, uniforms(0, 0, np.arange(50), 0, view.draws)) == 255).all()


def test_cutout_is_one_black_square_that_may_hang_over_the_border() -> None:
    view = View("cifar_regular", 32)
    images = np.full((300, 32, 32, 3), 200, np.uint8)
    u = uniforms(0, 0, np.arange(300), 0, view.draws)
    u[:, 20:22] = 0.5  # no shift
    u[:, 37] = 0.6  # a pair that ...
    u[:, [38, 40]] = 0.999  # ... does nothing
    black = (batch_view(images, view, u) == 0).all(1).numpy()
    areas = black.sum((1, 2))
    assert areas.min() < 100
    assert areas.max() == 256
    for mask, row, column in zip(black, (u[:, 35] * 32).astype(int), (u[:, 36] * 32).astype(int), strict=True):
        expected = np.zeros((32, 32), bool)
        expected[max(row - 8, 0) : row + 8, max(column - 8, 0) : column + 8] = True
        assert np.array_equal(mask, expected)


def test_test_images_are_resized_and_cropped_as_torchvision_does() -> None:
    for height, width in ((375, 500), (500, 333), (64, 64), (100, 257)):
        image = noise(height, width)
        expected = TF.center_crop(TF.resize(Image.fromarray(image), 64), [56, 56])
        assert difference(eval_views.as_tested(image, eval_views.TestView(56, 64, False, "bilinear")), expected) < 0.5
        expected = TF.center_crop(TF.resize(Image.fromarray(image), 64, TF.InterpolationMode.BICUBIC), [56, 56])
        assert difference(eval_views.as_tested(image, eval_views.TestView(56, 64, False, "bicubic")), expected) < 0.5

    images = np.stack([noise(40, 48, seed) for seed in range(5)])
    samples = Samples(np.zeros(5), ("noise",), images=images)
    (found,) = eval_views.images_as_tested(samples, eval_views.TestView(32, 0, True, "bilinear"), [np.arange(5)])
    for image, out in zip(images, found.permute(0, 2, 3, 1).numpy(), strict=True):
        assert difference(out, Image.fromarray(image).resize((32, 32), Image.BILINEAR)) < 0.5
    square = images[0, :40, :40]
    assert np.array_equal(eval_views.as_tested(square, eval_views.TestView(40, 0, True, "bilinear")), square)


def test_normalized_images_are_torchvisions_in_either_layout() -> None:
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    images = torch.from_numpy(np.stack([noise(20, 30, seed) for seed in range(4)])).permute(0, 3, 1, 2)
    expected = TF.normalize(images.float() / 255, mean, std)
    for layout in (images, images.contiguous(), images[:, :, ::2]):
        found = normalize(layout, mean, std)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, TF.normalize(layout.float() / 255, mean, std), rtol=1e-5, atol=1e-5)
    assert normalize(images, mean, std).is_contiguous(memory_format=torch.channels_last)
    assert normalize(images.contiguous(), mean, std).is_contiguous()
    assert normalize(images[:0], mean, std).shape == expected[:0].shape


def test_crop_scale_sets_how_much_of_the_image_is_seen() -> None:
    image = noise(64, 64)
    for name in VIEWS:
        view = View(name, 32, crop_scale=(1.0, 1.0), flip=False)
        u = np.full(view.draws, 0.5)
        u[22:] = 0.999  # nothing but jitter
        u[28:32] = 0.5  # which changes nothing
        if name != "cifar_regular":  # whose hole is always there
            resample = Image.BICUBIC if name == "mae" else Image.BILINEAR
            expected = np.asarray(Image.fromarray(image).resize((32, 32), resample))
            assert difference(photo_view(image, view, u), expected) < 1
            assert difference(photo_view(image, view, u, in_memory=True), expected) < 1
