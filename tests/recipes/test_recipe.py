"""Recipes: TOML there and back, overrides, stages, what the messages say, and thousands of broken texts."""

import tomllib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults.runs import dice_of
from faults.words import mutated_text
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from gpaco.cli.commands import app
from gpaco.errors import UserError
from gpaco.recipes.listing import method
from gpaco.recipes.paper_rows import names
from gpaco.recipes.recipe import change, diff, dumps, load, loads, override, stages
from gpaco.recipes.request import overrides, requested
from gpaco.recipes.settings import METHODS, SECTIONS, Data, MethodSettings, Recipe, used
from gpaco.recipes.validation import SETTINGS

IMAGENET_LT = """
name = "imagenet-lt-resnet50-gpaco"
[source]
table = "ImageNet-LT"
row = "GPaCo, ResNet-50"
command = "gpaco train IMAGENET_LT --recipe imagenet-lt-resnet50-gpaco --out RUN"
hardware = "4 GPUs"
paper = "58.5"
note = "the paper's text says alpha 0.05"
[data]
validation = 0
expect_images = 115846
expect_groups = [385, 479, 136]
[model]
name = "resnet50"
ghost_batch = 32
size = 224
resize = 256
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
[views]
first = "rand"
second = "rand_stack"
ops = 2
magnitude = 10
[method]
name = "gpaco"
alpha = 0.045
temperature = 0.2
memory = 8192
prior = "counts"
start = "released"
[optimizer]
lr = 0.04
weight_decay = 5e-4
[schedule]
name = "cosine"
warmup = 10
[train]
epochs = 400
batch_size = 128
"""

CIFAR_LT = """
[data]
long_tail = 100
validation = 0
[model]
name = "resnet32"
dim = 32
projector = "paco"
[views]
first = "cifar_regular"
second = "cifar_sim"
[method]
name = "paco"
alpha = 0.01
temperature = 0.05
memory = 1024
momentum = 0.999
prior = "counts"
start = "released"
[schedule]
name = "step-released"
warmup = 10
steps = [320, 360]
[train]
epochs = 400
[source]
assumed = ["model.dim"]
"""

SUPCON = """
[method]
name = "supcon"
[train]
epochs = 200
seed = 3

[[stage]]
name = "contrast"

[[stage]]
name = "linear"
method.name = "ce"
train = { epochs = 10, part = "head" }
[stage.views]
second = ""
"""

TEXTS = {"imagenet-lt": IMAGENET_LT, "cifar-lt": CIFAR_LT, "supcon": SUPCON}


def refused(text: str) -> UserError:
    with pytest.raises(UserError) as error:
        loads(text, "mine")
    assert error.value.exit_code == 2
    assert error.value.remedy
    assert "\n" not in error.value.cause + error.value.remedy
    return error.value


def test_a_recipe_written_out_loads_back_equal_and_complete() -> None:
    for name, text in TEXTS.items():
        recipe = loads(text, name)
        assert loads(dumps(recipe)) == recipe
        assert loads(dumps(recipe, explain=True)) == recipe
        written = tomllib.loads(dumps(recipe))
        for section, kind in SECTIONS.items():
            if section != "source":
                keys = {field.name for field in fields(kind)}
                if section == "method":
                    keys = {key for stage in stages(recipe) for key in used(stage.method.name)}
                assert set(written[section]) == keys


def test_what_a_text_says_is_what_the_recipe_holds_and_the_rest_is_default() -> None:
    recipe = loads(IMAGENET_LT, "file")
    assert recipe.name == "imagenet-lt-resnet50-gpaco"
    assert (recipe.method.alpha, recipe.optimizer.lr, recipe.train.epochs) == (0.045, 0.04, 400)
    assert isinstance(recipe.schedule.warmup, float)  # a whole number where any number will do
    assert recipe.data.expect_groups == (385, 479, 136)
    assert recipe.source.paper == "58.5"
    assert recipe.optimizer.momentum == Recipe().optimizer.momentum
    assert loads("", "file") == Recipe(name="file")


