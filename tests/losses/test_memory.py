"""`Memory` against a deque, its state, and how `GPaCoLoss` uses it."""

from collections import deque
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gpaco import GPaCoLoss, Memory, gpaco_loss, supcon_loss
from gpaco.methods.contrastive import memory_of
from gpaco.methods.method import Setup
from gpaco.recipes.settings import MethodSettings


@pytest.mark.parametrize(("size", "batch"), list(product([1, 2, 3, 5, 8, 13, 64, 100], [1, 2, 7, 64, 150])))
def test_a_memory_holds_what_a_deque_holds_for_any_size_and_batch(size: int, batch: int) -> None:
    memory, expected = Memory(size, 2), deque(maxlen=size)
    for step in range(12):
        new = batch if step % 3 else batch // 2  # now and then a smaller batch, as at the end of an epoch
        rows = torch.randn(new, 2)
        labels = torch.arange(new) + 1000 * step
        memory.push(rows, labels)
        expected.extend(zip(labels.tolist(), rows.tolist(), strict=True))
        embeddings, held = memory.read()
        assert len(memory) == len(held) == len(embeddings) == len(expected)
        # Labels rise with age, so sorting gives the order of the deque.
        order = held.argsort()
        assert list(zip(held[order].tolist(), embeddings[order].tolist(), strict=True)) == list(expected)


def test_ignored_and_non_finite_rows_are_not_pushed() -> None:
    memory = Memory(5, 2)
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [float("nan"), 0.0], [0.0, float("inf")], [0.6, 0.8]])
    memory.push(rows, torch.tensor([3, -100, 4, 5, 6]))
    assert memory.read()[1].tolist() == [3, -100, -100, -100, 6]
    assert memory.read()[0].tolist() == [[1, 0], [0, 0], [0, 0], [0, 0], rows[4].tolist()]
    before = [part.clone() for part in memory.read()]
    memory.push(rows, torch.tensor([-1, -1, 4, 5, -1]))
    for held, was in zip(memory.read(), before, strict=True):
        assert torch.equal(held, was)
    memory.push(torch.ones(1, 2), torch.tensor([7]))  # over the oldest row, as ever
    assert memory.read()[1].tolist() == [7, -100, -100, -100, 6]

    soft = Memory(5, 2)
    soft.push(rows, F.one_hot(torch.tensor([0, 1, 2, 0, 1]), 3) * torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0]).unsqueeze(1))
    assert as_rows(soft.read()[1], 3).tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_a_skipped_slot_of_a_filling_memory_is_a_negative_of_similarity_zero() -> None:
    rows, labels = F.normalize(torch.randn(4, 2), dim=1), torch.tensor([0, -100, 1, 2])
    memory = Memory(8, 2)
    memory.push(rows, labels)
    logits, anchors = torch.zeros(4, 3), F.normalize(torch.randn(4, 2), dim=1)
    batch = (logits, anchors, torch.tensor([0, 1, 2, 0]))
    gap = gpaco_loss(*batch, *memory.read(), reduction="none")
    gap = gap - gpaco_loss(*batch, rows[labels >= 0], labels[labels >= 0], reduction="none")
    # It adds exp(0) to a sum to which each of three centers adds as much.
    assert (gap > 0).all()
    assert (gap < torch.tensor(1 / 3).log1p()).all()


def as_rows(pairs: torch.Tensor, num_classes: int) -> torch.Tensor:
    rows = torch.zeros(len(pairs), num_classes)
    return rows.scatter_add_(1, pairs[:, 0].long(), pairs[:, 1])


def test_rows_of_probabilities_are_stored_as_their_two_most_likely_classes() -> None:
    memory = Memory(5, 2)
    memory.push(torch.zeros(2, 2), torch.tensor([1, -100]))
    memory.push(torch.zeros(3, 2), torch.tensor([[0.3, 0.7, 0.0], [0.0, 0.0, 1.0], [0.2, 0.3, 0.5]]))
    expected = torch.tensor([[0, 1, 0], [0, 0, 0], [0.3, 0.7, 0], [0, 0, 1], [0, 0.3, 0.5]])
    torch.testing.assert_close(as_rows(memory.read()[1], 3), expected)
    memory.push(torch.zeros(1, 2), torch.tensor([2]))
    assert as_rows(memory.read()[1], 3)[0].tolist() == [0, 0, 1]
    one = Memory(1, 2)
    one.push(torch.zeros(1, 2), torch.ones(1, 1))
    assert as_rows(one.read()[1], 1).tolist() == [[1]]


