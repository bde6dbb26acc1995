"""Mixup with parametric contrast: the loss takes rows of probabilities as labels. Long-tailed digits, a few seconds.

    python examples/mixup.py

A mixed image costs the mixture of what its two classes cost, and the memory keeps its mixed label with it.
"""

import torch
from own_loop import BATCH, Net, long_tailed_digits, view
from torch import Tensor
from torch.nn import functional as F

from gpaco import GPaCoLoss


def mixup(images: Tensor, labels: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """Each image mixed with another one of the batch, and the labels likewise."""
    share = torch.distributions.Beta(strength, strength).sample((len(images),))
    other = torch.randperm(len(images))
    mixed = torch.lerp(images[other], images, share[:, None, None, None])
    return mixed, torch.lerp(labels[other], labels, share[:, None])


def main() -> None:
    torch.manual_seed(0)
    images, labels, test_images, test_labels = long_tailed_digits()
    rows = F.one_hot(labels, 10).float()
    model = Net()
    criterion = GPaCoLoss(10, class_counts=labels.bincount(), prior="unbiased", memory=256, dim=32)
    first = torch.randperm(len(images))[:BATCH]
    logits, embeddings = model(images[first].repeat(2, 1, 1, 1))
    criterion.balance(model.centers, logits, embeddings, rows[first].repeat(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for epoch in range(1, 41):
        for batch in torch.randperm(len(images)).split(BATCH):
            # Both views are mixed in the same way, so that they stay views of one image.
            mixed, targets = mixup(images[batch], rows[batch], strength=0.2)
            loss = criterion(*model(torch.cat([view(mixed), view(mixed)])), targets.repeat(2, 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 10 == 0:
            model.eval()
            with torch.no_grad():
                accuracy = (model(test_images)[0].argmax(1) == test_labels).float().mean()
            model.train()
            print(f"epoch {epoch}: loss {loss.item():.2f}, test accuracy {100 * accuracy:.1f}%")


if __name__ == "__main__":
    main()