def test_stages_are_the_base_with_their_changes_on_top() -> None:
    contrast, linear = stages(loads(SUPCON, "supcon"))
    assert (contrast.name, contrast.method.name, contrast.train.epochs) == ("contrast", "supcon", 200)
    assert (linear.name, linear.method.name, linear.train.epochs) == ("linear", "ce", 10)
    assert (linear.train.part, linear.train.seed, linear.views.second) == ("head", 3, "")
    assert contrast.stage == linear.stage == ()
    plain = loads(CIFAR_LT, "x")
    assert stages(plain) == [plain]


def test_overrides_have_the_last_word_and_loss_means_method() -> None:
    changes = ["method.alpha=0.02", "model.name = resnet8", "views.second=", "train.compile=true", "optimizer.lr=.1"]
    changes += [
        "schedule.steps=[3, 5]",
        "schedule.name=step",
        'source.note="a = b"',
        "data.path=a=b.csv",
        "train.epochs=7",
    ]
    recipe = override(loads(IMAGENET_LT, "x"), changes)
    assert (recipe.method.alpha, recipe.model.name, recipe.views.second) == (0.02, "resnet8", "")
    assert (recipe.train.compile, recipe.optimizer.lr, recipe.schedule.steps) == (True, 0.1, (3.0, 5.0))
    assert (recipe.source.note, recipe.data.path, recipe.train.epochs) == ("a = b", "a=b.csv", 7)
    assert override(recipe, []) == recipe
    assert list(diff(loads(IMAGENET_LT, "x"), recipe)) == [
        "data.path", "model.name", "views.second", "method.alpha", "optimizer.lr", "schedule.name", "schedule.steps",
        "train.epochs", "train.compile", "source.note",
    ]  # fmt: skip


def test_overrides_that_go_together_may_come_in_any_order() -> None:
    together = ["data.few=300", "data.many=500"]
    assert override(Recipe(), together) == override(Recipe(), together[::-1])
    with pytest.raises(UserError, match=r"^--set data.few=300: data.few must not be above data.many, got 300"):
        override(Recipe(), together[:1])


def test_a_stage_is_overridden_by_its_name_and_never_by_accident() -> None:
    recipe = loads(SUPCON, "supcon")
    changed = override(recipe, ["stage.linear.train.epochs=2", "stage.contrast.optimizer.lr=0.5", "train.batch_size=8"])
    contrast, linear = stages(changed)
    assert (contrast.train.epochs, linear.train.epochs, contrast.optimizer.lr, linear.optimizer.lr) == (
        200,
        2,
        0.5,
        0.05,
    )
    assert contrast.train.batch_size == linear.train.batch_size == 8
    assert loads(dumps(changed)) == changed
    with pytest.raises(UserError, match=r"stage 'linear' sets train\.epochs itself") as error:
        override(recipe, ["train.epochs=2"])
    assert "stage.linear.train.epochs=2" in error.value.remedy
    with pytest.raises(UserError, match="no stage 'liner'; did you mean 'linear'"):
        override(recipe, ["stage.liner.train.epochs=2"])


WRONG_CHANGES = {
    "method.alhpa=0.02": r"\[method\] has no setting 'alhpa'; did you mean 'alpha'\?",
    "optimiser.lr=0.1": r"no section 'optimiser'; did you mean 'optimizer'\?",  # the names of old recipes
    "stage.one.optimiser.lr=0.1": r"no section 'optimiser'; did you mean 'optimizer'\?",
    "segmentation.colours=true": r"no setting 'colours'; did you mean 'colors'\?",
    "alpha=0.02": r"expected section.key=value; did you mean method.alpha\?",
    "train.lr=0.1": r"no setting 'lr'; did you mean optimizer.lr\?",
    "": "expected section.key=value",
    "train.epochs=ten": "train.epochs must be a whole number, at least 1, got 'ten'",
    "train.epochs=-1": "at least 1, got -1",
    "train.compile=yes": "true or false, got 'yes'",
    "method.temperature=nan": "at least 1e-06, got nan",
    "method.name=gpcao": r"method.name cannot be 'gpcao'; did you mean 'gpaco'\?",
    "schedule.steps=[1]\nx=2": "list of numbers",
    "schedule.steps=[3, 2]": "must be increasing",
    "data.path=\udc80": "data.path must be text",
    "train.seed=" + "9" * 5000: "whole number",
}


