"""Figures of predicted masks, and inference over windows, scales and mirrored images."""

import json
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.ndimage import binary_erosion
from sklearn.metrics import confusion_matrix, jaccard_score
from torch import Tensor, nn

from gpaco.errors import UserError
from gpaco.metrics.segmentation import (
    Tally,
    boundaries,
    image_iou,
    iou_intervals,
    pixel_confusion,
    share_groups,
    summarize,
)
from gpaco.tasks.segmentation import inference
from gpaco.tasks.segmentation.inference import (
    check_scales,
    predict_classes,
    predict_logits,
    predict_probabilities,
    resized,
)
from gpaco.tasks.segmentation.windows import starts

USUAL: dict[str, Any] = {"scales": (1.0,), "flip": False}


def drawn(seed: int, classes: int = 5, shape: tuple[int, int] = (37, 53)) -> tuple[NDArray[Any], NDArray[Any]]:
    """A prediction and a mask with some pixels that belong to no class."""
    draw = np.random.default_rng(seed)
    mask = np.kron(draw.integers(0, classes, (5, 6)), np.ones((8, 9), int))[: shape[0], : shape[1]]
    wrong = draw.random(mask.shape) < 0.2
    prediction = np.where(wrong, draw.integers(0, classes, mask.shape), mask)
    mask = np.where(draw.random(mask.shape) < 0.1, 255, mask)
    return prediction.astype(np.uint8), mask.astype(np.uint8)


def test_one_confusion_matrix_over_the_set_gives_scikit_learns_iou() -> None:
    tally = Tally.empty(5)
    predictions, masks = zip(*(drawn(seed) for seed in range(4)), strict=True)
    for prediction, mask in zip(predictions, masks, strict=True):
        tally.add(prediction, mask)
    found, true = np.concatenate([p.ravel() for p in predictions]), np.concatenate([m.ravel() for m in masks])
    labeled = true != 255
    expected = confusion_matrix(true[labeled], found[labeled], labels=range(5))
    np.testing.assert_array_equal(tally.confusion, expected)
    each = jaccard_score(true[labeled], found[labeled], labels=range(5), average=None)
    summary = summarize(tally, [50, 40, 30, 20, 1], list("abcde"))
    np.testing.assert_allclose([row["iou"] for row in summary["per_class"]], each, rtol=1e-12)
    assert summary["miou"] == pytest.approx(each.mean(), rel=1e-12)
    assert summary["pixel_accuracy"] == pytest.approx((true == found)[labeled].mean(), rel=1e-12)
    json.dumps(summary, allow_nan=False)


def test_a_class_that_is_nowhere_is_left_out_and_one_only_predicted_counts_as_zero() -> None:
    tally = Tally.empty(3)
    tally.add(np.array([[0, 1], [0, 0]]), np.array([[0, 0], [0, 255]]))
    summary = summarize(tally, [10, 5, 5], ["road", "sign", "sky"])
    assert [row["iou"] for row in summary["per_class"]] == [2 / 3, 0.0, None]
    assert summary["miou"] == pytest.approx(1 / 3)
    assert summary["absent"] == 2
    assert summary["mean_accuracy"] == pytest.approx(2 / 3)


def test_an_image_without_a_labeled_pixel_changes_nothing() -> None:
    tally = Tally.empty(2)
    tally.add(np.zeros((4, 4), np.uint8), np.full((4, 4), 255, np.uint8))
    assert tally.confusion.sum() == tally.boundary_either.sum() == 0
    assert summarize(tally, [1, 1], ["a", "b"])["miou"] is None


@pytest.mark.parametrize("seed", range(3))
def test_boundaries_are_what_erosion_by_single_pixels_leaves(seed: int) -> None:
    prediction, mask = drawn(seed, shape=(40, 54))
    both, either = boundaries(prediction, mask, 5)
    reach = max(1, round(0.02 * np.hypot(*mask.shape)))
    prediction = np.where(mask == 255, 255, prediction)
    for c in range(5):
        edges = []
        for region in (prediction == c, mask == c):
            inner = region
            for _ in range(reach):
                inner = binary_erosion(inner, np.ones((3, 3)))
            edges.append(region & ~inner)
        assert both[c] == (edges[0] & edges[1]).sum()
        assert either[c] == (edges[0] | edges[1]).sum()


