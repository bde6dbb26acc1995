"""Two and four gloo processes, each with its own data, against one process that has all of it.

Each process runs every scenario once; the tests look at what came back.
"""

import pytest
import torch
import torch.distributed as dist
from helpers.ranks import Results, run_ranks
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from gpaco import GPaCoLoss, Memory, gpaco_loss
from gpaco.errors import UserError
from gpaco.recipes.recipe import override
from gpaco.recipes.settings import Recipe
from gpaco.system import distributed
from gpaco.training.stages import check_batches

EXACT = {"rtol": 1e-12, "atol": 1e-12}
CLASSES, DIM, STEPS = 5, 6, 20
COUNTS = [50, 20, 10, 5, 1]


def rows_of(rank: int, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, embeddings and labels of one process in one step: their number differs, some are ignored."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    images = 2 + (3 * rank + step) % 4
    logits = torch.randn(2 * images, CLASSES, generator=generator, dtype=torch.float64)
    embeddings = torch.randn(2 * images, DIM, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (images,), generator=generator).repeat(2)
    if (rank + step) % 3 == 0:
        labels[0] = -100
    return logits, F.normalize(embeddings, dim=1), labels


def one_process(parts: list[tuple[Tensor, ...]]) -> list[Tensor]:
    """The same rows as one batch: the first views of all processes, then all second views."""
    views = [[x.chunk(2) for x in columns] for columns in zip(*parts, strict=True)]
    return [torch.cat([v[0] for v in column] + [v[1] for v in column]) for column in views]


def criterion_for(contrast: str, prior: str = "unbiased") -> GPaCoLoss:
    return GPaCoLoss(
        CLASSES, alpha=0.3, memory=23, dim=DIM, class_counts=COUNTS, prior=prior, contrast=contrast
    ).double()


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8)
        )
        self.centers, self.projector = nn.Linear(8, CLASSES), nn.Linear(8, DIM)
        self.double()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(images)
        return self.centers(features), F.normalize(self.projector(features), dim=1)


