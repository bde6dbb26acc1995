"""The recipes of the package: rows of the paper, their networks at real size, and a step of each kind."""

import math
import re
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from generate import coverage, method_table, recipe_tables
from helpers.commands import fails
from helpers.images import save
from helpers.paper_tables import BESIDE, QUOTED, ROWS
from PIL import Image
from torch import Tensor, nn
from typer.main import get_command

from gpaco import methods
from gpaco.cli.commands import app
from gpaco.data.samples import Samples, Splits
from gpaco.data.views.eval import as_tested
from gpaco.models import backbones
from gpaco.models.classifier import Classifier
from gpaco.models.freezing import freeze
from gpaco.recipes import recipe as recipes
from gpaco.recipes.listing import data_of
from gpaco.recipes.listing import rows as listed
from gpaco.recipes.paper_rows import differs, names, processes_of
from gpaco.recipes.request import requested
from gpaco.recipes.settings import Recipe
from gpaco.system.progress import quiet
from gpaco.tasks.classification.card import build_model, describe
from gpaco.tasks.classification.task import Classification, ClassificationLearner
from gpaco.tasks.classification.two_stages import with_default_stages
from gpaco.training.schedule import learning_rate, make_optimizer, set_learning_rate
from gpaco.training.task import Before

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
HEAD = PAGE.with_name("recipes.head.md")
CLASSES = {"cifar100": 100, "imagenet": 1000, "inat18": 8142, "places": 365}


@cache
def load(name: str) -> Recipe:
    return recipes.load(name)


NAMES = [name for name in names() if load(name).train.task == "classification"]
VARIANTS = [*NAMES, *(f"{name}-paper" for name in NAMES if differs(name))]  # and by the paper's text


def unique(names: list[str], key: Callable[[Recipe], Any]) -> dict[Any, str]:
    """The first recipe for each value of a key."""
    found: dict[Any, str] = {}
    for name in names:
        found.setdefault(key(load(name)), name)
    return found


def head(name: str) -> tuple[str, str, str]:
    """Table, row and number."""
    source = load(name).source
    return source.table, source.row, source.paper


def test_every_row_of_the_papers_tables_has_one_recipe_with_its_number_or_is_quoted() -> None:
    assert set(QUOTED) <= {row[:2] for row in ROWS}
    rows = [row for row in ROWS if row[:2] not in QUOTED]
    own = Counter(map(head, NAMES))
    assert set(own.values()) == {1}
    also = [(table, load(name).source.paper) for name in NAMES for table in also_in(name)]
    ours = Counter([(table, number) for table, row, number in own if (table, row, number) in rows] + also)
    assert ours == Counter((table, number) for table, _, number in rows)


def test_the_page_maps_every_equation_remark_figure_and_table_and_its_list_of_recipes_is_current() -> None:
    text = (PAGE.parent / "paper_to_code.md").read_text(encoding="utf-8")
    assert coverage() in text, "make docs writes it anew"
    mapped = text.split("## Coverage")[1].split("## Differences")[0]
    for number in range(1, 9):
        assert re.search(rf"\((?:\d, )?{number}(?:, \d)?\)", mapped), f"equation {number}"
    places = [f"Figure {k}" for k in range(1, 5)] + [f"Table {k}" for k in range(1, 16)] + ["remark 1", "remark 2"]
    for place in places:
        assert re.search(rf"{place}\b", mapped), place
    for word in ("InfoNCE", "L_extra", "adaptive weighting"):
        assert word in mapped


def test_the_command_of_a_quoted_row_trains_its_method_for_each_of_its_numbers() -> None:
    for table, row, numbers in ROWS:
        if (table, row) not in QUOTED:
            continue
        reason, commands = QUOTED[table, row]
        assert reason.startswith(("quoted from ", "made of ", "re-implemented by ", "no number: "))
        assert row.startswith("Ensemble") or len(commands) == len(numbers.split())
        for command in commands:
            _, verb, *words = command.split()
            given = get_command(app).commands[verb].make_context(verb, words, resilient_parsing=True).params  # type: ignore[attr-defined]
            if verb == "train":
                flags = {"method": given["method"]}
                recipe, _ = requested(given["data"], given["recipe"], given["settings"], flags)
                *_, last = recipes.stages(with_default_stages(recipe))
                assert last.method.name == given["method"]
                assert recipe.method.fuse is False


