"""The pixel loss in a model of torchvision's: mosaics of handwritten digits, a few seconds on a CPU.

    python examples/segmentation_torchvision.py

The lines that the loss adds to a loop are marked (1) to (5). The model is torchvision's DeepLabV3 on a small backbone;
`deeplabv3_resnet50()` and `fcn_resnet50()` have the same two parts, `backbone` and `classifier`.
"""

import torch
from segmentation_smp import BATCH, CLASSES, STEPS, digit_scenes, mean_iou
from torch import nn
from torch.nn import functional as F
from torchvision.models import resnet18
from torchvision.models.feature_extraction import create_feature_extractor
from torchvision.models.segmentation.deeplabv3 import DeepLabHead, DeepLabV3

from gpaco import pixel_gpaco_loss  # (1)


def main() -> None:
    torch.manual_seed(0)
    model = DeepLabV3(create_feature_extractor(resnet18(), {"layer2": "out"}), DeepLabHead(128, CLASSES))
    *layers, classifier = model.classifier
    decoder = nn.Sequential(*layers)
    projector = nn.Sequential(nn.Conv2d(256, 64, 1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 32, 1))  # (2)
    optimizer = torch.optim.AdamW([*model.parameters(), *projector.parameters()], lr=3e-3)
    for step in range(STEPS):
        images, masks = digit_scenes(BATCH, seed=step)
        feature = decoder(model.backbone(images)["out"])  # (3) what model(images) does, with the feature in hand
        logits = classifier(feature)
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
        print(f"mean IoU {100 * mean_iou(model(images)['out'], masks):.1f}%")


if __name__ == "__main__":
    main()
