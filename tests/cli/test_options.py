"""Every option of every command reaches the function that does the work."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import gpaco.cli.main  # noqa: F401 - defines all commands
from gpaco.cli.commands import app
from gpaco.training.run import Run

COMMANDS = get_command(app).commands  # type: ignore[attr-defined]
PRINTING = ("recipes", "show")  # these do the work themselves

TRAINING = (
    "DATA --root R --out OUT --recipe X --paper --task segmentation --method ce --model resnet8 --weights none "
    "--epochs 3 --batch-size 4 --lr 0.5 --size 32 --long-tail 10 --validation 0.3 --train all --amp bf16 "
    "--on-bad-image skip --workers 1 --device cpu --tune 2m --tune-prior --seed 5 --log wandb --set data.few=3"
)
TRAINED = {
    **{"root": "R", "recipe": "X", "paper": True, "task": "segmentation", "method": "ce", "model": "resnet8"},
    **{"weights": "none", "epochs": 3, "batch_size": 4, "lr": 0.5, "size": 32, "long_tail": 10, "validation": 0.3},
    **{"train": "all", "amp": "bf16", "on_bad_image": "skip", "workers": 1, "device": "cpu", "tune": 2.0},
    **{"tune_prior": True, "seed": 5, "log": "wandb", "settings": ["data.few=3"], "what": "DATA"},
}
COMPARED = ("root", "model", "weights", "size", "train", "epochs", "batch_size", "lr", "long_tail", "validation")
COMPARED = (*COMPARED, "recipe", "device", "settings")
INFERENCE = "--scales 0.5,1 --flip --window 48/32"
INFERRED = {"scales": (0.5, 1.0), "flip": True, "window": (48, 48), "stride": (32, 32)}

# The words of a command, the function that it calls, and what that must get.
CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("demo --out OUT --seeds 2", "gpaco.api.demo.run_demo", {"out": Path("OUT"), "seeds": 2}),
    (
        "check DATA --root R --task segmentation --set data.allow_outside=true",
        "gpaco.api.check.check",
        {"data": "DATA", "root": "R", "task": "segmentation", "settings": ["data.allow_outside=true"]},
    ),
    (f"train {TRAINING}", "gpaco.api.train.train", TRAINED | {"out": Path("OUT")}),
    (f"train {TRAINING} --dry-run", "gpaco.api.train.dry_run", TRAINED),
    (
        "evaluate RUN DATA --root R --prior uniform --unbiased --tune-prior --many 50 --few 10 --restrict "
        f"--checkpoint last --device cpu --out OUT {INFERENCE}",
        "gpaco.evaluate",
        {"runs": [Path("RUN")], "data": "DATA", "root": "R", "prior": "uniform", "unbiased": True}
        | {"tune_prior": True, "many": 50, "few": 10, "restrict": True, "which": "last", "device": "cpu"}
        | {"out": Path("OUT")}
        | INFERRED,
    ),
    (
        f"predict RUN IMAGES --out OUT --prior uniform --unbiased --uncertain 0.7 --device cpu {INFERENCE}",
        "gpaco.predict",
        {"runs": [Path("RUN")], "paths": [Path("IMAGES")], "out": Path("OUT"), "prior": "uniform", "unbiased": True}
        | {"uncertain": 0.7, "device": "cpu"}
        | INFERRED,
    ),
    (
        "mine RUN POOL --out OUT --classes a,b --n 7 --device cpu",
        "gpaco.mine",
        {"run": Path("RUN"), "pool": [Path("POOL")], "out": Path("OUT"), "classes": "a,b", "n": 7, "device": "cpu"},
    ),
    (
        "compare DATA --out OUT --root R --methods ce,gpaco --seeds 2 --model resnet8 --weights none --size 32 "
        "--train all --epochs 3 --batch-size 4 --lr 0.5 --long-tail 10 --validation 0.3 --recipe X --device cpu "
        "--set data.few=3",
        "gpaco.compare",
        {"data": "DATA", "out": Path("OUT"), "methods": ["ce", "gpaco"], "seeds": 2}
        | {name: TRAINED[name] for name in COMPARED},
    ),
    ("latency RUN --device cpu", "gpaco.latency", {"runs": [Path("RUN")], "device": "cpu"}),
    (
        "report RUN --out OUT --no-images",
        "gpaco.report",
        {"runs": [Path("RUN")], "out": Path("OUT"), "with_images": False},
    ),
    (
        "robustness RUN DATA --baseline alexnet --clean CLEAN --corruptions fog --severities 1,2 --subset 9 --seed 3 "
        "--restrict --prior uniform --unbiased --on-bad-image skip --workers 1 --device cpu --out OUT",
        "gpaco.robustness",
        {
            "run": Path("RUN"),
            "data": "DATA",
            "baseline": "alexnet",
            "clean": Path("CLEAN"),
            "subset": 9,
            "seed": 3,
        }
        | {"corruptions": "fog", "severities": "1,2", "restrict": True, "prior": "uniform", "unbiased": True}
        | {"on_bad_image": "skip", "workers": 1, "device": "cpu", "out": Path("OUT")},
    ),
    (
        "export RUN --out OUT --prior uniform --unbiased --size 32x48 --checkpoint last",
        "gpaco.export",
        {"runs": [Path("RUN")], "out": Path("OUT"), "prior": "uniform", "unbiased": True, "size": (32, 48)}
        | {"which": "last"},
    ),
    (
        "convert FILE --out OUT --model resnet50 --recipe X --classes CLASSES --counts COUNTS --set data.few=3",
        "gpaco.api.convert.convert",
        {"file": Path("FILE"), "out": Path("OUT"), "model": "resnet50", "recipe": "X", "classes": Path("CLASSES")}
        | {"counts": Path("COUNTS"), "settings": ["data.few=3"]},
    ),
    (
        "serve RUN --port 1 --host 127.0.0.2 --prior uniform --unbiased --device cpu",
        "gpaco.serve",
        {"run": Path("RUN"), "port": 1, "host": "127.0.0.2", "prior": "uniform", "unbiased": True, "device": "cpu"},
    ),
    (
        "serve FILE.onnx --port 1 --host 127.0.0.2 --prior uniform --unbiased --device cpu",
        "gpaco.api.exported.serve_file",
        {
            "path": Path("FILE.onnx"),
            "port": 1,
            "host": "127.0.0.2",
            "prior": "uniform",
            "unbiased": True,
            "device": "cpu",
        },
    ),
    (
        "push RUN me/it --private --dry-run",
        "gpaco.push",
        {"run": Path("RUN"), "name": "me/it", "private": True, "dry_run": True},
    ),
]


class Called(Exception):
    """The function was called with these arguments."""


@pytest.mark.parametrize(("words", "function", "expected"), CALLS, ids=[f"{c[0].split()[0]}-{c[1]}" for c in CALLS])
def test_options_reach_the_function(
    words: str, function: str, expected: dict[str, Any], trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, _, name = function.rpartition(".")
    signature = inspect.signature(getattr(__import__(home, fromlist=[name]), name))

    def called(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs).arguments
        raise Called(
            {key: value for key, value in given.items() if key not in ("flags", "how", "options")} | _more(given)
        )

    monkeypatch.setattr(function, called)
    monkeypatch.chdir(tmp_path)
    Path("RUN").symlink_to(trained.folder)
    with pytest.raises(Called) as error:
        get_command(app).main(words.split(), standalone_mode=False)
    (given,) = error.value.args
    assert {key: given.get(key) for key in expected} == expected


def _more(given: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments that a function has no names for."""
    return {key: value for name in ("flags", "how", "options") for key, value in given.get(name, {}).items()}


def test_every_option_of_every_command_is_tried() -> None:
    assert {words.split()[0] for words, _, _ in CALLS} == set(COMMANDS) - set(PRINTING)
    for name in set(COMMANDS) - set(PRINTING):
        tried = {word for words, _, _ in CALLS if words.split()[0] == name for word in words.split()}
        for option in COMMANDS[name].params:
            if option.param_type_name == "option" and option.name not in ("as_json", "help"):
                assert tried & {*option.opts, *option.secondary_opts}, f"{name} {option.opts[0]}"
