"""Every method: what its loss is, that it learns, and what it leaves alone."""

import numpy as np
import pytest
import torch
from helpers.small_methods import COUNTS, batch, make
from torch.nn import functional as F

from gpaco import balanced_softmax_loss, class_balanced_weights, focal_loss, supcon_loss
from gpaco.data.batches import Batch, mix
from gpaco.errors import UserError
from gpaco.methods import ASSUMES_TRAIN, METHODS, TRAINED, WITHOUT_CLASSIFIER, WITHOUT_PROJECTOR, assumed_prior
from gpaco.recipes import settings
from gpaco.recipes.recipe import override
from gpaco.recipes.settings import Recipe


def test_recipes_know_every_method_and_no_other() -> None:
    assert tuple(METHODS) == settings.METHODS
    assert set(METHODS) >= ASSUMES_TRAIN | WITHOUT_PROJECTOR | WITHOUT_CLASSIFIER


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_every_method_lowers_its_loss_with_one_view_two_views_and_mixed_labels(name: str) -> None:
    for second in ("plain", ""):
        for mixed in (False, True):
            model, method = make(name, f"views.second={second}")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            losses = []
            for step in range(8):
                views, labels = batch()
                pair = Batch(views if second else views[:1], labels)
                if mixed:
                    pair = mix(pair, 0.2, 0, 3, seed=0, epoch=0, step=0)
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


def test_plain_methods_are_their_losses_over_both_views() -> None:
    views, labels = batch()
    twice = labels.repeat(2)
    expected = {
        "ce": lambda x: F.cross_entropy(x, twice),
        "balanced-softmax": lambda x: balanced_softmax_loss(x, twice, COUNTS),
        "focal": lambda x: focal_loss(x, twice, gamma=2.0),
        "class-balanced": lambda x: F.cross_entropy(x, twice, class_balanced_weights(COUNTS)),
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
            assert torch.equal(value, model.state_dict()[key])
    model, method = make(name, "method.start=released")
    assert method.start(model, *batch()) == 0


@pytest.mark.parametrize("name", ["gpaco", "paco"])
def test_a_start_that_cannot_be_balanced_says_what_helps(name: str) -> None:
    model, method = make(name, "method.alpha=0")
    with pytest.raises(UserError, match=r"cannot balance the start: .*needs alpha above 0") as error:
        method.start(model, *batch())
    assert "method.start=released" in error.value.remedy


def test_a_released_start_has_a_memory_full_of_random_rows() -> None:
    _, method = make("gpaco", "method.start=released")
    assert len(method.loss.memory) == 16  # type: ignore[union-attr, arg-type]
    for name in ("supcon", "multitask"):
        _, method = make(name, "method.start=released")
        assert len(method.memory) == 16  # type: ignore[arg-type]


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
    assert torch.equal(*losses) == (name in ("ce", "focal"))


@pytest.mark.parametrize("name", TRAINED)
def test_class_centers_stay_as_they_were_in_methods_without_a_classifier_and_only_there(name: str) -> None:
    model, method = make(name)
    before = model.centers.weight.clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method(model, *batch()).backward()
    optimizer.step()
    assert torch.equal(model.centers.weight, before) == (name in WITHOUT_CLASSIFIER)


def test_what_raw_logits_assume_is_known_for_every_method() -> None:
    assumed = {name: assumed_prior(override(Recipe(), [f"method.name={name}"])) for name in METHODS}
    assert {name for name, prior in assumed.items() if prior == "train"} == {"ce", "focal"}
    assert assumed_prior(override(Recipe(), ["method.prior=none"])) == "train"
    assert assumed_prior(override(Recipe(), ["method.name=multitask", "method.base=ce"])) == "train"


def test_an_unknown_method_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match="gpaco"):
        override(Recipe(), ["method.name=gpco"])