def test_a_perfect_prediction_has_a_boundary_iou_of_one() -> None:
    _, mask = drawn(1)
    both, either = boundaries(np.where(mask == 255, 3, mask), mask, 5)
    np.testing.assert_array_equal(both, either)


def test_groups_go_by_the_share_of_training_pixels() -> None:
    camvid = [16.9, 23.3, 1.0, 31.7, 4.5, 9.7, 1.2, 1.1, 5.9, 0.6, 0.3]
    groups = share_groups(camvid).tolist()
    assert [groups[k] for k in (0, 1, 3, 5)] == ["many"] * 4
    assert [groups[k] for k in (9, 10)] == ["few"] * 2
    assert groups.count("medium") == 5


def test_a_value_beyond_the_classes_is_named() -> None:
    with pytest.raises(UserError, match="the class 7, but there are 3 classes"):
        pixel_confusion(np.zeros((2, 2), int), np.full((2, 2), 7), 3)


# Inference


def pointwise() -> nn.Module:
    """A network that looks at one pixel at a time: windows cannot change what it says."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 4, 1)).double().eval()


@pytest.mark.parametrize(
    ("window", "stride"), [((8, 8), (5, 3)), ((16, 9), (16, 9)), ((7, 40), (1, 40)), ((99, 99), None)]
)
@torch.no_grad()
def test_sliding_windows_give_what_the_whole_image_gives(window: Any, stride: Any) -> None:
    images = torch.rand(2, 3, 21, 33, dtype=torch.float64)
    network = pointwise()
    slid = predict_logits(network, images, window=window, stride=stride)
    torch.testing.assert_close(slid, network(images), rtol=0, atol=1e-12)


@torch.no_grad()
def test_sliding_windows_of_a_convolution_agree_where_its_view_is_inside_every_window() -> None:
    torch.manual_seed(1)
    network = nn.Conv2d(3, 2, 3, padding=0).double()  # "valid": what it gives is what padding cannot touch

    def classify(images: Tensor) -> Tensor:
        return nn.functional.pad(network(images), (1, 1, 1, 1), value=float("nan"))

    images = torch.rand(1, 3, 12, 12, dtype=torch.float64)
    whole = classify(images)

    def inside(crop: Tensor) -> Tensor:
        return torch.nan_to_num(classify(crop))

    def known(crop: Tensor) -> Tensor:
        return (~classify(crop).isnan()).double()

    summed = predict_logits(inside, images, window=(6, 6), stride=(2, 2))
    share = predict_logits(known, images, window=(6, 6), stride=(2, 2))
    seen = share > 0
    torch.testing.assert_close((summed / share)[seen], whole[seen], rtol=0, atol=1e-12)
    assert seen[..., 1:-1, 1:-1].all()


def test_windows_cover_everything_and_none_leaves_the_picture() -> None:
    for length in range(1, 40):
        for window in range(1, 12):
            for stride in range(1, window + 1):
                places = starts(length, window, stride)
                covered = {p + k for p in places for k in range(min(window, length))}
                assert covered == set(range(length))
    with pytest.raises(UserError, match="leave gaps"):
        starts(10, 4, 5)


@torch.no_grad()
def test_mirrored_images_average_probabilities_not_logits() -> None:
    def lopsided(images: Tensor) -> Tensor:
        """Sure of class 0 on the left half, of nothing on the right."""
        logits = images.new_zeros(len(images), 2, *images.shape[2:])
        logits[:, 0, :, : images.shape[3] // 2] = 4.0
        return logits

    images = torch.zeros(1, 3, 2, 6)
    found = predict_probabilities(lopsided, images, **USUAL | {"flip": True})
    sure = torch.tensor([4.0, 0.0]).softmax(0)[0]
    torch.testing.assert_close(found[0, 0], ((sure + 0.5) / 2).expand(2, 6))
    plain = predict_probabilities(lopsided, images, **USUAL)
    torch.testing.assert_close(plain[0, 0, 0], torch.tensor([sure] * 3 + [0.5] * 3))


@torch.no_grad()
def test_scales_are_averaged_as_probabilities_at_the_size_of_the_picture() -> None:
    seen: list[tuple[int, ...]] = []

    def by_width(images: Tensor) -> Tensor:
        """Logits that depend on the size of the image only."""
        seen.append(tuple(images.shape[2:]))
        logits = images.new_zeros(len(images), 2, *images.shape[2:])
        logits[:, 1] = images.shape[3] / 10
        return logits

    options = USUAL | {"scales": (0.5, 1.0, 1.75), "flip": True}
    found = predict_probabilities(by_width, torch.zeros(1, 3, 10, 20), **options)
    assert sorted(set(seen)) == [(5, 10), (10, 20), (18, 35)]
    expected = np.mean([1 / (1 + np.exp(-width / 10)) for width in (10, 20, 35)])
    assert found.shape == (1, 2, 10, 20)
    torch.testing.assert_close(found[0, 1], torch.full((10, 20), float(expected)))


@pytest.mark.parametrize("size", [(21, 33), (40, 17), (7, 90), (1, 1)])
@torch.no_grad()
def test_bands_of_rows_are_rows_of_the_whole_enlarged_map(size: tuple[int, int]) -> None:
    logits = torch.randn(2, 4, 21, 33, dtype=torch.float64)
    bands = [slice(top, min(top + 3, size[0])) for top in range(0, size[0], 3)]
    parts = [inference.enlarged(logits, size, rows) for rows in bands]
    torch.testing.assert_close(torch.cat(parts, 2), resized(logits, size), rtol=0, atol=1e-12)


@pytest.mark.parametrize("window", [(), (8, 9)])
@pytest.mark.parametrize("options", [{}, {"flip": True}, {"scales": (0.6,)}, {"scales": (0.5, 1.5)}])
@torch.no_grad()
def test_classes_are_the_most_probable_ones(options: dict[str, Any], window: Any, monkeypatch: Any) -> None:
    images = torch.rand(1, 3, 21, 33, dtype=torch.float64)
    network = partial(predict_logits, pointwise(), window=window, stride=())
    monkeypatch.setattr(inference, "BAND", 400)
    probabilities = predict_probabilities(network, images, **USUAL | options)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(1, 21, 33).double())
    classes, best = predict_classes(network, images, **USUAL | options)
    torch.testing.assert_close(best, probabilities.amax(1))
    assert torch.equal(probabilities.gather(1, classes[:, None])[:, 0], probabilities.amax(1))


def test_scales_that_are_none_are_refused() -> None:
    for scales in ((), (0.5, 0.0)):
        with pytest.raises(UserError, match="scales must be numbers above 0"):
            check_scales(scales)


def test_intervals_of_mean_iou_are_those_of_drawing_images_again() -> None:
    rng = np.random.default_rng(0)
    tally, each = Tally.empty(3), []
    for _ in range(30):
        mask = rng.choice(3, (12, 12), p=[0.7, 0.25, 0.05])
        prediction = np.where(rng.uniform(size=mask.shape) < rng.uniform(0.4, 1), mask, rng.integers(0, 3, mask.shape))
        each.append(tally.add(prediction, mask))
    pixels = np.stack(each)
    right, true, found = np.diag(tally.confusion), tally.confusion.sum(1), tally.confusion.sum(0)
    np.testing.assert_allclose(image_iou(pixels.sum(0)), right / (true + found - right))
    group = np.array(["many", "medium", "few"])
    found = iou_intervals(pixels, group)
    drawn = [image_iou(pixels[rng.integers(0, 30, 30)].sum(0)) for _ in range(2000)]
    for key, values in {"miou": np.mean(drawn, 1), "few": np.array(drawn)[:, 2]}.items():
        expected = np.quantile(values, [0.025, 0.975])
        np.testing.assert_allclose([found[key]["low"], found[key]["high"]], expected, atol=0.02)
    assert iou_intervals(pixels[:4], group)["miou"] == {"low": None, "high": None}
    assert iou_intervals(pixels[:5], group)["miou"]["low"] is not None  # though some draws have no image
    pixels[4:, :, 2] = 0  # the rare class is in four images
    rare = iou_intervals(pixels, group)
    assert rare["few"] == {"low": None, "high": None}
    assert rare["medium"] == found["medium"]
