"""Momentum keys: the embeddings that the momentum copy of the network computes for a batch."""

import torch
from torch import Tensor, nn

from gpaco.system import distributed


@torch.no_grad()
def momentum_keys(network: nn.Module, images: Tensor, *, shuffle: bool) -> Tensor:
    """Return the keys (B, D) of images (B, 3, H, W).

    With `shuffle` the images of all processes are dealt out anew before the network sees them, and the keys go back to
    their places: batch norm, which sees the rows of one process or of one ghost batch at a time, then computes the
    statistics of a key from other images than those of its query. Without it, a network could tell the key of a query
    by the statistics that both share (MoCo, section 3.3). The order is drawn by process 0 from PyTorch's generator,
    which the training loop seeds in every step.
    """
    if not shuffle:
        keys: Tensor = network(images)[1]
        return keys
    counts = distributed.row_counts(images)
    order = distributed.from_first(torch.randperm(sum(counts)).to(images.device))
    mine = order.split(counts)[distributed.rank()]
    keys = distributed.gather(network(distributed.gather(images, counts)[mine])[1], counts)
    parts: tuple[Tensor, ...] = keys[order.argsort()].split(counts)
    return parts[distributed.rank()]
