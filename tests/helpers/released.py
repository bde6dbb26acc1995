"""Networks and checkpoints in the layout of the released PaCo and GPaCo code, with random numbers in them."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Released(nn.Module):
    """Encoder with the projector as its last layer, class centers, queue; of PaCo also a copy of the first two."""

    def __init__(self, encoder: nn.Module, *, classes: int, dim: int, memory: int = 64, paco: bool = False) -> None:
        super().__init__()
        self.encoder_q = encoder
        wide = encoder.fc.in_features
        if paco:
            encoder.fc = nn.Sequential(nn.Linear(wide, wide), nn.BatchNorm1d(wide), nn.ReLU(), nn.Linear(wide, dim))
            self.encoder_k, self.linear_k = nn.Linear(3, 3), nn.Linear(wide, classes)
        else:
            hidden = (nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU())
            encoder.fc = nn.Sequential(*hidden, nn.Linear(wide, dim))
        self.linear = nn.Linear(wide, classes)
        self.register_buffer("queue", torch.randn(memory, dim))
        self.register_buffer("queue_l", torch.randint(0, classes, (memory,)))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    def forward(self, images: Tensor) -> Tensor:
        """Logits, from what comes into the encoder's last layer."""
        seen: list[Tensor] = []
        hook = self.encoder_q.fc.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        self.encoder_q(images)
        hook.remove()
        logits: Tensor = self.linear(seen[0])
        return logits

    def save(self, path: Path, arch: str = "resnet32", **more: Any) -> Path:
        """Write the checkpoint that the scripts write after an epoch: of the network as several processes wrap it."""
        state = {f"module.{name}": value for name, value in self.state_dict().items()}
        torch.save({"epoch": 400, "arch": arch, "acc": torch.tensor(50.0), "state_dict": state, **more}, path)
        return path


class SmallEncoder(nn.Module):
    """ResNet-32 for 32 pixels, shortcuts without parameters, as a plain loop."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        before = 16
        for stage, wide in enumerate((16, 32, 64), 1):
            blocks = nn.Sequential()
            for _ in range(5):
                blocks.append(SmallBlock(before, wide))
                before = wide
            setattr(self, f"layer{stage}", blocks)
        self.fc = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(images)))
        x = self.layer3(self.layer2(self.layer1(x)))
        result: Tensor = self.fc(x.mean((2, 3)))
        return result


class SmallBlock(nn.Module):
    def __init__(self, before: int, wide: int) -> None:
        super().__init__()
        self.more = wide - before
        self.conv1 = nn.Conv2d(before, wide, 3, stride=2 if self.more else 1, padding=1, bias=False)
        self.conv2 = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(wide), nn.BatchNorm2d(wide)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.more:
            empty = x.new_zeros(len(x), self.more // 2, *y.shape[2:])
            x = torch.cat([empty, x[:, :, ::2, ::2], empty], 1)
        return F.relu(x + y)


def lively(network: nn.Module) -> nn.Module:
    """The network in evaluation mode, with statistics as if it had been trained: nothing stays at 0 or 1."""
    for module in network.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.uniform_(module.weight, 0.5, 1)
            nn.init.normal_(module.bias, std=0.1)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return network.eval()