def also_in(name: str) -> list[str]:
    """Other tables that have the row, by the recipe's note."""
    found = re.findall(r"(?:Also in|\() ?Tables? (\d+)(?: and (\d+))?", load(name).source.note)
    return [f"Table {number}" for pair in found for number in pair if number]


def test_every_recipe_is_a_row_of_a_table_or_one_that_is_beside_them() -> None:
    assert set(map(head, NAMES)) <= {*ROWS, *BESIDE}


def test_the_variants_by_the_papers_text_are_complete() -> None:
    """Two layers, anchors of the first view, one temperature for all, blur after RandAugment, rates of ImageNet-LT."""
    beside = {"inat18-resnet152-gpaco", "places-lt-resnet152-gpaco-test"}  # not in the paper
    for name in set(NAMES) - beside:
        method, text = load(name).method, load(f"{name}-paper" if differs(name) else name)
        if method.name == "gpaco" or (method.name == "multitask" and not method.momentum_keys):
            assert text.model.projector == "two-layer", name
            assert (text.method.anchors == "first") == bool(load(name).views.second), name
        assert not any("rand_stack" in (one.views.first, one.views.second) for one in recipes.stages(text)), name
        if method.name in RATES and not name.startswith("cifar100"):
            assert text.method.temperature == 0.2, name
            if data_of(name) == "imagenet":
                found = text.optimizer.lr, text.train.batch_size, text.optimizer.weight_decay
                assert found == (RATES[method.name], 128, 5e-4), name
    for name in VARIANTS[len(NAMES) :]:
        text = load(name)
        assert text.method.center_temperature == (text.method.name in ("gpaco", "paco")), name
        assert head(name) == head(name.removesuffix("-paper"))


RATES = {"gpaco": 0.04, "paco": 0.02, "multitask": 0.02}  # of the text, for ImageNet with ResNets


def test_the_command_of_each_recipe_runs_it_with_as_many_processes_as_share_a_batch() -> None:
    for name in VARIANTS:
        recipe, command = load(name), load(name).source.command
        assert f" --recipe {name.replace('-paper', ' --paper')} --out RUN" in command
        processes = processes_of(command)
        if recipe.model.ghost_batch:  # one group of batch norm in each process
            assert recipe.train.batch_size == processes * recipe.model.ghost_batch, name
        else:  # one process, no batch norm, or nobody knows
            assert processes == 1 or "vit" in name or "model.ghost_batch" in recipe.source.assumed, name
        assert recipe.train.batch_size % (processes * recipe.train.accumulate) == 0
        if recipe.model.weights != "none":
            assert f"--weights {recipe.model.weights}" in command


def test_keys_are_shuffled_wherever_batch_norm_of_momentum_keys_is_on_several_gpus() -> None:
    for name in VARIANTS:
        for stage in recipes.stages(load(name)):
            method, groups = stage.method, stage.model.ghost_batch > 0
            keys = method.name == "paco" or (method.momentum_keys and method.name in ("supcon", "multitask"))
            assert not keys or method.shuffle_keys == groups, name


CIFAR_GPACO = {  # source: dim, T, lr of factors 100, 50 and 10, batch, schedule
    "": (32, 0.05, (0.1, 0.05, 0.05), 128, "step-released"),
    "-paper": (128, 0.07, (0.1, 0.1, 0.1), 512, "cosine"),
}


def test_gpaco_on_long_tailed_cifar_is_by_the_script_or_by_the_text_without_a_mixture() -> None:
    for source, (dim, temperature, rates, batch, schedule) in CIFAR_GPACO.items():
        for factor, rate in zip((100, 50, 10), rates, strict=True):
            recipe = load(f"cifar100-lt{factor}-resnet32-gpaco{source}")
            assert (recipe.model.dim, recipe.method.temperature, recipe.optimizer.lr) == (dim, temperature, rate)
            assert (recipe.train.batch_size, recipe.schedule.name) == (batch, schedule)
            assert (recipe.method.alpha, recipe.method.memory, recipe.optimizer.weight_decay) == (0.01, 1024, 5e-4)
            assert (recipe.train.epochs == 400) == (not source)
            assert ("model.dim" in recipe.source.assumed) == bool(source)
            assert ("script" in recipe.source.note) != ("By the text" in recipe.source.note)


