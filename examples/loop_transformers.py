"""GPaCo in the Trainer of transformers: long-tailed handwritten digits, a few seconds on a CPU.

    pip install transformers accelerate
    python examples/loop_transformers.py

The lines that the loss adds are marked (1) to (5); the network of own_loop.py has (2) and (3). The Trainer knows how to
train anything once `compute_loss` says what the loss of a batch is.
"""

import tempfile
from typing import Any

import torch
from own_loop import BATCH, Net, long_tailed_digits, view
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, set_seed

from gpaco import GPaCoLoss  # (1)


class Digits(Dataset[dict[str, Tensor]]):
    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"images": self.images[i], "labels": self.labels[i]}


class TailTrainer(Trainer):  # type: ignore[misc] # its types do not know its own arguments
    def __init__(self, criterion: GPaCoLoss, **rest: Any) -> None:
        super().__init__(**rest)
        self.criterion = criterion.to(self.args.device)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **rest: Any) -> Tensor:
        images, labels = inputs["images"], inputs["labels"]
        logits, embeddings = model(torch.cat([view(images), view(images)]))
        loss: Tensor = self.criterion(logits, embeddings, labels.repeat(2))  # (5)
        return loss


def main() -> None:
    set_seed(0)
    images, labels, test_images, test_labels = long_tailed_digits()
    net = Net()  # (2), (3)
    criterion = GPaCoLoss(10, class_counts=labels.bincount(), prior="unbiased", memory=256, dim=32)  # (4)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=30,
            per_device_train_batch_size=BATCH,
            learning_rate=3e-3,
            dataloader_drop_last=True,
            dataloader_pin_memory=False,
            remove_unused_columns=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        TailTrainer(criterion, model=net, args=arguments, train_dataset=Digits(images, labels)).train()
    with torch.no_grad():
        accuracy = (net(test_images)[0].argmax(1) == test_labels).float().mean()
    print(f"test accuracy {100 * accuracy:.1f}%")


if __name__ == "__main__":
    main()
