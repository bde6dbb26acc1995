"""Momentum keys: the embeddings that the momentum copy of the network computes for a batch."""

import torch
from torch import Tensor, nn

from gpaco.system import distributed


@torch.no_grad()
def momentum_keys(network: nn.Module, images: Tensor, *, shuffle: bool) -> Tensor:
    """Return the keys (B, D) of images (B, 3, H, W).

    With `shuffle`, the images of all processes are redistributed before the network sees them, and the keys are put
    back in order: batch norm, which sees the rows of one process or ghost batch at a time, then computes the statistics
    of a key from different images than those of its query. Otherwise a network could identify the key of a query by
    their shared statistics (MoCo, section 3.3). Process 0 draws the order from PyTorch's generator, which the training
    loop seeds in every step.
    """
    if not shuffle:
        keys: Tensor = network(images)[1]
        return keys
    counts = distributed.row_counts(images)
    order = distributed.from_first(torch.randperm(sum(counts), device=images.device))
    mine = order.split(counts)[distributed.rank()]
    keys = distributed.gather(network(distributed.gather(images, counts)[mine])[1], counts)
    parts: tuple[Tensor, ...] = keys[order.argsort()].split(counts)
    return parts[distributed.rank()]