def test_the_last_layer_of_the_projector_on_a_small_resnet_starts_kaiming_normal_as_released() -> None:
    torch.manual_seed(0)
    recipe = recipes.change(load("cifar100-lt100-resnet32-gpaco"), {"model.dim": 512})
    model = build_model(describe(recipe, pretend(100)))
    first, last = (layer.weight for layer in (model.projector[0], model.projector[-1]))
    assert last.std().item() == pytest.approx(math.sqrt(2 / 64), rel=0.02)
    assert first.std().item() == pytest.approx(math.sqrt(1 / (3 * 64)), rel=0.05)  # PyTorch's own


def test_the_pages_about_recipes_and_methods_are_what_the_files_say() -> None:
    pages = [path.read_text(encoding="utf-8") for path in (HEAD, PAGE)]
    assert pages[0] + recipe_tables() == pages[1], "make docs writes it anew"
    assert method_table() in PAGE.with_name("methods.md").read_text(encoding="utf-8"), "make docs writes it anew"
    assert [row.name for row in listed("imagenet-lt-resnet50-paco-sim")] == [
        "imagenet-lt-resnet50-paco-sim-sim",
        "imagenet-lt-resnet50-paco-sim-sim-crop0.2",
    ]


# The learning rate


STEPS = {  # of the highest rate, by epoch
    (160, 180): {0: 1 / 5, 4: 1, 159: 1, 160: 1 / 100, 180: 1 / 10_000},
    (60, 75, 90): {0: 1, 59: 1, 60: 1 / 5, 75: 1 / 25, 90: 1 / 125},
    (320, 360): {0: 1 / 10, 9: 1, 10: 1.1, 320: 1, 321: 1 / 10, 360: 1 / 10, 361: 1 / 100, 399: 1 / 100},
}


def expected_rates(recipe: Recipe) -> dict[float, float]:
    """Rate by position in epochs, at five of them or more."""
    lr, low, warmup, epochs = recipe.optimizer.lr, recipe.schedule.min_lr, recipe.schedule.warmup, recipe.train.epochs
    if recipe.schedule.name != "cosine":
        return {epoch: lr * share for epoch, share in STEPS[recipe.schedule.steps].items()}
    falls = epochs - warmup
    if recipe.schedule.per == "epoch":  # (e + 1) / W, then the half cosine of (e - W + 1) / (E - W + 1)
        places = (warmup, warmup + falls // 4, warmup + falls // 2, warmup + 3 * falls // 4, epochs - 1)
        rates = {e: 0.5 * lr * (1 + math.cos(math.pi * (e - warmup + 1) / (falls + 1))) for e in places}
        return ({0: lr / warmup, warmup - 1: lr} if warmup else {}) | rates
    quarter = (2 - math.sqrt(2)) / 4
    shares = {0.25: 1 - quarter, 0.5: 0.5, 0.75: quarter, 1: 0.0}
    return {0: 0.0, warmup / 2: lr / 2, warmup: lr} | {warmup + p * falls: low + (lr - low) * shares[p] for p in shares}


def test_the_learning_rate_of_every_stage_follows_the_released_schedule() -> None:
    steps = 40  # per epoch
    stages = [stage for name in VARIANTS for stage in recipes.stages(load(name))]
    every = [stage for stage in stages if stage.method.name not in methods.UNTRAINED]
    for recipe in {(one.schedule, one.train.epochs, one.optimizer.lr): one for one in every}.values():
        points = expected_rates(recipe)
        assert len(points) >= 5
        for position, expected in points.items():
            found = learning_rate(recipe, round(position * steps), steps)
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-12), (recipe.name, position)


