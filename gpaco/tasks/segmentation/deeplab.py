"""DeepLabV3+ of the released configurations: a dilated encoder, and a head with separable convolutions.

The head (mmsegmentation's DepthwiseSeparableASPPHead) has five branches on the last stage (a 1 x 1 convolution,
separable 3 x 3 convolutions with dilations 12, 24 and 36, and the mean of the image), a dense 3 x 3 convolution over
all of them, then two separable convolutions over the result and a narrow projection of the first stage. Batch norm and
ReLU follow every convolution, including depthwise ones.

The encoder is one of timm's with output stride 8: the four stages have strides 1, 2, 1, 1 and dilations 1, 1, 2, 4, and
the first block of a dilated stage has half of its dilation. `resnet18` to `resnet152` have the stem of ResNet-v1c
(three 3 x 3 convolutions), and in basic blocks only the first convolution is dilated, as in the released code.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.tasks.segmentation.inference import resized

V1C = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
DILATIONS = (12, 24, 36)  # of the branches at output stride 8


class Encoder(nn.Module):
    """Images -> features of the last four stages, with strides 4, 8, 8, 8 (or 4, 8, 16, 16)."""

    def __init__(self, name: str, output_stride: int, drop_path: float) -> None:
        import timm

        super().__init__()
        options: dict[str, Any] = {"output_stride": output_stride, "out_indices": (-4, -3, -2, -1)}
        if name in V1C:
            options |= {"stem_type": "deep", "stem_width": 32}
        if drop_path:
            options["drop_path_rate"] = drop_path
        model: Any = timm.create_model(name.removeprefix("tu-"), features_only=True, pretrained=False, **options)
        self.model = model
        self.out_channels: list[int] = model.feature_info.channels()
        if (strides := model.feature_info.reduction()) != [4, 8, output_stride, output_stride]:
            raise ValueError(f"its stages have strides {strides}")
        if name in V1C:
            for block in model.modules():
                if hasattr(block, "conv2") and not hasattr(block, "conv3"):
                    block.conv2.dilation = block.conv2.padding = (1, 1)

    def forward(self, images: Tensor) -> list[Tensor]:
        features: list[Tensor] = self.model(images)
        return features


class Decoder(nn.Module):
    """Features of the encoder -> (B, width, h, w) at a quarter of the image's size."""

    def __init__(self, channels: Sequence[int], width: int, output_stride: int) -> None:
        super().__init__()
        first, last = channels[0], channels[-1]
        low = max(1, 3 * width // 32)  # 48 of 512, 12 of 128
        rates = [rate * 8 // output_stride for rate in DILATIONS]
        self.pooled = convolution(last, width, 1)
        self.branches = nn.ModuleList([convolution(last, width, 1), *(separable(last, width, rate) for rate in rates)])
        self.joined = convolution((len(rates) + 2) * width, width, 3)
        self.low = convolution(first, low, 1)
        self.last = nn.Sequential(separable(width + low, width), separable(width, width))

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        first, last = features[0], features[-1]
        mean = self.pooled(F.adaptive_avg_pool2d(last, 1)).expand(-1, -1, *last.shape[2:])
        context = self.joined(torch.cat([mean, *(branch(last) for branch in self.branches)], 1))
        finer = resized(context, (first.shape[2], first.shape[3]))
        result: Tensor = self.last(torch.cat([finer, self.low(first)], 1))
        return result


def default_width(name: str) -> int:
    """Return the released width of the decoder: 128 for ResNet-18, 512 for others."""
    return 128 if name == "resnet18" else 512


def convolution(before: int, after: int, size: int, *, dilation: int = 1, groups: int = 1) -> nn.Sequential:
    """Return a convolution that keeps height and width, batch norm and ReLU, initialized as in mmcv."""
    padding = dilation * (size // 2)
    layer = nn.Conv2d(before, after, size, padding=padding, dilation=dilation, groups=groups, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(layer, nn.BatchNorm2d(after), nn.ReLU())


def separable(before: int, after: int, dilation: int = 1) -> nn.Sequential:
    """Return a depthwise 3 x 3 convolution and a pointwise one, each with batch norm and ReLU."""
    return nn.Sequential(
        convolution(before, before, 3, dilation=dilation, groups=before), convolution(before, after, 1)
    )
