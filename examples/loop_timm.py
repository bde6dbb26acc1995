"""GPaCo with a model and the loaders of timm: long-tailed handwritten digits, a few seconds on a CPU.

    python examples/loop_timm.py

The lines that the loss adds are marked (1) to (5). Its two views are the transform of the loader, called twice.
"""

from typing import Any

import timm
import torch
from own_loop import BATCH, long_tailed_digits
from PIL import Image
from timm.data import create_loader
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from gpaco import GPaCoLoss  # (1)

SIDE = 32


class Digits(Dataset[tuple[Tensor, int]]):
    """Images as timm's loaders take them: the loader sets the transform."""

    transform = None

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        gray = (images[:, 0] * 255).byte().numpy()
        self.images = [Image.fromarray(image).convert("RGB").resize((SIDE, SIDE)) for image in gray]
        self.labels = labels.tolist()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.transform(self.images[i]), self.labels[i]  # type: ignore[misc]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = timm.create_model("test_resnet", num_classes=0)
        self.centers = nn.Linear(self.body.num_features, 10)
        self.projector = nn.Sequential(nn.Linear(self.body.num_features, 128), nn.ReLU(), nn.Linear(128, 32))  # (2)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(images)
        return self.centers(features), F.normalize(self.projector(features), dim=1)  # (3)


def main() -> None:
    torch.manual_seed(0)
    images, labels, test_images, test_labels = long_tailed_digits()
    usual: dict[str, Any] = {
        "input_size": (3, SIDE, SIDE),
        "use_prefetcher": False,
        "num_workers": 0,
        "persistent_workers": False,
    }
    train = create_loader(
        Digits(images, labels), batch_size=BATCH, is_training=True, scale=(0.7, 1.0), hflip=0, pin_memory=False, **usual
    )
    test = create_loader(Digits(test_images, test_labels), batch_size=BATCH, pin_memory=False, **usual)
    one = train.dataset.transform
    train.dataset.transform = lambda image: torch.stack([one(image), one(image)])  # the two views
    model = Net()
    criterion = GPaCoLoss(10, class_counts=labels.bincount(), prior="unbiased", memory=256, dim=32)  # (4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for _ in range(15):
        for views, own in train:
            logits, embeddings = model(views.transpose(0, 1).flatten(0, 1))
            loss = criterion(logits, embeddings, own.repeat(2))  # (5)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        right = torch.cat([model(batch)[0].argmax(1) == own for batch, own in test])
    print(f"test accuracy {100 * right.float().mean():.1f}%")


if __name__ == "__main__":
    main()
