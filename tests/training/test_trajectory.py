"""Training against a second model of the released training step: five steps from equal weights, in float64.

`Released` and the functions before it are written from the description of the released code alone: its wrapper, queue,
momentum encoder, loss with its masks, and SGD by hand. Ours is the loop that `gpaco train` runs.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco import methods
from gpaco.data.batches import Batch
from gpaco.models.classifier import Classifier
from gpaco.recipes.recipe import override
from gpaco.recipes.settings import Recipe
from gpaco.tasks.segmentation.losses import SceneLoss
from gpaco.tasks.segmentation.network import Output
from gpaco.training.loop import fit

CLASSES, DIM, QUEUE, ROWS, STEPS = 4, 6, 24, 8, 5
COUNTS = torch.tensor([40.0, 20.0, 10.0, 5.0])
ALPHA, T, RATE, DECAY = 0.05, 0.2, 0.04, 5e-4


# The released computation


def masked_loss(
    features: Tensor, targets: Tensor, scores: Tensor, anchors: int, alpha: float, t: float, ignored: int = -1
) -> Tensor:
    """The first `anchors` rows of features against all; masks of ones and zeros instead of lists of positives."""
    similarities = features[:anchors] @ features.T / t
    everything = torch.cat([scores, similarities], 1)
    everything = everything - everything.max(1, keepdim=True).values.detach()
    others = 1 - torch.eye(anchors, len(features), dtype=features.dtype)
    same = (targets[:anchors, None] == targets[None]).to(features) * others
    own = F.one_hot(targets[:anchors].where(targets[:anchors] != ignored, 0), scores.shape[1]).to(features)
    positives = torch.cat([own, alpha * same], 1)
    counted = torch.cat([torch.ones_like(own), others], 1)
    log_prob = everything - (everything.exp() * counted).sum(1, keepdim=True).add(1e-12).log()
    costs = -(positives * log_prob).sum(1) / positives.sum(1)
    return costs[targets[:anchors] != ignored].mean()


def masked_supcon(features: Tensor, targets: Tensor, anchors: int, t: float) -> Tensor:
    similarities = features[:anchors] @ features.T / t
    similarities = similarities - similarities.max(1, keepdim=True).values.detach()
    others = 1 - torch.eye(anchors, len(features), dtype=features.dtype)
    same = (targets[:anchors, None] == targets[None]).to(features) * others
    log_prob = similarities - (similarities.exp() * others).sum(1, keepdim=True).add(1e-12).log()
    return (-(same * log_prob).sum(1) / same.sum(1)).mean()


@dataclass
class Released:
    """Encoder, classifier and projector by hand; `state` has the weights of our network."""

    method: str
    state: nn.Module
    queue: Tensor  # (QUEUE, DIM)
    queue_labels: Tensor
    place: int = 0
    speed: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys = deepcopy(self.state)

    def parts(self, network: Any, images: Tensor) -> tuple[Tensor, Tensor]:
        feature = network.backbone(images)
        return F.linear(feature, network.centers.weight, network.centers.bias), F.normalize(network.projector(feature))

    def loss(self, views: list[Tensor], labels: Tensor) -> Tensor:
        log_q = (COUNTS / COUNTS.sum() + 1e-9).log().double()
        scores, q = self.parts(self.state, views[0])
        if self.method == "paco":
            with torch.no_grad():
                for key, query in zip(self.keys.parameters(), self.state.parameters(), strict=True):
                    key.copy_(0.999 * key + 0.001 * query)
                k = self.parts(self.keys, views[1])[1]
            anchors, targets = len(labels), labels
        else:
            more, k = self.parts(self.state, views[1])
            scores, anchors, targets = torch.cat([scores, more]), 2 * len(labels), labels.repeat(2)
        features = torch.cat([q, k, self.queue.clone()])
        everyone = torch.cat([labels, labels, self.queue_labels.clone()])
        with torch.no_grad():
            self.queue[self.place : self.place + len(k)] = k
            self.queue_labels[self.place : self.place + len(k)] = labels
            self.place = (self.place + len(k)) % QUEUE
        if self.method == "multitask":
            return F.cross_entropy(scores + log_q, targets) + 0.5 * masked_supcon(features, everyone, anchors, T)
        return masked_loss(features, everyone, scores + log_q, anchors, ALPHA, T)

    def step(self, loss: Tensor) -> None:
        sgd(self.state, loss, self.speed)


def sgd(network: nn.Module, loss: Tensor, speed: dict[str, Tensor]) -> None:
    """Momentum 0.9, weight decay on every parameter."""
    named = dict(network.named_parameters())
    gradients = torch.autograd.grad(loss, list(named.values()))
    with torch.no_grad():
        for (name, weight), gradient in zip(named.items(), gradients, strict=True):
            pull = gradient + DECAY * weight
            speed[name] = 0.9 * speed[name] + pull if name in speed else pull
            weight -= RATE * speed[name]


# Ours


@dataclass
class OurLearner:
    """What `fit` trains."""

    model: nn.Module
    extra: nn.Module
    data: list[Batch]
    measure: Callable[[nn.Module, Batch], Tensor]
    card: Any = None
    steps: int = STEPS
    recipe: Recipe = Recipe()  # noqa: RUF009

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        return iter(self.data)

    def start(self, batch: Batch) -> float:
        return self.extra.start(self.model, batch.views, batch.labels) if hasattr(self.extra, "start") else 0.0  # type: ignore[no-any-return,operator]

    def loss(self, network: nn.Module, batch: Batch) -> Tensor:
        return self.measure(network, batch)

    def after_step(self) -> None:
        if hasattr(self.extra, "after_step"):
            self.extra.after_step(self.model)  # type: ignore[operator]

    def validate(self, network: nn.Module) -> dict[str, Any]:
        return {}


def settings(method: str) -> Recipe:
    parametric = [] if method == "multitask" else [f"method.alpha={ALPHA}", "method.prior=counts"]
    return override(
        Recipe(),
        [
            *(f"method.name={method}", *parametric, f"method.temperature={T}", f"method.memory={QUEUE}"),
            *("method.start=released", f"optimizer.lr={RATE}", f"model.dim={DIM}"),
            *(f"optimizer.weight_decay={DECAY}", "schedule.name=constant", "schedule.warmup=0", "train.epochs=1"),
            *("views.first=plain", "views.second=plain", f"train.batch_size={ROWS}"),
        ],
    )


def trained(learner: OurLearner, recipe: Recipe) -> list[float]:
    losses: list[float] = []
    learner.recipe = recipe
    fit(learner, None, torch.device("cpu"), lambda row: losses.append(row["loss"]) if "step" in row else None)
    return losses[:STEPS]


def backbone() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


@pytest.mark.parametrize(("method", "projector"), [("gpaco", "gpaco"), ("paco", "paco"), ("multitask", "gpaco")])
def test_five_steps_of_training_are_those_of_the_released_code(method: str, projector: str) -> None:
    torch.manual_seed(3)
    recipe = settings(method)
    model = Classifier(backbone(), 6, CLASSES, dim=DIM, projector=projector).double()
    own = methods.build(recipe, model, CLASSES, COUNTS).double()
    memory = next(part for part in own.modules() if hasattr(part, "pushed"))
    released = Released(method, deepcopy(model), memory.embeddings.clone(), memory.labels.clone())  # type: ignore[operator]
    labels = [torch.randint(CLASSES, (ROWS,)) for _ in range(STEPS)]
    data = [Batch([torch.randn(ROWS, 3, 6, 6).double() for _ in range(2)], y) for y in labels]

    expected = []
    for batch in data:
        loss = released.loss(batch.views, batch.labels)
        released.step(loss)
        expected.append(loss.item())
    learner = OurLearner(model, own, data, lambda network, batch: own(network, batch.views, batch.labels))
    losses = trained(learner, recipe)
    assert losses == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 0.01  # the steps did something
    theirs = released.state.state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-7, msg=name)
    torch.testing.assert_close(memory.embeddings, released.queue, rtol=0, atol=1e-7)  # type: ignore[arg-type]
    assert torch.equal(memory.labels, released.queue_labels)  # type: ignore[arg-type]


class Scene(nn.Module):
    """A segmenter with the released heads on a small feature map."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 6, 3, stride=4, padding=1), nn.ReLU())
        self.scores, self.aux = nn.Conv2d(6, CLASSES, 1), nn.Conv2d(6, CLASSES, 1)
        self.projector = nn.Sequential(
            *(nn.Conv2d(6, 6, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU()),
            *(nn.Conv2d(6, 6, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, DIM, 1)),
        )

    def forward(self, images: Tensor) -> Output:
        feature = self.trunk(images)
        return Output(self.scores(feature), F.normalize(self.projector(feature)), self.aux(feature))


def released_scene_loss(network: Scene, images: Tensor, masks: Tensor, factor: float) -> Tensor:
    """`factor` times cross entropy and 0.4 of the auxiliary one, and the loss among all pixels of each image.

    The factor of the release is 1: it divides the sum over labeled pixels by the number of all pixels.
    """
    out = network(images)
    size = masks.shape[1:]
    whole, aux = (F.interpolate(x, size, mode="bilinear", align_corners=False) for x in (out.logits, out.aux_logits))
    main, more = (F.cross_entropy(x, masks, ignore_index=255, reduction="sum") / masks.numel() for x in (whole, aux))
    small = F.interpolate(masks[:, None].double(), out.logits.shape[2:], mode="nearest")[:, 0].long()
    each = []
    for scores, points, own in zip(out.logits, out.embeddings, small.flatten(1), strict=True):
        each.append(masked_loss(points.flatten(1).T, own, scores.flatten(1).T, len(own), 0.01, 0.07, ignored=255))
    return factor * (main + 0.4 * more) + torch.stack(each).mean()


def test_five_steps_on_pixels_are_those_of_the_released_code_with_our_mean_over_labeled_pixels() -> None:
    torch.manual_seed(4)
    changes = ["method.alpha=0.01", "method.temperature=0.07", "segmentation.pixels=-1", "train.task=segmentation"]
    recipe = override(settings("gpaco"), changes)
    model = Scene().double()
    released, speed = deepcopy(model), dict[str, Tensor]()
    loss = SceneLoss(recipe.method, recipe.segmentation)
    data = []
    for _ in range(STEPS):
        masks = torch.randint(CLASSES, (2, 16, 16))
        masks[:, :5, :3] = 255
        data.append(Batch([torch.randn(2, 3, 16, 16).double()], masks))
    expected = []
    for batch in data:
        value = released_scene_loss(released, batch.views[0], batch.labels, 16 * 16 / (16 * 16 - 5 * 3))
        sgd(released, value, speed)
        expected.append(value.item())
    losses = trained(OurLearner(model, loss, data, lambda net, b: loss(net(*b.views), b.labels)), recipe)
    assert losses == pytest.approx(expected, abs=1e-5)
    for name, value in released.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=1e-7, msg=name)