def test_a_wrong_override_is_named_with_the_nearest_word() -> None:
    for text, words in WRONG_CHANGES.items():
        with pytest.raises(UserError, match=words) as error:
            override(Recipe(), [text])
        assert error.value.cause.startswith("--set ")
        assert "\n" not in error.value.cause + error.value.remedy
    assert (
        override(Recipe(), ["data.path='unclosed"]).data.path == "'unclosed"
    )  # not TOML, but a file may be called that


def test_values_that_have_a_type_are_changed_as_they_are() -> None:
    recipe = change(Recipe(), {"optimizer.lr": np.float32(0.5), "train.epochs": np.int64(3), "train.compile": True})
    recipe = change(recipe, {"model.mean": (0, 0, 0.5), "model.std": [1, 1, 1]})
    assert (recipe.optimizer.lr, recipe.train.epochs, recipe.train.compile) == (0.5, 3, True)
    assert (recipe.model.mean, recipe.model.std) == ((0.0, 0.0, 0.5), (1.0, 1.0, 1.0))
    assert stages(change(loads(SUPCON), {"stage.linear.train.epochs": 2}))[1].train.epochs == 2
    with pytest.raises(UserError, match=r"^train.epochs must be a whole number, at least 1, got '3'"):
        change(Recipe(), {"train.epochs": "3"})


def test_a_wrong_flag_is_called_as_it_was_typed() -> None:
    for flags, words in (
        ({"epochs": 0}, "--epochs 0: train.epochs must be a whole number, at least 1, got 0"),
        ({"batch_size": 1.5}, "--batch-size 1.5: train.batch_size must be a whole number"),
        ({"long_tail": 0.5}, "--long-tail 0.5: data.long_tail must be 0 or at least 1"),
        ({"method": "gpcao"}, "--method gpcao: method.name cannot be 'gpcao'; did you mean 'gpaco'?"),
        ({"epoch": 3}, "there is no option 'epoch'; did you mean 'epochs'"),
    ):
        with pytest.raises(UserError) as error:
            requested("digits", None, [], flags)
        assert error.value.cause.startswith(words)
    recipe, chosen = requested("digits", None, ["method.alpha=0.3"], {"epochs": 3, "weights": Path("a"), "lr": None})
    assert (recipe.method.alpha, recipe.train.epochs, recipe.model.weights) == (0.3, 3, "a")
    assert chosen == {"method.alpha", "train.epochs", "model.weights"}


WRONG_TEXTS = {
    "[method]\nname = 'gpaco'\nalfa = 0.02\n": "mine: [method] has no setting 'alfa'; did you mean 'alpha'?",
    "[optimiser]\nlr = 0.1\n": "mine: there is no section 'optimiser'; did you mean 'optimizer'?",
    "[methods]\nalpha = 0.02\n": "mine: there is no section 'methods'; did you mean 'method'?",
    "[train]\nepochs = '3'\n": "mine: train.epochs must be a whole number, at least 1, got '3'",
    "[data]\n[train]\nepochs = true": "whole number, at least 1, got True",
    "[model]\nstd = [1, 2, 'x']": "model.std must be a list of numbers, above 0, got [1, 2, 'x']",
    "[model]\nmean = [1, 2, 3]": "mine: model.std must have as many",
    "[model]\nname = {a = 1}": "model.name must be text, got a table",
    "[[train]]\nepochs = 3": "train is a section, got [{'epochs': 3}]",
    "name = 3": "mine: a name must be text",
    "stage = 3": "mine: stages are tables",
    "[[stage]]\nname = 'a'\n[[stage]]\nname = 'a'": "a unique name, got 'a'",
    "[[stage]]\nname = '../a'": "a unique name",
    "[[stage]]\nname = 'a'\n[stage.train]\nkeep = 1\nepoch = 3": "did you mean 'epochs'?",
    "[schedule]\nname = 'step-released'\nper = 'step'": 'needs per = "epoch"',
    "[source]\nassumed = ['method.alhpa']": "must name settings",
    "[optimizer]\nlr = 0.1\n[schedule]\nmin_lr = 0.2": "must not be above optimizer.lr",
    "[optimizer]\nnesterov = true\nmomentum = 0": "optimizer.nesterov needs optimizer.momentum above 0, got True",
    "[model]\nsize = 320\nresize = 256": "model.resize must be 0 or at least model.size, got 256",
    "[data]\npath = 'a'\npath = 'b'": "mine is not valid TOML: Cannot overwrite a value (at line 3",
}


