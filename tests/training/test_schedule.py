"""Learning rates (those of recipes: tests/recipes), and the groups that parameters fall into."""

from typing import Any

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gpaco.errors import UserError
from gpaco.recipes.settings import Optimizer, Recipe, Schedule, Train
from gpaco.training import schedule as schedules
from gpaco.training.schedule import parameter_groups, set_learning_rate

IMAGENET_LT: dict[str, Any] = {"epochs": 400, "lr": 0.04, "name": "cosine", "warmup": 10}


CIFAR: dict[str, Any] = {"epochs": 400, "lr": 0.05, "name": "step-released", "warmup": 10, "steps": (320, 360)}


def learning_rate(step: int, *, steps_per_epoch: int, epochs: int, lr: float, **schedule: Any) -> float:
    settings = Schedule(**({"warmup": 0.0} | schedule))
    recipe = Recipe(schedule=settings, train=Train(epochs=epochs), optimizer=Optimizer(lr=lr))
    return schedules.learning_rate(recipe, step, steps_per_epoch)


def at_epoch(epoch: int, schedule: dict[str, Any]) -> float:
    return learning_rate(epoch * 7 + 3, steps_per_epoch=7, **schedule)


def test_the_rate_stays_the_same_within_an_epoch_when_it_is_set_per_epoch() -> None:
    for schedule in (IMAGENET_LT, CIFAR):
        for epoch in (0, 9, 10, 11, 250, 399):
            rates = {learning_rate(epoch * 50 + k, steps_per_epoch=50, **schedule) for k in (0, 1, 49)}
            assert len(rates) == 1


def test_the_plain_step_schedule_does_neither() -> None:
    expected = {0: 0.005, 9: 0.05, 10: 0.05, 11: 0.05, 319: 0.05, 320: 0.005, 359: 0.005, 360: 0.0005}
    assert {e: at_epoch(e, CIFAR | {"name": "step"}) for e in expected} == pytest.approx(expected)
    assert at_epoch(1, CIFAR | {"name": "step", "warmup": 1}) == 0.05
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.05)
    theirs = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    for epoch in range(8):
        ours = at_epoch(epoch, {"epochs": 8, "lr": 0.05, "name": "step", "steps": (3, 5)})
        assert ours == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()


def test_constant_is_constant_after_its_warm_up() -> None:
    rates = [at_epoch(e, {"epochs": 5, "lr": 0.1, "name": "constant", "warmup": 2}) for e in range(5)]
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.1, 0.1])


@given(
    name=st.sampled_from(["cosine", "step", "step-released", "poly", "constant"]),
    per=st.sampled_from(["epoch", "step"]),
    epochs=st.integers(1, 20),
    warmup=st.floats(0, 30) | st.integers(0, 30),
    steps_per_epoch=st.integers(1, 9),
)
def test_every_rate_is_finite_and_between_0_and_a_little_over_the_highest(
    name: str, per: str, epochs: int, warmup: float, steps_per_epoch: int
) -> None:
    overshoot = 2 if name == "step-released" else 1
    for step in range(epochs * steps_per_epoch + 1):
        rate = learning_rate(
            step,
            steps_per_epoch=steps_per_epoch,
            epochs=epochs,
            lr=0.5,
            name=name,
            warmup=warmup,
            steps=(3, 9),
            per=per,
        )
        if name != "step-released" or warmup >= 1:  # a recipe with less is refused
            assert 0 <= rate <= 0.5 * overshoot + 1e-12


def scale_of(groups: list[dict[str, Any]], parameter: nn.Parameter) -> tuple[float, float]:
    """(lr_scale, weight_decay) of a parameter."""
    (found,) = [g for g in groups if any(p is parameter for p in g["params"])]
    return found["lr_scale"], found["weight_decay"]


def test_as_released_everything_that_trains_is_decayed_in_one_group() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    (group,) = parameter_groups(model, Optimizer(lr=0.1, weight_decay=5e-4))
    assert group["weight_decay"] == 5e-4
    assert group["lr"] == 0.1
    assert len(group["params"]) == 4


def test_without_decay_on_biases_only_matrices_and_kernels_are_decayed() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    groups = parameter_groups(model, Optimizer(lr=0.1, weight_decay=0.05, decay_bias=False))
    for parameter in model.parameters():
        assert scale_of(groups, parameter) == (1.0, 0.05 if parameter.ndim > 1 else 0.0)
    assert sum(len(group["params"]) for group in groups) == 6


def test_a_vit_trains_slower_towards_its_input_as_in_mae() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = timm.create_model(
                "vit_tiny_patch16_224",
                depth=3,
                embed_dim=24,
                num_heads=2,
                num_classes=0,
                global_pool="avg",
                img_size=32,
            )
            self.centers = nn.Linear(24, 5)
            self.projector = nn.Sequential(nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 8))

    model = Wrapped()
    vit = model.backbone
    groups = parameter_groups(model, Optimizer(lr=1.0, weight_decay=0.05, decay_bias=False, layer_decay=0.5))
    assert scale_of(groups, vit.patch_embed.proj.weight) == (0.5**4, 0.05)
    assert scale_of(groups, vit.patch_embed.proj.bias) == (0.5**4, 0.0)
    assert scale_of(groups, vit.pos_embed) == (0.5**4, 0.0)
    for block in range(3):
        assert scale_of(groups, vit.blocks[block].attn.qkv.weight) == (0.5 ** (3 - block), 0.05)
        assert scale_of(groups, vit.blocks[block].norm1.weight) == (0.5 ** (3 - block), 0.0)
    assert scale_of(groups, vit.fc_norm.weight) == (1.0, 0.0)
    assert scale_of(groups, model.centers.weight) == (1.0, 0.05)
    assert scale_of(groups, model.projector[2].bias) == (1.0, 0.0)
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    assert len(groups) == 10  # five depths, with and without decay

    optimizer = torch.optim.AdamW(groups)
    set_learning_rate(optimizer, 0.1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1 * group["lr_scale"] for group in groups]


@pytest.mark.parametrize("name", ["resnet18", "swin_tiny_patch4_window7_224", "efficientnet_lite0"])
def test_layer_decay_refuses_models_that_are_no_vits(name: str) -> None:
    model = timm.create_model(name, num_classes=0)
    with pytest.raises(UserError, match="needs a ViT") as error:
        parameter_groups(model, Optimizer(lr=0.1, weight_decay=0.0, layer_decay=0.75))
    assert "layer_decay = 1" in error.value.remedy


def test_a_head_on_cached_features_trains_at_the_full_rate_whatever_the_layer_decay() -> None:
    head = nn.ModuleDict({"backbone": nn.Identity(), "centers": nn.Linear(4, 3)})
    head.backbone = head["backbone"]
    groups = parameter_groups(head, Optimizer(lr=0.1, layer_decay=0.75))
    assert {group["lr_scale"] for group in groups} == {1.0}


def test_position_bias_tables_of_a_swin_are_spared_with_the_biases() -> None:
    model = timm.create_model("swin_tiny_patch4_window7_224", num_classes=0, depths=(1, 1, 1, 1))
    groups = parameter_groups(model, Optimizer(lr=0.1, weight_decay=0.01, decay_bias=False))
    assert scale_of(groups, model.layers[0].blocks[0].attn.relative_position_bias_table) == (1.0, 0.0)


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(UserError, match="has no parameters to train"):
        parameter_groups(nn.Linear(2, 2).requires_grad_(False), Optimizer(lr=0.1, weight_decay=0.0))
