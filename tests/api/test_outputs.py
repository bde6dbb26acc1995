"""Where results may go: no command changes data, or a file that it did not write."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.images import class_folders, save, tree_hash
from helpers.scenes import made_run, scene_folder, tiny_segmenter

import gpaco
from gpaco.api.convert import convert
from gpaco.api.demo import run_demo
from gpaco.errors import UserError
from gpaco.recipes.settings import Data
from gpaco.system.progress import quiet
from gpaco.tasks.segmentation import predictor

NAMES = ("road", "sky", "tree")
MINE = {  # somebody's own work, which may look like ours
    "t.csv": "path,class,probability,group\r\na.png,cat,1.0,many\r\n",
    "t.jsonl": '{"path": "a.png", "class": "cat", "probability": 1.0, "top": []}\n',
    "t.json": '{"path": "a.png", "top1": 1.0}',
    "t.html": '<meta name="generator" content="Writer">',
    "labeled.csv": "class,rank,path,probability,predicted,predicted_probability,right\r\na,1,x,1,a,1,yes\r\n",
    "s_files/classes.csv": "cat",
} | dict.fromkeys(("t.onnx", "t.pt2", "t.safetensors"), "my own work")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Labeled images of both tasks, files of all kinds that nobody may replace, and a run of each task."""
    tmp_path = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setattr(predictor, "build_model", lambda card: tiny_segmenter())
        yield filled(tmp_path)


def filled(tmp_path: Path) -> Path:
    scenes = scene_folder(tmp_path / "scenes", train=4, val=1, test=2)
    (scenes / "masks").rename(scenes / "mask")  # the name that predictions have too
    (scenes / "classes.csv").write_text("\n".join(NAMES))
    made_run(tmp_path / "segmenter", scenes, NAMES)
    photos = class_folders(tmp_path / "photos", {"a": 9, "b": 8})
    quick = {"method": "ce", "model": "resnet8", "epochs": 1, "workers": 0, "report": False, "say": quiet}
    gpaco.train(photos, out=tmp_path / "run", **quick)
    save(tmp_path / "mine" / "image.png")
    for name, text in MINE.items():
        (tmp_path / "mine" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "mine" / name).write_text(text, newline="")
    (tmp_path / "run" / "hub").mkdir()
    (tmp_path / "run" / "hub" / "config.json").write_text('{"mine": 1}')
    torch.save({"conv1.weight": torch.zeros(3)}, tmp_path / "released.pth")
    (tmp_path / "listed.csv").write_text("path,label\n" + "".join(f"{c}/{i}.png,{c}\n" for c in "ab" for i in range(8)))
    return tmp_path


def commands(home: Path) -> dict[str, Callable[[str], Any]]:
    """Every command that has --out, by the suffix of what it writes; push, which writes into the run."""
    run, segmenter, photos, scenes = (home / name for name in ("run", "segmenter", "photos", "scenes"))
    listed = home / "listed.csv"
    quick: dict[str, Any] = {"model": "resnet8", "epochs": 1, "say": quiet}
    corrupted: dict[str, Any] = {"corruptions": "contrast", "severities": "1"}
    return {
        "predict .csv .jsonl": lambda out: gpaco.predict(run, photos / "a", out=out),
        "predict scenes": lambda out: gpaco.predict(segmenter, scenes / "images" / "test", out=out),
        "report .html": lambda out: gpaco.report(run, out),
        "report scenes .html": lambda out: gpaco.report(segmenter, out),
        "evaluate .json": lambda out: gpaco.evaluate(run, out=out),
        "export .onnx .pt2 .safetensors": lambda out: gpaco.export(run, out),
        "robustness": lambda out: gpaco.robustness(run, out=out, **corrupted),
        "robustness scenes": lambda out: gpaco.robustness(segmenter, out=out, **corrupted),
        "train": lambda out: gpaco.train(photos, out=out, method="ce", **quick),
        "train listed": lambda out: gpaco.train(listed, root=photos, out=out, method="ce", **quick),
        "evaluate listed .json": lambda out: gpaco.evaluate(run, listed, root=photos, out=out),
        "compare": lambda out: gpaco.compare(photos, ["ce"], seeds=1, out=out, **quick),
        "compare listed": lambda out: gpaco.compare(listed, ["ce"], seeds=1, out=out, root=photos, **quick),
        "mine .csv": lambda out: gpaco.mine(run, home / "mine" / "image.png", out=out),
        "convert .safetensors": lambda out: convert(home / "released.pth", out, say=quiet),
        "demo": lambda out: run_demo(out, say=quiet),
        "push": lambda out: gpaco.push(run, "me/name", dry_run=True),
    }


