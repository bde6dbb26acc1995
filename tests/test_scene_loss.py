"""The training loss of a segmenter: its terms as released, its options, and its edges."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gpaco import pixel_gpaco_loss
from gpaco.errors import UserError
from gpaco.segmentation.losses import PUSHED, SceneLoss
from gpaco.segmentation.network import Output
from gpaco.settings import MethodSettings, Segmentation

COUNTS = np.array([9000, 900, 90, 5])  # by the usual cuts: many, medium, few, few
METHOD = MethodSettings(alpha=0.01, temperature=0.07)
ALL = Segmentation(pixels=-1)


def output(images: int = 2, size: int = 6, aux_size: int = 3) -> Output:
    embeddings = F.normalize(torch.randn(images, 5, size, size), dim=1)
    return Output(torch.randn(images, 4, size, size), embeddings, torch.randn(images, 4, aux_size, aux_size))


def masks(images: int = 2, size: int = 24) -> Tensor:
    labels = torch.randint(4, (images, size // 4, size // 4)).repeat_interleave(4, 1).repeat_interleave(4, 2)
    labels[0, :5] = 255
    return labels


def enlarged_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    whole = F.interpolate(logits, labels.shape[1:], mode="bilinear", align_corners=False)
    return F.cross_entropy(whole, labels, ignore_index=255)


def test_the_terms_have_the_released_weights() -> None:
    out, labels = output(), masks()
    assert out.embeddings is not None
    assert out.aux_logits is not None
    contrast = pixel_gpaco_loss(out.logits, out.embeddings, labels, pixels=-1, alpha=0.01, temperature=0.07)
    main, aux = enlarged_cross_entropy(out.logits, labels), enlarged_cross_entropy(out.aux_logits, labels)
    torch.testing.assert_close(SceneLoss(METHOD, ALL, COUNTS, 5)(out, labels), main + 0.4 * aux + 1.0 * contrast)
    weighted = SceneLoss(METHOD, replace(ALL, weight=0.3, aux_weight=0.1), COUNTS, 5)(out, labels)
    torch.testing.assert_close(weighted, main + 0.1 * aux + 0.3 * contrast)
    plain = SceneLoss(METHOD, ALL, COUNTS, 5)(Output(out.logits, None, None), labels)
    torch.testing.assert_close(plain, main)


def test_logits_finer_than_the_embeddings_are_averaged_to_their_places() -> None:
    fine, labels = output(size=12), masks()
    coarse = F.normalize(torch.randn(2, 5, 6, 6), dim=1)
    expected = pixel_gpaco_loss(F.avg_pool2d(fine.logits, 2), coarse, labels, pixels=-1)
    torch.testing.assert_close(SceneLoss(METHOD, ALL, COUNTS, 5).contrast(fine.logits, coarse, labels), expected)


def test_the_pixel_prior_is_the_log_share_of_training_pixels_and_finite_for_a_class_that_never_appears() -> None:
    out, labels = output(), masks()
    assert out.embeddings is not None
    criterion = SceneLoss(METHOD, replace(ALL, pixel_prior=True), np.array([900, 90, 10, 0]), 5)
    prior = torch.tensor([0.9, 0.09, 0.01, 0.001]).log()
    expected = pixel_gpaco_loss(out.logits + prior[:, None, None], out.embeddings, labels, pixels=-1)
    torch.testing.assert_close(criterion.contrast(out.logits, out.embeddings, labels), expected)
    assert "log_prior" in criterion.state_dict()


def test_balanced_pixels_reach_the_loss() -> None:
    out, labels = output(size=24), torch.zeros(2, 24, 24, dtype=torch.int64)
    labels[:, 0, :4] = 3
    assert out.embeddings is not None
    drawn = {}
    for sampling in ("random", "balanced"):
        logits = out.logits.clone().requires_grad_()
        torch.manual_seed(1)
        SceneLoss(METHOD, Segmentation(pixels=16, sampling=sampling), COUNTS, 5).contrast(
            logits, out.embeddings, labels
        ).backward()
        assert logits.grad is not None
        drawn[sampling] = int(logits.grad.any(1)[labels == 3].sum())
    assert drawn["random"] <= 1
    assert drawn["balanced"] >= 6


def test_the_memory_holds_pixels_of_rare_classes_and_the_next_pictures_meet_them() -> None:
    out, labels = output(), masks()
    labels[0, 8:16, 8:16] = 2
    labels[1, 8:16, 8:16] = 3
    assert out.embeddings is not None
    criterion = SceneLoss(METHOD, replace(ALL, rare_memory=4 * PUSHED), COUNTS, 5)
    assert criterion.memory is not None
    plain = SceneLoss(METHOD, ALL, COUNTS, 5).contrast(out.logits, out.embeddings, labels)
    torch.testing.assert_close(criterion.contrast(out.logits, out.embeddings, labels), plain)  # empty at first
    held, held_labels = criterion.memory.read()
    small = F.interpolate(labels[:, None].float(), (6, 6), mode="nearest")[:, 0]
    rare = small.eq(2) | small.eq(3)
    assert sorted(held_labels.tolist()) == sorted(small[rare].tolist())
    assert {tuple(row) for row in held.tolist()} == {
        tuple(row) for row in out.embeddings.permute(0, 2, 3, 1)[rare].tolist()
    }
    expected = pixel_gpaco_loss(
        out.logits, out.embeddings, labels, pixels=-1, memory=held.clone(), memory_labels=held_labels.clone()
    )
    rows = len(criterion.memory)
    criterion.eval()
    torch.testing.assert_close(criterion.contrast(out.logits, out.embeddings, labels), expected)
    assert len(criterion.memory) == rows
    again = SceneLoss(METHOD, replace(ALL, rare_memory=4 * PUSHED), COUNTS, 5)
    again.load_state_dict(criterion.state_dict())
    torch.testing.assert_close(again.eval().contrast(out.logits, out.embeddings, labels), expected)


def test_one_picture_cannot_fill_the_memory() -> None:
    labels = torch.full((2, 24, 24), 3)
    labels[1] = 0
    criterion = SceneLoss(METHOD, replace(ALL, rare_memory=1000), COUNTS, 5)
    assert criterion.memory is not None
    out = output(size=24)
    assert out.embeddings is not None
    criterion.contrast(out.logits, out.embeddings, labels)
    assert len(criterion.memory) == PUSHED < 24 * 24


def test_a_memory_of_rare_pixels_without_a_rare_class_is_an_error() -> None:
    with pytest.raises(UserError, match="no class is rare enough"):
        SceneLoss(METHOD, replace(ALL, rare_memory=64), np.array([5, 5, 5, 5]), 5)


def test_a_batch_without_a_labelled_pixel_costs_nothing_and_its_gradient_is_zero() -> None:
    out = output()
    assert out.embeddings is not None
    logits, embeddings = out.logits.requires_grad_(), out.embeddings.requires_grad_()
    criterion = SceneLoss(METHOD, replace(ALL, pixel_prior=True, rare_memory=64, sampling="balanced"), COUNTS, 5)
    loss = criterion(Output(logits, embeddings, out.aux_logits), torch.full((2, 24, 24), 255))
    assert loss.item() == 0
    for gradient in torch.autograd.grad(loss, (logits, embeddings)):
        assert not gradient.any()
