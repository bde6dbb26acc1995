"""What the losses must equal, whatever the numbers are."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gpaco import GPaCoLoss, Memory, balanced_softmax_loss, gpaco_loss, supcon_loss

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def batch(rows: int = 12, num_classes: int = 4, dim: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    logits = torch.randn(rows, num_classes, dtype=torch.float64)
    embeddings = F.normalize(torch.randn(rows, dim, dtype=torch.float64), dim=1)
    return logits, embeddings, torch.randint(num_classes, (rows,))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_one_sample_without_references_costs_its_cross_entropy(smoothing: float) -> None:
    logits, embeddings, labels = batch(rows=1, num_classes=4)
    ours = gpaco_loss(logits, embeddings, labels, label_smoothing=smoothing)
    # Ours gives s / (C - 1) to each other class, torch s / C to every class.
    torch.testing.assert_close(ours, F.cross_entropy(logits, labels, label_smoothing=smoothing * 4 / 3), **EXACT)


def test_one_sample_with_a_prior_costs_its_balanced_softmax() -> None:
    logits, embeddings, labels = batch(rows=1)
    counts = torch.tensor([500, 30, 5, 1])
    expected = balanced_softmax_loss(logits, labels, counts)
    log_prior = (counts / counts.sum().double()).log()
    torch.testing.assert_close(gpaco_loss(logits, embeddings, labels, log_prior=log_prior), expected, **EXACT)
    criterion = GPaCoLoss(4, class_counts=counts, dim=5, views=1)
    got = criterion(logits.float(), embeddings.float(), labels)
    torch.testing.assert_close(got, expected.float())


def test_rows_from_a_memory_cost_what_they_cost_as_rows_of_the_batch() -> None:
    logits, embeddings, labels = batch(rows=20)
    memory = Memory(8, 5).double()
    memory.push(embeddings[12:], labels[12:])
    with_memory = gpaco_loss(logits[:12], embeddings[:12], labels[:12], *memory.read(), reduction="none")
    without = gpaco_loss(logits, embeddings, labels, reduction="none")[:12]
    torch.testing.assert_close(with_memory, without, **EXACT)
    supcon = supcon_loss(embeddings[:12], labels[:12], *memory.read(), reduction="none")
    torch.testing.assert_close(supcon, supcon_loss(embeddings, labels, reduction="none")[:12], **EXACT)


def test_sums_over_many_classes_are_those_of_the_classes_that_occur() -> None:
    logits, embeddings, labels = batch(rows=6, num_classes=60)
    labels[4], labels[5] = labels[0], -100
    memory = embeddings.flip(0), labels.flip(0)
    results = []
    for own, other in (
        (labels, memory[1]),
        tuple(F.one_hot(one.clamp_min(0), 60).double() * (one >= 0)[:, None] for one in (labels, memory[1])),
    ):
        leaf = embeddings.clone().requires_grad_()
        loss = gpaco_loss(logits, leaf, own, memory[0], other)
        results.append((loss, *torch.autograd.grad(loss, leaf)))
    torch.testing.assert_close(*results, **EXACT)


def test_order_of_the_batch_and_rotation_of_the_embeddings_change_nothing() -> None:
    logits, embeddings, labels = batch()
    memory, memory_labels = F.normalize(torch.randn(9, 5, dtype=torch.float64), dim=1), torch.randint(4, (9,))
    before = gpaco_loss(logits, embeddings, labels, memory, memory_labels, reduction="none")
    order, memory_order = torch.randperm(12), torch.randperm(9)
    rotation = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64))[0]
    after = gpaco_loss(
        logits[order],
        embeddings[order] @ rotation,
        labels[order],
        memory[memory_order] @ rotation,
        memory_labels[memory_order],
        reduction="none",
    )
    torch.testing.assert_close(after, before[order], **EXACT)


def test_queries_with_momentum_keys_and_queue_as_memory_are_paco() -> None:
    # PaCo: anchors are the queries; references the other queries, all keys (no gradient) and the queue.
    logits, queries, labels = batch()
    queries.requires_grad_()
    keys, queue = (F.normalize(torch.randn(n, 5, dtype=torch.float64), dim=1) for n in (12, 7))
    queue_labels = torch.randint(4, (7,))
    ours = gpaco_loss(logits, queries, labels, torch.cat([keys, queue]), torch.cat([labels, queue_labels]), alpha=0.1)

    references = torch.cat([queries, keys, queue])
    same = labels.unsqueeze(1) == torch.cat([labels, labels, queue_labels])
    weights = torch.cat([F.one_hot(labels, 4).double(), 0.1 * same.double()], 1)
    scores = torch.cat([logits, queries @ references.t() / 0.2], 1)
    hidden = F.pad(torch.eye(12, dtype=torch.bool), (4, 19))
    weights = weights.masked_fill(hidden, 0)
    log_p = scores.masked_fill(hidden, -torch.inf).log_softmax(1).masked_fill(hidden, 0)
    theirs = -((weights * log_p).sum(1) / weights.sum(1)).mean()
    torch.testing.assert_close(ours, theirs, **EXACT)

    criterion = GPaCoLoss(4, alpha=0.1, memory=7, dim=5, views=1).double()
    criterion.memory.push(queue, queue_labels)
    torch.testing.assert_close(criterion(logits, queries, labels, keys), theirs, **EXACT)
    assert torch.equal(criterion.memory.embeddings.sort(0).values, keys[-7:].sort(0).values)  # keys are remembered


def test_supcon_takes_any_integers_as_classes() -> None:
    _, embeddings, labels = batch()
    renamed = torch.tensor([10**12, -7, 3, 99])[labels]
    assert torch.equal(supcon_loss(embeddings, renamed), supcon_loss(embeddings, labels))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # whatever the compiler warns about
@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=[pytest.mark.process, pytest.mark.extensive])]
)
def test_a_compiled_loss_is_one_graph_with_the_same_value_and_gradient(backend: str) -> None:
    logits, embeddings, labels = batch()
    logits.requires_grad_()
    embeddings.requires_grad_()
    compiled = torch.compile(gpaco_loss, fullgraph=True, backend=backend)
    memory = embeddings.detach().flip(0), labels.flip(0)
    results = []
    for function in (gpaco_loss, compiled):
        loss = function(logits, embeddings, labels, *memory, label_smoothing=0.1)
        results.append((loss, *torch.autograd.grad(loss, [logits, embeddings])))
    for mine, yours in zip(*results, strict=True):
        torch.testing.assert_close(mine, yours, **EXACT)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_one_compiled_graph_serves_batches_of_any_size() -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(gpaco_loss, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in range(5, 17):
        logits, embeddings, labels = batch(rows)
        torch.testing.assert_close(compiled(logits, embeddings, labels), gpaco_loss(logits, embeddings, labels))
    assert counters["stats"]["unique_graphs"] <= 2


def test_a_prior_may_differ_from_row_to_row() -> None:
    logits, embeddings, labels = batch()
    prior = torch.randn_like(logits)
    expected = gpaco_loss(logits + prior, embeddings, labels)
    torch.testing.assert_close(gpaco_loss(logits, embeddings, labels, log_prior=prior), expected, **EXACT)


@pytest.mark.extensive
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_criterion_fills_its_memory_as_the_plain_one_does() -> None:
    plain = GPaCoLoss(4, dim=5, memory=30, class_counts=[9, 4, 2, 1], prior="unbiased").double()
    compiled = GPaCoLoss(4, dim=5, memory=30, class_counts=[9, 4, 2, 1], prior="unbiased").double()
    run = torch.compile(compiled, backend="aot_eager")
    for _ in range(4):
        step = batch()
        torch.testing.assert_close(run(*step), plain(*step), **EXACT)
    for mine, yours in zip(plain.memory.read(), compiled.memory.read(), strict=True):
        assert torch.equal(mine, yours)