@pytest.mark.slow
def test_no_command_changes_data_or_a_file_of_someone_else_wherever_its_results_go(home: Path) -> None:
    kept = [home / name for name in ("scenes", "photos", "mine", "run", "segmenter")]
    before = [tree_hash(path) for path in kept]
    for name, command in commands(home).items():
        endings = [word for word in name.split() if word.startswith(".")]
        data = "scenes" if "scenes" in name else "photos"
        files = [f"{place}{end}" for end in endings for place in ("mine/t", f"{data}/t", f"{data}/new/t")]
        folders = [f"{data}{inside}" for inside in ("", "/mask", "/a", "/new")]
        if name.split()[0] in ("convert", "demo"):  # these know of no data
            files, folders = [f"mine/t{end}" for end in endings], [data, f"{data}/a"]
        places = [*files, *folders, "mine", "mine/t.csv", "run/recipe.toml", "segmenter/recipe.toml"]
        places += [f"{one}/metrics{end}" for end in endings if end == ".json" for one in ("run", "segmenter")]
        places += [f"mine/{one}" for one in {"report": ["s.html"], "mine": ["labeled.csv"]}.get(name.split()[0], [])]
        for out in places:
            with pytest.raises(
                UserError, match=r"inside the data|not written by this|cannot be written|is a fi|is not"
            ):
                command(out)
            assert [tree_hash(path) for path in kept] == before, f"{name} --out {out}"


@pytest.mark.slow
def test_results_beside_the_data_leave_it_alone_and_may_be_replaced_by_the_same_command(home: Path) -> None:
    kept = [home / name for name in ("scenes", "photos", "mine")]
    before = [tree_hash(path) for path in kept]
    for name, command in commands(home).items():
        if name.split()[0] in (
            "train",
            "compare",
            "demo",
            "convert",
            "push",
        ):  # take long and resume, or replace nothing
            continue
        for ending in [word for word in name.split() if word.startswith(".") and word not in (".onnx", ".pt2")] or [""]:
            out = "new" if not ending else {"predict": "photos", "report": "scenes"}.get(name.split()[0], "new")
            for _ in range(2):  # the second time over the results of the first
                command(f"{out}{name.replace(' ', '')}" if not ending else f"{out}{ending}")
    assert [tree_hash(path) for path in kept] == before
    assert not (home / "scenes.html").read_text().count("my own work")
    assert (home / "scenes_files" / "classes.csv").is_file()


def test_results_may_go_beside_images_if_their_list_is_there_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "link").symlink_to(home, target_is_directory=True)
    lists, inside = str(home / "listed.csv"), str(home / "photos")
    for root, places in ((home, [lists]), (home / "link", [lists]), (inside, [lists, inside]), ("", [lists])):
        assert Data(path=lists, root=str(root)).places == places
    (home / "listed.csv").write_text(
        "path,label\n" + "".join(f"photos/{c}/{i}.png,{c}\n" for c in "ab" for i in range(8))
    )
    monkeypatch.chdir(home)
    quick = {"model": "resnet8", "epochs": 1, "workers": 0, "say": quiet}
    gpaco.train("listed.csv", root=".", out="runs/new", method="ce", **quick)
    monkeypatch.chdir("/")
    gpaco.report(home / "runs" / "new", home / "runs" / "new" / "again.html")
    gpaco.evaluate(home / "runs" / "new", lists, root=home, out=home / "runs" / "figures.json")
    gpaco.compare(lists, ["ce"], seeds=1, out=home / "runs" / "compared", root=home, **quick)


def test_predictions_are_never_inputs_of_the_next_prediction_and_hidden_files_are_none(home: Path) -> None:
    new = home / "new"
    for k in range(3):
        save(new / f"{k}.png", k, 56, 40)
    save(new / ".thumbs" / "0.png")
    save(new / "._0.png")
    save(new / "__MACOSX" / "0.png")
    for _ in range(3):
        assert len(gpaco.predict(home / "segmenter", new, out=new / "predictions")) == 3
    with pytest.raises(UserError, match="there is no image in"):
        gpaco.predict(home / "segmenter", new / "predictions" / "overlay" / "0.jpg", out=new / "predictions")
