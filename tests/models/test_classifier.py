"""`Classifier` and what is done to it: two views, the momentum copy, ghost batch norm, freezing."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from gpaco.errors import UserError
from gpaco.models.backbones import build
from gpaco.models.classifier import Classifier, momentum_copy, update_momentum
from gpaco.models.freezing import freeze
from gpaco.models.ghost_norm import GhostBatchNorm, ghost_batch
from gpaco.models.networks import Prototyped


def _model(name: str = "resnet8", *, size: int = 8, dim: int = 16, projector: str = "gpaco") -> Classifier:
    backbone = build(name, size=size)
    return Classifier(backbone.module, backbone.num_features, 10, dim=dim, projector=projector)


def _images(rows: int = 6, size: int = 8) -> Tensor:
    return torch.randn(rows, 3, size, size)


def _same_state(a: nn.Module, b: nn.Module) -> bool:
    mine, yours = a.state_dict(), b.state_dict()
    return mine.keys() == yours.keys() and all(torch.equal(mine[key], yours[key]) for key in mine)


def _trained(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


# ---- the classifier


def test_the_projectors_are_those_of_the_released_code_and_of_the_paper() -> None:
    gpaco, paco, two = (_model(projector=kind) for kind in ("gpaco", "paco", "two-layer"))
    assert [(type(m).__name__, *(p.shape for p in m.parameters())) for m in gpaco.projector] == [
        ("Linear", (64, 64), (64,)),
        ("ReLU",),
        ("Linear", (64, 64), (64,)),
        ("ReLU",),
        ("Linear", (16, 64), (16,)),
    ]
    assert [(type(m).__name__, *(p.shape for p in m.parameters())) for m in paco.projector] == [
        ("Linear", (64, 64), (64,)),
        ("BatchNorm1d", (64,), (64,)),
        ("ReLU",),
        ("Linear", (16, 64), (16,)),
    ]
    assert [(type(m).__name__, *(p.shape for p in m.parameters())) for m in two.projector] == [
        ("Linear", (64, 64), (64,)),
        ("ReLU",),
        ("Linear", (16, 64), (16,)),
    ]
    assert gpaco.centers.bias.shape == (10,)


@pytest.mark.parametrize("projector", ["gpaco", "paco"])
def test_two_views_are_two_passes_one_after_another(projector: str) -> None:
    together = _model(projector=projector)
    apart = deepcopy(together)
    view1, view2 = _images(), _images()
    logits, embeddings = together(view1, view2)
    first, second = apart(view1), apart(view2)
    assert torch.equal(logits, torch.cat([first[0], second[0]]))
    assert torch.equal(embeddings, torch.cat([first[1], second[1]]))
    assert logits.shape == (12, 10)
    assert embeddings.shape == (12, 16)
    assert _same_state(together, apart)  # running statistics too
    assert int(together.backbone.bn1.num_batches_tracked) == 2

    for a, b in ((logits, embeddings), (torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]]))):
        (a.square().mean() + b[:, 0].mean()).backward()
    for mine, yours in zip(together.parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, yours.grad)


def test_one_batch_of_images_gives_the_same_pair_in_training_and_evaluation() -> None:
    model = _model()
    images = _images()
    for mode in (True, False):
        model.train(mode)
        logits, embeddings = model(images)
        assert logits.shape == (6, 10)
        torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(6))
    assert torch.equal(model.classify(images), logits)
    assert torch.equal(model.centers(model.features(images)), logits)


def test_a_hidden_layer_stands_between_the_backbone_and_both_heads() -> None:
    backbone = build("resnet8")
    model = Classifier(backbone.module, 64, 10, dim=16, hidden=24)
    images = _images()
    logits, embeddings = model(images, images)
    assert (logits.shape, embeddings.shape) == ((12, 10), (12, 16))
    assert (model.centers.in_features, model.projector[0].in_features) == (24, 24)
    features = model.eval().features(images)
    assert features.shape == (6, 24)
    assert torch.equal(features, model.hidden(model.backbone(images)))
    assert features.min() == 0
    assert torch.equal(model.classify(images), model.centers(features))
    assert not any(name.startswith("hidden") for name in Classifier(backbone.module, 64, 10).state_dict())
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.hidden.parameters())


def test_without_a_projector_embeddings_are_empty() -> None:
    model = _model(projector="none")
    logits, embeddings = model(_images(), _images())
    assert logits.shape == (12, 10)
    assert embeddings.shape == (12, 0)
    assert not any(name.startswith("projector") for name in model.state_dict())
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["resnet8", "test_vit"])
def test_embeddings_have_unit_length_under_autocast(name: str) -> None:
    size = 8 if name == "resnet8" else 32
    model = _model(name, size=size)
    with torch.autocast("cpu", torch.bfloat16):
        logits, embeddings = model(_images(size=size), _images(size=size))
    assert logits.dtype == torch.bfloat16
    assert embeddings.dtype == torch.float32
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(12), atol=1e-6, rtol=0)


def test_float64_and_channels_last_give_the_same_as_float32() -> None:
    model = _model(projector="paco")
    images = _images()
    expected = deepcopy(model).double()(images.double())
    assert all(out.dtype == torch.float64 for out in expected)
    last = deepcopy(model).to(memory_format=torch.channels_last)
    for out in (model(images), last(images.to(memory_format=torch.channels_last))):
        torch.testing.assert_close(out[0].double(), expected[0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(out[1].double(), expected[1], atol=1e-4, rtol=1e-4)


def test_maps_stay_channels_last_through_the_shortcuts() -> None:
    model = build("resnet8").module.to(memory_format=torch.channels_last)
    kept = []
    for block in (model.layer1, model.layer2, model.layer3):
        block.register_forward_hook(lambda *args: kept.append(args[2].is_contiguous(memory_format=torch.channels_last)))
    model(_images(size=16).to(memory_format=torch.channels_last))
    assert kept == [True] * 3


def test_wrong_arguments_are_explained() -> None:
    with pytest.raises(
        ValueError, match="projector must be one of 'gpaco', 'paco', 'two-layer', 'mae', 'none', got 'moco'"
    ):
        Classifier(nn.Flatten(), 12, 5, projector="moco")
    with pytest.raises(ValueError, match="num_classes must be at least 1"):
        Classifier(nn.Flatten(), 12, 0)
    with pytest.raises(ValueError, match="at least one batch of images"):
        _model()()
    with pytest.raises(ValueError, match=r"features of shape \(6, 12\), got \(6, 3, 2, 2\); pool them"):
        Classifier(nn.Identity(), 12, 5)(_images(size=2))
    with pytest.raises(ValueError, match=r"features of shape \(6, 13\), got \(6, 12\)"):
        Classifier(nn.Flatten(), 13, 5).classify(_images(size=2))


# ---- the momentum copy


def test_a_momentum_copy_is_equal_and_separate_and_gets_no_gradient() -> None:
    model = _model(projector="paco")
    model(_images())[0].sum().backward()
    copy = momentum_copy(model)
    assert _same_state(copy, model)
    assert copy.training
    assert not _trained(copy)
    assert all(parameter.grad is None for parameter in copy.parameters())
    assert not {p.data_ptr() for p in copy.parameters()} & {p.data_ptr() for p in model.parameters()}
    assert len(_trained(model)) == len(list(model.parameters()))


@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.999, 1.0])
def test_the_momentum_update_is_the_formula_over_parameters_and_leaves_buffers(momentum: float) -> None:
    model = _model(projector="paco").double()
    copy = momentum_copy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    model(_images().double())  # moves the model's running statistics, not the copy's
    copy(_images().double())
    before = {name: value.clone() for name, value in copy.state_dict().items()}
    places = [parameter.data_ptr() for parameter in copy.parameters()]
    update_momentum(copy, model, momentum)
    for name, query in model.named_parameters():
        expected = momentum * before[name] + (1 - momentum) * query
        torch.testing.assert_close(copy.get_parameter(name), expected, atol=1e-15, rtol=1e-15)
    for name, buffer in copy.named_buffers():
        assert torch.equal(buffer, before[name])
    assert [parameter.data_ptr() for parameter in copy.parameters()] == places
    assert not _trained(copy)


# ---- ghost batch norm


def _batch_norm(shape: tuple[int, ...]) -> nn.BatchNorm1d | nn.BatchNorm2d:
    norm = (nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d)(shape[1]).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    nn.init.normal_(norm.running_mean)
    return norm


@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((96, 3, 2, 2), (32, 32, 32)),
        ((64, 5), (32, 32)),
        ((70, 3, 4, 1), (32, 32, 6)),
        ((65, 5), (32, 33)),  # one row alone has no variance
        ((34, 5, 7), (32, 2)),
    ],
)
def test_ghost_batch_norm_is_batch_norm_of_each_group_by_itself(
    shape: tuple[int, ...], groups: tuple[int, ...]
) -> None:
    norm = _batch_norm(shape)
    plain, ghost = deepcopy(norm), GhostBatchNorm(deepcopy(norm), 32)
    x = torch.randn(shape, dtype=torch.float64) * 3 + 1
    mine, yours = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, expected = ghost(mine), torch.cat([plain(group) for group in yours.split(groups)])
    assert torch.equal(out, expected)

    weights = torch.randn_like(out)
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(mine.grad, yours.grad, atol=1e-13, rtol=1e-12)
    torch.testing.assert_close(ghost.weight.grad, plain.weight.grad, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(ghost.bias.grad, plain.bias.grad, atol=1e-12, rtol=1e-12)

    others = [d for d in range(len(shape)) if d != 1]
    means = torch.stack([group.mean(others) for group in x.split(groups)]).mean(0)
    variances = torch.stack([group.var(others, unbiased=True) for group in x.split(groups)]).mean(0)
    torch.testing.assert_close(ghost.running_mean, 0.9 * norm.running_mean + 0.1 * means, atol=1e-13, rtol=1e-12)
    torch.testing.assert_close(ghost.running_var, 0.9 * norm.running_var + 0.1 * variances, atol=1e-13, rtol=1e-12)
    assert int(ghost.num_batches_tracked) == 1


def test_ghost_groups_as_large_as_the_batch_and_evaluation_are_plain_batch_norm() -> None:
    norm = _batch_norm((12, 3, 2, 2))
    for size in (12, 13, 100):
        plain, ghost = deepcopy(norm), GhostBatchNorm(deepcopy(norm), size)
        for _ in range(3):
            x = torch.randn(12, 3, 2, 2, dtype=torch.float64)
            mine, yours = x.clone().requires_grad_(), x.clone().requires_grad_()
            out, expected = ghost(mine), plain(yours)
            assert torch.equal(out, expected)
            out.square().sum().backward()
            expected.square().sum().backward()
            assert torch.equal(mine.grad, yours.grad)
        assert _same_state(ghost, plain)

    plain, ghost = deepcopy(norm).eval(), GhostBatchNorm(deepcopy(norm), 4).eval()
    assert torch.equal(ghost(x), plain(x))
    assert _same_state(ghost, plain)


@pytest.mark.parametrize("name", ["resnet8", "test_efficientnet"])  # the second has activations inside batch norm
def test_ghost_batch_replaces_all_batch_norms_and_keeps_tensors_and_keys(name: str) -> None:
    size = 8 if name == "resnet8" else 32
    model = _model(name, size=size, projector="paco")
    plain = deepcopy(model)
    tensors = {key: value.data_ptr() for key, value in model.state_dict().items()}
    norms = sum(isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)) for module in model.modules())
    ghost_batch(model, 4)
    assert sum(isinstance(module, GhostBatchNorm) for module in model.modules()) == norms
    assert {key: value.data_ptr() for key, value in model.state_dict().items()} == tensors

    images = _images(8, size)
    by_hand = torch.cat([plain(group)[0] for group in images.split(4)])
    torch.testing.assert_close(model(images)[0], by_hand, atol=1e-4, rtol=1e-4)

    plain.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(images)[1], plain.eval()(images)[1])
    model.load_state_dict(plain.state_dict())
    ghost_batch(model, 100)  # again, with another size
    assert torch.equal(model.train()(images)[0], plain.train()(images)[0])


def test_ghost_batches_do_not_divide_the_class_prototypes_of_bcl() -> None:
    torch.manual_seed(0)
    model = Prototyped(nn.Flatten(), 12, 10, projector="paco", dim=4)
    plain = deepcopy(model)
    ghost_batch(model, 4)
    images = torch.randn(4, 3, 2, 2)
    assert torch.equal(model(images)[1][-10:], plain(images)[1][-10:])
    assert any(isinstance(layer, GhostBatchNorm) for layer in model.modules())


def test_ghost_batches_work_under_autocast_channels_last_and_in_a_momentum_copy() -> None:
    model = _model(projector="paco").to(memory_format=torch.channels_last)
    ghost_batch(model, 4)
    copy = momentum_copy(model)
    with torch.autocast("cpu", torch.bfloat16):
        for network in (model, copy):
            logits, _ = network(_images(10).to(memory_format=torch.channels_last))
    assert logits.isfinite().all()
    assert model.backbone.bn1.running_mean.dtype == torch.float32
    assert not torch.equal(model.backbone.bn1.running_mean, copy.backbone.bn1.running_mean)


def test_a_ghost_batch_that_cannot_work_is_an_error() -> None:
    class OwnNorm(nn.BatchNorm2d):
        pass

    with pytest.raises(UserError, match="ghost_batch must be at least 2, got 1"):
        ghost_batch(_model(), 1)
    with pytest.raises(UserError, match="does not support OwnNorm"):
        ghost_batch(nn.Sequential(OwnNorm(3)), 4)


# ---- freezing


def test_all_parts_can_be_trained_and_freezing_is_undone() -> None:
    model = _model()
    count = sum(parameter.numel() for parameter in model.parameters())
    assert freeze(model, "all") == count
    freeze(model, "head")
    model.projector.requires_grad_(False)
    assert freeze(model, "all") == count
    assert model.backbone.training


def test_a_frozen_backbone_stays_in_evaluation_and_its_features_do_not_change() -> None:
    model = _model(projector="paco")
    model(_images())
    heads = [*model.centers.parameters(), *model.projector.parameters()]
    assert freeze(model, "head") == sum(parameter.numel() for parameter in heads)
    images = _images()
    expected = model.features(images)
    backbone = deepcopy(model.backbone)
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1, weight_decay=0.1)
    for _ in range(2):
        model.train()
        assert model.projector.training
        assert not any(module.training for module in model.backbone.modules())
        logits, embeddings = model(images, _images())
        (logits.square().mean() + embeddings[:, 0].mean()).backward()
        optimizer.step()
    assert _same_state(model.backbone, backbone)
    assert torch.equal(model.features(images), expected)
    assert not model.eval().projector.training


@pytest.mark.parametrize(
    ("name", "size", "last"),
    [
        ("resnet32", 8, ("layer3.4.",)),
        ("test_resnet", 32, ("layer4.0.",)),
        ("test_vit", 32, ("blocks.5.", "norm.")),
        ("test_efficientnet", 32, ("blocks.4.0.", "conv_head.", "bn2.")),
        ("test_convnext", 32, ("stages.3.blocks.1.", "head.norm.")),
    ],
)
def test_the_last_block_is_trained_with_every_batch_norm(name: str, size: int, last: tuple[str, ...]) -> None:
    model = _model(name, size=size)
    total = freeze(model, "last-block")
    norms = tuple(f"{key}." for key, m in model.backbone.named_modules() if isinstance(m, nn.BatchNorm2d))
    expected = {key for key, _ in model.backbone.named_parameters() if key.startswith((*last, *norms))}
    assert _trained(model.backbone) == expected
    assert _trained(model) > {"centers.weight", "centers.bias", "projector.0.weight"}
    assert total == sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert all(module.training for module in model.modules())  # statistics of batch norm go on moving


@pytest.mark.slow
def test_the_last_block_of_resnet152_is_what_the_places_recipe_trains() -> None:
    with torch.device("meta"):
        model = _model("resnet152", projector="none")
    bottleneck = 2048 * 512 + 512 * 512 * 9 + 512 * 2048
    stages = 3 * 384 + 256, 8 * 768 + 512, 36 * 1536 + 1024, 3 * 3072 + 2048  # channels of batch norm, and downsampling
    assert freeze(model, "last-block") == bottleneck + 2 * (64 + sum(stages)) + 2048 * 10 + 10


def test_a_part_or_an_architecture_that_is_not_known_is_an_error() -> None:
    model = Classifier(nn.Flatten(), 12, 5)
    with pytest.raises(UserError, match=r"the last block of Flatten is unknown\n.*--train head"):
        freeze(model, "last-block")
    assert len(_trained(model)) == len(list(model.parameters()))  # nothing was changed
