"""The pixel loss in a model of segmentation-models-pytorch: mosaics of handwritten digits, a few seconds on a CPU.

    python examples/segmentation_smp.py

The lines that the loss adds to a loop are marked (1) to (5). Sizes are chosen for a few seconds on a laptop; for real
images use the defaults: 8,192 pixels, alpha 0.01, temperature 0.07.
"""

from functools import cache

import segmentation_models_pytorch as smp
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco import pixel_gpaco_loss  # (1)

STEPS, BATCH, CLASSES = 30, 4, 4  # the digits 0 to 3, each half as frequent as the one before


@cache
def all_digits() -> tuple[Tensor, Tensor]:
    digits = load_digits(n_class=CLASSES)
    return torch.tensor(digits.images / 16, dtype=torch.float32), torch.tensor(digits.target)


def digit_scenes(number: int, seed: int) -> tuple[Tensor, Tensor]:
    """Mosaics of 4 x 4 digits, (N, 3, 64, 64), and masks (N, 64, 64): what digit a pixel is in, 255 between digits."""
    images, labels = all_digits()
    draw = torch.Generator().manual_seed(seed)
    shares = 0.5 ** torch.arange(CLASSES)
    chosen = torch.multinomial((shares / labels.bincount())[labels], number * 16, generator=draw)
    cells = images[chosen].view(number, 4, 4, 8, 8).permute(0, 1, 3, 2, 4).reshape(number, 1, 32, 32)
    masks = labels[chosen].view(number, 4, 4).repeat_interleave(16, 1).repeat_interleave(16, 2)
    masks[:, ::16] = masks[:, :, ::16] = 255
    return F.interpolate(cells, scale_factor=2, mode="bilinear").expand(-1, 3, -1, -1) - 0.5, masks


def mean_iou(logits: Tensor, masks: Tensor) -> float:
    """Over all pixels that belong to a class."""
    found, known = F.interpolate(logits, masks.shape[1:], mode="bilinear").argmax(1), masks != 255
    each = [((found == c) & (masks == c)).sum() / (((found == c) | (masks == c)) & known).sum() for c in range(CLASSES)]
    return float(torch.stack(each).mean())


def main() -> None:
    torch.manual_seed(0)
    model = smp.DeepLabV3Plus("resnet18", encoder_weights=None, decoder_channels=64, classes=CLASSES)
    projector = nn.Sequential(nn.Conv2d(64, 64, 1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 32, 1))  # (2)
    optimizer = torch.optim.AdamW([*model.parameters(), *projector.parameters()], lr=3e-3)
    for step in range(STEPS):
        images, masks = digit_scenes(BATCH, seed=step)
        feature = model.decoder(model.encoder(images))  # (3) what model(images) does, with the feature in hand
        logits = model.segmentation_head[0](feature)
        embeddings = F.normalize(projector(feature), dim=1)  # (4)
        loss = F.cross_entropy(F.interpolate(logits, masks.shape[1:], mode="bilinear"), masks, ignore_index=255)
        loss = loss + pixel_gpaco_loss(logits, embeddings, masks, pixels=256)  # (5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 10 == 0:
            print(f"step {step + 1}: loss {loss.item():.2f}")
    model.eval()
    images, masks = digit_scenes(16, seed=1000)
    with torch.no_grad():
        print(f"mean IoU {100 * mean_iou(model(images), masks):.1f}%")


if __name__ == "__main__":
    main()
