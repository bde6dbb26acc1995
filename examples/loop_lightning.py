"""GPaCo in a module of Lightning's: long-tailed handwritten digits, a few seconds on a CPU.

    pip install lightning
    python examples/loop_lightning.py

The lines that the loss adds are marked (1) to (5); the network of own_loop.py has (2) and (3). The criterion is a
submodule, so Lightning moves and saves its memory with the model.
"""

import lightning
import torch
from own_loop import BATCH, Net, long_tailed_digits, view
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from gpaco import GPaCoLoss  # (1)


class Digits(lightning.LightningModule):
    def __init__(self, counts: Tensor) -> None:
        super().__init__()
        self.net = Net()  # (2), (3)
        self.criterion = GPaCoLoss(10, class_counts=counts, prior="unbiased", memory=256, dim=32)  # (4)

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        images, labels = batch
        logits, embeddings = self.net(torch.cat([view(images), view(images)]))
        loss: Tensor = self.criterion(logits, embeddings, labels.repeat(2))  # (5)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)


def main() -> None:
    lightning.seed_everything(0, verbose=False)
    images, labels, test_images, test_labels = long_tailed_digits()
    loader = DataLoader(TensorDataset(images, labels), batch_size=BATCH, shuffle=True, drop_last=True)
    model = Digits(labels.bincount())
    trainer = lightning.Trainer(
        max_epochs=20,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    with torch.no_grad():
        accuracy = (model.net(test_images)[0].argmax(1) == test_labels).float().mean()
    print(f"test accuracy {100 * accuracy:.1f}%")


if __name__ == "__main__":
    main()
