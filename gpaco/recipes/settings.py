"""Every setting of a run as frozen data. These dataclasses are the only place where defaults stand."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

METHODS = ("gpaco", "paco", "supcon", "multitask", "ce", "balanced-softmax", "focal", "class-balanced")
VIEWS = ("plain", "sim", "rand", "rand_stack", "mae", "cifar_regular", "cifar_sim", "cifar_aug")
SCHEDULES = ("cosine", "step", "step-released", "poly", "constant")


def setting(
    default: Any,
    about: str,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
    choices: Sequence[str | int] = (),
) -> Any:
    """Return a field with its default, a line about it, and bounds: low <= value <= high, above < value < below."""
    bounds = {"at least": low, "above": above, "at most": high, "below": below}
    bounds = {word: bound for word, bound in bounds.items() if bound is not None}
    return field(default=default, metadata={"about": about, "bounds": bounds, "choices": choices})


@dataclass(frozen=True)
class Data:
    path: str = setting("", "folder, table, list or archive; usually given on the command line")
    root: str = setting("", "folder that the paths of a table or list start from; empty: the folder it is in")
    long_tail: float = setting(0.0, "make training long-tailed by this factor; 0: take it as it is", low=0)
    validation: float = setting(
        0.1, "share of training held back where no validation part is given; 0: none", low=0, below=1
    )
    seed: int = setting(0, "of the long-tailed subset and of the validation part; not of training", low=0)
    evaluate_on: str = setting(
        "auto", "part that the final numbers are about; auto: test, else val", choices=("auto", "test", "val")
    )
    on_bad_image: str = setting("error", "stop, or leave the image out and list it", choices=("error", "skip"))
    allow_empty_classes: bool = setting(False, "keep classes without a training image")
    allow_leakage: bool = setting(False, "go on if the same image is in two parts")
    allow_outside: bool = setting(False, "follow paths of a table or list that lead out of its folder")
    many: int = setting(100, "classes with more training images are 'many'", low=0)
    few: int = setting(20, "classes with fewer training images are 'few'", low=0)
    expect_images: int = setting(0, "training images there must be; 0: any number", low=0)
    expect_groups: tuple[int, ...] = setting((), "many, medium and few classes there must be; []: any", low=0)


@dataclass(frozen=True)
class Model:
    name: str = setting("auto", "resnet8, resnet32, resnet50_cifar or any timm name; auto: from the data")
    weights: str = setting("", "safetensors file to start from, or hub: timm's own, downloaded; empty: from scratch")
    dim: int = setting(128, "length of an embedding", low=1)
    projector: str = setting(
        "gpaco",
        "three layers; paco: two with batch norm; two-layer: two without; mae: three with GELU",
        choices=("gpaco", "paco", "two-layer", "mae"),
    )
    hidden: int = setting(0, "width of a layer with ReLU between backbone and heads; 0: none", low=0)
    ghost_batch: int = setting(0, "images that share batch-norm statistics in training; 0: the batch", low=0)
    drop_path: float = setting(0.0, "stochastic depth", low=0, below=1)
    pool: str = setting(
        "", "mean: of a ViT's patches, then a norm, as MAE; empty: the model's own", choices=("", "mean")
    )
    head_std: float = setting(0.0, "deviation of the class centers at the start, biases 0; 0: the layer's own", low=0)
    size: int = setting(0, "width and height of an input image; 0: from the data or the weights", low=0)
    resize: int = setting(0, "shorter side before the center crop at test time; 0: size / 0.875", low=0)
    interpolation: str = setting("bilinear", "how test images are resized", choices=("bilinear", "bicubic"))
    mean: tuple[float, ...] = setting((), "of each channel, from 0 to 1; []: from the data or the weights")
    std: tuple[float, ...] = setting((), "of each channel; []: from the data or the weights", above=0)


@dataclass(frozen=True)
class Views:
    first: str = setting("auto", "augmentation of the first view; auto: from the data", choices=("auto", *VIEWS))
    second: str = setting("auto", "augmentation of the second view; empty: one view", choices=("auto", "", *VIEWS))
    crop_scale: tuple[float, ...] = setting(
        (), "least and greatest share of the area; []: the view's own", above=0, high=1
    )
    ops: int = setting(2, "RandAugment's operations per image", low=0, high=100)
    magnitude: int = setting(10, "RandAugment's strength", low=0, high=30)
    flip: bool = setting(True, "mirror half of the images")
    erase: float = setting(0.0, "chance that a rectangle of a view becomes noise", low=0, high=1)


@dataclass(frozen=True)
class MethodSettings:
    name: str = setting("gpaco", "how a batch becomes a loss", choices=METHODS)
    alpha: float = setting(0.05, "weight of a positive sample; the center's is 1", low=0, below=1e6)
    temperature: float = setting(0.2, "of the similarities", low=1e-6)
    memory: int = setting(8192, "past embeddings to contrast with: the queue", low=0)
    prior: str = setting(
        "unbiased", "log prior on the centers; counts: as published", choices=("unbiased", "counts", "none")
    )
    tune_prior: bool = setting(False, "in the end, add tau * log prior to the logits; validation data choose tau")
    start: str = setting(
        "balanced", "shift the centers before the first step; released: as published", choices=("balanced", "released")
    )
    contrast: str = setting("local", "with the views of this process or of all", choices=("local", "global"))
    label_smoothing: float = setting(
        0.0, "share s of the label's target; gpaco, paco: s/(C-1) to each other class, else s/C to each", low=0, below=1
    )
    momentum: float = setting(0.999, "of the key network", low=0, high=1)
    momentum_keys: bool = setting(False, "supcon, multitask: a momentum copy makes the keys; paco always has one")
    base: str = setting("balanced-softmax", "what multitask adds SupCon to", choices=("balanced-softmax", "ce"))
    weight: float = setting(0.5, "of SupCon in multitask", low=0)
    rebalance: str = setting(
        "none",
        "SupCon by class: weights (effective number) or prior (balanced softmax)",
        choices=("none", "weights", "prior"),
    )
    beta: float = setting(0.999, "of the effective number: class-balanced, and rebalance weights", low=0, below=1)
    gamma: float = setting(2.0, "of focal", low=0)
    mixup: float = setting(0.0, "alpha of mixup; 0: off", low=0)
    cutmix: float = setting(0.0, "alpha of cutmix; 0: off", low=0)


@dataclass(frozen=True)
class Segmentation:
    crop: tuple[int, ...] = setting((), "height and width of a training crop; []: from the data", low=1)
    base_size: tuple[int, ...] = setting((), "shorter and longer side that scale 1 fits into; []: the data's", low=1)
    scale: tuple[float, ...] = setting((0.5, 2.0), "least and greatest factor on the base size", above=0)
    max_share: float = setting(0.75, "greatest share of one class in a crop, as far as some tries find one", above=0)
    colors: bool = setting(True, "distort brightness, contrast, saturation and hue")
    channels: int = setting(0, "width of the decoder; 0: its own", low=0)
    output_stride: int = setting(8, "DeepLab: pixels for one of its encoder's; 16 is faster", choices=(8, 16))
    aux_weight: float = setting(0.4, "of the auxiliary head's cross entropy; 0: no such head", low=0)
    weight: float = setting(1.0, "of gpaco among pixels", low=0)
    pixels: int = setting(8192, "pixels drawn from each picture; -1: all", low=-1)
    window: tuple[int, ...] = setting((), "height and width of a window at test time; []: whole pictures", low=1)
    stride: tuple[int, ...] = setting((), "between windows; []: two thirds of a window", low=1)
    many: float = setting(1.0, "classes with more than this times the mean share of pixels are 'many'", low=0)
    few: float = setting(0.1, "classes with less than this times the mean share of pixels are 'few'", low=0)


@dataclass(frozen=True)
class Optimizer:
    name: str = setting("sgd", "kind of optimizer", choices=("sgd", "adamw"))
    lr: float = setting(0.05, "highest learning rate", low=0)
    weight_decay: float = setting(5e-4, "pull towards 0", low=0)
    decay_bias: bool = setting(True, "decay biases, norms and tokens too, as the released ResNet scripts do")
    momentum: float = setting(0.9, "of sgd", low=0, below=1)
    nesterov: bool = setting(False, "of sgd")
    betas: tuple[float, ...] = setting((0.9, 0.999), "of adamw", low=0, below=1)
    layer_decay: float = setting(1.0, "factor on the rate per layer away from the head of a ViT", above=0, high=1)
    clip: float = setting(0.0, "longest gradient; 0: any", low=0)


@dataclass(frozen=True)
class Schedule:
    name: str = setting("cosine", "how the rate falls; formulas in gpaco/training/schedule.py", choices=SCHEDULES)
    warmup: float = setting(5.0, "epochs in which the rate rises", low=0)
    steps: tuple[float, ...] = setting((), "epochs at which step multiplies the rate", low=0)
    factor: float = setting(0.1, "what step multiplies by", above=0)
    min_lr: float = setting(0.0, "where cosine and poly end", low=0)
    power: float = setting(1.0, "of poly", above=0)
    per: str = setting("epoch", "how often the rate is set", choices=("epoch", "step"))


@dataclass(frozen=True)
class Train:
    task: str = setting("classification", "what is learned", choices=("classification", "segmentation"))
    epochs: int = setting(30, "times that training sees every image", low=1)
    batch_size: int = setting(128, "images per step, over all processes", low=1)
    accumulate: int = setting(1, "parts that a batch is worked on in", low=1)
    sampler: str = setting("shuffle", "which images make an epoch", choices=("shuffle", "balanced", "sqrt"))
    part: str = setting("all", "what of the model trains", choices=("all", "last-block", "head", "lora"))
    lora_rank: int = setting(4, "of the changes to linear layers with part = lora", low=1)
    cached_views: int = setting(4, "views of each image that part = head embeds once; 0: anew in every step", low=0)
    features: str = setting("", "folder that keeps them, for several runs; empty: features in the run")
    amp: str = setting("off", "mixed precision", choices=("off", "bf16", "fp16"))
    ema: float = setting(0.0, "decay of averaged weights; 0: off", low=0, below=1)
    channels_last: bool = setting(False, "memory layout that some GPUs like")
    compile: bool = setting(False, "torch.compile the model")
    workers: int = setting(-1, "processes that load images; -1: from the data and the machine", low=-1, high=1024)
    timeout: float = setting(10.0, "minutes that processes wait for each other", above=0)
    seed: int = setting(0, "of weights, order and augmentation", low=0)
    select: str = setting("best", "model that counts: best on validation data, or last", choices=("best", "last"))
    report: bool = setting(True, "write analysis.json and report.html at the end: seconds to a minute")
    checkpoint_every: int = setting(1, "epochs between checkpoints", low=1)
    keep: int = setting(2, "checkpoints kept beside the best one", low=1)


@dataclass(frozen=True)
class PaperRow:
    table: str = setting("", "of the paper")
    row: str = setting("", "of that table")
    command: str = setting("", "that runs it")
    hardware: str = setting("", "that the authors used")
    paper: str = setting("", "number in the paper")
    ours: str = setting("", "number we got; empty: not run by us")
    note: str = setting("", "anything else")
    assumed: tuple[str, ...] = setting((), "settings that no source gives")


@dataclass(frozen=True)
class Stage:
    """One stage: its name, and what it changes of the base as (section, key, value)."""

    name: str
    changes: tuple[tuple[str, str, Any], ...] = ()


@dataclass(frozen=True)
class Recipe:
    name: str = ""
    data: Data = Data()
    model: Model = Model()
    views: Views = Views()
    method: MethodSettings = MethodSettings()
    segmentation: Segmentation = Segmentation()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    train: Train = Train()
    source: PaperRow = PaperRow()
    stage: tuple[Stage, ...] = ()


SECTIONS: dict[str, type] = {f.name: type(f.default) for f in fields(Recipe) if f.name not in ("name", "stage")}
