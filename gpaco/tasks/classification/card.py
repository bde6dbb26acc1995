"""The card of a classifier: everything needed to use it again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from gpaco import __version__, methods
from gpaco.data.batches import shown_counts
from gpaco.data.samples import Splits
from gpaco.data.views.tested import TestView
from gpaco.models import backbones
from gpaco.models.classifier import Classifier
from gpaco.models.ghost_norm import ghost_batch
from gpaco.models.links import check_chain
from gpaco.models.networks import WHOLE, Network, build_network
from gpaco.models.small_resnet import SmallResNet
from gpaco.recipes.settings import Recipe


@dataclass(frozen=True)
class Tuned:
    """A correction `tau * log prior`, selected on validation data for one checkpoint."""

    tau: float
    unbiased: bool  # whether the logits were corrected for the bias of the loss first
    step: int
    val_macro_before: float
    val_macro: float


@dataclass(frozen=True)
class Calibration:
    """Factors on the logits of one checkpoint (1 / temperature), fitted on images it was not trained on."""

    step: int
    head: float  # on the logits of the trained head; 0 without one
    gaussian: float  # on those of the closed-form classifier; 0 if it is not added
    images: int  # number of images that the factors were fitted on
    assumes: str  # class distribution that the logits of the head assume
    sha256: str = ""  # of gaussian.safetensors


@dataclass(frozen=True)
class Card:
    """Stored with every checkpoint, except for the last fields, which are set when a model is loaded."""

    gpaco: str  # version that wrote it
    classes: tuple[str, ...]
    counts: tuple[int, ...] | None  # training images per class; a converted model may not know them
    shown: tuple[float, ...] | None  # share of each class as the sampler shows it
    images: dict[str, str]  # hash of the list of images in each split
    model: str
    weights: str  # where pretrained weights came from
    backbone: str | None  # SHA-256 of a frozen backbone, which is stored once beside the checkpoints
    drop_path: float
    pool: str
    dim: int
    projector: str
    hidden: int
    ghost_batch: int
    size: int
    whole: bool  # small images are resized, not cropped
    resize: int
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classifies: bool  # False if the method does not train the class centers
    assumes: str  # class distribution that raw logits assume: "uniform", "train", or a power such as "train^0.5"
    prior: str
    label_smoothing: float
    many: float
    few: float
    network: Network  # what the method changes in the network
    mixed: bool = False  # trained with mixup or cutmix
    center_share: tuple[float, ...] | None = None  # mass that the loss leaves to the centers, by class
    calibration: Calibration | None = None
    tuned: Tuned | None = None
    step: int = 0

    @property
    def view(self) -> TestView:
        """How images are resized and cropped for testing; with several crops, to the size that contains all of them."""
        size = self.size + self.network.border
        return TestView(size, size if self.network.border else self.resize, self.whole, self.interpolation)


def describe(recipe: Recipe, splits: Splits) -> Card:
    """Return the card of a model that this recipe trains on these splits."""
    shown = shown_counts(splits.train.counts, recipe.train.sampler)
    usual = backbones.usual_input(recipe.model.name)
    size = recipe.model.size or usual.size
    return Card(
        gpaco=__version__,
        classes=splits.classes,
        counts=tuple(splits.train.counts.tolist()),
        shown=tuple((shown / shown.sum()).tolist()),
        images={name: part.list_hash for name, part in splits.parts()},
        model=recipe.model.name,
        weights="",
        backbone=None,
        drop_path=recipe.model.drop_path,
        pool=recipe.model.pool,
        dim=recipe.model.dim,
        projector=methods.projector(recipe),
        hidden=recipe.model.hidden,
        ghost_batch=recipe.model.ghost_batch,
        size=size,
        whole=splits.train.images is not None and not recipe.model.resize,
        resize=recipe.model.resize or round(size / 0.875),
        interpolation=recipe.model.interpolation,
        mean=recipe.model.mean or usual.mean,
        std=recipe.model.std or usual.std,
        classifies=recipe.method.name not in methods.WITHOUT_CLASSIFIER,
        assumes=methods.assumed_prior(recipe),
        prior=recipe.method.prior,
        label_smoothing=recipe.method.label_smoothing,
        many=recipe.data.many,
        few=recipe.data.few,
        network=methods.network(recipe),
        mixed=bool(recipe.method.mixup or recipe.method.cutmix),
    )


def build_model(card: Card, weights: str = backbones.NONE) -> Classifier:
    """Build the network that a card describes, with pretrained `weights` for its backbone."""
    network: Network = card.network
    options: dict[str, Any] = {"size": card.size, "drop_path": card.drop_path, "pool": card.pool}
    wanted = network.number if network.body == "experts" else 1
    backbone, *others = (
        backbones.build(card.model, weights=weights, narrow=network.narrow, **options) for _ in range(wanted)
    )
    if network.body in WHOLE:
        check_chain(backbone.module, card.model, card.size, network.body)
    return build_head(card, backbone.num_features, backbone.module, [other.module for other in others])


def build_head(
    card: Card, num_features: int, backbone: nn.Module | None = None, others: Sequence[nn.Module] = ()
) -> Classifier:
    """Build the network without a backbone, for features; or with this backbone, and those of other experts."""
    model = build_network(
        card.network,
        backbone or nn.Identity(),
        num_features,
        len(card.classes),
        others=others,
        size=card.size,
        small=card.model in backbones.SMALL_IMAGES,
        dim=card.dim,
        projector=card.projector,
        hidden=card.hidden,
    )
    if isinstance(backbone, SmallResNet) and model.projector is not None:
        nn.init.kaiming_normal_(model.projector[-1].weight)  # type: ignore[arg-type] # as released: its own last layer
    if card.ghost_batch:
        ghost_batch(model, card.ghost_batch)
    return model
