"""Every setting of a run, with its default and bounds, as frozen dataclasses."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from gpaco.system.outputs import labeled_places


@dataclass(frozen=True)
class About:
    """A method: where it was published, what it does, and the settings in [method] that it uses."""

    paper: str
    idea: str
    uses: tuple[str, ...]


_ANY = ("name", "tune_prior", "fuse")  # used by every method
_MIX = ("mixup", "cutmix")
_GPACO = (
    *("alpha", "temperature", "memory", "prior", "start", "contrast", "label_smoothing", "center_temperature"),
    *_MIX,
)
_SUPCON = (
    *("temperature", "memory", "start", "contrast", "momentum", "momentum_keys", "shuffle_keys", "anchors"),
    *("rebalance", "beta", *_MIX),
)
_DRW = ("margin", "scale", "drw_start", *_MIX)
_DECOUPLING = "Kang et al., Decoupling Representation and Classifier for Long-Tailed Recognition, ICLR 2020"

# In the order of gpaco.methods.METHODS. `gpaco show METHOD` prints a row.
METHODS: dict[str, About] = {
    "gpaco": About(
        "Cui et al., Generalized Parametric Contrastive Learning, TPAMI 2023",
        "class centers and past embeddings in one softmax; every view is an anchor",
        (*_GPACO, "anchors"),
    ),
    "paco": About(
        "Cui et al., Parametric Contrastive Learning, ICCV 2021",
        "the same with keys of a momentum copy of the network",
        (*_GPACO, "momentum", "shuffle_keys"),
    ),
    "supcon": About(
        "Khosla et al., Supervised Contrastive Learning, NeurIPS 2020",
        "contrast between embeddings; a second stage trains the classifier",
        (*_SUPCON, "label_smoothing", "tau"),
    ),
    "multitask": About(
        "the baseline of the PaCo papers",
        "cross entropy or balanced softmax, plus SupCon",
        (*_SUPCON, "base", "weight", "label_smoothing"),
    ),
    "ce": About("", "cross entropy", ("label_smoothing", *_MIX)),
    "balanced-softmax": About(
        "Ren et al., Balanced Meta-Softmax, NeurIPS 2020; with another tau: Menon et al., Logit Adjustment, ICLR 2021",
        "cross entropy of logits + tau * log frequencies",
        ("tau", "label_smoothing", *_MIX),
    ),
    "focal": About(
        "Lin et al., Focal Loss for Dense Object Detection, ICCV 2017",
        "cross entropy times (1 - p)^gamma",
        ("gamma", "label_smoothing", *_MIX),
    ),
    "class-balanced": About(
        "Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019",
        "cross entropy weighted by the effective number of images",
        ("cb_beta", "label_smoothing", *_MIX),
    ),
    "gaussian": About(
        "docs/gaussian.md", "Gaussian classes with a shared covariance, in closed form on frozen features", ()
    ),
    "cb-focal": About(
        "Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019",
        "focal loss with one sigmoid per class, weighted by the effective number of images",
        ("cb_beta", "cb_gamma"),
    ),
    "ldam-drw": About(
        "Cao et al., Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss, NeurIPS 2019",
        "cosine classifier with a larger margin for rarer classes; class weights late in training",
        _DRW,
    ),
    "bcl": About(
        "Zhu et al., Balanced Contrastive Learning for Long-Tailed Visual Recognition, CVPR 2022",
        "logit-adjusted cross entropy, and contrast with class prototypes in which all classes have the same weight",
        ("scale", "bcl_logits", "bcl_weight", "bcl_temperature"),
    ),
    "crt": About(
        _DECOUPLING, "first train the network, then a new classifier with class-balanced sampling", ("first",)
    ),
    "lws": About(
        _DECOUPLING, "first train the network, then one scale for each class with class-balanced sampling", ("first",)
    ),
    "tau-norm": About(
        _DECOUPLING,
        "divide the weights of each class by their norm to the power tau; trains nothing after the first stage",
        ("first", "norm_tau"),
    ),
    "ncm": About(
        _DECOUPLING, "the class with the nearest mean of features; trains nothing after the first stage", ("first",)
    ),
    "mislas": About(
        "Zhong et al., Improving Calibration for Long-Tailed Recognition, CVPR 2021",
        "mixup first; then classifier and class scales, labels of frequent classes smoothed more, batch norm shifted",
        ("first", "first_mixup", "smooth_head", "smooth_tail", "classifier_rate", "shift_norms"),
    ),
    "bbn": About(
        "Zhou et al., BBN: Bilateral-Branch Network with Cumulative Learning, CVPR 2020",
        "two last blocks, for a uniform and a reversed sampler, mixed with a weight that moves during training",
        (),
    ),
    "causal-norm": About(
        "Tang et al., Long-Tailed Classification by Keeping the Good and Removing the Bad Momentum Causal Effect, "
        "NeurIPS 2020",
        "normalized classifier with several heads; at test time, the mean direction of features is removed",
        ("heads", "effect", *_MIX),
    ),
    "reslt": About(
        "Cui et al., ResLT: Residual Learning for Long-Tailed Recognition, TPAMI 2023",
        "a branch for all classes, one for medium and rare ones, one for rare ones; their logits are summed",
        ("branch_share", "medium", "tail", "test_norm"),
    ),
    "ride": About(
        "Wang et al., Long-tailed Recognition by Routing Diverse Distribution-Aware Experts, ICLR 2021",
        "experts that share the early layers, each with the LDAM-DRW loss, rewarded for being diverse (no router)",
        (*_DRW[:3], "experts", "diversity", "spread"),
    ),
    "oltr": About(
        "Liu et al., Large-Scale Long-Tailed Recognition in an Open World, CVPR 2019",
        "first train the network; then attention, and features completed from a memory of class centroids",
        ("first",),
    ),
    "lift": About(
        "Shi et al., Long-Tail Learning with Foundation Model: Heavy Fine-Tuning Hurts, ICML 2024",
        "adapters, a cosine classifier started from class means, logit-adjusted loss, mean over five test crops",
        ("tau", "crops"),
    ),
}
TWO_STAGES = ("crt", "lws", "tau-norm", "ncm", "mislas", "oltr")  # they continue from a model trained by another method

VIEWS = (
    *("plain", "sim", "sim_warp", "rand", "rand_stack", "rand_blur", "mae"),
    *("cifar_regular", "cifar_sim", "cifar_aug"),
)
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
    """Return a field with a default, a description, and bounds: low <= value <= high, above < value < below."""
    bounds = {"at least": low, "above": above, "at most": high, "below": below}
    bounds = {word: bound for word, bound in bounds.items() if bound is not None}
    return field(default=default, metadata={"about": about, "bounds": bounds, "choices": choices})


@dataclass(frozen=True)
class Data:
    path: str = setting("", "folder, table, list or archive; usually given on the command line")
    root: str = setting("", "folder that paths in a table or list are relative to; empty: its own folder")
    long_tail: float = setting(0.0, "subsample training data to this imbalance factor; 0: use all of it", low=0)
    validation: float = setting(
        0.1, "fraction of training data held out if there is no validation split; 0: none", low=0, below=1
    )
    seed: int = setting(
        0, "seed of the long-tailed subset and the validation split, not of training", low=0, below=2**32
    )
    evaluate_on: str = setting(
        "auto", "split that the final metrics are computed on; auto: test, else val", choices=("auto", "test", "val")
    )
    on_bad_image: str = setting("error", "unreadable images: stop, or leave out and list", choices=("error", "skip"))
    allow_empty_classes: bool = setting(False, "keep classes without training images")
    allow_leakage: bool = setting(False, "continue if the same image is in two splits")
    allow_outside: bool = setting(False, "follow paths in a table or list that lead out of its folder")
    in_memory: float = setting(2000.0, "decode small images of one size only once if they fit in this many MB", low=0)
    many: int = setting(100, "classes with more training images are 'many'", low=0)
    few: int = setting(20, "classes with fewer training images are 'few'", low=0)
    expect_images: int = setting(0, "required number of training images; 0: any", low=0)
    expect_groups: tuple[int, ...] = setting((), "required numbers of many, medium and few classes; []: any", low=0)

    @property
    def places(self) -> list[object]:
        """The locations of labeled images, where no results may be written."""
        return labeled_places(self.path, self.root)


@dataclass(frozen=True)
class Model:
    name: str = setting("auto", "resnet8, resnet32, resnet50_cifar or any timm model; auto: chosen from the data")
    weights: str = setting(
        "auto",
        "pretrained weights: a file, hub (download), package (pip) or none; auto: chosen from the data",
    )
    dim: int = setting(128, "dimension of the embeddings", low=1)
    projector: str = setting(
        "gpaco",
        "gpaco: three layers; paco, and always bcl: two, batch norm; two-layer: two; mae: three, GELU",
        choices=("gpaco", "paco", "two-layer", "mae"),
    )
    hidden: int = setting(0, "width of a ReLU layer between backbone and heads; 0: none", low=0)
    ghost_batch: int = setting(0, "images that share batch-norm statistics in training; 0: the whole batch", low=0)
    drop_path: float = setting(0.0, "rate of stochastic depth", low=0, below=1)
    pool: str = setting(
        "", "mean: average a ViT's patches, then normalize, as in MAE; empty: the model's default", choices=("", "mean")
    )
    head_std: float = setting(0.0, "initial std of the class centers, with biases 0; 0: PyTorch's default", low=0)
    size: int = setting(0, "width and height of input images; 0: from the data or the weights", low=0)
    resize: int = setting(0, "shorter side before the center crop at test time; 0: size / 0.875", low=0)
    interpolation: str = setting(
        "bilinear", "interpolation when test images are resized", choices=("bilinear", "bicubic")
    )
    mean: tuple[float, ...] = setting((), "mean of each channel, from 0 to 1; []: from the data or the weights")
    std: tuple[float, ...] = setting(
        (), "standard deviation of each channel; []: from the data or the weights", above=0
    )


@dataclass(frozen=True)
class Views:
    first: str = setting("auto", "augmentation of the first view; auto: chosen from the data", choices=("auto", *VIEWS))
    second: str = setting("auto", "augmentation of the second view; empty: one view", choices=("auto", "", *VIEWS))
    crop_scale: tuple[float, ...] = setting(
        (), "smallest and largest share of the image area in a crop; []: the view's own", above=0, high=1
    )
    ops: int = setting(2, "number of RandAugment operations per image", low=0, high=100)
    magnitude: int = setting(10, "magnitude of RandAugment", low=0, high=30)
    flip: bool = setting(True, "mirror half of the images")
    erase: float = setting(0.0, "probability of replacing a rectangle by noise", low=0, high=1)


@dataclass(frozen=True)
class MethodSettings:
    name: str = setting("gpaco", "training method", choices=tuple(METHODS))
    first: str = setting("ce", "method of the first stage, or the folder of a run to start from: crt, lws, ...")
    alpha: float = setting(0.05, "weight of a positive sample; that of the class center is 1", low=0, below=1e6)
    temperature: float = setting(0.2, "temperature of the similarities", low=1e-6)
    memory: int = setting(8192, "number of past embeddings to contrast with (the queue)", low=0)
    prior: str = setting(
        "unbiased", "log prior added to the centers; counts: as published", choices=("unbiased", "counts", "none")
    )
    tune_prior: bool = setting(
        False, "after training, tune tau * log prior on validation data and add it to the logits"
    )
    start: str = setting(
        "balanced", "shift the centers before the first step; released: as published", choices=("balanced", "released")
    )
    contrast: str = setting("local", "contrast with views of this process or of all", choices=("local", "global"))
    label_smoothing: float = setting(
        0.0, "smoothing s; gpaco and paco give each other class s/(C-1), the others s/C", low=0, below=1
    )
    momentum: float = setting(0.999, "momentum of the key network", low=0, high=1)
    momentum_keys: bool = setting(False, "supcon, multitask: keys from a momentum network, as paco always has")
    shuffle_keys: bool = setting(
        False, "shuffle the images of momentum keys, so that batch norm groups them differently than their queries"
    )
    anchors: str = setting(
        "all", "gpaco, supcon, multitask: every view is an anchor, or only the first", choices=("all", "first")
    )
    center_temperature: bool = setting(False, "divide the logits of the class centers by the temperature too")
    base: str = setting("balanced-softmax", "loss that multitask adds SupCon to", choices=("balanced-softmax", "ce"))
    weight: float = setting(0.5, "weight of SupCon in multitask", low=0)
    rebalance: str = setting(
        "none",
        "rebalance SupCon by class weights (effective number) or prior (balanced softmax)",
        choices=("none", "weights", "prior"),
    )
    beta: float = setting(0.999, "beta of the effective number: rebalance = weights", low=0, below=1)
    gamma: float = setting(2.0, "gamma of the focal loss", low=0)
    tau: float = setting(1.0, "factor on the log frequencies: balanced-softmax, lift", low=0)
    cb_beta: float = setting(0.9999, "beta of the effective number: class-balanced, cb-focal", low=0, below=1)
    cb_gamma: float = setting(1.0, "gamma of cb-focal", low=0)
    scale: float = setting(30.0, "factor on the cosines of ldam-drw, bcl and ride", above=0)
    margin: float = setting(0.5, "margin of the rarest class: ldam-drw, ride", low=0)
    drw_start: float = setting(
        0.8, "share of the epochs after which classes are weighted: ldam-drw, ride", low=0, high=1
    )
    bcl_logits: float = setting(1.0, "weight of the logit-adjusted loss in bcl", low=0)
    bcl_weight: float = setting(0.35, "weight of the contrast in bcl", low=0)
    bcl_temperature: float = setting(0.07, "temperature of the contrast in bcl", above=0)
    norm_tau: float = setting(-1.0, "power of the norm in tau-norm; -1: selected on validation data", low=-1)
    first_mixup: float = setting(0.2, "alpha of mixup in the first stage of mislas", low=0)
    smooth_head: float = setting(0.3, "label smoothing of the most frequent class in mislas", low=0, below=1)
    smooth_tail: float = setting(0.0, "label smoothing of the rarest class in mislas", low=0, below=1)
    classifier_rate: float = setting(0.05, "factor on the learning rate of the classifier in mislas", low=0)
    shift_norms: bool = setting(True, "mislas: update batch-norm statistics under class-balanced sampling")
    heads: int = setting(2, "number of heads of the classifier in causal-norm", low=1)
    effect: float = setting(1.5, "share of the mean direction that causal-norm removes at test time", low=0)
    branch_share: float = setting(
        0.99, "weight of the branch losses in reslt; the fused loss has the rest", low=0, high=1
    )
    medium: float = setting(0.65, "share of the classes, from the rarest, in the second branch of reslt", low=0, high=1)
    tail: float = setting(0.3, "share of the classes, from the rarest, in the third branch of reslt", low=0, high=1)
    test_norm: float = setting(0.0, "reslt divides class weights by their norm to this power at test time", low=0)
    experts: int = setting(3, "number of experts in ride", low=2, high=16)
    diversity: float = setting(0.2, "weight of the diversity of experts in ride", low=0)
    spread: float = setting(0.02, "how much the temperature of a class in ride follows its frequency", low=0, high=1)
    crops: bool = setting(
        True, "lift: mean over five crops of a larger image at test time; one crop with cached features"
    )
    fuse: bool = setting(True, "add the logits of the closed-form classifier to those of a head on cached features")
    mixup: float = setting(0.0, "alpha of mixup; 0: off", low=0)
    cutmix: float = setting(0.0, "alpha of cutmix; 0: off", low=0)


@dataclass(frozen=True)
class Segmentation:
    crop: tuple[int, ...] = setting((), "height and width of a training crop; []: chosen from the data", low=1)
    base_size: tuple[int, ...] = setting(
        (), "short and long side to fit an image into at scale 1; []: chosen from the data", low=1
    )
    scale: tuple[float, ...] = setting((0.5, 2.0), "smallest and largest random scale of the base size", above=0)
    max_share: float = setting(0.75, "largest share of one class in a crop, unless ten tries fail", above=0)
    colors: bool = setting(True, "distort brightness, contrast, saturation and hue")
    channels: int = setting(0, "width of the decoder; 0: its own default", low=0)
    output_stride: int = setting(8, "output stride of the DeepLab encoder; 16 is faster", choices=(8, 16))
    aux_weight: float = setting(0.4, "weight of the auxiliary head's cross entropy; 0: no such head", low=0)
    dice: float = setting(0.0, "weight of the Dice loss, which weights all classes in a batch equally", low=0)
    weight: float = setting(1.0, "weight of the GPaCo loss among pixels", low=0)
    pixels: int = setting(8192, "number of pixels sampled from each image; -1: all", low=-1)
    window: tuple[int, ...] = setting((), "height and width of the test-time window; []: whole images", low=1)
    stride: tuple[int, ...] = setting((), "step between windows; []: two thirds of a window", low=1)
    many: float = setting(1.0, "classes with more than this times the mean share of pixels are 'many'", low=0)
    few: float = setting(0.1, "classes with less than this times the mean share of pixels are 'few'", low=0)


@dataclass(frozen=True)
class Optimizer:
    name: str = setting("sgd", "optimizer", choices=("sgd", "adamw"))
    lr: float = setting(0.05, "peak learning rate", low=0)
    weight_decay: float = setting(5e-4, "weight decay", low=0)
    decay_bias: bool = setting(True, "decay biases, norms and tokens too, as the released ResNet scripts do")
    momentum: float = setting(0.9, "momentum of SGD", low=0, below=1)
    nesterov: bool = setting(False, "Nesterov momentum of SGD")
    betas: tuple[float, ...] = setting((0.9, 0.999), "betas of AdamW", low=0, below=1)
    layer_decay: float = setting(1.0, "learning-rate factor per layer below the head of a ViT", above=0, high=1)
    clip: float = setting(0.0, "largest gradient norm; 0: no clipping", low=0)


@dataclass(frozen=True)
class Schedule:
    name: str = setting("cosine", "learning-rate schedule; formulas in gpaco/training/schedule.py", choices=SCHEDULES)
    warmup: float = setting(5.0, "epochs of linear warm-up", low=0)
    steps: tuple[float, ...] = setting((), "epochs at which step multiplies the rate", low=0)
    factor: float = setting(0.1, "factor that step multiplies by", above=0)
    min_lr: float = setting(0.0, "final rate of cosine and poly", low=0)
    power: float = setting(1.0, "power of poly", above=0)
    per: str = setting("epoch", "update the rate every epoch or every step", choices=("epoch", "step"))


@dataclass(frozen=True)
class Train:
    task: str = setting("classification", "task to train", choices=("classification", "segmentation"))
    epochs: int = setting(30, "number of epochs", low=1)
    batch_size: int = setting(128, "images per step, summed over all processes", low=1)
    accumulate: int = setting(1, "number of parts that a batch is processed in", low=1)
    sampler: str = setting(
        "shuffle", "sampling of training images", choices=("shuffle", "balanced", "sqrt", "reversed")
    )
    part: str = setting(
        "auto",
        "part of the model to train; auto: head of a pretrained one on a CPU",
        choices=("auto", "all", "last-block", "head", "lora"),
    )
    lora_rank: int = setting(4, "rank of the LoRA adapters if part = lora", low=1)
    cached_views: int = setting(4, "views of each image embedded once if part = head; 0: embed in every step", low=0)
    tune: float = setting(0.0, "minutes to search for head settings by cross-validation; 0: no search", low=0)
    features: str = setting("", "folder for embedded views, to share between runs; empty: inside the run")
    amp: str = setting("off", "mixed precision", choices=("off", "bf16", "fp16"))
    ema: float = setting(0.0, "decay of the averaged weights; 0: off", low=0, below=1)
    compile: bool = setting(False, "torch.compile the model")
    workers: int = setting(-1, "number of processes that load images; -1: chosen automatically", low=-1, high=1024)
    timeout: float = setting(10.0, "minutes that processes wait for each other", above=0)
    seed: int = setting(0, "seed of weights, data order and augmentation", low=0)
    select: str = setting("best", "epoch to keep: best on validation data, or last", choices=("best", "last"))
    log: str = setting(
        "",
        "trackers to log epochs to, besides metrics.jsonl",
        choices=("", "tensorboard", "wandb", "tensorboard,wandb"),
    )
    report: bool = setting(True, "write analysis.json and report.html at the end, which takes up to a minute")
    checkpoint_every: int = setting(1, "epochs between checkpoints", low=1)
    keep: int = setting(2, "number of checkpoints to keep besides the best", low=1)


@dataclass(frozen=True)
class PaperRow:
    table: str = setting("", "table of the paper")
    row: str = setting("", "row of that table")
    command: str = setting("", "command that trains it")
    hardware: str = setting("", "hardware of the authors")
    paper: str = setting("", "number in the paper")
    ours: str = setting("", "number we got; empty: not run by us")
    note: str = setting("", "anything else")
    assumed: tuple[str, ...] = setting((), "settings that no source gives")


@dataclass(frozen=True)
class Stage:
    """A stage: its name, and its changes to the recipe as (section, key, value)."""

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


def used(name: str, first: str = "") -> set[str]:
    """Return the settings in [method] that a method uses, including those of its first stage."""
    firsts = METHODS[first].uses if name in TWO_STAGES and first in METHODS else ()
    return {*_ANY, *METHODS[name].uses, *firsts}


SECTIONS: dict[str, type] = {f.name: type(f.default) for f in fields(Recipe) if f.name not in ("name", "stage")}