def images_of(rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    labels = torch.randint(CLASSES, (4,), generator=generator)
    images = torch.randn(8, 3, 6, 6, generator=generator, dtype=torch.float64) + labels.repeat(2)[:, None, None, None]
    return images, labels.repeat(2)


def flat(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


# What every process does.


def scenarios() -> Results:
    rank = dist.get_rank()
    results: Results = {}

    memory = Memory(37, 2)
    held = []
    for step in range(200):
        rows = 1 + (5 * rank + step) % 11
        memory.push(torch.full((rows, 2), rank + step / 1000), torch.arange(rows) + 100 * rank)
        embeddings, labels = memory.read()
        held.append(torch.cat([embeddings.sum(0), labels[:1].float(), labels.float().sum().view(1)]))
    results |= {"memory": memory.embeddings, "memory_labels": memory.labels, "memory_history": torch.stack(held)}

    x = torch.arange(3.0 * (rank + 1)).view(-1, 3).requires_grad_()
    gathered = distributed.gather(x)
    (gathered * (rank + 1) * torch.arange(len(gathered)).unsqueeze(1)).sum().backward()
    results |= {"gathered": gathered, "gather_gradient": x.grad}
    y = torch.tensor(rank + 1.0, requires_grad=True)
    (distributed.total(y) * (rank + 2)).backward()
    results |= {"total": distributed.total(y), "total_gradient": y.grad}
    for n in (1, 9):  # with one thing, some processes have no share
        results[f"shared_{n}"] = distributed.in_order(
            torch.tensor([[float(k)] for k in distributed.own_share(n)]).view(-1, 1), n, block=2
        )

    criterion, values = criterion_for("global"), []
    for step in range(5):
        logits, embeddings, labels = rows_of(rank, step)
        logits.requires_grad_()
        embeddings.requires_grad_()
        loss = criterion(logits, embeddings, labels)
        values.append(loss)
        # DistributedDataParallel averages over processes what each of them sends back.
        gradients = torch.autograd.grad(loss, [logits, embeddings])
    results |= {"values": torch.stack(values), "share": criterion.center_share}
    results |= {"logits_gradient": gradients[0], "embeddings_gradient": gradients[1]}
    layer = nn.Linear(2, CLASSES).double()
    results["shift"] = torch.tensor(criterion.balance(layer, *rows_of(rank, 0)), dtype=torch.float64)

    norms = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(2))
    for _ in range(rank + 1):
        norms[0](torch.randn(5, 3) + rank)
    distributed.share_buffers(norms)
    results |= {f"buffer {name}": buffer for name, buffer in norms.named_buffers()}

    keyed = GPaCoLoss(CLASSES, alpha=0.3, memory=23, dim=DIM, views=1, class_counts=COUNTS, contrast="global").double()
    for step in range(3):
        logits, embeddings, labels = rows_of(rank, step)
        results["keyed"] = keyed(logits, embeddings, labels, embeddings.flip(0))
    results["keyed_share"] = keyed.center_share

    criterion.eval()
    for _ in range(rank + 1):  # another number of batches on each process: nothing may wait for the others
        criterion(*rows_of(rank, 0))
    assert distributed.agree(rank, 7 - rank) == [dist.get_world_size() - 1, 7]

    for contrast in ("global", "local"):
        model, criterion = DistributedDataParallel(Network()), criterion_for(contrast)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(STEPS):
            images, labels = images_of(rank, step)
            loss = criterion(*model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        results |= {f"{contrast}_weights": flat(model), f"{contrast}_memory": criterion.memory.embeddings}
        results |= {f"{contrast}_share": criterion.center_share}
    return results


@pytest.fixture(scope="module", params=[2, 4], ids=["2 processes", "4 processes"])
def results(request: pytest.FixtureRequest) -> list[Results]:
    return run_ranks(request.param, scenarios)


@pytest.mark.process
def test_every_process_holds_the_same_memory_after_every_step_in_order_of_rank(results: list[Results]) -> None:
    world = len(results)
    alone = Memory(37, 2)
    for step in range(200):
        for rank in range(world):
            rows = 1 + (5 * rank + step) % 11
            alone.push(torch.full((rows, 2), rank + step / 1000), torch.arange(rows) + 100 * rank)
    for result in results:
        assert torch.equal(result["memory"], alone.embeddings)
        assert torch.equal(result["memory_labels"], alone.labels)
        assert torch.equal(result["memory_history"], results[0]["memory_history"])


@pytest.mark.process
def test_gather_and_total_give_the_sum_of_what_all_processes_send_back(results: list[Results]) -> None:
    world = len(results)
    gathered = torch.cat([torch.arange(3.0 * (rank + 1)).view(-1, 3) for rank in range(world)])
    senders = sum(range(1, world + 1))
    start = 0
    for rank, result in enumerate(results):
        assert torch.equal(result["gathered"], gathered)
        places = torch.arange(start, start + rank + 1.0).unsqueeze(1)
        assert torch.equal(result["gather_gradient"], (senders * places).expand(-1, 3))
        start += rank + 1
        assert result["total"] == senders
        assert result["total_gradient"] == sum(range(2, world + 2))


@pytest.mark.process
def test_things_that_the_processes_share_come_back_in_their_order(results: list[Results]) -> None:
    for result in results:
        assert result["shared_9"].flatten().tolist() == list(range(9))
        assert result["shared_1"].flatten().tolist() == [0]


@pytest.mark.process
def test_buffers_are_those_of_the_first_process_after_they_were_shared(results: list[Results]) -> None:
    names = [name for name in results[0] if name.startswith("buffer")]
    assert len(names) == 6
    assert results[0]["buffer 0.num_batches_tracked"] == 1
    assert results[0]["buffer 0.running_mean"].any()
    for result in results:
        assert all(torch.equal(result[name], results[0][name]) for name in names)


@pytest.mark.process
def test_global_contrast_gives_the_loss_and_the_gradient_of_one_process(results: list[Results]) -> None:
    world = len(results)
    criterion, values = criterion_for("local"), []
    for step in range(5):
        logits, embeddings, labels = one_process([rows_of(rank, step) for rank in range(world)])
        logits.requires_grad_()
        embeddings.requires_grad_()
        loss = criterion(logits, embeddings, labels)
        values.append(loss.detach())
        gradients = torch.autograd.grad(loss, [logits, embeddings])
    for result in results:
        torch.testing.assert_close(result["values"], torch.stack(values), **EXACT)
        torch.testing.assert_close(result["share"], criterion.center_share, **EXACT)
    for name, expected in zip(("logits_gradient", "embeddings_gradient"), gradients, strict=True):
        # Each process holds the sum over processes of a loss that is the same on all: divide as DDP will.
        (got,) = one_process([(result[name] / world,) for result in results])
        torch.testing.assert_close(got, expected, **EXACT)

    layer = nn.Linear(2, CLASSES).double()
    shift = criterion.balance(layer, *one_process([rows_of(rank, 0) for rank in range(world)]))
    for result in results:
        assert result["shift"].item() == pytest.approx(shift, abs=1e-12)


@pytest.mark.process
def test_global_contrast_with_momentum_keys_is_that_of_one_process(results: list[Results]) -> None:
    world = len(results)
    keyed = GPaCoLoss(CLASSES, alpha=0.3, memory=23, dim=DIM, views=1, class_counts=COUNTS).double()
    for step in range(3):
        parts = [rows_of(rank, step) for rank in range(world)]
        logits, embeddings, labels = (torch.cat(column) for column in zip(*parts, strict=True))
        loss = keyed(logits, embeddings, labels, torch.cat([part[1].flip(0) for part in parts]))
    for result in results:
        torch.testing.assert_close(result["keyed"], loss, **EXACT)
        torch.testing.assert_close(result["keyed_share"], keyed.center_share, **EXACT)


@pytest.mark.process
def test_twenty_steps_of_global_training_end_where_one_process_ends(results: list[Results]) -> None:
    world = len(results)
    model, criterion = Network(), criterion_for("local")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    start = flat(model)
    for step in range(STEPS):
        images, labels = one_process([images_of(rank, step) for rank in range(world)])
        optimizer.zero_grad()
        criterion(*model(images), labels).backward()
        optimizer.step()
    assert (flat(model) - start).norm() > 0.5
    for result in results:
        torch.testing.assert_close(result["global_weights"], flat(model), **EXACT)
        torch.testing.assert_close(result["global_memory"], criterion.memory.embeddings, **EXACT)
        torch.testing.assert_close(result["global_share"], criterion.center_share, **EXACT)


@pytest.mark.process
def test_twenty_steps_of_local_training_end_where_one_process_ends_that_does_the_shards_in_turn(
    results: list[Results],
) -> None:
    world = len(results)
    model, memory = Network(), Memory(23, DIM).double()
    log_frequency = criterion_for("local").log_prior
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    share, averaged = torch.zeros(CLASSES, dtype=torch.float64), 0
    for step in range(STEPS):
        shards = [images_of(rank, step) for rank in range(world)]
        held, held_labels = (x.clone() for x in memory.read())
        shares = []
        for _, labels in shards:
            # 1 / (1 + alpha P) of each class, by counting, for each image as if it were of that class.
            everyone = torch.cat([labels, held_labels])
            others = [[(everyone == c).sum() - 2 * (y == c).long() for c in range(CLASSES)] for y in labels[:4]]
            shares.append((1 / (1 + 0.3 * (1 + torch.tensor(others).double()))).mean(0))
        averaged = averaged + 1 if len(memory) == 23 else 0  # while the memory fills, what the step itself says
        share = share + (torch.stack(shares).mean(0) - share) / max(averaged, 1)
        options = {"alpha": 0.3, "log_prior": log_frequency + share.log()}
        outputs = [(*model(images), labels) for images, labels in shards]
        losses = [gpaco_loss(*output, held, held_labels, **options) for output in outputs]
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
        for _, embeddings, labels in outputs:
            memory.push(embeddings[4:], labels[4:])
    for result in results:
        torch.testing.assert_close(result["local_share"], share, **EXACT)
        torch.testing.assert_close(result["local_weights"], flat(model), **EXACT)
        torch.testing.assert_close(result["local_memory"], memory.embeddings, **EXACT)


@pytest.mark.process
def test_local_and_global_are_different_algorithms(results: list[Results]) -> None:
    assert (results[0]["local_weights"] - results[0]["global_weights"]).norm() > 1e-3


def test_with_one_process_everything_is_the_identity() -> None:
    x = torch.randn(3, 2, requires_grad=True)
    assert distributed.rank() == 0
    assert distributed.world_size() == 1
    assert distributed.row_counts(x) == [3]
    assert distributed.gather(x) is x
    assert distributed.total(x) is x
    assert distributed.in_order(x, 3) is x
    assert list(distributed.own_share(3)) == [0, 1, 2]


def remedies() -> Results:
    """What two processes are told about batches of 9 images, of which there may be no more; 6 will do."""
    words = []
    for size, images in ((9, 100), (9, 9)):
        with pytest.raises(UserError, match="a batch of 9 images cannot be divided evenly among 2 processes") as error:
            check_batches(override(Recipe(), [f"train.batch_size={size}"]), images)
        words.append(error.value.remedy)
    assert words == ["--batch-size 8 or 10", "--batch-size 8"]
    check_batches(override(Recipe(), ["train.batch_size=6", "train.accumulate=2"]), 100)
    return {"done": torch.ones(1)}


@pytest.mark.process
def test_a_batch_that_processes_cannot_share_alike_is_refused_with_sizes_that_they_can() -> None:
    assert all(result["done"] for result in run_ranks(2, remedies))
    check_batches(override(Recipe(), ["train.batch_size=9"]), 100)  # one process has no one to share with
