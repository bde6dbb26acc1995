"""ResNets for small images, as used on CIFAR."""

from torch import Tensor, nn
from torch.nn import functional as F


def conv3x3(wide_in: int, wide: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(wide_in, wide, 3, stride=stride, padding=1, bias=False)


class SmallResNet(nn.Module):
    """ResNet for small images (He et al., 2016, section 4.2): 6 n + 2 layers with the classifier, 64 features.

    Three stages of n blocks with 16, 32 and 64 channels. Where the size halves, the shortcut takes every second pixel
    and pads the channels with zeros (option A). Convolutions have Kaiming normal initialization. Any image size works,
    even 8 px. `narrow` has 24 and 48 channels in the last two stages, as in the experts of RIDE.
    """

    def __init__(self, blocks: int, *, narrow: bool = False) -> None:
        super().__init__()
        second, third = (24, 48) if narrow else (32, 64)
        self.num_features = third
        self.conv1 = conv3x3(3, 16)
        self.bn1 = nn.BatchNorm2d(16)
        self.act1 = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(*(_Block(16, 16) for _ in range(blocks)))
        self.layer2 = nn.Sequential(*(_Block(second if i else 16, second) for i in range(blocks)))
        self.layer3 = nn.Sequential(*(_Block(third if i else second, third) for i in range(blocks)))
        self.pool = _Mean()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        x = self.act1(self.bn1(self.conv1(images)))
        features: Tensor = self.pool(self.layer3(self.layer2(self.layer1(x))))
        return features


class _Mean(nn.Module):
    """The mean of each map."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean((2, 3))


class _Block(nn.Module):
    """Two convolutions and a shortcut; a block with more output channels halves the size."""

    def __init__(self, wide_in: int, wide: int) -> None:
        super().__init__()
        self.grown = wide - wide_in
        self.conv1 = conv3x3(wide_in, wide, stride=2 if self.grown else 1)
        self.bn1 = nn.BatchNorm2d(wide)
        self.conv2 = conv3x3(wide, wide)
        self.bn2 = nn.BatchNorm2d(wide)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        if self.grown:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.grown // 2, self.grown // 2))
        return F.relu(y + x, inplace=True)