@pytest.mark.slow
def test_a_long_memory_of_mixed_images_is_small_and_the_losses_are_those_of_their_rows() -> None:
    classes, memory = 5000, Memory(8192, 4).double()
    mixed = torch.zeros(8192, classes, dtype=torch.float64)
    mixed.scatter_add_(1, torch.randint(classes, (8192, 1)), torch.full((8192, 1), 0.6, dtype=torch.float64))
    mixed.scatter_add_(1, torch.randint(classes, (8192, 1)), torch.full((8192, 1), 0.4, dtype=torch.float64))
    past = F.normalize(torch.randn(8192, 4, dtype=torch.float64), dim=1)
    memory.push(past, mixed)
    assert sum(buffer.nbytes for buffer in memory.buffers()) < 1e6  # rows would take 328 MB
    logits, embeddings = torch.randn(6, classes, dtype=torch.float64), past[:6].flip(0)
    for labels in (mixed[:6], mixed[:6].argmax(1)):
        torch.testing.assert_close(
            gpaco_loss(logits, embeddings, labels, *memory.read()), gpaco_loss(logits, embeddings, labels, past, mixed)
        )
    prior = torch.rand(classes, dtype=torch.float64).log()
    for log_prior in (None, prior):
        torch.testing.assert_close(
            supcon_loss(embeddings, mixed[:6], *memory.read(), log_prior=log_prior),
            supcon_loss(embeddings, mixed[:6], past, mixed, log_prior=log_prior),
        )
    with pytest.raises(ValueError, match="pass labels as rows of probabilities"):
        supcon_loss(embeddings, mixed[:6].argmax(1), *memory.read())


def test_all_state_is_in_persistent_buffers_updated_in_place() -> None:
    memory = Memory(4, 2)
    buffers = dict(memory.named_buffers())
    places = {name: buffer.data_ptr() for name, buffer in buffers.items()}
    memory.push(torch.randn(6, 2), torch.arange(6))
    assert {name: buffer.data_ptr() for name, buffer in memory.named_buffers()} == places
    assert set(memory.state_dict()) == set(buffers)

    restored = Memory(4, 2)
    restored.load_state_dict(memory.state_dict())
    for m in (memory, restored):
        m.push(torch.ones(1, 2), torch.tensor([9]))
    assert torch.equal(memory.read()[0], restored.read()[0])
    assert torch.equal(memory.read()[1], restored.read()[1])


def test_pushed_rows_carry_no_gradient_and_keep_the_memorys_precision() -> None:
    memory = Memory(4, 2)
    memory.push(torch.randn(2, 2, dtype=torch.bfloat16, requires_grad=True), torch.tensor([0, 1]))
    embeddings, _ = memory.read()
    assert embeddings.dtype == torch.float32
    assert not embeddings.requires_grad


def test_the_released_start_is_full_of_short_random_rows_with_random_labels() -> None:
    settings = MethodSettings(memory=8192, start="released")
    counts = torch.ones(10)
    memory = memory_of(Setup(nn.Identity(), settings, 10, counts, 128, 2, counts))  # type: ignore[arg-type]
    embeddings, labels = memory.read()
    assert len(memory) == 8192
    torch.testing.assert_close(embeddings.norm(dim=0), torch.ones(128))  # over the wrong axis, as released
    assert embeddings.norm(dim=1).mean().item() == pytest.approx((128 / 8192) ** 0.5, rel=0.02)
    assert labels.bincount(minlength=10).min() > 700  # indices, so that it costs no more than an ordinary memory
    memory.push(F.normalize(torch.randn(100, 128), dim=1), torch.zeros(100, dtype=torch.int64))
    torch.testing.assert_close(memory.read()[0][:100].norm(dim=1), torch.ones(100))


def test_a_criterion_reads_then_pushes_the_last_view_in_training_and_neither_in_evaluation() -> None:
    criterion = GPaCoLoss(3, dim=4, memory=5)
    reference = Memory(5, 4)
    for _ in range(4):
        logits, embeddings = torch.randn(8, 3), F.normalize(torch.randn(8, 4), dim=1)
        labels = torch.randint(3, (4,)).repeat(2)
        assert torch.equal(
            criterion(logits, embeddings, labels), gpaco_loss(logits, embeddings, labels, *reference.read())
        )
        reference.push(embeddings[4:], labels[4:])
        for mine, yours in zip(criterion.memory.read(), reference.read(), strict=True):
            assert torch.equal(mine, yours)

    before = {name: value.clone() for name, value in criterion.state_dict().items()}
    criterion.eval()
    assert torch.equal(criterion(logits, embeddings, labels), gpaco_loss(logits, embeddings, labels))
    assert all(torch.equal(value, before[name]) for name, value in criterion.state_dict().items())