def test_the_first_and_the_last_epoch_have_the_rates_that_the_released_code_prints() -> None:
    for name, epoch, expected in (
        ("imagenet-lt-resnet50-gpaco", 0, 0.004),
        ("imagenet-lt-resnet50-gpaco", 399, 6.5e-7),
        ("places-lt-resnet152-gpaco", 0, 0.004),
        ("cifar100-resnet50-gpaco", 10, 0.055),
        ("cifar100-resnet50-gpaco", 399, 0.0005),
    ):
        assert learning_rate(load(name), epoch, 1) == pytest.approx(expected, rel=0.01), name


# The networks

BACKBONES = {  # parameters without a classifier, and features
    "resnet32": (463_504, 64),
    "resnet50_cifar": (23_508_032 - 7 * 7 * 3 * 64 + 3 * 3 * 3 * 64, 2048),
    "resnet50": (25_557_032 - 2_049_000, 2048),
    "resnet101": (44_549_160 - 2_049_000, 2048),
    "resnet152": (60_192_808 - 2_049_000, 2048),
    "resnet200": (64_673_832 - 2_049_000, 2048),
    "resnext50_32x4d": (25_028_904 - 2_049_000, 2048),
    "resnext101_32x4d": (44_177_704 - 2_049_000, 2048),
    "vit_base_patch16_224": (86_567_656 - 769_000, 768),
    "vit_large_patch16_224": (304_326_632 - 1_025_000, 1024),
}


def classes_of(name: str) -> int:
    return CLASSES[data_of(name).split("-")[0]]


def pretend(classes: int, images: int = 4, side: int = 40) -> Splits:
    """Some generated images, with as many classes as the real data has."""
    pixels = np.random.default_rng(0).integers(0, 256, (images, side, side + 8, 3), dtype=np.uint8)
    labels = np.arange(images) // 2  # two of a class
    return Splits(Samples(labels, tuple(map(str, range(classes))), images=pixels), None, None, "generated", ())


@cache
def empty_backbone(model: str) -> backbones.Backbone:
    """A backbone at its real size that is never filled with numbers."""
    with torch.device("meta"):
        return backbones.build(model)


build_once = cache(backbones.build)  # on the meta device, where nothing is ever written to a backbone


@pytest.mark.extensive
@pytest.mark.slow
def test_each_network_has_the_parameters_of_its_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbones, "build", build_once)
    plain = ("ce", "balanced-softmax", "focal")
    kinds = unique(
        VARIANTS,
        lambda one: (
            one.model.name,
            one.model.projector,
            one.model.dim,
            one.method.name in plain,
            len(one.stage),
            classes_of(one.name),
        ),
    )
    for name in kinds.values():
        recipe, classes = recipes.stages(load(name))[0], classes_of(name)
        backbone, wide = BACKBONES[recipe.model.name]
        dim = recipe.model.dim
        three = 2 * wide * (wide + 1) + dim * (wide + 1)  # linear layers only
        two = wide * (wide + 1) + 2 * wide + dim * (wide + 1)  # with a batch norm between
        heads = {"gpaco": three, "mae": three, "paco": two, "two-layer": two - 2 * wide}
        projector = 0 if recipe.method.name in plain else heads[recipe.model.projector]
        recipe = replace(recipe, model=replace(recipe.model, ghost_batch=0))  # which would change the shared backbone
        with torch.device("meta"):
            network = build_model(describe(recipe, pretend(classes)))
        counts = [sum(p.numel() for p in part.parameters()) for part in (network.backbone, network)]
        assert counts == [backbone, backbone + classes * (wide + 1) + projector], name


@pytest.mark.extensive
@pytest.mark.slow
def test_resnets_of_timm_are_those_of_torchvision() -> None:
    """Names and shapes of every tensor. Torchvision has no ResNet-200 and ResNeXt-101-32x4d, but the parts of them."""
    from torchvision.models.resnet import Bottleneck, ResNet

    depths = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}
    depths |= {"resnet200": (3, 24, 36, 3), "resnext50_32x4d": (3, 4, 6, 3), "resnext101_32x4d": (3, 4, 23, 3)}
    for name, layers in depths.items():
        groups = {"groups": 32, "width_per_group": 4} if "x" in name else {}
        with torch.device("meta"):
            theirs = ResNet(Bottleneck, list(layers), **groups).state_dict()
        ours = empty_backbone(name).module.state_dict()
        assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in theirs.items() if k[:3] != "fc."}, name


