"""The rows of the paper's classification tables: table, columns that name the row, and top-1 accuracy over all classes.

Written down from the paper, row by row; segmentation (Table 7) is in tests/recipes/.
"""

_TABLES = """
Table 1
Cross-Entropy: 48.4
SupCon: 22.0
PaCo, no center learning rebalance: 51.0
Table 2
CE (baseline), ResNet-50: 41.6
CE (baseline), ResNeXt-50: 44.4
CE (baseline), ResNeXt-101: 44.8
Decouple-cRT: 47.3 49.6 49.4
Decouple-tau-norm: 46.7 49.4 49.6
De-confound-TDE: 51.7 51.8 53.3
ResLT: 52.9 54.1
MiSLAS: 52.7
Decouple-tau-norm, RandAugment, ResNet-50: 54.5
Decouple-tau-norm, RandAugment, ResNeXt-50: 56.0
Decouple-tau-norm, RandAugment, ResNeXt-101: 57.9
Balanced Softmax, ResNet-50: 55.0
Balanced Softmax, ResNeXt-50: 56.2
Balanced Softmax, ResNeXt-101: 58.0
PaCo, ResNet-50: 57.0
PaCo, ResNeXt-50: 58.2
PaCo, ResNeXt-101: 60.0
GPaCo, ResNet-50: 58.5
GPaCo, ResNeXt-50: 58.9
GPaCo, ResNeXt-101: 60.8
Table 3
CE (baseline): 30.2
OLTR: 35.9
Decouple-tau-norm: 37.9
Balanced Softmax: 38.6
ResLT: 39.8
MiSLAS: 40.4
RIDE, 2 experts:
PaCo: 41.2
PaCo, with RandAugment: 41.2
GPaCo: 41.7
Table 4
MAE, ViT-B, with Mixup and CutMix: 83.6
MAE, ViT-L, with Mixup and CutMix: 85.7
SupCon, ResNet-50: 78.7
GPaCo, ResNet-50: 79.7
MAE, ViT-B, without Mixup and CutMix: 82.5
MAE, ViT-L, without Mixup and CutMix: 85.2
GPaCo, ViT-B: 84.0
GPaCo, ViT-L: 86.0
Table 5
Supcon, ResNet-50, SimAugment*: 77.9
Supcon, ResNet-50, RandAugment: 78.4
Supcon, ResNet-101, StackedRandAugment: 80.2
multi-task, ResNet-50, RandAugment: 78.1
PaCo, ResNet-50, SimAugment: 78.7
PaCo, ResNet-50, RandAugment: 79.3
PaCo, ResNet-101, StackedRandAugment: 80.9
PaCo, ResNet-200, StackedRandAugment: 81.8
GPaCo, ResNet-50, RandAugment: 79.5
GPaCo, ResNet-50, StackedRandAugment: 79.7
Table 6
LDAM-DRW: 68.0
Decouple-LWS: 69.5
BBN: 69.6
ResLT: 70.2
MiSLAS: 71.6
RIDE, 2 experts: 69.5
Decouple-tau-norm: 71.5
Balanced Softmax: 71.8
PaCo: 73.2
GPaCo: 75.4
Table 8
Focal Loss, imbalance factor 100: 38.4
Focal Loss, imbalance factor 50: 44.3
Focal Loss, imbalance factor 10: 55.8
LDAM-DRW: 42.0 46.6 58.7
BBN: 42.6 47.0 59.1
Causal Norm: 44.1 50.3 59.6
ResLT: 45.3 50.0 60.8
MiSLAS: 47.0 52.3 63.2
Balanced Softmax, imbalance factor 100: 50.8
Balanced Softmax, imbalance factor 50: 54.2
Balanced Softmax, imbalance factor 10: 63.0
PaCo, imbalance factor 100: 52.0
PaCo, imbalance factor 50: 56.0
PaCo, imbalance factor 10: 64.2
GPaCo, imbalance factor 100: 52.3
GPaCo, imbalance factor 50: 56.4
GPaCo, imbalance factor 10: 65.4
Table 9
CE (baseline): 77.9
multi-task: 78.0
Supcon: 76.5
PaCo: 79.1
GPaCo: 80.3
Table 10
PaCo, SimAug and SimAug: 55.0
PaCo, RandAug and SimAug: 57.0
PaCo, RandAug and RandAug: 56.5
GPaCo, RandAug and SimAug: 57.9
GPaCo, RandAug and RandAugStack: 58.5
Table 11
CE: 48.4
multi-task (CE + Re-weighting): 49.0
multi-task (CE + BalSfx): 48.6
PaCo: 51.0
Table 12
multi-task (BalSfx + rw), ResNeXt-50, 0.05: 57.0
multi-task (BalSfx + rw), ResNeXt-50, 0.10: 57.1
multi-task (BalSfx + rw), ResNeXt-50, 0.20: 57.1
multi-task (BalSfx + rw), ResNeXt-50, 0.30: 57.0
multi-task (BalSfx + rw), ResNeXt-50, 0.50: 57.2
multi-task (BalSfx + rw), ResNeXt-50, 0.80: 57.2
multi-task (BalSfx + rw), ResNeXt-50, 1.00: 56.9
PaCo, ResNeXt-50: 58.2
multi-task* (BalSfx + rw), ResNeXt-50, 0.50: 58.3
multi-task* (BalSfx + rw), ResNeXt-50, 0.80: 58.2
GPaCo, ResNeXt-50: 58.9
multi-task* (BalSfx + rw), ResNet-50, 0.50: 57.8
GPaCo, ResNet-50: 58.5
multi-task* (BalSfx + rw), ResNeXt-101, 0.50: 60.0
GPaCo, ResNeXt-101: 60.8
Table 13
multi-task (CE + Supcon), ResNet-50, 0.50: 78.0
PaCo, ResNet-50: 79.1
multi-task* (CE + Supcon), ResNet-50, 0.10: 79.0
multi-task* (CE + Supcon), ResNet-50, 0.30: 79.1
multi-task* (CE + Supcon), ResNet-50, 0.50: 79.1
multi-task* (CE + Supcon), ResNet-50, 0.80: 78.9
multi-task* (CE + Supcon), ResNet-50, 1.00: 79.0
GPaCo, ResNet-50: 80.3
multi-task* (CE + Supcon), ViT-B, 0.50: 83.4
GPaCo, ViT-B: 84.0
Table 14
single-view: 82.5
two-view: 84.0
Table 15
ResLT, ResNeXt-50: 52.9
RIDE, ResNeXt-50: 53.2
GPaCo, ResNeXt-50: 58.9
GPaCo, ResNeXt-101: 60.8
Ensemble of ResLT: 57.6
Ensemble of RIDE: 57.8
Ensemble, two ResNeXt-50: 61.3
Ensemble, ResNeXt-50 and ResNeXt-101: 62.4
Ensemble, two ResNeXt-101: 63.2
"""
# Beside the tables: numbers in the text and the README, points of a figure, and a baseline of ours.
BESIDE = {
    ("Section 4.5", "PaCo, crops of 0.2 to 1", "52.2"),
    ("Section 4.1", "PaCo, ResNet-152", "75.3"),
    ("README", "GPaCo, ResNet-152", "78.1"),
    ("Table 3", "GPaCo, on the test list", "41.7"),
    ("Table 3", "PaCo, on the test list", "41.2"),
    ("Table 3", "PaCo, with RandAugment, test list", "41.2"),
    *(("Figure 4", f"GPaCo, ResNeXt-50, queue of {memory}", "") for memory in (1024, 2048, 4096)),
    *(("Table 8", f"no row: cross entropy, imbalance factor {factor}", "") for factor in (100, 50, 10)),
}