def test_a_wrong_text_is_named_with_its_setting() -> None:
    for text, words in WRONG_TEXTS.items():
        assert words in refused(text).cause


def test_a_wrong_combination_in_a_stage_names_the_stage() -> None:
    cause = refused("[[stage]]\nname = 'one'\n[[stage]]\nname = 'two'\ndata.few = 200").cause
    assert "data.few must not be above data.many, got 200 in stage 'two'" in cause


def test_a_setting_with_one_letter_missing_gets_a_suggestion() -> None:
    for section, kind in SECTIONS.items():
        for field in fields(kind):
            for i in range(len(field.name)) if len(field.name) > 2 else ():
                typo = field.name[:i] + field.name[i + 1 :]
                if typo not in [other.name for other in fields(kind)]:
                    assert "did you mean" in refused(f"[{section}]\n{typo} = 1").cause


def test_every_setting_has_a_default_within_its_own_bounds_and_a_line_about_it() -> None:
    text = dumps(Recipe(source=replace(Recipe().source, note="x")), explain=True, every=True)
    assert loads(dumps(Recipe(), explain=True)).train == Recipe().train
    for section, kind in SECTIONS.items():
        for field in fields(kind):
            assert field.metadata["about"], (section, field.name)
            assert len(field.metadata["about"]) < 100
            if section != "source":
                assert f"{field.name} = " in text


def test_files_run_folders_and_names_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    recipe = loads(IMAGENET_LT)
    (tmp_path / "run" / "recipe.toml").write_text(dumps(recipe), encoding="utf-8")
    (tmp_path / "müde recipe.toml").write_text("\ufeff" + CIFAR_LT, encoding="utf-8")
    assert load(tmp_path / "run") == load(str(tmp_path / "run" / "recipe.toml")) == recipe
    assert load(tmp_path / "müde recipe.toml").name == "müde recipe"
    for name in names():  # those that come with the package
        assert load(name).name == name
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").rename(name)  # a run named like a recipe
    assert load(name) != recipe
    assert load(f"./{name}") == load(Path(name)) == recipe
    with pytest.raises(UserError, match="no recipe 'cifar100-resnet50-gpcao'; did you mean 'cifar100-resnet50-gpaco'"):
        load("cifar100-resnet50-gpcao")


def test_the_values_of_the_papers_text_are_asked_for_by_a_word_or_by_a_name(tmp_path: Path) -> None:
    name = "imagenet-lt-resnext50-gpaco"
    text = load(name, paper=True)
    assert load(f"{name}-paper") == load(f"{name}-paper", paper=True) == text
    assert text.name == f"{name}-paper"
    assert f"--recipe {name} --paper --out RUN" in text.source.command
    changed = {key: pair for key, pair in diff(load(name), text).items() if not key.startswith("source.")}
    assert changed == {
        "model.projector": ("gpaco", "two-layer"),
        "views.second": ("rand_stack", "rand_blur"),
        "method.anchors": ("all", "first"),
        "method.center_temperature": (False, True),
        "optimizer.lr": (0.06, 0.04),
    }
    assert requested("digits", name, [], {}, paper=True)[0].optimizer.lr == 0.04
    with pytest.raises(UserError, match="the paper's text has no different values"):
        load("imagenet-lt-resnet50-ce", paper=True)
    (tmp_path / "mine.toml").write_text(IMAGENET_LT)
    for recipe in (tmp_path / "mine.toml", None, Recipe()):
        with pytest.raises(UserError, match=r"mine.toml is a file|--paper needs a recipe of the package"):
            requested("digits", recipe, [], {}, paper=True)


