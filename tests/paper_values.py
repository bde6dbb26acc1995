"""Every setting of every recipe, written down from the paper and the released code, not from the recipe files.

So neither a file nor a default can change unseen. `EXPECTED[name]` has the settings, `PAPER[name]` the paper's number,
`CLASSIFIER[name]` what the second stage of a recipe changes.
"""

from typing import Any

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
# Everything that a recipe of the paper has in common with the others, in full. A name that two sections have is written
# with its section.
COMMON: dict[str, Any] = {
    "profile": "exponential", "long_tail": 0, "validation": 0, "evaluate_on": "test", "many": 100, "few": 20,
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
TEXT = {"prior": "none", "batch_size": 256, "lr": 0.1}
gpaco_full = expect("cifar100-resnet50-gpaco", "80.3", FULL)
paco_full = expect("cifar100-resnet50-paco", "79.1", FULL, {"method.name": "paco"}, projector="paco")
expect("cifar100-resnet50-gpaco-paper", "80.3", gpaco_full, TEXT, TWO_LAYERS)
expect("cifar100-resnet50-paco-paper", "79.1", paco_full, TEXT)
expect("cifar100-resnet50-ce", "77.9", gpaco_full, {"method.name": "ce"}, second="")
supcon = {
    "method.name": "supcon",
    "temperature": 0.1,
    "memory": 0,
    "alpha": 0.05,
    "prior": "unbiased",
    "start": "balanced",
}
slow = {"schedule.name": "cosine", "steps": (), "per": "step", "lr": 0.5, "epochs": 1000, "batch_size": 1024}
expect("cifar100-resnet50-supcon", "76.5", FULL, supcon, slow, TWO_LAYERS, weight_decay=1e-4)
MULTITASK = {"method.name": "multitask", "weight": 0.5}
expect("cifar100-resnet50-multitask-momentum", "78.0", paco_full, MULTITASK, base="ce", momentum_keys=True)
for weight, paper in ((0.1, "79.0"), (0.3, "79.1"), (0.5, "79.1"), (0.8, "78.9"), (1.0, "79.0")):
    variant = "" if weight == 0.5 else f"-w{weight}"
    expect(f"cifar100-resnet50-multitask{variant}", paper, gpaco_full, MULTITASK, base="ce", weight=weight)

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
    expect(f"imagenet-lt-resnext50-multitask-momentum-w{weight}", paper, x50_paco, MOMENTUM, weight=weight)
for network, start, paper in (("resnet50", r50, "57.8"), ("resnext50", x50, "58.3"), ("resnext101", x101, "60.0")):
    expect(f"imagenet-lt-{network}-multitask", paper, start, MULTITASK)
    expect(f"imagenet-lt-{network}-multitask-paper", paper, start, MULTITASK, rebalance="weights")
expect("imagenet-lt-resnext50-multitask-w0.8", "58.2", x50, MULTITASK, weight=0.8)
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
MAE = {"method.name": "ce", "first": "mae", "second": "", "ops": 2, "magnitude": 9, "erase": 0.25}
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
expect("imagenet-vit-b-multitask", "83.4", EXPECTED["imagenet-vit-b-gpaco"], MULTITASK, base="ce")

LINEAR = {"method.name": "ce", "views.second": "", "optimiser.lr": 5.0, "optimiser.weight_decay": 0.0}
LINEAR |= {"schedule.warmup": 0.0, "train.part": "head", "train.cached_views": 0}
CLASSIFIER = {
    "imagenet-lt-resnet50-supcon": LINEAR | {"train.epochs": 100},
    "imagenet-resnet50-supcon-sim": LINEAR | {"train.epochs": 350},
    "imagenet-resnet50-supcon": LINEAR | {"train.epochs": 350},
    "imagenet-resnet50-supcon-rand": LINEAR | {"train.epochs": 350},
    "imagenet-resnet101-supcon-stack": LINEAR | {"train.epochs": 350},
    "cifar100-resnet50-supcon": LINEAR | {"train.epochs": 100, "train.batch_size": 512, "views.first": "plain",
        "schedule.name": "step", "schedule.per": "epoch", "schedule.steps": (60, 75, 90), "schedule.factor": 0.2},
}  # fmt: skip