class Recorded(nn.Module):
    """A backbone that has already seen its views: it gives the features that it is handed."""

    def __init__(self, views: list[Tensor], features: list[Tensor]) -> None:
        super().__init__()
        self.features = features
        self.place = {float(image[0, 0, 0]): (v, i) for v, view in enumerate(views) for i, image in enumerate(view)}

    def forward(self, view: Tensor) -> Tensor:
        places = [self.place[float(image[0, 0, 0])] for image in view]  # momentum keys come in another order
        return torch.stack([self.features[v][i] for v, i in places])


COMPUTED = ("resnet50", "vit_base_patch16_224")  # a forward and a backward pass with numbers: one of each family


def architectures() -> list[tuple[str, str, list[str]]]:
    """Each architecture, the part of it that trains, and one recipe for each method that trains it so."""
    found: dict[tuple[str, str], dict[tuple[Any, ...], str]] = {}
    for name in NAMES:
        recipe = load(name)
        if methods.network(recipe).body != "plain":  # it looks into the backbone: tests/methods has its steps
            continue
        chosen = found.setdefault((recipe.model.name, recipe.train.part), {})
        method = recipe.method
        chosen.setdefault((method.name, method.momentum_keys, method.rebalance, bool(recipe.views.second)), name)
    return [(model, part, list(chosen.values())) for (model, part), chosen in found.items()]


