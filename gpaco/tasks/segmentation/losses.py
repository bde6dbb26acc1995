"""The loss of a batch of scenes: cross entropy of both heads, Dice, and GPaCo among pixels."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.losses.pixels import pixel_gpaco_loss
from gpaco.metrics.segmentation import IGNORE
from gpaco.recipes.settings import MethodSettings, Segmentation
from gpaco.tasks.segmentation.inference import resized
from gpaco.tasks.segmentation.network import Output

METHODS = ("gpaco", "ce")


class SceneLoss(nn.Module):
    """Cross entropy + `aux_weight` * that of the auxiliary head + `weight` * GPaCo among pixels, as released.

    `dice` * the Dice loss is our addition: it weights all classes in a batch equally.
    """

    def __init__(self, method: MethodSettings, settings: Segmentation) -> None:
        super().__init__()
        self.method, self.settings = method, settings

    def forward(self, output: Output, masks: Tensor) -> Tensor:
        loss = cross_entropy(output.logits, masks)
        if self.settings.dice:
            loss = loss + self.settings.dice * dice_loss(output.logits, masks)
        if output.aux_logits is not None:
            loss = loss + self.settings.aux_weight * cross_entropy(output.aux_logits, masks)
        if output.embeddings is None:
            return loss
        return loss + self.settings.weight * self.contrast(output.logits, output.embeddings, masks)

    def contrast(self, logits: Tensor, embeddings: Tensor, masks: Tensor) -> Tensor:
        """Return `pixel_gpaco_loss` at the resolution of the embeddings."""
        if logits.shape[2:] != embeddings.shape[2:]:
            logits = F.adaptive_avg_pool2d(logits, (embeddings.shape[2], embeddings.shape[3]))
        return pixel_gpaco_loss(
            logits,
            embeddings,
            masks,
            pixels=self.settings.pixels,
            alpha=self.method.alpha,
            temperature=self.method.temperature,
            ignore_index=IGNORE,
        )


def cross_entropy(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the mean cross entropy of the upsampled logits over labeled pixels; without any, 0 with a gradient."""
    costs = F.cross_entropy(
        resized(logits.float(), (masks.shape[1], masks.shape[2])), masks, ignore_index=IGNORE, reduction="sum"
    )
    return costs / (masks != IGNORE).sum().clamp(min=1)


def dice_loss(logits: Tensor, masks: Tensor) -> Tensor:
    """Return 1 - Dice of the upsampled probabilities, averaged over the classes in the masks; 0 without any.

    The Dice of a class is 2 * (its probability on its own pixels) / (its probability on all labeled pixels + the number
    of its own pixels), with sums over the batch.
    """
    classes = logits.shape[1]
    whole = resized(logits.float(), (masks.shape[1], masks.shape[2])).softmax(1)
    labeled = masks != IGNORE
    labels = torch.where(labeled, masks, 0).long()
    given = (whole * labeled[:, None]).sum((0, 2, 3))  # in float32, also under autocast
    own = whole.gather(1, labels[:, None])[:, 0] * labeled
    right = own.new_zeros(classes).index_add(0, labels.flatten(), own.flatten())
    pixels = own.new_zeros(classes).index_add(0, labels.flatten(), labeled.float().flatten())
    present = pixels > 0
    return ((1 - 2 * right / (given + pixels).clamp(min=1)) * present).sum() / present.sum().clamp(min=1)