# Rows without a recipe: (table, row): where the number is from, and a command for each of its numbers, which
# trains the method in the setting of cross entropy there (of balanced softmax on iNaturalist, which has no such row).
_IMAGENET_LT = ("imagenet-lt-resnet50-ce", "imagenet-lt-resnext50-ce", "imagenet-lt-resnext101-ce")
_PLACES = ("places-lt-resnet152-ce",)
_INATURALIST = ("inat18-resnet50-balanced-softmax",)
_CIFAR = tuple(f"cifar100-lt{factor}-resnet32-ce" for factor in (100, 50, 10))
_KANG, _TANG = "quoted from Kang et al., ICLR 2020", "quoted from Tang et al., NeurIPS 2020"
_RESLT, _MISLAS = "quoted from Cui et al., TPAMI 2023", "quoted from Zhong et al., CVPR 2021"
_RIDE, _OLTR = "re-implemented by the authors, settings not given", "quoted from Liu et al., CVPR 2019"
_LDAM, _BBN = "quoted from Cao et al., NeurIPS 2019", "quoted from Zhou et al., CVPR 2020"
_ENSEMBLE = ("gpaco evaluate RUN RUN",)


def _train(recipes: tuple[str, ...], method: str, *settings: str) -> tuple[str, ...]:
    """The commands; a setting is one for all recipes, or with a value for each: "medium=0.65" or "tail=0.1/0/0"."""
    commands = []
    for place, recipe in enumerate(recipes):
        more = ""
        for one in settings:
            key, _, values = one.partition("=")
            key = key if "." in key else f"method.{key}"
            more += f" --set {key}={(values.split('/') * len(recipes))[place]}"
        commands.append(f"gpaco train DATA --recipe {recipe} --method {method}{more} --out RUN")
    return tuple(commands)