@pytest.mark.extensive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "part", "names"), architectures(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_architecture_takes_a_step_with_every_method_at_its_real_size(
    model: str, part: str, names: list[str]
) -> None:
    """The way through the backbone is the same for all methods of an architecture: two views go in, one comes back.

    Two backbones compute it; of the others only the shapes go through, without numbers.
    """
    torch.manual_seed(0)
    size, images = load(names[0]).model.size, 1 if model.startswith("vit") else 2  # batch norm needs two
    with torch.device("meta"):
        whole = build_model(describe(load(names[0]), pretend(classes_of(names[0]))))
    computed = model in COMPUTED
    if computed:
        materialise(whole)
    freeze(whole.train(), part)
    wide = whole.centers.in_features
    views = [torch.randn(images, 3, size, size) for _ in range(2)]
    seen = whole.backbone(views[0] if computed else views[0].to("meta"))
    if computed:
        with torch.no_grad():
            features = [seen.detach().requires_grad_(), whole.backbone(views[1]).requires_grad_()]
    else:
        features = [torch.randn(seen.shape, requires_grad=True) for _ in views]
    networks = {}
    for name in names:
        recipe, classes = load(name), classes_of(name)
        projector = methods.projector(recipe)
        network = Classifier(Recorded(views, features), wide, classes, dim=recipe.model.dim, projector=projector)
        method = methods.build(recipe, network, classes, torch.ones(classes)).train()
        loss = method(network, views if recipe.views.second else views[:1], torch.arange(images))
        loss.backward()
        method.after_step(network)
        assert math.isfinite(loss.item()), name
        network.backbone = whole.backbone
        networks[name] = network
    seen.backward(features[0].grad if computed else torch.empty_like(seen))
    backbone = [parameter for parameter in whole.backbone.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None for parameter in backbone)
    for name, network in networks.items():
        if not computed or name != names[0]:  # then the optimizer leaves the backbone, whose step is always the same
            for parameter in backbone:
                parameter.grad = None
        freeze(network, part)
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        optimizer = make_optimizer(load(name), network)
        assert sum(len(group["params"]) for group in optimizer.param_groups) == len(trained)
        stepped = [parameter for parameter in trained if parameter.grad is not None]
        assert len(stepped) == len(trained) - (0 if computed and name == names[0] else len(backbone)), name
        assert all(parameter.grad.isfinite().all() for parameter in stepped if parameter.grad is not None), name
        set_learning_rate(optimizer, load(name).optimizer.lr)
        before = [parameter.flatten()[:8].clone() for parameter in stepped]
        optimizer.step()
        moved = sum(not torch.equal(old, new.flatten()[:8]) for old, new in zip(before, stepped, strict=True))
        waiting = len(list(network.centers.parameters())) if load(name).method.name == "supcon" else 0
        assert moved > 0.8 * (len(stepped) - waiting), (name, moved, len(stepped))


def materialise(network: nn.Module) -> None:
    """Give numbers to a network without: quicker than building it with its own, which is tested elsewhere."""
    network.to_empty(device="cpu")
    for parameter in network.parameters():
        nn.init.zeros_(parameter)  # tokens and positions; all else has a way to start
    for module in network.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


# A step of a recipe


def learner_of(recipe: Recipe, splits: Splits, weights: dict[str, Tensor] | None = None) -> ClassificationLearner:
    """What `fit` would be given; nothing is written."""
    before = None if weights is None else Before(weights, "")
    return Classification(recipe, splits, torch.device("cpu"), quiet).begin(recipe, Path("nowhere"), before)


def take_step(recipe: Recipe, task: ClassificationLearner, precision: torch.dtype | None) -> float:
    """One step as `fit` takes it: the recipe's views, parts of a batch, method, optimizer and rate. Its loss."""
    optimizer = make_optimizer(recipe, task.model)
    batch = next(task.batches(0, 0))
    assert len(batch.views) == (2 if recipe.views.second else 1)
    assert {view.shape for view in batch.views} == {(recipe.train.batch_size, 3, recipe.model.size, recipe.model.size)}
    assert batch.labels.dim() == (2 if recipe.method.mixup else 1)
    assert not task.validate(task.model)  # the last epoch counts
    task.model.train()
    task.extra.train()
    assert task.start(batch) == 0 or recipe.method.name not in ("gpaco", "paco")
    keys = getattr(task.extra, "key_network", None)
    kept = [parameter.flatten()[:8].clone() for parameter in keys.parameters()] if keys is not None else []
    total, chunks = 0.0, batch.chunks(recipe.train.accumulate)
    assert len(chunks) == min(recipe.train.accumulate, recipe.train.batch_size)
    for chunk in chunks:
        with torch.autocast("cpu", dtype=precision) if precision else nullcontext():
            loss = task.loss(task.model, chunk) * (len(chunk) / len(batch))
        loss.backward()
        total += loss.item()
    trained = [parameter for parameter in task.model.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in trained)
    before = [parameter.flatten()[:8].clone() for parameter in trained]
    set_learning_rate(optimizer, recipe.optimizer.lr)
    optimizer.step()
    task.after_step()
    moved = sum(not torch.equal(old, new.flatten()[:8]) for old, new in zip(before, trained, strict=True))
    assert moved > 0.5 * len(trained), (moved, len(trained))
    if keys is not None:  # follow at a distance
        assert any(not torch.equal(old, new.flatten()[:8]) for old, new in zip(kept, keys.parameters(), strict=True))
    assert math.isfinite(total)
    assert all(value.isfinite().all() for value in task.model.state_dict().values())
    return total


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files, larger than the views and all of other sizes."""
    folder = tmp_path_factory.mktemp("photographs")
    return [save(folder / f"{i}.png", seed=i, width=70 + i, height=50 + 2 * i) for i in range(8)]


def kind(recipe: Recipe) -> tuple[Any, ...]:
    """What makes the step of a recipe another one than that of the next."""
    method, views, train = recipe.method, recipe.views, recipe.train
    own = (method.name, method.momentum_keys, method.rebalance, method.mixup > 0, recipe.optimizer.name)
    return (*own, views.first, views.second, train.amp, train.part, bool(recipe.stage), in_memory(recipe.name))


def in_memory(name: str) -> bool:
    """CIFAR's images are arrays in memory, all others are files: their views are made by other code."""
    return data_of(name).startswith("cifar100")


@pytest.mark.slow
@pytest.mark.parametrize("name", unique(VARIANTS, kind).values())
def test_each_kind_of_recipe_takes_a_step_with_its_own_views_loss_precision_and_optimizer(
    name: str, photographs: list[Path]
) -> None:
    """With a small network in place of its own."""
    whole, classes = load(name), classes_of(name)
    network = "vit_tiny_patch16_224" if whole.model.name.startswith("vit") else "resnet8"
    weights = None
    for recipe in recipes.stages(whole):
        if recipe.method.name in methods.UNTRAINED:
            continue
        model = replace(recipe.model, name=network, weights="none", size=32, resize=0)
        images = max(4, recipe.train.accumulate)
        recipe = replace(recipe, model=model, train=replace(recipe.train, batch_size=images, workers=0))
        splits = pretend(classes, images)
        if not in_memory(name):
            files = Samples(splits.train.labels, splits.train.classes, paths=tuple(photographs[:images]))
            splits = replace(splits, train=files)
        task = learner_of(recipe, splits, weights)
        take_step(recipe, task, None if recipe.train.amp == "off" else torch.bfloat16)  # the CPU's float16
        weights = task.model.state_dict()
        if recipe.model.ghost_batch:
            assert {m.size for m in task.model.modules() if hasattr(m, "_by_group")} == {recipe.model.ghost_batch}
        memory = getattr(getattr(task.extra, "loss", task.extra), "memory", None)
        if memory is not None and recipe.method.start == "released":
            assert len(memory) == recipe.method.memory  # full of random rows from the start


def test_class_centers_of_a_vit_start_near_zero() -> None:
    recipe = load("imagenet-vit-b-gpaco")
    model = replace(recipe.model, name="vit_tiny_patch16_224", weights="none", size=32)
    task = learner_of(replace(recipe, model=model), pretend(1000))
    assert task.model.centers.weight.std().item() == pytest.approx(2e-5, rel=0.05)
    assert not task.model.centers.bias.any()
    scales = {group["lr_scale"] for group in make_optimizer(recipe, task.model).param_groups}
    assert min(scales) == pytest.approx(0.65**13)
    assert max(scales) == 1


def test_test_images_are_resized_as_the_recipe_says() -> None:
    image = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    for name, resample in (("imagenet-vit-b-gpaco", Image.BICUBIC), ("imagenet-resnet50-gpaco", Image.BILINEAR)):
        with torch.device("meta"):
            card = describe(load(name), pretend(1000))
        large = Image.fromarray(image).resize((341, 256), resample).crop((58, 16, 58 + 224, 16 + 224))
        difference = as_tested(image, card.view).astype(float) - np.asarray(large)
        assert np.abs(difference).mean() < 0.5, name


# What the command says about data and weights that are not the recipe's


def lists(folder: Path, images: int) -> Path:
    for i in range(images):
        save(folder / f"{i}.png", seed=i)
    for part in ("train", "val"):
        (folder / f"ImageNet_LT_{part}.txt").write_text("".join(f"{i}.png {i % 2}\n" for i in range(images)))
    return folder / "ImageNet_LT_train.txt"


@pytest.mark.process
def test_data_with_another_number_of_images_or_groups_is_refused_before_training(tmp_path: Path) -> None:
    data, out = lists(tmp_path, 4), tmp_path / "run"
    words = ("train", data, "--recipe", "imagenet-lt-resnet50-gpaco", "--out", out, "--set", "data.allow_leakage=true")
    text = fails(*words)
    assert "the recipe expects 115,846 training images, got 4" in text
    assert "--set data.expect_images=0" in text
    text = fails(*words, "--set", "data.expect_images=4")
    assert "the recipe expects (385, 479, 136) many, medium and few classes, got (0, 0, 2)" in text
    assert "--set data.expect_groups=[]" in text
    assert "got 4" in fails(*words, "--validation", 0.5)  # what is held back counts
    assert not out.exists()


@pytest.mark.process
def test_a_recipe_that_starts_from_weights_does_not_start_without_them(tmp_path: Path) -> None:
    data = lists(tmp_path, 4)
    expected = ("--set", "data.expect_images=0", "--set", "data.expect_groups=[]", "--set", "data.allow_leakage=true")
    text = fails("train", data, "--recipe", "places-lt-resnet152-gpaco", *expected, "--out", tmp_path / "run")
    assert "there is no file resnet152-394f9c45.safetensors" in text
    assert "--weights" in text
