"""No step makes the host wait for a GPU: every loss runs on fake CUDA tensors, which have shapes and no values.

Whatever asks such a tensor for a value (`item`, `float`, `bool`, an index of booleans) raises an error. Forward passes
only: without CUDA the engine of autograd takes no such tensors; what backward passes call is called by hand below.
"""

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.nn import functional as F

from gpaco import GPaCoLoss, gpaco_loss, pixel_gpaco_loss, supcon_loss
from gpaco.losses import self_similarity, similarity


@pytest.fixture(autouse=True)
def fake() -> Iterator[None]:
    with FakeTensorMode():
        yield


def on_gpu(*shape: int, grad: bool = False) -> Tensor:
    return torch.randn(*shape, device="cuda", requires_grad=grad)


def labels_on_gpu(rows: int, classes: int, *, soft: bool) -> Tensor:
    return on_gpu(rows, classes).softmax(1) if soft else torch.randint(classes, (rows,), device="cuda")


def test_fake_tensors_refuse_to_give_values() -> None:
    x = on_gpu(3)
    with pytest.raises(DataDependentOutputException):
        float(x.sum())
    with pytest.raises(DynamicOutputShapeException):
        x[x > 0]


@pytest.mark.slow
@pytest.mark.parametrize("memory", [0, 6])
@pytest.mark.parametrize("prior", ["counts", "unbiased"])
def test_the_criterion_never_waits(memory: int, prior: str) -> None:
    for soft, keys in product((False, True), repeat=2):
        criterion = GPaCoLoss(3, memory=memory, dim=4, class_counts=[5, 2, 1], prior=prior, label_smoothing=0.1).cuda()
        for _ in range(3):  # while the memory fills, and when it is full
            logits, embeddings = on_gpu(8, 3, grad=True), on_gpu(8, 4, grad=True)
            batch = logits, embeddings, labels_on_gpu(8, 3, soft=soft), on_gpu(4, 4) if keys else None
            loss = criterion(*batch)
            assert loss.device.type == "cuda"
        assert len(criterion.memory) == memory
        criterion.eval()(*batch)


def test_the_functions_never_wait() -> None:
    for soft in (False, True):
        logits, embeddings, labels = on_gpu(8, 3, grad=True), on_gpu(8, 4, grad=True), labels_on_gpu(8, 3, soft=soft)
        memory = on_gpu(5, 4), labels_on_gpu(5, 3, soft=soft)
        gpaco_loss(logits, embeddings, labels, *memory, ignore_index=2)
        for prior in (None, on_gpu(3)):
            supcon_loss(embeddings, labels, *memory, log_prior=prior, ignore_index=2)


@pytest.mark.parametrize("pixels", [-1, 9])
def test_the_loss_of_pixels_never_waits(pixels: int) -> None:
    logits, embeddings = on_gpu(2, 3, 6, 6, grad=True), on_gpu(2, 4, 6, 6, grad=True)
    masks = torch.randint(3, (2, 24, 24), device="cuda")
    pixel_gpaco_loss(logits, F.normalize(embeddings, dim=1), masks, pixels=pixels)


def test_the_bodies_of_the_operators_never_wait() -> None:
    """Under fake tensors torch calls their stand-ins for shapes, so the bodies are called here by hand."""
    anchors, references, lse, grad = on_gpu(100, 4), on_gpu(70, 4), on_gpu(100), on_gpu(100)
    for own in (-1, 0):
        found = similarity.logsumexp_and_mean._init_fn(anchors, references, own, True)
        assert [part.shape for part in found] == [(100,), (100, 4)]
        assert similarity.reference_gradient._init_fn(anchors, references, own, lse, grad).shape == (70, 4)
    assert self_similarity.self_similarity_logsumexp(anchors, 5.0).shape == (100,)  # here that is the operator above