_MISLAS_CIFAR = ("smooth_head=0.4/0.3/0.2", "smooth_tail=0.1/0/0", "classifier_rate=0.2/0.1/0.1")
_RESLT_IMAGENET = ("medium=0.825", "tail=0.22", "test_norm=0.7")

QUOTED: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {
    ("Table 2", "Decouple-cRT"): (_KANG, _train(_IMAGENET_LT, "crt")),
    ("Table 2", "Decouple-tau-norm"): (_KANG, _train(_IMAGENET_LT, "tau-norm")),
    ("Table 2", "De-confound-TDE"): (_TANG, _train(_IMAGENET_LT, "causal-norm", "effect=3")),
    ("Table 2", "ResLT"): (_RESLT, _train(_IMAGENET_LT[1:], "reslt", *_RESLT_IMAGENET)),
    ("Table 2", "MiSLAS"): (_MISLAS, _train(_IMAGENET_LT[:1], "mislas")),
    ("Table 3", "OLTR"): (_OLTR, _train(_PLACES, "oltr", "stage.classifier.train.epochs=30")),
    ("Table 3", "Decouple-tau-norm"): (_KANG, _train(_PLACES, "tau-norm")),
    ("Table 3", "ResLT"): (_RESLT, _train(_PLACES, "reslt")),
    ("Table 3", "MiSLAS"): (_MISLAS, _train(_PLACES, "mislas", "smooth_head=0.4", "smooth_tail=0.1")),
    ("Table 3", "RIDE, 2 experts"): ("no number: it cannot start from the pretrained ResNet-152", ()),
    ("Table 6", "LDAM-DRW"): (_LDAM, _train(_INATURALIST, "ldam-drw")),
    ("Table 6", "Decouple-LWS"): (_KANG, _train(_INATURALIST, "lws")),
    ("Table 6", "BBN"): (_BBN, _train(_INATURALIST, "bbn")),
    ("Table 6", "ResLT"): (
        _RESLT,
        _train(_INATURALIST, "reslt", "branch_share=0.85", "medium=0.8106", "tail=0", "test_norm=0.3"),
    ),
    ("Table 6", "MiSLAS"): (_MISLAS, _train(_INATURALIST, "mislas")),
    ("Table 8", "LDAM-DRW"): (_LDAM, _train(_CIFAR, "ldam-drw")),
    ("Table 8", "BBN"): (_BBN, _train(_CIFAR, "bbn")),
    ("Table 8", "Causal Norm"): (_TANG, _train(_CIFAR, "causal-norm")),
    ("Table 8", "ResLT"): (_RESLT, _train(_CIFAR, "reslt", "branch_share=0.995/0.99/0.72")),
    ("Table 8", "MiSLAS"): (
        _MISLAS,
        _train(_CIFAR, "mislas", "first_mixup=1", *_MISLAS_CIFAR),
    ),
    ("Table 15", "ResLT, ResNeXt-50"): (_RESLT, _train(_IMAGENET_LT[1:2], "reslt", *_RESLT_IMAGENET)),
    ("Table 15", "RIDE, ResNeXt-50"): (_RIDE, _train(_IMAGENET_LT[1:2], "ride")),
    ("Table 15", "Ensemble of ResLT"): (_RESLT, _ENSEMBLE),
    ("Table 15", "Ensemble of RIDE"): (_RIDE, _ENSEMBLE),
    ("Table 15", "Ensemble, two ResNeXt-50"): ("made of two other rows", _ENSEMBLE),
    ("Table 15", "Ensemble, ResNeXt-50 and ResNeXt-101"): ("made of two other rows", _ENSEMBLE),
    ("Table 15", "Ensemble, two ResNeXt-101"): ("made of two other rows", _ENSEMBLE),
}


def _rows() -> list[tuple[str, str, str]]:
    found, table = [], ""
    for line in _TABLES.strip().splitlines():
        if line.startswith("Table"):
            table = line
        else:
            row, _, numbers = line.partition(":")
            found.append((table, row, numbers.strip()))
    return found


ROWS = _rows()
