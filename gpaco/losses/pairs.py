"""Labels of mixed images as pairs: the two most likely classes of each and their probabilities.

Rows of probabilities take a number per class, which is a lot for a long memory and many classes. Mixup and cutmix mix
two images, so two classes are enough. Pairs are a float tensor (N, 2, 2): the classes [:, 0] and their probabilities
[:, 1]; an ignored image has probabilities of 0.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def to_pairs(labels: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert labels, class indices (N,) or rows of probabilities (N, C), to pairs.

    A row with more than two classes keeps the two most likely, and counts as less than one image.

    >>> to_pairs(torch.tensor([[0.3, 0.7, 0.0]]), torch.float32)
    tensor([[[1.0000, 0.0000],
             [0.7000, 0.3000]]])
    """
    if labels.dim() == 1:
        classes, shares = labels.clamp_min(0).unsqueeze(1), (labels >= 0).unsqueeze(1)
    else:
        shares, classes = labels.topk(min(2, labels.shape[1]), dim=1)
    pairs = torch.stack([classes.to(dtype), shares.to(dtype)], 1)
    return F.pad(pairs, (0, 2 - pairs.shape[2]))


def from_pairs(pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the classes (N, 2) and their probabilities (N, 2)."""
    return pairs[:, 0].long(), pairs[:, 1]