def test_a_file_with_a_base_holds_only_what_it_changes() -> None:
    base = "imagenet-lt-resnet50-gpaco"
    changed = loads(f'base = "{base}"\n[method]\nalpha = 0.3\n[source]\nrow = "mine"\n', "changed")
    assert changed.name == "changed"
    different = diff(load(base), changed)
    assert {key: pair[1] for key, pair in different.items() if not key.startswith("source.")} == {"method.alpha": 0.3}
    assert changed.source == replace(Recipe().source, row="mine")  # what is said of the base is not said of this one
    assert loads(dumps(changed)) == changed  # written out it is whole
    staged = 'base = "imagenet-lt-resnet50-supcon"\n'
    assert [stage.name for stage in loads(staged).stage] == ["features", "classifier"]
    assert [stage.name for stage in loads(f'{staged}[[stage]]\nname = "one"').stage] == ["one"]
    assert loads(f'base = "{base}-paper"').model.projector == "two-layer"
    for text, words in {
        'base = "imagenet-lt-resnet50-gpac"': "mine: there is no recipe 'imagenet-lt-resnet50-gpac'; did you mean",
        "base = 3": "mine: a name must be text",
        f'bass = "{base}"': "no section 'bass'; did you mean 'base'?",
        'base = "../whole"': "there is no recipe '../whole'",
        f'base = "{base}"\n[data]\nfew = 200': "mine: data.few must not be above data.many",
    }.items():
        assert words in refused(text).cause


def test_a_run_finds_its_data_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('[data]\npath = "photos"\n')
    for what in ("photos", "mine.toml", Recipe(data=Data(path="photos"))):
        assert requested(what, None, [], {})[0].data.path == str(tmp_path / "photos")


def test_files_that_are_no_recipes_are_refused_with_their_path(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes("[data]\npath = 'é'".encode("latin-1"))
    (tmp_path / "folder").mkdir()
    for name, words in {
        "latin.toml": "not UTF-8 text",
        "missing.toml": "No such file",
        "folder": "No such file",
    }.items():
        with pytest.raises(UserError, match=words) as error:
            load(tmp_path / name)
        assert name in error.value.cause
    with pytest.raises(UserError):
        load("nul\0byte.toml")


values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.floats(0, 1), max_size=4)
)


@pytest.mark.slow
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.lists(st.floats(1e-9, 1), max_size=5))
def test_any_text_and_number_survives_writing_and_reading(note: str, numbers: list[float]) -> None:
    recipe = Recipe(name=note, source=replace(Recipe().source, note=note, row=note))
    recipe = replace(recipe, schedule=replace(recipe.schedule, steps=tuple(sorted(numbers))))
    recipe = replace(recipe, method=replace(recipe.method, alpha=sum(numbers)))
    assert loads(dumps(recipe)) == recipe
    assert loads(dumps(recipe, explain=True)) == recipe


def outcome(action: Callable[[], Recipe]) -> Recipe | UserError:
    try:
        return action()
    except UserError as error:
        return error


@pytest.mark.slow
def test_a_broken_text_gives_a_recipe_or_a_user_error_and_nothing_else() -> None:
    dice = dice_of("recipes")
    for _ in range(500):
        text = mutated_text(dice.choice([*TEXTS.values(), dumps(Recipe())]), dice).decode("utf-8", "replace")
        result = outcome(lambda text=text: loads(text, "fuzz"))
        if isinstance(result, Recipe):
            assert loads(dumps(result)) == result, text
        else:
            assert result.cause.startswith("fuzz"), text
            assert "\n" not in result.cause + result.remedy, text


settings_and_values = st.tuples(st.sampled_from(SETTINGS), values).map(lambda pair: f"{pair[0]}={pair[1]}")


@given(st.lists(st.text(max_size=20) | settings_and_values, max_size=3))
def test_any_override_gives_a_recipe_or_a_user_error(changes: list[str]) -> None:
    result = outcome(lambda: override(loads(SUPCON, "x"), changes))
    if isinstance(result, Recipe):
        assert loads(dumps(result)) == result
    else:
        assert "\n" not in result.cause + result.remedy


def test_a_value_is_data_and_is_never_run() -> None:
    hostile: dict[str, Any] = {"name": "__import__('os').system('touch hacked')"}
    text = f'[model]\nname = "{hostile["name"]}"\nweights = "${{HOME}}/$(id)"\n'
    assert loads(text).model.name == hostile["name"]
    assert loads(text).model.weights == "${HOME}/$(id)"
    assert tomllib.loads(dumps(loads(text)))["model"]["name"] == hostile["name"]


