"""GPaCo in a plain PyTorch loop, beside cross entropy: long-tailed handwritten digits, a few seconds on a CPU.

    python examples/own_loop.py

The lines that the loss adds to a loop are marked (1) to (5); `balance` is one more, for a better start. The settings
are chosen for a few seconds on a laptop and are not the paper's.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco import GPaCoLoss  # (1)

EPOCHS, BATCH = 40, 64


def long_tailed_digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images (8 x 8) and labels, 100 zeros down to 2 nines, and 70 test images of each class."""
    digits = load_digits()
    images, labels = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1), torch.tensor(digits.target)
    train, test = [], []
    for c in range(10):
        mine = (labels == c).nonzero().squeeze(1)
        test.append(mine[:70])
        train.append(mine[70 : 70 + int(100 * 50 ** (-c / 9))])
    return images[torch.cat(train)], labels[torch.cat(train)], images[torch.cat(test)], labels[torch.cat(test)]


def view(images: Tensor) -> Tensor:
    """Shifted by up to a pixel each way, and noisy."""
    dx, dy = torch.randint(-1, 2, (2,)).tolist()
    return images.roll((dy, dx), (2, 3)) + 0.1 * torch.randn_like(images)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.centers = nn.Linear(1024, 10)
        self.projector = nn.Sequential(nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 32))  # (2)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(images)
        return self.centers(features), F.normalize(self.projector(features), dim=1)  # (3)


def train(method: str, seed: int) -> Tensor:
    """Recall of each class on the test images."""
    torch.manual_seed(seed)
    images, labels, test_images, test_labels = long_tailed_digits()
    model = Net()
    criterion = GPaCoLoss(10, class_counts=labels.bincount(), prior="unbiased", memory=256, dim=32)  # (4)
    first = torch.randperm(len(images))[:BATCH]
    logits, embeddings = model(images[first].repeat(2, 1, 1, 1))
    criterion.balance(model.centers, logits, embeddings, labels[first].repeat(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(BATCH):
            logits, embeddings = model(torch.cat([view(images[batch]), view(images[batch])]))
            if method == "GPaCo":
                loss = criterion(logits, embeddings, labels[batch].repeat(2))  # (5)
            else:
                loss = F.cross_entropy(logits, labels[batch].repeat(2))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        right: Tensor = model(test_images)[0].argmax(1) == test_labels
    return right.view(10, 70).float().mean(1)


def main() -> None:
    counts = long_tailed_digits()[1].bincount().tolist()
    print("Training images of each digit:", counts)
    print(f"{'test accuracy, %':<16} {'all':>6} {'five rarest':>12}   (mean of 3 seeds)")
    for method in ("cross entropy", "GPaCo"):
        recall = 100 * torch.stack([train(method, seed) for seed in range(3)]).mean(0)
        print(f"{method:<16} {recall.mean():>6.1f} {recall[5:].mean():>12.1f}")


if __name__ == "__main__":
    main()
