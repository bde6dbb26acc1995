"""The training loss of a segmenter: its terms as released and its edges."""

from dataclasses import replace

import segmentation_models_pytorch as smp
import torch
from torch import Tensor
from torch.nn import functional as F

from gpaco import pixel_gpaco_loss
from gpaco.recipes.settings import MethodSettings, Segmentation
from gpaco.tasks.segmentation.losses import SceneLoss, dice_loss
from gpaco.tasks.segmentation.network import Output

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
    contrast = pixel_gpaco_loss(out.logits, out.embeddings, labels, pixels=-1, alpha=0.01, temperature=0.07)
    main, aux = enlarged_cross_entropy(out.logits, labels), enlarged_cross_entropy(out.aux_logits, labels)
    torch.testing.assert_close(SceneLoss(METHOD, ALL)(out, labels), main + 0.4 * aux + 1.0 * contrast)
    weighted = SceneLoss(METHOD, replace(ALL, weight=0.3, aux_weight=0.1))(out, labels)
    torch.testing.assert_close(weighted, main + 0.1 * aux + 0.3 * contrast)
    plain = SceneLoss(METHOD, ALL)(Output(out.logits, None, None), labels)
    torch.testing.assert_close(plain, main)


def test_dice_is_that_of_segmentation_models_pytorch_averaged_over_the_classes_that_are_present() -> None:
    logits, labels = torch.randn(2, 4, 24, 24), masks()
    labels[labels == 3] = 2  # the last class is not there
    theirs = smp.losses.DiceLoss("multiclass", ignore_index=255)(logits, labels)  # its mean counts it as 0
    torch.testing.assert_close(dice_loss(logits, labels), 4 / 3 * theirs)
    both = SceneLoss(METHOD, replace(ALL, dice=0.5))(Output(logits, None, None), labels)
    torch.testing.assert_close(
        both, F.cross_entropy(logits, labels, ignore_index=255) + 0.5 * dice_loss(logits, labels)
    )


def test_dice_of_a_large_class_does_not_overflow_in_half_precision() -> None:
    logits, labels = torch.randn(4, 3, 256, 256) + torch.tensor([3.0, 0, 0])[:, None, None], torch.zeros(4, 256, 256)
    logits.requires_grad_()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = dice_loss(logits, labels.long())
    torch.testing.assert_close(loss, dice_loss(logits, labels.long()))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.any()


def test_logits_finer_than_the_embeddings_are_averaged_to_their_places() -> None:
    fine, labels = output(size=12), masks()
    coarse = F.normalize(torch.randn(2, 5, 6, 6), dim=1)
    expected = pixel_gpaco_loss(F.avg_pool2d(fine.logits, 2), coarse, labels, pixels=-1)
    torch.testing.assert_close(SceneLoss(METHOD, ALL).contrast(fine.logits, coarse, labels), expected)


def test_a_batch_without_a_labeled_pixel_costs_nothing_and_its_gradient_is_zero() -> None:
    out = output()
    logits, embeddings = out.logits.requires_grad_(), out.embeddings.requires_grad_()
    criterion = SceneLoss(METHOD, replace(ALL, dice=1.0))
    loss = criterion(Output(logits, embeddings, out.aux_logits), torch.full((2, 24, 24), 255))
    assert loss.item() == 0
    for gradient in torch.autograd.grad(loss, (logits, embeddings)):
        assert not gradient.any()
