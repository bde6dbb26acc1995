"""Low-rank adapters: they start at nothing, train alone, and become part of plain layers."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.commands import checkpoint_files
from helpers.ranks import Results, run_ranks
from helpers.trained import halt
from timm.models.beit import Beit
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gpaco
from gpaco.errors import UserError
from gpaco.models.backbones import build
from gpaco.models.classifier import Classifier, momentum_copy
from gpaco.models.freezing import freeze
from gpaco.models.lora import Adapted, adapt, merged
from gpaco.recipes.settings import Train
from gpaco.training import checkpoint

SMALL: dict[str, Any] = {"model": "test_vit", "size": 16, "long_tail": 50, "batch_size": 64, "train": "lora"}
SMALL |= {"report": False, "say": lambda line: None}


def vit(drop_path: float = 0.0) -> Classifier:
    backbone = build("test_vit", size=32, drop_path=drop_path)
    return Classifier(backbone.module, backbone.num_features, 5, dim=8)


def beit() -> Classifier:
    """A network whose attention hands the weight of its layer to a function instead of calling the layer."""
    backbone = Beit(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=0, init_values=0.1)
    return Classifier(backbone, 32, 5, dim=8)


def mobilevit() -> Classifier:
    backbone = build("mobilevit_xxs", size=64)
    return Classifier(backbone.module, backbone.num_features, 5, dim=8)


def images(size: int = 32) -> Tensor:
    return torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(1))


def take_steps(model: Classifier, size: int = 32) -> None:
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.5)
    for _ in range(3):
        logits, embeddings = model.train()(images(size))
        (nn.functional.cross_entropy(logits, torch.arange(4)) + embeddings[:, 0].mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.slow
@pytest.mark.parametrize(("make", "size"), [(vit, 32), (beit, 32), (mobilevit, 64)])
def test_adapters_start_at_nothing_train_alone_and_merge_into_plain_layers(make: Any, size: int) -> None:
    model = make()
    plain = {key: value.clone() for key, value in model.state_dict().items()}
    with torch.no_grad():
        before = model.eval()(images(size))[0]
        freeze(model, "lora")
        torch.testing.assert_close(model.eval()(images(size))[0], before, rtol=0, atol=1e-6)
    take_steps(model, size)
    with torch.no_grad():
        after = model.eval()(images(size))[0]
    assert (after - before).abs().max() > 0.01

    state = model.state_dict()
    for key, value in plain.items():  # norms with their statistics, positions, patches and the layers themselves stay
        assert torch.equal(state[key], value) == key.startswith("backbone."), key
    adapters = [module for module in model.backbone.modules() if isinstance(module, Adapted)]
    assert adapters
    assert all(adapted.lora_up.any() for adapted in adapters)

    other = make()
    other.load_state_dict(merged(state))  # strictly: names and shapes are those of the plain network
    with torch.no_grad():
        torch.testing.assert_close(other.eval()(images(size))[0], after, rtol=0, atol=1e-5)
    assert not any(isinstance(module, Adapted) for module in other.modules())
    assert merged(plain).keys() == plain.keys()


def test_adapters_of_vit_b_have_less_than_a_hundredth_of_its_parameters() -> None:
    with torch.device("meta"):
        backbone = build("vit_base_patch16_224").module
    whole = sum(parameter.numel() for parameter in backbone.parameters())
    rank = Train().lora_rank
    added = sum(parameter.numel() for parameter in adapt(backbone, rank))
    assert added == 12 * rank * (4 + 2 + 5 + 5) * 768  # qkv, proj and the two layers of the MLP in each of 12 blocks
    assert added < 0.01 * whole


def test_norms_stay_frozen_and_drop_path_works() -> None:
    model = mobilevit()
    count = freeze(model, "lora", lora_rank=2)
    norms = [module for module in model.backbone.modules() if isinstance(module, nn.BatchNorm2d)]
    copy = momentum_copy(model)
    for network in (model.train(), copy.train()):
        assert network.backbone.training
        assert len(network.fixed_norms) == len(norms) > 10
        assert not any(module.training for module in network.backbone.modules() if isinstance(module, nn.BatchNorm2d))
    trained = {key for key, parameter in model.backbone.named_parameters() if parameter.requires_grad}
    assert {key.rpartition(".")[2] for key in trained} == {"lora_down", "lora_up"}
    heads = [*model.centers.parameters(), *model.projector.parameters()]
    changes = [parameter for key, parameter in model.backbone.named_parameters() if key in trained]
    assert count == sum(parameter.numel() for parameter in [*heads, *changes])
    dropping = vit(drop_path=0.5)
    freeze(dropping, "lora")
    assert not torch.equal(dropping.train()(images())[0], dropping(images())[0])


def test_a_network_without_linear_layers_is_refused_and_left_alone() -> None:
    backbone = build("resnet8")
    model = Classifier(backbone.module, 64, 5)
    with pytest.raises(UserError, match="SmallResNet has no linear layers") as caught:
        freeze(model, "lora")
    assert "--train last-block" in caught.value.remedy
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_the_same_bits_and_loads_as_plain_layers(tmp_path: Path) -> None:
    options = SMALL | {"epochs": 2, "method": "paco", "settings": ["train.ema=0.5", "method.memory=64"]}
    whole = gpaco.train("digits", out=tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        gpaco.train("digits", out=tmp_path / "stopped", show=halt(1, 3), **options)
    stopped = gpaco.train("digits", out=tmp_path / "stopped", **options)
    files = checkpoint_files(whole.folder)
    assert files == checkpoint_files(stopped.folder)
    assert whole.metrics == stopped.metrics

    model = gpaco.load(whole).model
    assert not any(isinstance(module, Adapted) for module in model.modules())
    best = whole.folder / "checkpoints" / f"step-{gpaco.load(whole).card.step:08d}"
    unmerged = vit_of(checkpoint.load(best).tensors["ema"])
    pixels = images(16)
    with torch.no_grad():
        torch.testing.assert_close(model.classify(pixels), unmerged.classify(pixels), rtol=0, atol=1e-5)


def vit_of(state: dict[str, Tensor]) -> Classifier:
    """The network of the runs here, with its adapters."""
    backbone = build("test_vit", size=16)
    model = Classifier(backbone.module, backbone.num_features, 10)
    freeze(model, "lora")
    model.load_state_dict(state)
    return model.eval()


def steps_on(rows: slice) -> tuple[list[str], Tensor]:
    """Train on these rows of a batch, in this process among others if there are any; the changes by name, and flat."""
    torch.manual_seed(0)
    model = vit()
    freeze(model, "lora", lora_rank=2)
    together = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.5)
    for _ in range(3):
        logits, embeddings = together(images()[rows])
        (nn.functional.cross_entropy(logits, torch.arange(4)[rows]) + embeddings[:, 0].mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    changes = {key: value for key, value in model.state_dict().items() if key.endswith(("lora_down", "lora_up"))}
    return list(changes), torch.cat([value.flatten() for value in changes.values()])


def each_its_half() -> Results:
    return {"changes": steps_on(slice(dist.get_rank(), None, 2))[1]}


@pytest.mark.process
def test_two_processes_train_the_adapters_that_one_would() -> None:
    names, alone = steps_on(slice(None))
    assert len(names) == 6 * 4 * 2  # six blocks of qkv, proj and two layers of an MLP, each with two matrices
    first, second = (results["changes"] for results in run_ranks(2, each_its_half))
    assert torch.equal(first, second)
    torch.testing.assert_close(first, alone, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_the_next_stage_starts_from_the_merged_network(tmp_path: Path) -> None:
    options = SMALL | {"epochs": 2, "method": "supcon", "settings": ["method.memory=64"]}
    result = gpaco.train("digits", out=tmp_path / "run", **options)
    features = checkpoint.load(next((tmp_path / "run").glob("stage-1-*")) / "checkpoints").tensors["model"]
    assert any(key.endswith("lora_up") for key in features)
    final = gpaco.load(result).model.state_dict()
    for key, value in merged(features).items():
        if key.startswith("backbone."):
            assert torch.equal(final[key], value), key
