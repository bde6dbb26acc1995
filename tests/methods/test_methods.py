"""Every method: what its loss is, that it learns, and what it leaves alone."""

import dataclasses
from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers.ranks import Results, run_ranks
from helpers.small_methods import COUNTS, TRAINED, batch, make
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco import balanced_softmax_loss, class_balanced_weights, focal_loss, gpaco_loss, supcon_loss
from gpaco.data.batches import Batch, mix
from gpaco.errors import UserError
from gpaco.losses.memory import Memory
from gpaco.methods import (
    ANALYZED,
    ASSUMES_TRAIN,
    METHODS,
    UNTRAINED,
    WITH_PROJECTOR,
    WITHOUT_CLASSIFIER,
    assumed_prior,
    network,
)
from gpaco.methods.contrastive import Seen, momentum_keys
from gpaco.models.ghost_norm import ghost_batch
from gpaco.models.heads import CausalHead, MetaEmbedding, NearestMean
from gpaco.models.networks import build_network
from gpaco.recipes import settings
from gpaco.recipes.recipe import override, stages
from gpaco.recipes.settings import Recipe
from gpaco.tasks.classification.two_stages import with_default_stages
from gpaco.training.schedule import parameter_groups


def test_recipes_know_every_method_and_no_other() -> None:
    assert tuple(METHODS) == tuple(settings.METHODS)
    assert set(METHODS) >= ASSUMES_TRAIN | WITH_PROJECTOR | WITHOUT_CLASSIFIER | set(settings.TWO_STAGES) | set(
        ANALYZED
    )
    fields = {field.name for field in dataclasses.fields(settings.MethodSettings)}
    assert fields == set().union(
        *(settings.used(name) for name in METHODS)
    )  # no setting without a method, none unknown


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_every_method_lowers_its_loss_with_one_view_two_views_and_mixed_labels(name: str) -> None:
    for second in ("plain", ""):
        for mixed in (False, True) if "mixup" in settings.used(name) else (False,):
            model, method = make(name, f"views.second={second}")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            losses = []
            for step in range(8):
                views, labels = batch()
                pair = Batch(views if second else views[:1], labels)
                if mixed:
                    pair = mix(pair, 0.2, 0, 3, seed=(0,))
                if step == 0:
                    method.start(model, pair.views, pair.labels)
                loss = method(model, pair.views, pair.labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                method.after_step(model)
                losses.append(loss.item())
            assert np.isfinite(losses).all()
            assert min(losses[-3:]) < losses[1]


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_one_hot_rows_are_indices_for_every_method_and_smoothing_reaches_every_classifier(smoothing: float) -> None:
    views, labels = batch(rows=6)
    labels = labels.where(labels == 2, 0)  # weights that do not average to 1
    for name in (name for name in TRAINED if "mixup" in settings.used(name)):
        losses = []
        for own in (labels, F.one_hot(labels, 3).float()):
            model, method = make(name, f"method.label_smoothing={smoothing}")
            method.begin_epoch(9, 10)  # late: ldam-drw has begun to weight the classes
            losses.append(method(model, views, own))
        torch.testing.assert_close(losses[0], losses[1], msg=name)
        plain = make(name)
        if smoothing and "label_smoothing" in settings.used(name) and name not in WITHOUT_CLASSIFIER:
            assert (plain[1](plain[0], views, labels) - losses[0]).abs() > 1e-4, name


def outputs(rank: int) -> list[torch.Tensor]:
    """Embeddings of two views of three images."""
    generator = torch.Generator().manual_seed(rank)
    return list(F.normalize(torch.randn(2, 3, 8, generator=generator, dtype=torch.float64), dim=2))


class Given(nn.Module):
    """A network whose views are its embeddings already."""

    def forward(self, *views: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(3 * len(views), 3, dtype=torch.float64), torch.cat(views)


def contrasted() -> Results:
    found = {}
    for contrast in ("local", "global"):
        _, method = make("supcon", f"method.contrast={contrast}", "method.rebalance=weights")
        views = [view.requires_grad_() for view in outputs(dist.get_rank())]
        loss = method.double()(Given(), views, torch.tensor([0, 1, 1]) + dist.get_rank())
        (gradient,) = torch.autograd.grad(loss, views[0])
        found |= {contrast: loss, f"{contrast} gradient": gradient}
    return found


@pytest.mark.process
def test_global_contrast_of_supcon_is_that_of_one_process() -> None:
    results = run_ranks(2, contrasted)
    _, method = make("supcon", "method.rebalance=weights")
    views = [torch.cat(pair).requires_grad_() for pair in zip(outputs(0), outputs(1), strict=True)]

    class Whole(Given):
        def forward(self, *views: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.zeros(6 * len(views), 3, dtype=torch.float64), torch.cat(views)

    loss = method.double()(Whole(), views, torch.tensor([0, 1, 1, 1, 2, 2]))
    (gradient,) = torch.autograd.grad(loss, views[0])
    for rank, result in enumerate(results):
        torch.testing.assert_close(result["global"], loss.detach())
        assert (result["local"] - loss).abs() > 1e-3
        torch.testing.assert_close(result["global gradient"] / 2, gradient[3 * rank : 3 * rank + 3])


def test_class_weights_of_supcon_leave_out_anchors_without_a_positive() -> None:
    _, method = make("supcon", "method.rebalance=weights", "method.memory=0")
    labels = torch.tensor([0, 0, 1, 1, 2])  # the rarest class has no positive
    embeddings = F.normalize(torch.randn(5, 8), dim=1)
    seen = Seen(torch.zeros(5, 3), embeddings, labels, embeddings)
    weights = method.class_weights[labels[:4]]
    costs = supcon_loss(embeddings, labels, temperature=method.temperature, reduction="none")
    torch.testing.assert_close(method.contrast(seen, labels), (costs[:4] * weights).sum() / weights.sum())


def reweighted() -> Results:
    """The gradient of LDAM-DRW's weighted loss in a process with half of a batch."""
    _, method = make("ldam-drw")
    method.begin_epoch(9, 10)
    logits, own = uneven_logits(), slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2)
    loss = method.loss(logits[own], torch.tensor([0, 0, 0, 2])[own])
    return {"gradient": torch.autograd.grad(loss, logits)[0]}


def uneven_logits() -> Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()


@pytest.mark.process
def test_class_weights_of_ldam_drw_are_those_of_the_whole_batch_in_every_process_and_precision() -> None:
    _, method = make("ldam-drw")
    method.begin_epoch(9, 10)
    logits, labels = uneven_logits(), torch.tensor([0, 0, 0, 2])
    loss = method.loss(logits, labels)
    (gradient,) = torch.autograd.grad(loss, logits)
    results = run_ranks(2, reweighted)
    torch.testing.assert_close(sum(one["gradient"] for one in results) / 2, gradient)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(method.loss(logits, labels), loss)


def test_lift_uses_its_crops_unless_features_are_cached() -> None:
    settings = ["method.name=lift", "model.size=224", "train.part=head"]
    assert network(override(Recipe(), [*settings, "train.cached_views=0"])).border == 24
    assert network(override(Recipe(), settings)).border == 0


@pytest.mark.parametrize("head", [NearestMean(8, 5), CausalHead(8, 5, 2, 16.0, 1.0), MetaEmbedding(8, 5, 16.0)])
def test_heads_that_compute_in_float32_take_half_precision(head: nn.Module) -> None:
    half = deepcopy(head).bfloat16().eval()
    features = torch.randn(4, 8).bfloat16()
    expected = deepcopy(half).float()(features.float())
    torch.testing.assert_close(half(features).float(), expected, atol=0.1, rtol=0.05)


def test_plain_methods_are_their_losses_over_both_views() -> None:
    views, labels = batch()
    twice, weights = labels.repeat(2), class_balanced_weights(COUNTS, beta=0.9999)
    expected = {
        "ce": lambda x: F.cross_entropy(x, twice),
        "balanced-softmax": lambda x: balanced_softmax_loss(x, twice, COUNTS),
        "focal": lambda x: focal_loss(x, twice, gamma=2.0),
        "class-balanced": lambda x: (weights[twice] * F.cross_entropy(x, twice, reduction="none")).mean(),
    }
    for name, loss in expected.items():
        model, method = make(name)
        model.eval()  # batch-norm statistics stay, so that two passes are alike
        torch.testing.assert_close(method(model, views, labels), loss(model(*views)[0]))


def test_multitask_is_the_sum_of_its_two_losses() -> None:
    views, labels = batch()
    for base in ("ce", "balanced-softmax"):
        model, method = make("multitask", "method.weight=0.3", f"method.base={base}")
        model.eval()
        logits, embeddings = model(*views)
        first = F.cross_entropy(logits, labels.repeat(2))
        if base == "balanced-softmax":
            first = balanced_softmax_loss(logits, labels.repeat(2), COUNTS)
        expected = first + 0.3 * supcon_loss(embeddings, labels.repeat(2))
        torch.testing.assert_close(method(model, views, labels), expected)
    model, method = make("multitask", "method.rebalance=weights", "method.weight=1", "method.base=ce")
    model.eval()
    logits, embeddings = model(*views)
    costs = supcon_loss(embeddings, labels.repeat(2), reduction="none")
    weights = class_balanced_weights(COUNTS)[labels.repeat(2)]
    expected = F.cross_entropy(logits, labels.repeat(2)) + (costs * weights).sum() / weights.sum()
    torch.testing.assert_close(method(model, views, labels), expected)


def test_supcon_inside_multitask_may_have_the_prior_of_balanced_softmax() -> None:
    views, labels = batch()
    model, method = make("multitask", "method.rebalance=prior", "method.weight=1", "method.base=ce")
    model.eval()
    logits, embeddings = model(*views)
    twice = labels.repeat(2)
    scores = embeddings @ embeddings.t() / 0.2 + (COUNTS / 32).log()[twice]  # exp(similarity) times frequency
    scores = scores.masked_fill(torch.eye(24, dtype=torch.bool), -torch.inf).log_softmax(1)
    same = (twice[:, None] == twice) & ~torch.eye(24, dtype=torch.bool)
    contrast = -(scores.where(same, 0).sum(1) / same.sum(1)).mean()
    torch.testing.assert_close(method(model, views, labels), F.cross_entropy(logits, twice) + contrast)


@pytest.mark.parametrize("name", ["supcon", "multitask"])
def test_keys_of_a_momentum_copy_are_references_and_are_remembered(name: str) -> None:
    model, method = make(name, "method.momentum_keys=true", "method.momentum=0.9", "method.weight=0.3")
    views, labels = batch()
    keys_by = method.key_network
    with torch.no_grad():
        for parameter in keys_by.parameters():  # type: ignore[union-attr]
            parameter += 0.01  # another network than the model
    model.eval()
    method.eval()
    logits, queries = model(views[0])
    _, keys = keys_by(views[1])  # type: ignore[operator]
    expected = supcon_loss(queries, labels, keys, labels)
    if name == "multitask":
        expected = balanced_softmax_loss(logits, labels, COUNTS) + 0.3 * expected
    loss = method(model, views, labels)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(parameter.grad is None for parameter in keys_by.parameters())  # type: ignore[union-attr]
    remembered, their_labels = method.memory.read()  # type: ignore[union-attr, operator]
    torch.testing.assert_close(remembered[:12], keys)
    assert torch.equal(their_labels[:12], labels)
    old = [parameter.clone() for parameter in keys_by.parameters()]  # type: ignore[union-attr]
    method.after_step(model)
    for was, key, query in zip(old, keys_by.parameters(), model.parameters(), strict=True):  # type: ignore[union-attr]
        torch.testing.assert_close(key, 0.9 * was + 0.1 * query)


def test_label_smoothing_is_the_released_kind_in_gpaco_and_torchs_in_cross_entropy() -> None:
    views, labels = batch()
    released = torch.full((12, 3), 0.05).scatter(1, labels[:, None], 0.9)  # s / (C - 1) on the others
    torchs = torch.full((12, 3), 0.1 / 3).scatter(1, labels[:, None], 0.9 + 0.1 / 3)  # s / C on all
    for name, target in (("gpaco", released), ("ce", torchs), ("multitask", torchs)):
        settings = ("method.label_smoothing=0.1", "views.second=", "method.alpha=0", "method.prior=none")
        model, method = make(name, *settings, "method.weight=0", "method.base=ce", "method.start=balanced")
        model.eval()
        method.eval()
        logits, embeddings = model(views[0])
        log_p = logits.log_softmax(1)
        if name == "gpaco":  # the other images are in its softmax too
            others = (embeddings @ embeddings.t() / 0.2).fill_diagonal_(-torch.inf)
            log_p = torch.cat([logits, others], 1).log_softmax(1)[:, :3]
        torch.testing.assert_close(method(model, views[:1], labels), -(target * log_p).sum(1).mean())


@pytest.mark.parametrize("name", ["gpaco", "paco"])
def test_the_balanced_start_leaves_batch_norm_as_it_was_and_moves_all_centers_alike(name: str) -> None:
    model, method = make(name, "method.temperature=0.07")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    shift = method.start(model, *batch())
    assert shift > 5
    for key, value in model.state_dict().items():
        expected = before[key] + (shift if key == "centers.bias" else 0)
        torch.testing.assert_close(value, expected)
    if name == "paco":
        for key, value in method.key_network.state_dict().items():  # type: ignore[union-attr]
            assert torch.equal(value, before[key])
    model, method = make(name, "method.start=released")
    assert method.start(model, *batch()) == 0


@pytest.mark.parametrize("name", ["gpaco", "paco"])
def test_a_start_that_cannot_be_balanced_says_what_helps(name: str) -> None:
    model, method = make(name, "method.alpha=0")
    with pytest.raises(UserError, match=r"cannot balance the start: .*needs alpha above 0") as error:
        method.start(model, *batch())
    assert "method.start=released" in error.value.remedy


def test_keys_of_paco_follow_the_model_by_momentum_and_get_no_gradient() -> None:
    model, method = make("paco", "method.momentum=0.9")
    views, labels = batch()
    method(model, views, labels).backward()
    keys = method.key_network
    assert all(parameter.grad is None for parameter in keys.parameters())  # type: ignore[union-attr]
    old = [parameter.clone() for parameter in keys.parameters()]  # type: ignore[union-attr]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    method.after_step(model)
    for was, key, query in zip(old, keys.parameters(), model.parameters(), strict=True):  # type: ignore[union-attr]
        torch.testing.assert_close(key, 0.9 * was + 0.1 * query)


@pytest.mark.slow
def test_state_of_a_method_comes_back_with_its_state_dict() -> None:
    for name in TRAINED:
        model, method = make(name)
        for step in range(3):
            method(model, *batch(seed=step))
            method.after_step(model)
        other_model, other = make(name)
        other_model.load_state_dict(model.state_dict())
        other.load_state_dict(method.state_dict())
        assert torch.equal(method(model, *batch(seed=9)), other(other_model, *batch(seed=9)))


@pytest.mark.parametrize("name", TRAINED)
def test_class_counts_change_the_loss_of_every_method_that_counts(name: str) -> None:
    losses = []
    for counts in (COUNTS, COUNTS.flip(0)):
        model, method = make(name, "method.rebalance=weights", counts=counts)
        losses.append(method(model, *batch()))
    without = ("ce", "focal", "crt", "lws", "bbn", "causal-norm", "oltr")
    assert torch.equal(*losses) == (name in without)


def test_a_class_without_images_changes_no_weight_margin_or_smoothing_of_the_others() -> None:
    shown, counts = torch.tensor([500.0, 100.0, 1.0]), torch.tensor([500, 100, 0])
    found = {
        name: make(name, counts=shown, train_counts=counts)[1]
        for name in ("class-balanced", "cb-focal", "ldam-drw", "mislas")
    }
    weights = class_balanced_weights([500, 100], beta=0.9999)
    for name in ("class-balanced", "cb-focal", "ldam-drw"):
        torch.testing.assert_close(found[name].weights[:2], weights)  # type: ignore[index]
    torch.testing.assert_close(found["ldam-drw"].margins[:2], 15 * torch.tensor([0.2**0.25, 1]))  # type: ignore[index]
    smoothing = found["mislas"].smoothing
    assert smoothing[1] == smoothing[2] != smoothing[0]  # type: ignore[index]


ELSEWHERE = {"mixup", "cutmix", "first", "contrast", "shuffle_keys"}  # in batches, stages and several processes
WITH = {  # other settings that a setting needs
    "beta": ["method.rebalance=weights"],
    "momentum": ["method.momentum_keys=true"],
    "center_temperature": ["method.start=released"],
}
OTHER = {"heads": 4, "memory": 4, "tail": 0.6, "first_mixup": 0.4, "norm_tau": 0.3, "cb_beta": 0.9, "beta": 0.9}


@cache
def trace(name: str, *changes: str) -> list[Any]:
    """Everything that a setting may change: the network, its parameters, losses, logits and stages."""
    given = [f"method.name={name}", "train.part=all", "model.size=224", *changes]
    recipe = override(Recipe(), given)
    model, method = make(name, *changes)
    views, labels = batch()
    with torch.no_grad():
        features = model.pooled(views[0])
        method.prepare(model, lambda: iter([(model.hidden(features), labels)]), None)
    found: list[Any] = [network(recipe), assumed_prior(recipe)]
    found.append([stage.method.mixup for stage in stages(with_default_stages(recipe))])
    found.append([(group["lr"], group["weight_decay"]) for group in parameter_groups(model, recipe.optimizer)])
    found.append([parameter.requires_grad for parameter in model.parameters()])
    found.append(len(model.shifted_norms))
    if name not in UNTRAINED:
        found.append(method.start(model, views, labels))
        for epoch in (7, 8):
            method.begin_epoch(epoch, 10)
            loss = method(model, views, labels)
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            gradients = torch.autograd.grad(loss, trained, allow_unused=True)
            with torch.no_grad():
                for parameter, gradient in zip(trained, gradients, strict=True):
                    parameter -= 0 if gradient is None else 0.1 * gradient
            method.after_step(model)
            found.append(loss.item())
    found.append(model.eval().classify(views[0]).tolist())
    return found


def other(key: str) -> Any:
    """Another value than the default of a setting."""
    (field,) = (one for one in dataclasses.fields(settings.MethodSettings) if one.name == key)
    if key in OTHER:
        return OTHER[key]
    if field.metadata.get("choices"):
        return next(one for one in field.metadata["choices"] if one != field.default)
    if isinstance(field.default, bool):
        return str(not field.default).lower()
    return field.default + 1 if isinstance(field.default, int) else field.default / 2 + 0.05


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_that_a_method_has_changes_something(name: str) -> None:
    of_second_stage = {"label_smoothing", "tau"} if name == "supcon" else set()
    without = []
    for key in sorted({*settings.METHODS[name].uses} - ELSEWHERE - of_second_stage):
        needed = [one for one in WITH.get(key, []) if one.partition("=")[0][7:] in settings.used(name)]
        if trace(name, *needed) == trace(name, *needed, f"method.{key}={other(key)}"):
            without.append(key)
    assert not without


@pytest.mark.parametrize("name", TRAINED)
def test_class_centers_stay_as_they_were_in_methods_without_a_classifier_and_only_there(name: str) -> None:
    model, method = make(name)
    before = [parameter.clone() for parameter in model.centers.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method(model, *batch()).backward()
    optimizer.step()
    moved = [not torch.equal(now, was) for now, was in zip(model.centers.parameters(), before, strict=True)]
    assert any(moved) == (name not in WITHOUT_CLASSIFIER)
    decays = {group["weight_decay"] for group in parameter_groups(model.centers, settings.Optimizer())}
    assert name not in WITHOUT_CLASSIFIER or decays == {0.0}


def test_what_raw_logits_assume_is_known_for_every_method() -> None:
    assumed = {name: assumed_prior(override(Recipe(), [f"method.name={name}"])) for name in METHODS}
    assert {name for name, prior in assumed.items() if prior == "train"} == ASSUMES_TRAIN
    balanced = [override(Recipe(), [f"method.name={name}", "train.sampler=balanced"]) for name in METHODS]
    assert {assumed_prior(one) for one in balanced} == {"uniform"}  # what a balanced sampler shows
    assert assumed_prior(override(Recipe(), ["method.prior=none"])) == "train"
    assert assumed_prior(override(Recipe(), ["method.name=multitask", "method.base=ce"])) == "train"


def test_with_anchors_of_the_first_view_the_second_is_a_reference_with_a_gradient() -> None:
    views, labels = batch()
    for name in ("gpaco", "supcon", "multitask"):
        model, method = make(
            name, "method.anchors=first", "method.start=released", "method.base=ce", "method.prior=none"
        )
        model.eval()
        memory = next(part for part in method.modules() if isinstance(part, Memory))
        held, held_labels = (part.clone() for part in memory.read())
        logits, embeddings = model(*views)
        rows = len(labels)
        references = torch.cat([embeddings[rows:], held])
        targets = torch.cat([labels, held_labels])
        if name == "gpaco":
            expected = gpaco_loss(logits[:rows], embeddings[:rows], labels, references, targets)
        else:
            expected = supcon_loss(embeddings[:rows], labels, references, targets, temperature=0.2)
            if name == "multitask":
                expected = 0.5 * expected + F.cross_entropy(logits[:rows], labels)
        found = method(model, views, labels)
        torch.testing.assert_close(found, expected)
        weight = model.backbone.conv1.weight
        torch.testing.assert_close(torch.autograd.grad(found, weight), torch.autograd.grad(expected, weight))
        assert torch.equal(memory.labels[:rows], labels)  # what is remembered is the last view
        torch.testing.assert_close(memory.embeddings[:rows], embeddings[rows:])


def test_with_a_temperature_of_the_centers_all_logits_are_divided_by_it() -> None:
    recipe = override(Recipe(), ["method.center_temperature=true", "method.start=released", "method.temperature=0.3"])
    model = build_network(network(recipe), nn.Flatten(), 12, 3)
    plain = build_network(network(Recipe()), nn.Flatten(), 12, 3)
    plain.load_state_dict(model.state_dict())
    images = torch.randn(4, 3, 2, 2)
    torch.testing.assert_close(model(images)[0], plain(images)[0] / 0.3)
    torch.testing.assert_close(model.classify(images), plain.classify(images) / 0.3)
    with pytest.raises(UserError, match=r"needs method\.start"):
        override(Recipe(), ["method.center_temperature=true"])


class Norm(nn.Module):
    """A network that is one batch norm over groups of four rows, or none at all."""

    def __init__(self, *, norm: bool) -> None:
        super().__init__()
        self.norm = nn.Sequential(nn.BatchNorm2d(3) if norm else nn.Identity())
        ghost_batch(self, 4)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images, self.norm(images).flatten(1)


def test_shuffled_keys_share_statistics_with_others_than_their_queries_and_keep_their_places() -> None:
    torch.manual_seed(0)
    group = torch.arange(8) // 4
    images = torch.randn(8, 3, 2, 2) + 100 * group.view(-1, 1, 1, 1)  # the two groups are far apart
    plain, shuffled = (momentum_keys(Norm(norm=True), images, shuffle=shuffle) for shuffle in (False, True))
    assert plain.mean(1).abs().max() < 3  # each group by itself: nobody can tell that they differ
    assert (shuffled.mean(1)[group == 1] > shuffled.mean(1)[group == 0].max()).all()
    torch.manual_seed(1)
    once = momentum_keys(Norm(norm=True), images, shuffle=True)
    torch.manual_seed(1)
    assert torch.equal(once, momentum_keys(Norm(norm=True), images, shuffle=True))  # the loop seeds every step
    without = [momentum_keys(Norm(norm=False), images, shuffle=shuffle) for shuffle in (False, True)]
    assert torch.equal(*without)  # without batch norm an image has one key, wherever it is
    for name, *changes in (("paco",), ("supcon", "method.momentum_keys=true")):
        losses = []
        for shuffle in ("false", "true"):
            model, method = make(name, *changes, f"method.shuffle_keys={shuffle}", "method.start=released")
            ghost_batch(method.key_network, 4)
            losses.append(method(model, *batch()).item())
        assert losses[0] != losses[1]


def keys_in_a_process() -> dict[str, Tensor]:
    rank = torch.distributed.get_rank()
    torch.manual_seed(rank)  # the order is that of process 0
    images = torch.arange(5.0).repeat_interleave(12).view(5, 3, 2, 2) + 100 * rank
    images = images[: 5 - rank]
    return {
        f"{norm}{shuffle}": momentum_keys(Norm(norm=norm), images, shuffle=shuffle)
        for norm in (False, True)
        for shuffle in (False, True)
    }


@pytest.mark.process
def test_keys_are_shuffled_over_processes_with_different_numbers_of_images() -> None:
    for rank, found in enumerate(run_ranks(2, keys_in_a_process)):
        assert torch.equal(found["FalseTrue"], found["FalseFalse"])
        assert not torch.allclose(found["TrueTrue"], found["TrueFalse"]), rank
