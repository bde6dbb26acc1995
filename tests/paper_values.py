"""Every setting of every recipe, written down from the paper and the released code, not from the recipe files.

So neither a file nor a default can change unseen. `EXPECTED[name]` has the settings, `PAPER[name]` the paper's number,
`CLASSIFIER[name]` what the second stage of a recipe changes, `ASSUMED[name]` the settings that no source gives,
`SAID[name]` those that the paper's text gives, `HARDWARE[name]` what the authors used. The rows of the paper's tables
are in tests/paper_tables.py.
"""

from fnmatch import fnmatchcase
from typing import Any

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
# Everything that a recipe of the paper has in common with the others, in full. A name that two sections have is written
# with its section.
COMMON: dict[str, Any] = {
    "long_tail": 0, "validation": 0, "evaluate_on": "test", "many": 100, "few": 20,
    "weights": "", "dim": 128, "projector": "gpaco", "ghost_batch": 0, "drop_path": 0, "pool": "", "head_std": 0,
    "size": 224, "resize": 256, "interpolation": "bilinear", **IMAGENET,
    "crop_scale": (), "ops": 2, "magnitude": 10, "flip": True, "erase": 0,
    "method.name": "gpaco", "alpha": 0.05, "temperature": 0.2, "memory": 8192, "prior": "counts", "start": "released",
    "contrast": "local", "label_smoothing": 0, "method.momentum": 0.999, "momentum_keys": False,
    "base": "balanced-softmax", "weight": 0.5, "rebalance": "none", "beta": 0.999, "gamma": 2, "mixup": 0, "cutmix": 0,
    "optimiser.name": "sgd", "weight_decay": 5e-4, "decay_bias": True, "optimiser.momentum": 0.9, "nesterov": False,
    "betas": (0.9, 0.999), "layer_decay": 1, "clip": 0,
    "schedule.name": "cosine", "warmup": 10, "steps": (), "factor": 0.1, "min_lr": 0, "power": 1, "per": "epoch",
    "epochs": 400, "batch_size": 128, "accumulate": 1, "sampler": "shuffle", "part": "all", "amp": "off", "ema": 0,
    "task": "classification", "select": "last", "tune_prior": False, "hidden": 0, "cached_views": 4,
}  # fmt: skip
# What a recipe leaves to whoever runs it.
LEFT = {"data.path", "data.root", "data.seed", "data.on_bad_image", "data.allow_empty_classes", "data.allow_leakage"}
LEFT |= {"data.allow_outside", "train.channels_last", "train.compile", "train.workers", "train.seed"}
LEFT |= {"train.checkpoint_every", "train.keep", "train.timeout", "train.report", "train.features", "train.lora_rank"}

TWO_LAYERS = {"projector": "two-layer"}  # the MLP of the paper's text
EXPECTED: dict[str, dict[str, Any]] = {}
PAPER: dict[str, str] = {}


