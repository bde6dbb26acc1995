"""Errors on corrupted images: of its own data, of published sets, with a baseline, stopped and resumed."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.commands import fails, run
from helpers.images import class_folders, drawing, save, tree_hash
from PIL import Image

import gpaco
from gpaco.cli.tables import robustness_table
from gpaco.data.class_maps import class_map
from gpaco.data.corruption.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from gpaco.data.corruption.images import Corrupting, Images, corrupted_side
from gpaco.data.corruption.published import CLEAN
from gpaco.data.holdout import stratified_subset
from gpaco.data.images import read_image
from gpaco.data.readers.read import read
from gpaco.data.views import eval as eval_views
from gpaco.data.views import tested
from gpaco.data.views.eval import as_tested
from gpaco.errors import UserError
from gpaco.tasks.classification.answers import answers_under
from gpaco.tasks.classification.robustness_data import view_for
from gpaco.training.run import Run

QUICK = {"method": "ce", "epochs": 2, "batch_size": 64, "lr": 0.05, "report": False, "say": lambda line: None}
Result = dict[str, Any]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return gpaco.train("digits", out=tmp_path_factory.mktemp("runs") / "digits", long_tail=20, **QUICK)


@pytest.fixture(scope="module")
def whole(digits: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Everything, through the command, for a few images."""
    out = tmp_path_factory.mktemp("whole")
    return out, json.loads(run("robustness", digits.folder, "--subset", 30, "--out", out, "--json"))


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A model of ImageNet's thousand classes that has seen an image of each."""
    folder = tmp_path_factory.mktemp("imagenet")
    rng = np.random.default_rng(0)
    for wnid in class_map("imagenet"):
        (folder / "data" / wnid).mkdir(parents=True)
        image = rng.integers(0, 256, (2, 2, 3), np.uint8).repeat(4, 0).repeat(4, 1)
        Image.fromarray(image).save(folder / "data" / wnid / "0.png")
    few = QUICK | {"epochs": 1, "model": "resnet8"}
    return gpaco.train(folder / "data", out=folder / "run", validation=0, **few)


def logits_of(model_run: Run, images: list[np.ndarray]) -> np.ndarray:
    with torch.inference_mode():
        return gpaco.load(model_run)(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)).numpy()


def write_tree(
    root: Path, names: tuple[str, ...] = CORRUPTIONS, per_class: int = 2, only: tuple[str, ...] = ("0", "7")
) -> Path:
    """Real digits under conditions of a strength of their own, as PNG files of 8 pixels: nothing is lost."""
    samples = read("digits").test
    for c, name in enumerate(names):
        for severity in SEVERITIES:
            for own in only:
                home = root / name / str(severity) / own
                home.mkdir(parents=True, exist_ok=True)
                for i in np.flatnonzero(samples.labels == int(own))[:per_class]:
                    noise = np.random.default_rng([c, severity, i]).normal(0, 15 * severity + 5 * c, (8, 8, 3))
                    image = np.clip(samples.load(i) + noise, 0, 255).astype(np.uint8)
                    Image.fromarray(image).save(home / f"{i:04}.png")
    return root


@pytest.mark.process
def test_every_condition_and_group_is_there(whole: tuple[Path, Result], digits: Run) -> None:
    out, result = whole
    assert result == json.loads((out / "robustness.json").read_text())
    assert tuple(result["corruptions"]) == CORRUPTIONS
    groups = [digits.metrics["groups"][name] for name in ("many", "medium", "few")]
    assert [result["groups"][name]["classes"] for name in ("many", "medium", "few")] == groups
    assert result["n"] == 30
    assert result["constants"] == "cifar"
    for row in result["corruptions"].values():
        assert set(row) == {"1", "2", "3", "4", "5", "mean"}
        for cell in row.values():
            assert set(cell) == {"error", "many", "medium", "few"}
            assert all(0 <= cell[key] <= 1 for key in cell)
    by_hand = [row[str(s)]["error"] for row in result["corruptions"].values() for s in SEVERITIES]
    assert result["mean_error"] == pytest.approx(sum(by_hand) / 75)
    few = [row[str(s)]["few"] for row in result["corruptions"].values() for s in SEVERITIES]
    assert result["groups"]["few"]["mean_error"] == pytest.approx(sum(few) / 75)
    assert result["mce"] is result["relative_mce"] is None
    assert any("need a baseline" in note for note in result["notes"])


