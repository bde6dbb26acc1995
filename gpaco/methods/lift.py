"""LIFT: adapters and a cosine classifier on a pretrained backbone."""

import torch
from torch.nn import functional as F

from gpaco.methods.method import class_means
from gpaco.methods.plain import BalancedSoftmax
from gpaco.models.classifier import Classifier
from gpaco.models.gaussian import Blocks


class Lift(BalancedSoftmax):
    """LIFT without text (Shi et al., ICML 2024): CE(z + tau log pi, y), z = 25 cos, centers started from class means.

    Centers start as the unit mean of the raw features of each class, from images in the test view. At test time, the
    logits are the mean over five crops of a larger image (`crops`): 24 pixels larger at 224.

    Departures: `--train` selects the tuned part: LoRA on all linear layers for ViTs (released: AdaptFormer, or LoRA on
    queries and values), the last block or all layers for other networks; the rank is `train.lora_rank`, and updates are
    scaled by 8 / rank (released: 1 / rank). Class means come from the center crop of the test view, after a resize by
    8/7 (released: a resize to the crop itself). The five crops are the corners and the center of a square in the middle
    of the image (released: of the whole image, whose longer side is not cropped).
    """

    @torch.no_grad()
    def prepare(self, model: Classifier, train: Blocks, val: Blocks | None) -> None:
        weight = model.centers.weight
        means, counts = class_means(train, *weight.shape)
        there = counts > 0
        weight[there.to(weight.device)] = F.normalize(means[there], dim=1).to(weight)