def test_a_criterion_without_memory_and_with_one_or_three_views_works() -> None:
    for views in (1, 3):
        criterion = GPaCoLoss(3, dim=4, memory=0, views=views)
        criterion(torch.randn(6, 3), F.normalize(torch.randn(6, 4), dim=1), torch.tensor([0, 1, 2, 0, 1, 2]))
        assert len(criterion.memory) == 0
        criterion = GPaCoLoss(3, dim=4, memory=10, views=views)
        criterion(torch.randn(6, 3), F.normalize(torch.randn(6, 4), dim=1), torch.tensor([0, 1, 2, 0, 1, 2]))
        assert len(criterion.memory) == 6 // views


def test_a_criterion_without_memory_takes_rows_of_probabilities_and_embeddings_of_any_length() -> None:
    for labels in (torch.tensor([0, 1] * 2), torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8]]).repeat(2, 1)):
        logits, embeddings = torch.randn(4, 3), F.normalize(torch.randn(4, 7), dim=1)
        criterion = GPaCoLoss(3, memory=0)
        assert torch.equal(criterion(logits, embeddings, labels), gpaco_loss(logits, embeddings, labels))


def test_pushing_between_forward_and_backward_changes_no_gradient() -> None:
    gradients = []
    for push in (False, True):
        torch.manual_seed(3)
        criterion = GPaCoLoss(3, dim=4, memory=4)
        for _ in range(2):
            z = F.normalize(torch.randn(8, 4), dim=1).requires_grad_()
            loss = criterion(torch.randn(8, 3), z, torch.tensor([0, 1, 2, 0] * 2))
        if push:
            criterion.memory.push(torch.randn(4, 4), torch.tensor([0, 1, 2, 0]))
        loss.backward()
        gradients.append(z.grad)
    assert torch.equal(*gradients)


def test_a_criterion_turns_to_mixed_labels_when_they_come_and_resumes_so() -> None:
    criterion = GPaCoLoss(3, dim=4, memory=6, class_counts=[3, 2, 1], prior="unbiased")

    def step(labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.randn(4, 3), F.normalize(torch.randn(4, 4), dim=1), labels

    criterion(*step(torch.tensor([0, 1, 0, 1])))
    mixed = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8]]).repeat(2, 1)
    criterion(*step(mixed))
    expected = torch.tensor([[1, 0, 0], [0, 1, 0], [0.5, 0.5, 0], [0, 0.2, 0.8]])
    torch.testing.assert_close(as_rows(criterion.memory.read()[1], 3), expected)

    early = GPaCoLoss(3, dim=4, memory=6, class_counts=[3, 2, 1], prior="unbiased").state_dict()
    resumed = GPaCoLoss(3, dim=4, memory=6, class_counts=[3, 2, 1], prior="unbiased")
    resumed.load_state_dict(criterion.state_dict())
    resumed.load_state_dict(early)  # and back to indices
    assert resumed.memory.labels.dim() == 1
    resumed.load_state_dict(criterion.state_dict())
    for labels in (mixed, torch.tensor([2, 1, 2, 1])):
        batch = step(labels)
        assert torch.equal(criterion(*batch), resumed(*batch))
    assert all(torch.equal(v, resumed.state_dict()[k]) for k, v in criterion.state_dict().items())


def test_half_precision_around_a_criterion_rounds_neither_its_prior_nor_its_mixed_labels() -> None:
    criterion = GPaCoLoss(1000, memory=8, dim=4, views=1, class_counts=range(1, 1001))
    labels = torch.zeros(2, 1000)
    labels[[0, 0, 1, 1], [257, 999, 301, 513]] = torch.tensor([0.7, 0.3, 0.6, 0.4])
    embeddings = F.normalize(torch.randn(2, 4), dim=1)
    criterion(torch.randn(2, 1000, requires_grad=True), embeddings, labels)
    before = {name: tensor.clone() for name, tensor in criterion.state_dict().items()}
    around = nn.Sequential(nn.Linear(2, 2), criterion)
    for half in (torch.float16, torch.bfloat16):
        around.to(half)
        assert around[0].weight.dtype == half
        assert all(torch.equal(tensor, before[name]) for name, tensor in criterion.state_dict().items())
        criterion(torch.randn(2, 1000, dtype=half, requires_grad=True), embeddings.to(half), labels)
        criterion.load_state_dict(before)
    assert criterion.double().log_prior.dtype == torch.float64  # type: ignore[union-attr]