@pytest.mark.process
def test_errors_are_those_of_images_corrupted_by_hand(whole: tuple[Path, Result], digits: Run) -> None:
    samples = read("digits").test
    indices = stratified_subset(samples.labels, 30, 0)
    for name, severity in (("fog", 4), ("gaussian_noise", 2)):
        images = []
        for i in indices:
            large = samples.load(i).repeat(4, 0).repeat(4, 1)  # 8 pixels to 32
            done = corrupt(large, name, severity, seed=0, index=int(i), constants="cifar")
            images.append(np.rint(done.reshape(8, 4, 8, 4, 3).mean((1, 3))).astype(np.uint8))
        wrong = logits_of(digits, images).argmax(1) != samples.labels[indices]
        assert whole[1]["corruptions"][name][str(severity)]["error"] == pytest.approx(wrong.mean())
    clean = logits_of(digits, [samples.load(i) for i in indices]).argmax(1) != samples.labels[indices]
    assert whole[1]["clean_error"] == pytest.approx(clean.mean())


def test_photographs_are_corrupted_at_the_size_of_the_model(tmp_path: Path) -> None:
    for name, shade in (("dark", 40), ("light", 200)):
        for i in range(6):
            (tmp_path / "data" / name).mkdir(parents=True, exist_ok=True)
            image = np.clip(drawing(70 + 3 * i, 90 - 4 * i, i).astype(int) // 2 + shade // 2, 0, 255).astype(np.uint8)
            Image.fromarray(image).save(tmp_path / "data" / name / f"{i}.png")
    few = QUICK | {"epochs": 1, "batch_size": 4, "model": "resnet8", "size": 48}
    photos = gpaco.train(tmp_path / "data", out=tmp_path / "run", validation=0, workers=0, **few)
    result = gpaco.robustness(photos, tmp_path / "data", corruptions="snow", severities="3", out=tmp_path / "out")
    assert result["constants"] == "cifar"
    samples = read(tmp_path / "data").train
    view = tested.TestView(48, 55, False, "bilinear")
    images = [
        corrupt(as_tested(samples.load(i), view), "snow", 3, seed=0, index=i, constants="cifar")
        for i in range(len(samples))
    ]
    wrong = logits_of(photos, images).argmax(1) != samples.labels
    assert result["corruptions"]["snow"]["3"]["error"] == pytest.approx(wrong.mean())
    assert result["data"] == str(tmp_path / "data")


@pytest.mark.slow
def test_the_clean_error_is_that_of_evaluate(digits: Run, tmp_path: Path) -> None:
    result = gpaco.robustness(digits, corruptions="pixelate", severities="1", out=tmp_path / "out")
    figures = gpaco.evaluate(digits)
    assert result["clean_error"] == pytest.approx(1 - figures["top1"])
    for name in ("many", "medium", "few"):
        assert result["groups"][name]["clean_error"] == pytest.approx(1 - figures[name])


@pytest.mark.slow
def test_a_choice_of_conditions_has_no_mean_but_a_note(digits: Run, tmp_path: Path) -> None:
    result = gpaco.robustness(digits, subset=12, corruptions="fog,noise", severities="1,3", out=tmp_path / "out")
    assert set(result["corruptions"]) == {"gaussian_noise", "shot_noise", "impulse_noise", "fog"}
    assert result["corruptions"]["fog"]["2"] is None
    assert result["corruptions"]["fog"]["3"]["error"] is not None
    assert result["corruptions"]["fog"]["mean"] == {"error": None, "many": None, "medium": None, "few": None}
    assert result["mean_error"] is None
    assert result["groups"]["few"]["mean_error"] is None
    assert any("67 of the 75 conditions are missing" in note for note in result["notes"])


@pytest.mark.slow
def test_what_was_done_is_not_done_again_and_what_changed_is(digits: Run, tmp_path: Path) -> None:
    def test(**more: Any) -> tuple[Result, list[str]]:
        said: list[str] = []
        options = {"subset": 20, "corruptions": "fog,contrast", "out": tmp_path / "out", "say": said.append} | more
        return gpaco.robustness(digits, **options), said

    def lines() -> list[str]:
        return (tmp_path / "out" / "robustness.jsonl").read_text().splitlines()

    first, _ = test()
    assert len(lines()) == 11
    # Stopped while the last line was being written: the rest is made again, and comes out the same.
    kept = lines()[:4]
    (tmp_path / "out" / "robustness.jsonl").write_text("\n".join(kept) + "\n" + lines()[4][:30])
    again, said = test()
    assert again == first
    assert "4 conditions are already in the log" in said
    assert lines()[:4] == kept
    assert len(lines()) == 11
    # One line is changed by hand: it is believed, so it was not computed.
    row = json.loads(lines()[5])
    (tmp_path / "out" / "robustness.jsonl").write_text(
        "\n".join([*lines()[:5], json.dumps(row | {"error": 0.123}), *lines()[6:]]) + "\n"
    )
    assert 0.123 in [test()[0]["corruptions"][row["condition"]][str(row["severity"])]["error"]]
    # Another seed, subset, robustness_table of constants or prior asks for everything anew.
    for more in ({"seed": 1}, {"subset": 19}, {"constants": "imagenet"}, {"prior": "uniform"}, {"restrict": True}):
        before = len(lines())
        test(**more)
        assert len(lines()) == before + 11, more


def test_other_images_of_the_same_name_and_another_prior_of_the_same_name_are_measured(
    digits: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, only = read("digits").test, {"corruptions": "fog", "severities": "1", "out": tmp_path / "out"}
    for site, wrong in (("one", 0), ("two", 1)):  # the labels of the second are all wrong
        for i in range(60):
            folder = tmp_path / site / "data" / samples.classes[(samples.labels[i] + wrong) % 10]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(samples.load(i)).save(folder / f"{i}.png")
    errors = []
    for site in ("one", "two"):
        monkeypatch.chdir(tmp_path / site)
        errors.append(gpaco.robustness(digits, "data", **only)["clean_error"])
    assert errors[0] < 0.9 < errors[1]
    for c in (0, 1):
        shares = "".join(f"{k},{1000 if k == c else 0.001}\n" for k in range(10))
        (tmp_path / "prior.csv").write_text(shares)
        gpaco.robustness(digits, "data", prior=str(tmp_path / "prior.csv"), **only)
    assert len((tmp_path / "out" / "robustness.jsonl").read_text().splitlines()) == 4 * 2
    (tmp_path / "out" / "robustness-data.json").write_text("[")  # damaged
    gpaco.robustness(digits, "data", **only)
    assert json.loads((tmp_path / "out" / "robustness-data.json").read_text())["clean_error"] == errors[1]


@pytest.mark.slow
def test_a_prior_that_was_tuned_since_is_another_model(digits: Run, tmp_path: Path) -> None:
    shutil.copytree(digits.folder, tmp_path / "run")
    options: dict[str, Any] = {"subset": 200, "corruptions": "fog", "severities": "1"}
    before = gpaco.robustness(tmp_path / "run", **options)
    assert gpaco.evaluate(tmp_path / "run", tune_prior=True)["tuned"]["tau"] != 0
    after = gpaco.robustness(tmp_path / "run", **options)
    assert after["corruptions"] != before["corruptions"]
    afresh = gpaco.robustness(tmp_path / "run", out=tmp_path / "afresh", **options)
    assert after["corruptions"] == afresh["corruptions"]


def _largest(logits: Any) -> Any:
    return logits.argmax(1)


@pytest.mark.slow
def test_processes_and_their_number_change_nothing(digits: Run) -> None:
    model, samples = gpaco.load(digits), read("digits").test
    source = Images(samples, "corrupted here", Corrupting(model.card.view, "cifar", 0))
    conditions = [CLEAN, ("shot_noise", 5), ("glass_blur", 4), ("elastic_transform", 1)]
    view = view_for(source, model, "official")
    found = [list(answers_under(model, source, conditions, np.arange(150), view, _largest, workers=n)) for n in (0, 2)]
    for one, other in zip(*found, strict=True):
        assert one[0] == other[0]
        assert one[1].tolist() == other[1].tolist()
    nothing = answers_under(model, source, [CLEAN], np.arange(0), view, _largest, workers=0)  # of a small subset
    assert [found[1].tolist() for found in nothing] == [[]]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_model_that_gives_no_numbers_is_an_error_whatever_may_be_skipped(workers: int, digits: Run) -> None:
    model, samples = gpaco.load(digits), read("digits").test

    def refuse(logits: Any) -> Any:
        raise UserError("logits are not finite", "train again")

    source = Images(samples, "as they are")
    with pytest.raises(UserError, match="logits are not finite"):
        list(answers_under(model, source, [CLEAN], np.arange(5), model.card.view, refuse, skip=True, workers=workers))


@pytest.mark.slow
def test_a_baseline_run_gives_mce_by_hand(digits: Run, tmp_path: Path) -> None:
    other = gpaco.train("digits", out=tmp_path / "other", long_tail=20, seed=1, **QUICK)
    options: dict[str, Any] = {"subset": 15}
    result = gpaco.robustness(digits, baseline=other.folder, out=tmp_path / "a", **options)
    theirs = gpaco.robustness(other, out=tmp_path / "b", **options)

    def mean(of: Result, name: str, key: str = "error") -> float:
        return float(np.mean([of["corruptions"][name][str(s)][key] for s in SEVERITIES]))

    assert result["baseline"]["means"] == {name: pytest.approx(mean(theirs, name)) for name in CORRUPTIONS}
    assert result["baseline"]["clean_error"] == theirs["clean_error"]
    assert result["mce"] == pytest.approx(np.mean([mean(result, name) / mean(theirs, name) for name in CORRUPTIONS]))
    few = [mean(result, name, "few") / mean(theirs, name, "few") for name in CORRUPTIONS]
    assert result["groups"]["few"]["mce"] == pytest.approx(np.mean(few))
    added = [(mean(result, n) - result["clean_error"], mean(theirs, n) - theirs["clean_error"]) for n in CORRUPTIONS]
    if all(there > 0 for _, there in added):
        assert result["relative_mce"] == pytest.approx(np.mean([mine / there for mine, there in added]))
    else:
        assert result["relative_mce"] is None
        assert any("the baseline's error does not rise" in note for note in result["notes"])
    itself = gpaco.robustness(digits, baseline=digits.folder, out=tmp_path / "a", **options)
    assert itself["mce"] == 1
    assert not list(other.folder.glob("robustness*"))


@pytest.mark.slow
def test_alexnet_is_for_imagenet_only(digits: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="AlexNet's errors are known only for the 1,000 classes of ImageNet"):
        gpaco.robustness(digits, subset=5, corruptions="fog", baseline="alexnet", out=tmp_path / "out")


@pytest.mark.slow
def test_folders_shaped_like_imagenet_c_give_what_a_loop_gives(digits: Run, tmp_path: Path) -> None:
    root = write_tree(tmp_path / "data")
    before = tree_hash(root)
    result = gpaco.robustness(digits, root, clean="digits", out=tmp_path / "out")
    assert tree_hash(root) == before
    assert result["set"] == "imagenet-c"
    assert result["n"] == 4
    errors = {}
    for name in CORRUPTIONS:
        for severity in SEVERITIES:
            files = sorted((root / name / str(severity)).rglob("*.png"))
            logits = logits_of(digits, [read_image(path) for path in files])
            errors[name, severity] = np.mean(logits.argmax(1) != [int(path.parent.name) for path in files])
            assert result["corruptions"][name][str(severity)]["error"] == pytest.approx(errors[name, severity])
    assert result["mean_error"] == pytest.approx(np.mean(list(errors.values())))
    clean = [row for row in gpaco.evaluate(digits)["per_class"] if row["name"] in "07"]  # the classes that the set has
    right, tested = sum(row["recall"] * row["test"] for row in clean), sum(row["test"] for row in clean)
    assert result["clean_error"] == pytest.approx(1 - right / tested)
    assert result["overlap"]["absent"] == [c for c in "0123456789" if c not in "07"]
    assert (tmp_path / "out" / "robustness-imagenet-c.json").is_file()


@pytest.mark.slow
def test_the_papers_preprocessing_of_imagenet_c_is_an_option(digits: Run, tmp_path: Path) -> None:
    root = write_tree(tmp_path / "data", ("snow",), per_class=8, only=tuple("0123456789"))
    for preprocessing, resize in (("official", 8), ("paper", 9)):
        result = gpaco.robustness(digits, root, preprocessing=preprocessing, out=tmp_path / preprocessing)
        files = sorted((root / "snow" / "2").rglob("*.png"))
        view = tested.TestView(8, resize, False, "bilinear")
        logits = logits_of(digits, [as_tested(read_image(path), view) for path in files])
        wrong = logits.argmax(1) != [int(path.parent.name) for path in files]
        assert result["corruptions"]["snow"]["2"]["error"] == pytest.approx(wrong.mean())
    with pytest.raises(UserError, match="preprocessing is 'papr'; did you mean 'paper'"):
        gpaco.robustness(digits, root, preprocessing="papr")


@pytest.mark.slow
def test_a_missing_corruption_is_listed_and_no_mean_is_given(digits: Run, tmp_path: Path) -> None:
    root = write_tree(tmp_path / "data", tuple(name for name in CORRUPTIONS if name != "frost"))
    result = gpaco.robustness(digits, root, out=tmp_path / "out")
    assert result["mean_error"] is result["mce"] is result["clean_error"] is None
    assert all(result["groups"][name]["mean_error"] is None for name in ("many", "medium", "few"))
    assert any("5 of the 75 conditions are missing (frost 1, frost 2, frost 3, ...)" in n for n in result["notes"])
    assert "frost" not in result["corruptions"]
    assert result["corruptions"]["fog"]["mean"]["error"] is not None
    with pytest.raises(UserError, match="the data has no frost"):
        gpaco.robustness(digits, root, corruptions="frost,fog", out=tmp_path / "out")


@pytest.mark.slow
def test_a_wrong_class_folder_is_exit_2(digits: Run, tmp_path: Path) -> None:
    root = write_tree(tmp_path / "data", ("fog",), only=("7",))
    for severity in SEVERITIES:
        save(root / "fog" / str(severity) / "seven" / "0.png")
    with pytest.raises(UserError, match="the data has a class 'seven' that the model does not know") as caught:
        gpaco.robustness(digits, root, out=tmp_path / "out")
    assert caught.value.exit_code == 2


@pytest.mark.process
def test_an_unreadable_image_is_exit_2_or_a_listed_skip(digits: Run, tmp_path: Path) -> None:
    root = write_tree(tmp_path / "data", ("fog",))
    bad = sorted((root / "fog" / "3" / "7").iterdir())[0]
    bad.write_bytes(b"no image")
    assert "cannot read image" in fails("robustness", digits.folder, root, "--out", tmp_path / "out")
    result = gpaco.robustness(digits, root, on_bad_image="skip", out=tmp_path / "out")
    (line,) = result["skipped"]
    assert line.startswith(f"fog 3: 7/{bad.name}: ")
    rows = [json.loads(line) for line in (tmp_path / "out" / "robustness.jsonl").read_text().splitlines()]
    assert [row["n"] for row in rows] == [4, 4, 3, 4, 4]
    with pytest.raises(UserError, match="cannot read image"):  # what was known with a skip is not good enough now
        gpaco.robustness(digits, root, out=tmp_path / "out")


@pytest.mark.slow
def test_an_unreadable_image_of_ones_own_data_is_skipped_under_every_condition(digits: Run, tmp_path: Path) -> None:
    root = tmp_path / "data"
    for name in "012":
        for i in range(3):
            save(root / name / f"{i}.png", seed=i, width=9 + i)  # sizes differ, so that files stay files
    (root / "1" / "1.png").write_bytes(b"no image")
    with pytest.raises(UserError, match="cannot read image"):
        gpaco.robustness(digits, root, corruptions="fog", out=tmp_path / "out")
    result = gpaco.robustness(digits, root, corruptions="fog", on_bad_image="skip", out=tmp_path / "out")
    assert len(result["skipped"]) == 6
    assert (tmp_path / "out" / "robustness-data.json").is_file()


@pytest.mark.slow
def test_cifar_c_is_read_from_its_arrays(digits: Run, tmp_path: Path) -> None:
    classes = class_map("cifar10")
    rng = np.random.default_rng(0)
    for own in classes:
        for i in range(3):
            (tmp_path / "data" / own).mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(tmp_path / "data" / own / f"{i}.png")
    few = QUICK | {"epochs": 1, "batch_size": 16, "model": "resnet8"}
    model = gpaco.train(tmp_path / "data", out=tmp_path / "run", validation=0, **few)
    shifted = tmp_path / "CIFAR-10-C"
    shifted.mkdir()
    for name in CORRUPTIONS:
        np.save(shifted / f"{name}.npy", rng.integers(0, 256, (5 * 12, 32, 32, 3), np.uint8))
    labels = rng.integers(0, 10, 12)
    np.save(shifted / "labels.npy", np.tile(labels, 5))
    result = gpaco.robustness(model, shifted, out=tmp_path / "out")
    assert result["set"] == "cifar-10-c"
    for name, severity in (("fog", 1), ("snow", 5)):
        images = list(np.load(shifted / f"{name}.npy")[(severity - 1) * 12 : severity * 12])
        wrong = logits_of(model, images).argmax(1) != labels
        assert result["corruptions"][name][str(severity)]["error"] == pytest.approx(wrong.mean())
    assert result["mean_error"] is not None
    with pytest.raises(UserError, match="none of the classes of the data is in the model: "):
        gpaco.robustness(digits, shifted, out=tmp_path / "out")


@pytest.mark.slow
def test_imagenet_r_is_restricted_to_its_classes(imagenet: Run, tmp_path: Path) -> None:
    few = class_map("imagenet-r")
    root = class_folders(tmp_path / "imagenet-r", dict.fromkeys(few, 1))
    result = gpaco.robustness(imagenet, root, out=tmp_path / "out")
    assert result["set"] == "imagenet-r"
    assert result["overlap"]["restricted"] is True
    images = [as_tested(read_image(root / wnid / "0.png"), tested.TestView(8, 9, False, "bilinear")) for wnid in few]
    ids, right, free = class_map("imagenet"), 0, 0
    for wnid, row in zip(few, logits_of(imagenet, images), strict=True):
        scores = {own: row[ids.index(own)] for own in few}
        right += max(scores, key=scores.__getitem__) == wnid
        free += ids[row.argmax()] == wnid
    assert result["error"] == pytest.approx(1 - right / 200)
    assert gpaco.evaluate(imagenet, root, restrict=True)["n"] == 200
    assert set(result["groups"]) == {"many", "medium", "few"}
    assert result["groups"]["many"] == {"classes": 0, "error": None}
    assert result["groups"]["few"]["classes"] == 200
    said: list[str] = []
    assert gpaco.evaluate(imagenet, root, say=said.append)["overlap"]["restricted"] is False
    assert any("the classes of imagenet-r" in line and "--restrict" in line for line in said)
    with pytest.raises(UserError, match="imagenet-r has no corruptions to compare"):
        gpaco.robustness(imagenet, root, baseline="alexnet", out=tmp_path / "out")


def test_a_list_of_a_thousand_numbered_classes_is_corrupted_unlike_the_folders_of_imagenet_v2(
    imagenet: Run, tmp_path: Path
) -> None:
    test = imagenet.folder.parent / "numbered.txt"
    test.write_text("".join(f"data/{wnid}/0.png {number}\n" for number, wnid in enumerate(class_map("imagenet"))))
    some = {"corruptions": "fog", "severities": "1", "subset": 10, "out": tmp_path / "out"}
    result = gpaco.robustness(imagenet, test, **some)
    assert result["set"] == "corrupted here"
    assert result["corruptions"]["fog"]["1"]["error"] is not None
    listed = imagenet.folder.parent / "r.csv"
    listed.write_text("path,label\n" + "".join(f"data/{wnid}/0.png,{wnid}\n" for wnid in class_map("imagenet-r")))
    assert gpaco.robustness(imagenet, listed, subset=10, out=tmp_path / "out")["set"] == "imagenet-r"
    folders = class_folders(tmp_path / "v2", dict.fromkeys(map(str, range(1000)), 1))
    assert gpaco.robustness(imagenet, folders, subset=10, out=tmp_path / "out")["set"] == "imagenet-v2"


@pytest.mark.slow
def test_alexnet_is_the_baseline_of_imagenet_models(imagenet: Run, tmp_path: Path) -> None:
    root = class_folders(tmp_path / "some", dict.fromkeys(class_map("imagenet")[:3], 1))
    result = gpaco.robustness(imagenet, root, baseline="alexnet", out=tmp_path / "out")
    assert result["set"] == "corrupted here"
    assert result["baseline"]["name"] == "AlexNet"
    assert result["baseline"]["clean_error"] == 0.43478
    theirs = result["baseline"]["means"]
    ratios = [np.mean([row[s]["error"] for s in "12345"]) / theirs[name] for name, row in result["corruptions"].items()]
    assert result["mce"] == pytest.approx(np.mean(ratios))
    assert result["groups"]["few"]["mce"] is None
    assert any("published files of ImageNet-C" in note for note in result["notes"])


def test_a_subset_is_stratified_and_seeded() -> None:
    labels = np.repeat(np.arange(4), [400, 80, 15, 5])
    chosen = stratified_subset(labels, 100, seed=0)
    assert np.bincount(labels[chosen]).tolist() == [80, 16, 3, 1]
    assert len(set(chosen.tolist())) == 100
    assert chosen.tolist() == stratified_subset(labels, 100, seed=0).tolist()
    assert chosen.tolist() != stratified_subset(labels, 100, seed=1).tolist()
    assert stratified_subset(labels, 1000, seed=0).tolist() == list(range(500))
    assert sorted(labels[stratified_subset(labels, 4, seed=3)]) == [0, 1, 2, 3]
    with pytest.raises(UserError, match="a subset needs at least 1 image, got 0"):
        stratified_subset(labels, 0, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"severities": "1,6"}, "severities are 1 to 5, got '1,6'"),
        ({"corruptions": "fgo"}, r"no corruption 'fgo'; did you mean 'fog'\?"),
        ({"constants": "cifar10"}, r"constants is 'cifar10'; did you mean 'cifar'\?\nchoose imagenet or cifar"),
        ({"on_bad_image": "ignore"}, "on_bad_image is 'ignore'"),
        ({"workers": -1}, "workers must be 0 or more"),
        ({"clean": "digits"}, "leave out --clean"),
        ({"baseline": "nowhere"}, "nowhere does not exist"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_words_are_refused(options: dict[str, Any], message: str, digits: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        gpaco.robustness(digits, **({"subset": 3, "corruptions": "fog", "out": tmp_path} | options))


@pytest.mark.process
def test_the_table_on_a_terminal_has_a_line_for_each_corruption(whole: tuple[Path, Result]) -> None:
    result = whole[1]
    lines = robustness_table(result).splitlines()
    for name in CORRUPTIONS:
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        row = result["corruptions"][name]
        cells = [row[str(s)]["error"] for s in SEVERITIES] + [
            row["mean"][k] for k in ("error", "many", "medium", "few")
        ]
        assert line.split()[1:] == [f"{100 * cell:.1f}" for cell in cells]
    (mean,) = [line for line in lines if line.startswith("mean error")]
    assert float(mean.split()[2]) == pytest.approx(100 * result["mean_error"], abs=0.05)
    assert max(map(len, lines)) < 100
    assert lines[1].split() == [
        "clean",
        *(f"{100 * e:.1f}" for e in (result["clean_error"], *(g["clean_error"] for g in result["groups"].values()))),
    ]


def test_the_size_of_images_is_that_of_the_first_that_can_be_read(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "data", {"a": 2, "b": 2})
    (root / "a" / "0.png").write_bytes(b"no image")
    samples = read(root).train
    assert corrupted_side(samples, eval_views.TestView(64, 64, whole=True, interpolation="bilinear")) == 32
    with pytest.raises(UserError, match="no image could be read"):
        corrupted_side(samples.subset([0]), eval_views.TestView(64, 64, whole=True, interpolation="bilinear"))
