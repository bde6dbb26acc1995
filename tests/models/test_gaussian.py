"""The closed-form classifier: the formula, and what its correction for rare classes does."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from gpaco.models.gaussian import Gaussian, fit_gaussian


def blocks(features: Tensor, labels: Tensor, size: int = 7) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(features.split(size), labels.split(size), strict=True)


def fit(features: Tensor, labels: Tensor, classes: int, *, corrected: bool = True) -> Gaussian:
    return fit_gaussian(
        lambda: blocks(features, labels), features.shape[1], classes, shrinkage=3.0, corrected=corrected
    )


def test_logits_are_those_of_the_formula() -> None:
    """A second transcription, image by image in NumPy, with class 2 of one image."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 6))
    y = np.array([0] * 12 + [1] * 7 + [2])
    test = rng.normal(size=(5, 6))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    means = [unit[y == c].mean(0) for c in range(3)]
    g = np.mean(means, 0)
    scatter = sum(np.outer(row - means[c], row - means[c]) for row, c in zip(unit, y, strict=True))
    s = np.asarray(scatter) / (20 - 3)
    a = np.linalg.inv(s + 3.0 * np.trace(s) / 6 * np.eye(6))
    expected = np.empty((5, 3))
    for i, row in enumerate(test / np.linalg.norm(test, axis=1, keepdims=True)):
        for c, n in enumerate((12, 7, 1)):
            away = means[c] - g
            expected[i, c] = away @ a @ (row - g) - 0.5 * away @ a @ away + 0.5 * np.trace(a @ s) / n
    found = fit(torch.from_numpy(x).float(), torch.from_numpy(y), 3)(torch.from_numpy(test).float())
    torch.testing.assert_close(found, torch.from_numpy(expected).float(), rtol=1e-4, atol=1e-4)


def test_features_without_negative_values_are_square_rooted() -> None:
    x = torch.rand(20, 6, generator=torch.Generator().manual_seed(0))
    y = torch.arange(20) % 3
    rooted = fit(x, y, 3)
    assert rooted.root == 1
    assert fit(x - 0.5, y, 3).root == 0
    as_they_are = Gaussian(6, 3)
    as_they_are.load_state_dict(rooted.state_dict() | {"root": torch.zeros(())})
    torch.testing.assert_close(rooted(x), as_they_are(x.sqrt()))
    mixed = torch.cat([x.sqrt(), -torch.ones(1, 6)])  # a class of its own with negative features: no roots
    plain = fit(mixed, torch.cat([y, torch.tensor([3])]), 4)
    assert plain.root == 0
    unit = torch.nn.functional.normalize(x.sqrt(), dim=1)
    torch.testing.assert_close(plain(x.sqrt()), torch.nn.functional.linear(unit, plain.weight, plain.bias))


def test_correction_removes_the_bias_against_rare_classes() -> None:
    """Gaussian classes of equal prior: without the last term few images pull a class down, with it they do not."""
    generator = torch.Generator().manual_seed(0)
    dim, classes, number = 64, 20, torch.tensor([40] * 10 + [2] * 10)
    recalls = []
    for corrected in (True, False):
        found = torch.zeros(classes)
        for trial in range(20):
            generator.manual_seed(trial)
            means = 0.5 * torch.randn(classes, dim, generator=generator)
            labels = torch.arange(classes).repeat_interleave(number)
            x = means[labels] + torch.randn(len(labels), dim, generator=generator)
            test_labels = torch.arange(classes).repeat_interleave(50)
            test = means[test_labels] + torch.randn(len(test_labels), dim, generator=generator)
            model = fit(x, labels, classes, corrected=corrected)
            right = model(test).argmax(1) == test_labels
            found += torch.stack([right[test_labels == c].float().mean() for c in range(classes)]) / 20
        recalls.append((found[:10].mean().item(), found[10:].mean().item()))
    (frequent, rare), (frequent_before, rare_before) = recalls
    assert rare > 2 * rare_before
    assert rare + frequent > rare_before + frequent_before


def test_classes_of_one_image_or_of_copies_give_finite_logits_of_moderate_size() -> None:
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    alone, copies = fit(x, torch.arange(6), 6), fit(x.repeat(3, 1), torch.arange(6).repeat(3), 6)
    unit = torch.nn.functional.normalize(x, dim=1)
    for model in (alone, copies):
        assert model(x).abs().max() < 100
        assert model(unit).argmax(1).tolist() == list(range(6))
    nearest = -(torch.cdist(unit[:1], unit) ** 2) / 2
    found = alone(x[:1])
    ratio = (found[0, 1:] - found[0, 0]) / (nearest[0, 1:] - nearest[0, 0])
    torch.testing.assert_close(ratio, ratio[:1].expand(5))  # the nearest mean, up to one factor


def test_a_class_without_images_is_never_predicted() -> None:
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    model = fit(x, torch.arange(20) % 2, 3)
    assert (model(x).argmax(1) < 2).all()
    assert model(x).isfinite().all()
