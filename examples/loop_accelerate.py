"""GPaCo in a loop with accelerate: long-tailed handwritten digits, a few seconds on a CPU.

    pip install accelerate
    python examples/loop_accelerate.py

The lines that the loss adds are marked (1) to (5); the network of own_loop.py has (2) and (3). The criterion has no
parameters: it is moved to the device, not prepared. `register_for_checkpointing` saves its memory with the rest.
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from own_loop import BATCH, Net, long_tailed_digits, view
from torch.utils.data import DataLoader, TensorDataset

from gpaco import GPaCoLoss  # (1)


def main() -> None:
    set_seed(0)
    accelerator = Accelerator(cpu=True)
    images, labels, test_images, test_labels = long_tailed_digits()
    net = Net()  # (2), (3)
    criterion = GPaCoLoss(10, class_counts=labels.bincount(), prior="unbiased", memory=256, dim=32)  # (4)
    criterion.to(accelerator.device)
    accelerator.register_for_checkpointing(criterion)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    loader = DataLoader(TensorDataset(images, labels), batch_size=BATCH, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for _ in range(20):
        for batch, own in loader:
            logits, embeddings = model(torch.cat([view(batch), view(batch)]))
            loss = criterion(logits, embeddings, own.repeat(2))  # (5)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
    with torch.no_grad():
        accuracy = (net(test_images)[0].argmax(1) == test_labels).float().mean()
    print(f"test accuracy {100 * accuracy:.1f}%")


if __name__ == "__main__":
    main()