def test_a_setting_of_another_method_is_refused_wherever_it_is_given() -> None:
    refused = {
        "--set": lambda: requested("digits", None, ["method.name=ce", "method.alpha=0.1"], {}),
        "a file": lambda: loads('[method]\nname = "ce"\nalpha = 0.1\n'),
        "a stage": lambda: loads('[method]\nname = "ce"\n[[stage]]\nname = "one"\nmethod.alpha = 0.1\n'),
        "change": lambda: change(Recipe(), {"method.name": "ce", "method.alpha": 0.1}),
    }
    for how, ask in refused.items():
        with pytest.raises(UserError, match=r"ce has no setting method\.alpha") as error:
            ask()
        assert "gpaco, paco" in error.value.remedy, how  # the methods that have it
    with pytest.raises(UserError, match=r"cb-focal has no setting method\.gamma; did you mean 'cb_gamma'"):
        override(Recipe(), ["method.name=cb-focal", "method.gamma=2"])
    first = override(Recipe(), ["method.name=crt", "method.first=gpaco", "method.alpha=0.1"])  # of the first stage
    assert first.method.alpha == 0.1


def test_a_method_is_shown_with_its_reference_settings_and_defaults() -> None:
    for name, about in METHODS.items():
        text = method(name)
        assert about.idea in text
        assert about.paper in text
        for key in about.uses:
            assert f"method.{key} = " in text


def test_every_option_that_a_message_names_is_one_of_the_command() -> None:
    known = {word for option in get_command(app).commands["train"].params for word in option.opts}  # type: ignore[attr-defined]
    for key in SETTINGS:
        assert overrides(key).split()[0] in known, key


def test_a_recipe_with_another_method_has_nothing_left_of_its_own() -> None:
    """Otherwise recipe.toml, which has only what a method uses, would be another recipe."""
    for name in names():
        if load(name).stage or load(name).train.task == "segmentation":
            continue
        for other in ("ce", "bcl", "crt", "paco"):
            recipe, _ = requested("digits", name, [], {"method": other})
            assert loads(dumps(recipe)) == recipe
    mixed = change(Recipe(), {"method.mixup": 0.5, "method.alpha": 0.2})
    recipe, _ = requested("digits", mixed, ["method.name=bcl"], {})
    assert recipe.method == MethodSettings(name="bcl")
    file = 'base = "imagenet-lt-resnet50-gpaco"\n[method]\nname = "ce"\n'
    staged = override(Recipe(), ["method.name=crt", "method.first=ldam-drw", "method.margin=0.3"])
    for base, changes in ((loads(file), []), (staged, ["method.first=ce"])):
        recipe, _ = requested("digits", base, changes, {})
        assert loads(dumps(recipe)) == recipe


def test_a_setting_without_effect_is_refused_when_it_is_given_and_may_stay_in_a_recipe() -> None:
    for one in ("schedule.steps=[20, 25]", "schedule.factor=0.5"):
        with pytest.raises(UserError, match=rf"{one.split('=')[0]} needs schedule\.name = 'step'") as error:
            override(Recipe(), [one])
        assert "--set schedule.name=step" in error.value.remedy
        assert override(Recipe(), [one, "schedule.name=step"]).schedule.name == "step"
    with pytest.raises(UserError, match=r"optimizer.nesterov needs optimizer.name = 'sgd'"):
        override(Recipe(), ["optimizer.name=adamw", "optimizer.nesterov=true"])
    stages = loads("[[stage]]\nname = 'a'\nschedule.name = 'step'\n[[stage]]\nname = 'b'\n")
    assert override(stages, ["schedule.steps=[3]"]).schedule.steps == (3.0,)
    with pytest.raises(UserError, match=r"stage.b.schedule.steps needs stage\.b\.schedule\.name = 'step'"):
        override(stages, ["stage.b.schedule.steps=[3]"])
    stepped = load("cifar100-lt100-resnet32-gpaco")
    assert override(stepped, ["schedule.name=cosine"]).schedule.steps == stepped.schedule.steps
    with pytest.raises(UserError, match=r"method.norm_tau must be -1 or at least 0, got -0.5"):
        override(Recipe(), ["method.name=tau-norm", "method.norm_tau=-0.5"])
