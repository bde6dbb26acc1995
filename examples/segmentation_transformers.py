"""The pixel loss in a model of transformers': SegFormer on mosaics of handwritten digits, a few seconds on a CPU.

    python examples/segmentation_transformers.py

The lines that the loss adds to a loop are marked (1) to (5). The feature before the classifier is not among a model's
outputs, so a hook on the classifier keeps what goes into it; UPerNet and others have such a layer too.
"""

import torch
from segmentation_smp import BATCH, CLASSES, STEPS, digit_scenes, mean_iou
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import SegformerConfig, SegformerForSemanticSegmentation

from gpaco import pixel_gpaco_loss  # (1)


def main() -> None:
    torch.manual_seed(0)
    small = SegformerConfig(
        hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], decoder_hidden_size=64, num_labels=CLASSES
    )
    model = SegformerForSemanticSegmentation(small).train()
    projector = nn.Sequential(nn.Conv2d(64, 64, 1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 32, 1))  # (2)
    feature: dict[str, Tensor] = {}
    model.decode_head.classifier.register_forward_pre_hook(lambda _, given: feature.update(last=given[0]))  # (3)
    optimizer = torch.optim.AdamW([*model.parameters(), *projector.parameters()], lr=3e-3)
    for step in range(STEPS):
        images, masks = digit_scenes(BATCH, seed=step)
        logits = model(images).logits
        embeddings = F.normalize(projector(feature["last"]), dim=1)  # (4)
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
        print(f"mean IoU {100 * mean_iou(model(images).logits, masks):.1f}%")


if __name__ == "__main__":
    main()
