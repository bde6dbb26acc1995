"""The loss for segmentation: `gpaco_loss` among pixels drawn from each image."""

import torch
from torch import Tensor

from gpaco.losses.contrastive import gpaco_loss


def pixel_gpaco_loss(
    logits: Tensor,
    embeddings: Tensor,
    masks: Tensor,
    *,
    pixels: int = 8192,
    alpha: float = 0.01,
    temperature: float = 0.07,
    ignore_index: int = 255,
    generator: torch.Generator | None = None,
) -> Tensor:
    """`gpaco_loss` among sampled pixels of each image, averaged over images: the auxiliary loss for segmentation.

    The loss of an image without labeled pixels is 0.

    Args:
        logits: (B, C, h, w), the segmentation logits before upsampling.
        embeddings: (B, D, h, w), of unit length along D.
        masks: (B, H, W), integer labels of any size: each pixel of the (h, w) map takes the nearest label.
        pixels: number of pixels drawn from each image without replacement; -1 for all.
        generator: random generator for the draw.

    >>> logits, embeddings = torch.zeros(1, 2, 4, 4), torch.nn.functional.normalize(torch.ones(1, 3, 4, 4), dim=1)
    >>> pixel_gpaco_loss(logits, embeddings, torch.zeros(1, 8, 8, dtype=torch.uint8), pixels=1)
    tensor(0.6931)
    """
    if pixels < 1 and pixels != -1:
        raise ValueError(f"pixels must be at least 1, or -1 for all, got {pixels}")
    if logits.dim() != 4 or embeddings.dim() != 4 or logits.shape[2:] != embeddings.shape[2:]:
        raise ValueError(
            "logits and embeddings must be (B, C, h, w) and (B, D, h, w) with the same h and w, got "
            f"{tuple(logits.shape)} and {tuple(embeddings.shape)}; enlarge the smaller map first"
        )
    if masks.dim() != 3 or masks.is_floating_point() or not len(logits) == len(embeddings) == len(masks) > 0:
        raise ValueError(
            f"masks must be integers (B, H, W) for {len(logits)} images, at least one, "
            f"got {tuple(masks.shape)} {masks.dtype}"
        )
    labels = _labels(masks, logits.shape[2], logits.shape[3])
    losses = []
    for scores, points, own in zip(logits.flatten(2), embeddings.flatten(2), labels, strict=True):  # of one image
        drawn = _draw(own, pixels, generator)
        loss = gpaco_loss(
            scores[:, drawn].t(),
            points[:, drawn].t(),
            own[drawn],
            alpha=alpha,
            temperature=temperature,
            ignore_index=ignore_index,
        )
        losses.append(loss)
    return torch.stack(losses).mean()


def _labels(masks: Tensor, height: int, width: int) -> Tensor:
    """Return the labels (B, height * width) of the pixels of a smaller map: the nearest in `masks` (B, H, W)."""
    row = torch.arange(height, device=masks.device) * masks.shape[1] // height
    column = torch.arange(width, device=masks.device) * masks.shape[2] // width
    return masks[:, row][:, :, column].flatten(1).long()


def _draw(labels: Tensor, pixels: int, generator: torch.Generator | None) -> Tensor:
    """Return positions drawn from one image without replacement."""
    if pixels < 0 or pixels >= len(labels):
        return torch.arange(len(labels), device=labels.device)
    device = labels.device if generator is None else generator.device
    return torch.randperm(len(labels), generator=generator, device=device)[:pixels].to(labels.device)
