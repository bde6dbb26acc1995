"""Which backbones can be divided into branches."""

import pytest

from gpaco.errors import UserError
from gpaco.models.backbones import build
from gpaco.models.links import check_chain
from gpaco.models.networks import WHOLE

# Backbones, and the bodies that they cannot have.
UNFIT = {
    "resnet8": (),
    "resnet18": (),
    "tf_efficientnet_lite0": (),
    "mobilenetv2_100": (),
    "regnetx_002": ("bilateral", "experts"),  # no sequence of blocks
    "mobilenetv3_small_050": ("residual", "attentive"),  # layers after the pooling
    "convnext_atto": ("experts",),  # nothing before the last two stages
    "vit_tiny_patch16_224": WHOLE,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", UNFIT)
def test_a_backbone_that_cannot_be_divided_is_refused(name: str) -> None:
    size = 224 if name.startswith("vit") else 32
    backbone = build(name, size=size).module
    for body in WHOLE:
        if body in UNFIT[name]:
            with pytest.raises(UserError, match=f"{name} cannot be divided into branches"):
                check_chain(backbone, name, size, body)
        else:
            check_chain(backbone, name, size, body)