def expect(name: str, paper: str, *parts: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Note what a recipe should be."""
    expected = COMMON.copy()
    for part in (*parts, settings):
        expected |= part
    EXPECTED[name], PAPER[name] = expected, paper
    return expected


# CIFAR-100-LT: 400 epochs at 0.05, flat, a tenth after epoch 320 and again after 360
CIFAR = {"model.name": "resnet32", "size": 32, "resize": 0, "mean": (), "std": (), "memory": 1024, "lr": 0.05}
CIFAR |= {"schedule.name": "step-released", "steps": (320, 360), "first": "cifar_regular", "alpha": 0.01}
LONG_TAILS = {100: (10_847, (35, 35, 30)), 50: (12_608, (41, 41, 18)), 10: (19_573, (69, 31, 0))}
for factor, gpaco, paco, balanced, focal, epochs, warmup in (
    (100, "52.3", "52.0", "50.8", "38.4", 619, 38),
    (50, "56.4", "56.0", "54.2", "44.3", 542, 33),
    (10, "65.4", "64.2", "63.0", "55.8", 342, 21),
):
    name = f"cifar100-lt{factor}-resnet32"
    images, groups = LONG_TAILS[factor]
    tail = CIFAR | {"long_tail": factor, "expect_images": images, "expect_groups": groups}
    one = tail | {"second": "", "memory": 8192, "alpha": 0.05, "prior": "unbiased", "start": "balanced"}  # no contrast
    expect(f"{name}-gpaco", gpaco, tail, second="cifar_aug", temperature=0.07)
    expect(
        f"{name}-paco",
        paco,
        tail,
        {"method.name": "paco"},
        second="cifar_sim",
        temperature=0.05,
        dim=32,
        projector="paco",
    )
    expect(f"{name}-balanced-softmax", balanced, one, {"method.name": "balanced-softmax"})
    expect(f"{name}-ce", "", one, {"method.name": "ce"})
    steps = {"schedule.name": "step", "steps": (160, 180), "factor": 0.01, "warmup": 5, "epochs": 200, "lr": 0.1}
    expect(f"{name}-focal", focal, one, steps, {"method.name": "focal"}, gamma=1, weight_decay=2e-4, first="plain")
    # In the setting of balanced softmax: 13,000 iterations of 512 images
    assert round(13_000 / (images // 512)) == epochs
    assert round(800 / (images // 512)) == warmup
    theirs = {"schedule.name": "cosine", "per": "step", "steps": (), "lr": 0.1, "batch_size": 512}
    theirs |= {"epochs": epochs, "warmup": warmup, "temperature": 0.07}
    for method, number in (("gpaco", gpaco), ("paco", paco), ("balanced-softmax", balanced)):
        changed = theirs if method != "balanced-softmax" else theirs | {"temperature": 0.2}
        changed = changed | TWO_LAYERS if method == "gpaco" else changed
        expect(f"{name}-{method}-paper", number, EXPECTED[f"{name}-{method}"], changed)

# Full CIFAR-100: the prior stays in the released script, not in the paper
FULL = CIFAR | {"model.name": "resnet50_cifar", "first": "cifar_sim", "second": "cifar_sim", "temperature": 0.07}
FULL |= {"expect_images": 50_000, "expect_groups": (100, 0, 0)}
gpaco_full = expect("cifar100-resnet50-gpaco", "80.3", FULL)
paco_full = expect("cifar100-resnet50-paco", "79.1", FULL, {"method.name": "paco"}, projector="paco")
TEXT = {"batch_size": 256, "lr": 0.1}
expect("cifar100-resnet50-gpaco-paper", "80.3", gpaco_full, TEXT, TWO_LAYERS, prior="none")
expect("cifar100-resnet50-paco-paper", "79.1", paco_full, TEXT, prior="none")
ce_full = expect("cifar100-resnet50-ce", "77.9", gpaco_full, {"method.name": "ce"}, second="")
expect("cifar100-resnet50-ce-paper", "77.9", ce_full, TEXT)
supcon = {
    "method.name": "supcon",
    "temperature": 0.1,
    "memory": 0,
    "alpha": 0.05,
    "prior": "unbiased",
    "start": "balanced",
    "mean": (0.5071, 0.4867, 0.4408),
    "std": (0.2675, 0.2565, 0.2761),
}
slow = {"schedule.name": "cosine", "steps": (), "per": "step", "lr": 0.5, "epochs": 1000, "batch_size": 1024}
slow |= {"min_lr": 5e-4}  # 0.5 times 0.1 to the power of 3
expect("cifar100-resnet50-supcon", "76.5", FULL, supcon, slow, TWO_LAYERS, weight_decay=1e-4)
MULTITASK = {"method.name": "multitask", "weight": 0.5}
keys_full = expect("cifar100-resnet50-multitask-momentum", "78.0", paco_full, MULTITASK, base="ce", momentum_keys=True)
expect("cifar100-resnet50-multitask-momentum-paper", "78.0", keys_full, TEXT)
for weight, paper in ((0.1, "79.0"), (0.3, "79.1"), (0.5, "79.1"), (0.8, "78.9"), (1.0, "79.0")):
    variant = "" if weight == 0.5 else f"-w{weight}"
    both_full = expect(f"cifar100-resnet50-multitask{variant}", paper, gpaco_full, MULTITASK, base="ce", weight=weight)
    expect(f"cifar100-resnet50-multitask{variant}-paper", paper, both_full, TEXT, TWO_LAYERS)

# ImageNet-LT: 128 images on four GPUs
NETWORKS = {"resnet50": "resnet50", "resnext50": "resnext50_32x4d", "resnext101": "resnext101_32x4d"}
TAIL = {"ghost_batch": 32, "expect_images": 115_846, "expect_groups": (385, 479, 136)}
NINETY = {"epochs": 90, "batch_size": 512, "lr": 0.2, "warmup": 0, "ghost_batch": 0, "ops": 0, "second": ""}
for network, lr, alpha, ops, paper, lr_paco, t_paco, first, ops_paco, paper_paco, balanced, ce in (
    ("resnet50", 0.04, 0.045, 2, "58.5", 0.02, 0.2, "rand", 2, "57.0", "55.0", "41.6"),
    ("resnext50", 0.06, 0.05, 3, "58.9", 0.02, 0.07, "rand_stack", 2, "58.2", "56.2", "44.4"),
    ("resnext101", 0.06, 0.05, 5, "60.8", 0.03, 0.2, "rand_stack", 3, "60.0", "58.0", "44.8"),
):
    name, own = f"imagenet-lt-{network}", {"model.name": NETWORKS[network]}
    views = {"first": "rand", "second": "rand_stack", "ops": ops}
    gpaco_lt = expect(f"{name}-gpaco", paper, TAIL, own, views, lr=lr, alpha=alpha)
    expect(f"{name}-gpaco-paper", paper, gpaco_lt, TWO_LAYERS, lr=0.04, alpha=0.05, temperature=0.2)
    paco_lt = {"method.name": "paco", "projector": "paco", "first": first, "second": "sim", "ops": ops_paco}
    paco_lt = expect(f"{name}-paco", paper_paco, TAIL, own, paco_lt, lr=lr_paco, temperature=t_paco)
    if network != "resnet50":  # whose script has the values of the text
        expect(f"{name}-paco-paper", paper_paco, paco_lt, lr=0.02, alpha=0.05, temperature=0.2)
    expect(f"{name}-balanced-softmax", balanced, gpaco_lt, {"method.name": "balanced-softmax"}, second="")
    expect(f"{name}-ce", ce, gpaco_lt, {"method.name": "ce"}, NINETY)

r50, x50, x101 = (EXPECTED[f"imagenet-lt-{network}-gpaco"] for network in NETWORKS)
r50_paco, x50_paco = (EXPECTED[f"imagenet-lt-{network}-paco"] for network in ("resnet50", "resnext50"))
SIM = {"first": "sim", "second": "sim"}
MOMENTUM = MULTITASK | {"momentum_keys": True}
expect("imagenet-lt-resnet50-ce-sim", "48.4", r50_paco, {"method.name": "ce"}, first="sim", second="")
expect("imagenet-lt-resnet50-supcon", "22.0", r50_paco, SIM, {"method.name": "supcon"}, momentum_keys=True)
expect("imagenet-lt-resnet50-paco-no-prior", "51.0", r50_paco, SIM, prior="none")
expect("imagenet-lt-resnet50-multitask-momentum-rw", "49.0", r50_paco, SIM, MOMENTUM, base="ce", rebalance="weights")
expect("imagenet-lt-resnet50-multitask-momentum-balsfx", "48.6", r50_paco, SIM, MOMENTUM, base="ce", rebalance="prior")
expect("imagenet-lt-resnet50-paco-sim-sim", "55.0", r50_paco, SIM)
expect("imagenet-lt-resnet50-paco-sim-sim-crop0.2", "52.2", r50_paco, SIM, crop_scale=(0.2, 1))
expect("imagenet-lt-resnet50-paco-rand-rand", "56.5", r50_paco, second="rand")
expect("imagenet-lt-resnet50-gpaco-rand-sim", "57.9", r50, second="sim")
expect("imagenet-lt-resnet50-gpaco-rand-sim-paper", "57.9", r50, TWO_LAYERS, second="sim", alpha=0.05)
for weight, paper in (
    (0.05, "57.0"),
    (0.1, "57.1"),
    (0.2, "57.1"),
    (0.3, "57.0"),
    (0.5, "57.2"),
    (0.8, "57.2"),
    (1.0, "56.9"),
):
    keys = expect(f"imagenet-lt-resnext50-multitask-momentum-w{weight}", paper, x50_paco, MOMENTUM, weight=weight)
    expect(f"imagenet-lt-resnext50-multitask-momentum-w{weight}-paper", paper, keys, rebalance="weights")
for row, start, weight, paper in (
    ("resnet50-multitask", r50, 0.5, "57.8"),
    ("resnext50-multitask", x50, 0.5, "58.3"),
    ("resnext50-multitask-w0.8", x50, 0.8, "58.2"),
    ("resnext101-multitask", x101, 0.5, "60.0"),
):
    both = expect(f"imagenet-lt-{row}", paper, start, MULTITASK, weight=weight)
    expect(f"imagenet-lt-{row}-paper", paper, both, TWO_LAYERS, rebalance="weights")
for memory in (1024, 2048, 4096):
    expect(f"imagenet-lt-resnext50-gpaco-memory{memory}", "", x50, memory=memory)
    expect(f"imagenet-lt-resnext50-gpaco-memory{memory}-paper", "", x50, TWO_LAYERS, memory=memory, lr=0.04)

# iNaturalist 2018: 128 images on eight GPUs (GPaCo, ResNet-50) or four
INAT = {"mean": (0.466, 0.471, 0.380), "std": (0.195, 0.194, 0.192), "evaluate_on": "val", "weight_decay": 1e-4}
INAT |= {"expect_images": 437_513, "expect_groups": (842, 4076, 3224), "first": "rand", "second": "sim"}
PACO = {"method.name": "paco", "projector": "paco"}
gpaco_inat = expect("inat18-resnet50-gpaco", "75.4", INAT, {"model.name": "resnet50"}, lr=0.04, ghost_batch=16)
paco_inat = expect("inat18-resnet50-paco", "73.2", INAT, PACO, {"model.name": "resnet50"}, lr=0.02, ghost_batch=32)
expect("inat18-resnet152-gpaco", "78.1", INAT, {"model.name": "resnet152"}, lr=0.04, ghost_batch=32)
expect("inat18-resnet152-paco", "75.3", paco_inat, {"model.name": "resnet152"})
expect(
    "inat18-resnet50-gpaco-paper", "75.4", gpaco_inat, TWO_LAYERS,
    weight_decay=5e-4, second="rand_stack", ghost_batch=32,
)  # fmt: skip
expect("inat18-resnet50-paco-paper", "73.2", paco_inat, weight_decay=5e-4)
expect("inat18-resnet152-paco-paper", "75.3", paco_inat, {"model.name": "resnet152"}, weight_decay=5e-4)
expect("inat18-resnet50-balanced-softmax", "71.8", gpaco_inat, {"method.name": "balanced-softmax"}, second="")

# Places-LT: the last block of a pretrained ResNet-152
PLACES = {"model.name": "resnet152", "weights": "resnet152-394f9c45.safetensors", "ghost_batch": 32, **SIM, "lr": 0.02}
PLACES |= {"epochs": 30, "warmup": 5, "part": "last-block", "amp": "fp16", "evaluate_on": "val"}
PLACES |= {"expect_images": 62_500, "expect_groups": (131, 163, 71)}
gpaco_places = expect("places-lt-resnet152-gpaco", "41.7", PLACES, alpha=0.02)
paco_places = expect("places-lt-resnet152-paco", "41.2", PLACES, PACO, alpha=0.05)
expect("places-lt-resnet152-paco-rand", "41.2", paco_places, first="rand")
expect("places-lt-resnet152-gpaco-test", "41.7", gpaco_places, evaluate_on="test")
expect("places-lt-resnet152-gpaco-paper", "41.7", gpaco_places, TWO_LAYERS, evaluate_on="test")
expect("places-lt-resnet152-paco-test", "41.2", paco_places, evaluate_on="test")
expect("places-lt-resnet152-paco-rand-test", "41.2", paco_places, evaluate_on="test", first="rand")
ONE = {"second": "", "evaluate_on": "test"}
expect("places-lt-resnet152-ce", "30.2", gpaco_places, ONE, {"method.name": "ce"})
expect("places-lt-resnet152-balanced-softmax", "38.6", gpaco_places, ONE, {"method.name": "balanced-softmax"})

# Full ImageNet with ResNets
BALANCED = {"expect_images": 1_281_167, "expect_groups": (1000, 0, 0), "evaluate_on": "val", "prior": "none"}
RESNET = BALANCED | {
    "weight_decay": 1e-4,
    "first": "rand",
    "second": "sim",
    "lr": 0.04,
    "batch_size": 256,
    "ghost_batch": 32,
}
gpaco_in = expect(
    "imagenet-resnet50-gpaco", "79.7", RESNET, {"model.name": "resnet50"},
    lr=0.08, batch_size=512, ghost_batch=64, label_smoothing=0.1, second="rand_stack",
)  # fmt: skip
LIKE_LT = {"batch_size": 128, "ghost_batch": 32, "weight_decay": 5e-4}
GPACO_TEXT = LIKE_LT | TWO_LAYERS | {"lr": 0.04, "label_smoothing": 0}
expect("imagenet-resnet50-gpaco-paper", "79.7", gpaco_in, GPACO_TEXT)
expect("imagenet-resnet50-gpaco-rand", "79.5", gpaco_in, second="sim")
expect("imagenet-resnet50-gpaco-rand-paper", "79.5", gpaco_in, GPACO_TEXT, second="sim")
paco50, paco101, paco200 = (RESNET | PACO | {"model.name": f"resnet{layers}"} for layers in (50, 101, 200))
paco200 |= {"first": "rand_stack", "ops": 3, "magnitude": 12, "amp": "fp16"}
expect("imagenet-resnet50-paco", "79.3", paco50)
expect("imagenet-resnet50-paco-sim", "78.7", paco50, SIM)
expect("imagenet-resnet101-paco", "80.9", paco101)
expect("imagenet-resnet200-paco", "81.8", paco200)
expect("imagenet-resnet50-paco-paper", "79.3", paco50, LIKE_LT, lr=0.02)
expect("imagenet-resnet50-paco-sim-paper", "78.7", paco50, SIM, LIKE_LT, lr=0.02)
expect("imagenet-resnet101-paco-paper", "80.9", paco101, LIKE_LT, lr=0.02, first="rand_stack")
expect("imagenet-resnet200-paco-paper", "81.8", paco200, LIKE_LT, lr=0.02)
expect("imagenet-resnet50-multitask-momentum", "78.1", paco50, MOMENTUM, base="ce")
CONTRAST = {"method.name": "supcon", "momentum_keys": True, "temperature": 0.1, "epochs": 350}
expect("imagenet-resnet50-supcon-sim", "77.9", paco50, CONTRAST, SIM)
for name, paper in (("imagenet-resnet50-supcon-rand", "78.4"), ("imagenet-resnet50-supcon", "78.7")):
    expect(name, paper, paco50, CONTRAST, first="rand", second="rand")
expect("imagenet-resnet101-supcon-stack", "80.2", paco101, CONTRAST, first="rand_stack", second="rand_stack")

# Full ImageNet with ViTs from MAE's weights: 1,024 images, 256 or 128 at a time on eight GPUs
VIT = {"projector": "mae", "pool": "mean", "head_std": 2e-5, "interpolation": "bicubic", "optimiser.name": "adamw"}
VIT |= {"weight_decay": 0.05, "decay_bias": False, "warmup": 5, "min_lr": 1e-6, "per": "step", "batch_size": 1024}
VIT |= {"amp": "fp16", "alpha": 0.2, "label_smoothing": 0.1, "first": "rand_stack", "second": "sim", "ops": 12}
base_vit = {"model.name": "vit_base_patch16_224", "weights": "mae_pretrain_vit_base.safetensors", "drop_path": 0.1}
base_vit |= {"lr": 5e-4 * 1024 / 256, "layer_decay": 0.65, "epochs": 100, "accumulate": 4}
large_vit = {"model.name": "vit_large_patch16_224", "weights": "mae_pretrain_vit_large.safetensors", "drop_path": 0.2}
large_vit |= {"lr": 1e-3 * 1024 / 256, "layer_decay": 0.75, "epochs": 50, "accumulate": 8}
MAE: dict[str, Any] = {"method.name": "ce", "first": "mae", "second": "", "ops": 2, "magnitude": 9, "erase": 0.25}
for letter, own, paper, mixed, plain in (
    ("b", base_vit, "84.0", "83.6", "82.5"),
    ("l", large_vit, "86.0", "85.7", "85.2"),
):
    vit = expect(f"imagenet-vit-{letter}-gpaco", paper, BALANCED, VIT, own)
    expect(f"imagenet-vit-{letter}-gpaco-paper", paper, vit, TWO_LAYERS)
    expect(f"imagenet-vit-{letter}-mae", plain, vit, MAE)
    expect(f"imagenet-vit-{letter}-mae-mixup", mixed, vit, MAE, mixup=0.8, cutmix=1.0)
expect("imagenet-vit-b-gpaco-single-view", "82.5", EXPECTED["imagenet-vit-b-gpaco"], second="")
expect("imagenet-vit-b-gpaco-single-view-paper", "82.5", EXPECTED["imagenet-vit-b-gpaco"], TWO_LAYERS, second="")
vit_both = expect("imagenet-vit-b-multitask", "83.4", EXPECTED["imagenet-vit-b-gpaco"], MULTITASK, base="ce")
expect("imagenet-vit-b-multitask-paper", "83.4", vit_both, TWO_LAYERS)

LINEAR: dict[str, Any] = {"method.name": "ce", "views.second": "", "optimiser.lr": 5.0, "optimiser.weight_decay": 0.0}
LINEAR |= {"schedule.warmup": 0.0, "train.part": "head", "train.cached_views": 0}
# The code of Khosla et al. for CIFAR: 100 epochs of 512 images, a fifth at 60, 75 and 90, crops and mirroring
KHOSLA: dict[str, Any] = LINEAR | {
    "train.epochs": 100,
    "train.batch_size": 512,
    "views.first": "plain",
    "views.crop_scale": (0.2, 1),
}
KHOSLA |= {"schedule.name": "step", "schedule.steps": (60, 75, 90), "schedule.factor": 0.2}
CLASSIFIER = {
    "imagenet-lt-resnet50-supcon": KHOSLA,
    "imagenet-resnet50-supcon-sim": LINEAR | {"train.epochs": 350},
    "imagenet-resnet50-supcon": LINEAR | {"train.epochs": 350},
    "imagenet-resnet50-supcon-rand": LINEAR | {"train.epochs": 350},
    "imagenet-resnet101-supcon-stack": LINEAR | {"train.epochs": 350},
    "cifar100-resnet50-supcon": KHOSLA | {"schedule.per": "epoch"},
}


def fitting(patterns: str) -> list[str]:
    """The recipes whose names fit one of the patterns; each must fit some."""
    found = [[name for name in EXPECTED if fnmatchcase(name, pattern)] for pattern in patterns.split()]
    assert all(found), patterns
    return [name for names in found for name in names]


# What neither the paper nor the released code gives. Rows taken over from other papers have the settings of those
ASSUMED: dict[str, set[str]] = {name: set() for name in EXPECTED}
SCRIPT = "optimiser.lr optimiser.weight_decay schedule.name schedule.warmup train.batch_size"  # what scripts would say


def assume(patterns: str, *keys: str) -> None:
    """Note settings that no source gives."""
    for name in fitting(patterns):
        ASSUMED[name] |= set(" ".join(keys).split())


assume("cifar100-lt*-gpaco cifar100-lt*-gpaco-paper", "model.dim")
assume("cifar100-lt*-paper", "schedule.warmup")
assume("cifar100-lt*-balanced-softmax cifar100-lt*-ce cifar100-lt*-focal", SCRIPT, "train.epochs views.second")
assume("cifar100-lt*-ce cifar100-lt*-focal", "views.first")
assume("cifar100-lt*-focal", "method.gamma")

contrast = "cifar100-resnet50-paco* cifar100-resnet50-multitask-momentum*"
assume(f"{contrast} cifar100-resnet50-ce*", "schedule.name schedule.warmup train.epochs")
assume(contrast, "model.dim method.memory")
assume("cifar100-resnet50-ce*", "views.second")
assume("*-multitask-momentum*", "model.projector")
assume("*-supcon*", SCRIPT, "views.first views.second method.temperature method.memory model.projector")
assume("imagenet-*-supcon*", "model.ghost_batch method.momentum_keys")
assume("imagenet-resnet*-supcon*", "optimiser.name")
assume("imagenet-resnet50-supcon imagenet-*-supcon-rand imagenet-*-supcon-stack", "views.ops")
assume("imagenet-lt-*-supcon cifar100-*-supcon", "train.epochs views.crop_scale")
assume("cifar100-*-supcon", "model.mean model.std schedule.min_lr")

assume("imagenet-lt-*-balanced-softmax inat18-*-balanced-softmax", SCRIPT, "model.ghost_batch views.second views.ops")
assume("imagenet-lt-*-ce imagenet-lt-*-ce-sim", SCRIPT, "model.ghost_batch views.first views.second train.epochs")
assume("imagenet-lt-*-ce", "views.ops")
assume("imagenet-lt-*-no-prior", SCRIPT, "model.ghost_batch views.first train.epochs")
assume("imagenet-lt-*-momentum-*", SCRIPT, "model.ghost_batch views.first method.temperature method.memory")
assume("*-momentum-rw *-momentum-balsfx", "method.momentum_keys method.weight train.epochs")
assume("imagenet-lt-*-momentum-w*", "views.ops")
assume("imagenet-lt-resnet50-multitask imagenet-lt-resnet50-multitask-paper", "optimiser.lr views.ops")
assume("*-memory1024* *-memory2048*", "method.memory")

taken_over = "places-lt-*-ce places-lt-*-balanced-softmax"
assume(taken_over, SCRIPT, "model.ghost_batch views.first views.second train.epochs train.part train.amp")
assume("places-lt-*-paco-rand*", "views.first views.ops")
assume("imagenet-*-gpaco-rand imagenet-*-gpaco-rand-paper", "views.second")
assume("imagenet-resnet*-paco imagenet-resnet*-paco-sim inat18-resnet152-paco", "model.ghost_batch")
assume("imagenet-resnet50-multitask-momentum", SCRIPT, "model.ghost_batch method.weight")
assume("imagenet-vit-*-mae imagenet-vit-*-mae-mixup", "views.first views.ops views.magnitude")
assume("imagenet-vit-*-mae", "views.erase")

# What the text says of a row; where the released code does otherwise, there is a second recipe
SAID: dict[str, dict[str, Any]] = {name: {} for name in EXPECTED if not name.endswith(("-paper", "-test"))}


def says(patterns: str, **settings: Any) -> None:
    """Note what the text says, of recipes with the released values."""
    for name in fitting(patterns):
        if name in SAID:
            SAID[name] |= settings


says("*-gpaco *-gpaco-* *-multitask *-multitask-w*", projector="two-layer")
says("inat18-resnet152-gpaco", projector="gpaco")  # of which the text does not speak
long_tailed = "imagenet-lt-*-{0} imagenet-lt-*-{0}-* inat18-*-{0} imagenet-resnet*-{0} imagenet-resnet*-{0}-*"
for method, lr in (("gpaco", 0.04), ("paco", 0.02)):
    says(long_tailed.format(method), lr=lr, alpha=0.05, temperature=0.2, batch_size=128, epochs=400)
    says(f"inat18-resnet50-{method} imagenet-resnet*-{method} imagenet-resnet*-{method}-*", weight_decay=5e-4)
says("inat18-resnet152-paco", weight_decay=5e-4)
says("inat18-resnet50-gpaco", second="rand_stack")
says("imagenet-resnet*-gpaco*", label_smoothing=0)
says("imagenet-resnet101-paco imagenet-resnet200-paco", first="rand_stack")
says("imagenet-lt-*-multitask imagenet-lt-*-multitask-w* imagenet-lt-*-momentum-w* *-rw", rebalance="weights")
says("imagenet-lt-*-momentum-balsfx", rebalance="prior")
says("cifar100-lt*-gpaco cifar100-lt*-paco cifar100-lt*-balanced-softmax", lr=0.1, batch_size=512, per="step")
says("cifar100-lt*-gpaco cifar100-lt*-paco", temperature=0.07, alpha=0.01)
says("cifar100-resnet50-*", lr=0.1, batch_size=256, weight_decay=5e-4)
says("cifar100-resnet50-gpaco cifar100-resnet50-paco", temperature=0.07, alpha=0.01, prior="none")
says("places-lt-*-paco places-lt-*-paco-rand", alpha=0.05)
says("places-lt-*-gpaco", alpha=0.02)
says("places-lt-*paco*", lr=0.02, temperature=0.2, batch_size=128, epochs=30, evaluate_on="test")
SAID["inat18-resnet152-gpaco"] = SAID["cifar100-resnet50-supcon"] = {}  # not in the paper; taken over from another

# Where the scripts, the README or the text name it
HARDWARE = dict.fromkeys(EXPECTED, "not given")
for hardware, patterns in (
    ("1 GPU", "cifar100-lt*-gpaco cifar100-lt*-paco cifar100-*-gpaco cifar100-*-multitask cifar100-*-multitask-w?.?"),
    ("4 GPUs", "imagenet-lt-*-gpaco* imagenet-lt-*-paco imagenet-lt-*-paco-* imagenet-lt-*-multitask*"),
    ("not given", "imagenet-lt-*-no-prior imagenet-lt-*-momentum-*"),
    (
        "4 RTX 3090 GPUs",
        "*-resnext50-gpaco *-resnext50-gpaco-memory*[0-9] *-resnext50-multitask *-resnext50-multitask-w0.8",
    ),
    ("4 GPUs", "inat18-*paco* places-lt-*paco* imagenet-resnet*paco*"),
    ("8 RTX 3090 GPUs", "imagenet-vit-* inat18-resnet50-gpaco imagenet-resnet50-gpaco imagenet-resnet50-gpaco-rand"),
    (
        "4 or 8 GPUs",
        "imagenet-resnet50-paco imagenet-resnet50-paco-sim imagenet-resnet101-paco imagenet-resnet200-paco",
    ),
):
    HARDWARE |= dict.fromkeys(fitting(patterns), hardware)
