"""A head on cached features: the same as without the cache, shared, exact after kills, complete when loaded."""

import json
import shutil
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers import forked
from helpers.cards import made_card
from helpers.commands import checkpoint_files, run, start
from helpers.images import save, tree_hash
from helpers.ranks import Results, run_ranks
from safetensors.torch import save_file

import gpaco
from gpaco.api.compare import compare
from gpaco.api.train import train
from gpaco.data.readers.read import read
from gpaco.data.samples import Samples
from gpaco.data.views.views import View
from gpaco.errors import UserError
from gpaco.models import backbones
from gpaco.system.progress import quiet
from gpaco.tasks.classification import frozen
from gpaco.tasks.classification.analysis import analyze
from gpaco.tasks.classification.batches import cached_kinds, chosen_views
from gpaco.tasks.classification.feature_cache import BLOCK
from gpaco.tasks.classification.frozen import Frozen
from gpaco.training.run import Run, select_checkpoint

PLAIN, AUG = View("plain", 8), View("cifar_aug", 8)
OFF = ["views.first=plain", "views.second=plain", "views.crop_scale=[1,1]", "views.flip=false"]  # no augmentation


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A resnet8 as somebody might have pretrained it."""
    torch.manual_seed(7)
    path = tmp_path_factory.mktemp("weights") / "resnet8.safetensors"
    save_file(backbones.build("resnet8").module.state_dict(), path)
    return path


def head(weights: Path, out: Path, settings: list[str], **flags: Any) -> Run:
    """A head on digits."""
    common = {"long_tail": 20, "epochs": 2, "batch_size": 32, "lr": 0.05, "model": "resnet8", "report": False} | flags
    return train(
        "digits",
        out=out,
        weights=str(weights),
        train="head",
        settings=settings,
        say=quiet,
        **common,
    )


@pytest.mark.slow
def test_the_analysis_of_a_head_is_that_of_its_images_and_takes_them_from_the_cache(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpaco.tasks.classification.analysis.SECONDS", 600)
    method = {"method": "gpaco", "report": True, "seed": 3}
    with monkeypatch.context() as patch:
        patch.setattr("gpaco.tasks.classification.probe.views_of", None)
        run = head(weights, tmp_path / "run", ["method.memory=64"], **method)
    stored, anew = json.loads((run.folder / "analysis.json").read_text()), analyze(run)
    for part in ("gradients", "mass"):
        for key, values in anew[part].items():
            if isinstance(values, list):
                np.testing.assert_allclose(stored[part][key], values, rtol=0.02, atol=1e-3, err_msg=f"{part}.{key}")
    assert stored["gradients"]["images"] == anew["gradients"]["images"]


def caches(folder: Path) -> list[Path]:
    return sorted(folder.glob("features/*/features.f16"))


def rows_in(folder: Path) -> int:
    """Images in all caches below a folder."""
    total = 0
    for path in caches(folder):
        _, views, width = json.loads((path.parent / "key.json").read_text())["shape"]
        total += path.stat().st_size // (2 * views * width)
    return total


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gpaco", "paco", "ce"])  # two views, a momentum copy, logits only
def test_without_augmentation_a_cached_head_is_the_head_that_sees_the_images(
    method: str, weights: Path, tmp_path: Path
) -> None:
    settings = [*OFF, "model.hidden=48", "method.fuse=false"]
    cached = head(weights, tmp_path / "cached", settings, method=method, lr=0.01)
    anew = head(weights, tmp_path / "anew", [*settings, "train.cached_views=0"], method=method, lr=0.01)
    assert rows_in(cached.folder) > 400
    assert not (anew.folder / "features").exists()
    theirs = select_checkpoint(anew, parts=["model"]).tensors["model"]
    for name, mine in select_checkpoint(cached, parts=["model"]).tensors["model"].items():
        assert (mine - theirs[name]).norm() < 5e-3 * theirs[name].norm(), name  # half precision has 11 bits
    for mine, other in zip(cached.history, anew.history, strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-3)
    assert cached.metrics["top1"] == pytest.approx(anew.metrics["top1"], abs=3 / cached.metrics["n"])


@pytest.mark.extensive
def test_augmented_views_are_cached_not_one_picture_four_times(weights: Path, tmp_path: Path) -> None:
    settings = ["views.first=plain", "views.second=plain"]
    cached, off = head(weights, tmp_path / "augmented", settings), head(weights, tmp_path / "off", OFF)
    assert abs(cached.history[-1]["loss"] - off.history[-1]["loss"]) > 1e-3


@pytest.mark.slow
def test_a_run_can_be_used_alone_and_goes_from_images_to_logits(weights: Path, tmp_path: Path) -> None:
    moved = tmp_path / "weights.safetensors"
    shutil.copy(weights, moved)
    settings = ["model.hidden=32", "train.ema=0.5", f"train.features={tmp_path / 'shared'}"]
    result = head(moved, tmp_path / "run", settings)
    moved.unlink()
    shutil.rmtree(tmp_path / "shared")
    shutil.copytree(result.folder, tmp_path / "elsewhere")
    shutil.rmtree(result.folder)
    stored = np.load(tmp_path / "elsewhere" / "predictions.npz")
    test = read("digits").test
    images = torch.from_numpy(np.asarray(test.images)).permute(0, 3, 1, 2)
    with torch.no_grad():
        logits = gpaco.load(tmp_path / "elsewhere")(images)
    np.testing.assert_allclose(logits, stored["logits"], rtol=5e-3, atol=5e-3)
    assert gpaco.evaluate(tmp_path / "elsewhere")["top1"] == pytest.approx(
        float((stored["logits"].argmax(1) == stored["labels"]).mean()), abs=2 / len(images)
    )
    backbone = tmp_path / "elsewhere" / "backbone.safetensors"
    content = bytearray(backbone.read_bytes())
    content[-1] ^= 1
    backbone.write_bytes(content)
    with pytest.raises(UserError, match=r"backbone.safetensors is damaged"):
        gpaco.load(tmp_path / "elsewhere")
    backbone.unlink()
    with pytest.raises(UserError, match=r"has no backbone.safetensors"):
        gpaco.load(tmp_path / "elsewhere")


@pytest.mark.extensive
@pytest.mark.slow
def test_methods_and_seeds_of_a_comparison_embed_each_image_once_and_sums_are_beside_heads(
    weights: Path, tmp_path: Path
) -> None:
    result = compare(
        "digits",
        ["ce", "paco", "gpaco+train.sampler=balanced"],
        seeds=2,
        out=tmp_path,
        settings=["method.memory=64"],
        say=quiet,
        weights=str(weights),
        train="head",
        model="resnet8",
        epochs=1,
        batch_size=64,
        long_tail=20,
    )
    cell = Run(tmp_path / "ce" / "seed-0")
    parts = [Run(tmp_path / "ce" / f"seed-{seed}").metrics["parts"] for seed in range(2)]
    row = result["rows"][0]
    for column, part in (("top1", "head"), ("fused", "fused")):
        assert row[column]["mean"] == pytest.approx(np.mean([one[part]["top1"] for one in parts]))
    assert len(caches(tmp_path)) == 3  # training images in views and as they are tested, and test images
    assert rows_in(tmp_path) == 2 * sum(cell.metrics["counts"]) + cell.metrics["n"]
    assert not list(tmp_path.glob("*/seed-*/features"))


@pytest.mark.slow
def test_other_seeds_and_methods_embed_nothing_and_other_images_views_weights_or_means_everything(
    weights: Path, tmp_path: Path
) -> None:
    shared = [f"train.features={tmp_path / 'features'}"]
    head(weights, tmp_path / "one", shared, epochs=1)
    before = tree_hash(tmp_path / "features")
    head(weights, tmp_path / "same", shared, epochs=1, seed=3, method="ce")
    assert tree_hash(tmp_path / "features") == before  # read, not written
    other = tmp_path / "other.safetensors"
    torch.manual_seed(8)
    save_file(backbones.build("resnet8").module.state_dict(), other)
    known = 3  # training images in views and as they are tested, test images
    for name, first, tail, settings, new in (
        ("tail", weights, 40, [], 2),  # of the same test images
        ("views", weights, 20, ["views.first=cifar_aug", "views.second=cifar_aug"], 1),
        ("weights", other, 20, [], 3),
        ("mean", weights, 20, ["model.mean=[0.5,0.5,0.5]", "model.std=[0.2,0.2,0.2]"], 3),
    ):
        head(first, tmp_path / name, [*shared, *settings], epochs=1, long_tail=tail)
        known += new
        assert len(caches(tmp_path)) == known, name


@pytest.mark.slow
def test_a_resumed_head_needs_the_backbone_it_was_trained_on(weights: Path, tmp_path: Path) -> None:
    run = head(weights, tmp_path / "run", [])
    (run.folder / "metrics.json").unlink()
    path = run.folder / "backbone.safetensors"
    content = path.read_bytes()
    for damaged, message in (
        (b"", "has no backbone"),
        (b"x" + content[1:], "is damaged"),
        (content[:-1], "is damaged"),
    ):
        path.unlink()
        if damaged:
            path.write_bytes(damaged)
        with pytest.raises(UserError, match=message):
            head(weights, tmp_path / "run", [])
        assert not damaged or path.read_bytes() == damaged
        path.write_bytes(content)
    assert head(weights, tmp_path / "run", []).metrics["top1"] == run.metrics["top1"]


def test_another_interpolation_or_pooling_is_another_cache(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
    samples, device = Samples(np.array([0, 1]), ("a", "b"), images=images), torch.device("cpu")
    card = made_card(model="none", size=4, mean=(0.5,) * 3, std=(0.2,) * 3, resize=5)
    found = []
    for change in ({}, {"interpolation": "bicubic"}, {"pool": "mean"}, {}):
        settings = (torch.nn.Flatten(), 48, "sha", replace(card, **change), "off", 0, tmp_path / "features", device)
        features = Frozen(*settings, quiet).of_tested(samples)
        found.append(features.take(np.array([0, 1]), np.array([0, 0])))
    assert len(caches(tmp_path)) == 3
    assert not torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[3])


@pytest.mark.extensive
@pytest.mark.slow
def test_features_are_the_same_bits_for_any_number_of_threads(weights: Path, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            head(weights, tmp_path / str(number), [], epochs=1, size=40)
            assert torch.get_num_threads() == number
    finally:
        torch.set_num_threads(threads)
    one, three = ([path.read_bytes() for path in caches(tmp_path / name)] for name in ("1", "3"))
    assert len(one) == 3
    assert one == three


def test_which_cached_views_a_step_shows_depends_on_seed_epoch_and_image_only() -> None:
    keys = np.arange(200)
    views, cached = [PLAIN, PLAIN], cached_kinds([PLAIN, PLAIN], 4)
    one, two = chosen_views(3, 5, keys, views, cached)
    assert (one != two).all()
    assert set(one) == set(two) == {0, 1, 2, 3}
    some = chosen_views(3, 5, keys[50:60], views, cached)
    assert some[0].tolist() == one[50:60].tolist()
    for other in (chosen_views(4, 5, keys, views, cached), chosen_views(3, 6, keys, views, cached)):
        assert (other[0] != one).any()


def test_views_of_two_kinds_share_the_cached_ones() -> None:
    cached = cached_kinds([PLAIN, AUG], 5)
    assert [view.name for view in cached] == ["plain", "cifar_aug", "plain", "cifar_aug", "plain"]
    one, two = chosen_views(0, 0, np.arange(200), [PLAIN, AUG], cached)
    assert set(one) == {0, 2, 4}
    assert set(two) == {1, 3}
    assert [view.tolist() for view in chosen_views(0, 0, np.arange(3), [PLAIN, PLAIN], [PLAIN])] == [[0, 0, 0]] * 2
    with pytest.raises(UserError, match=r"2 different views need at least 2 cached views, got 1"):
        cached_kinds([PLAIN, AUG], 1)


def test_mixed_pixels_and_cached_features_do_not_go_together(weights: Path, tmp_path: Path) -> None:
    for setting in ("method.mixup=0.2", "method.cutmix=1", "views.erase=0.25"):
        with pytest.raises(UserError, match=r"mixup, cutmix and erasing need images.*\n.*cached_views=0"):
            head(weights, tmp_path / "run", [setting])
    assert not (tmp_path / "run").exists()
    result = head(weights, tmp_path / "run", ["method.mixup=0.2", "train.cached_views=0"])
    assert len(result.history) == 2


@pytest.mark.extensive
@pytest.mark.slow
def test_files_are_embedded_by_workers_and_alone_alike(weights: Path, tmp_path: Path) -> None:
    for part, count in (("train", 20), ("test", 5)):
        for c in range(3):
            for i in range(count):
                save(tmp_path / "data" / part / f"class{c}" / f"{i}.png", 100 * c + i + 50 * (part == "test"), 80, 70)
    figures = []
    for workers in (0, 1):
        settings = ["method.memory=16"]
        result = train(
            tmp_path / "data",
            out=tmp_path / f"run{workers}",
            model="resnet8",
            weights=str(weights),
            train="head",
            size=24,
            epochs=2,
            batch_size=10,
            workers=workers,
            settings=settings,
            say=quiet,
        )
        figures.append(checkpoint_files(result.folder))
    assert figures[0]["model.safetensors"] == figures[1]["model.safetensors"]


SLOW = ("--train", "head", "--model", "resnet20", "--size", 48, "--batch-size", 32)
SLOW = ("digits", "--long-tail", 60, "--epochs", 8, *SLOW, "--set", "model.hidden=64", "--set", "train.report=false")


@pytest.mark.process
def test_a_signal_while_embedding_keeps_what_is_done(tmp_path: Path) -> None:
    process = start("train", *SLOW, "--out", tmp_path)
    deadline = time.monotonic() + 120
    while not rows_in(tmp_path) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.003)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert "rerun the same command to resume" in errors
    assert rows_in(tmp_path) > 0
    assert rows_in(tmp_path) % BLOCK == 0
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_random_memory_is_the_same_whether_features_are_there_or_have_to_be_made(
    weights: Path, tmp_path: Path
) -> None:
    for k in range(24):  # too large to be kept in memory: a loader reads them
        save(tmp_path / "data" / "ab"[k % 2] / f"{k}.png", seed=k, width=70, height=70)
    settings = ["method.memory=64", "method.start=released", "views.first=plain", "views.second=plain"]
    settings.append(f"train.features={tmp_path / 'features'}")
    flags = {"train": "head", "model": "resnet8", "weights": str(weights), "size": 32, "batch_size": 8, "epochs": 1}
    flags |= {"method": "gpaco", "report": False, "workers": 0, "say": quiet, "settings": settings}
    cold, warm = (train(tmp_path / "data", out=tmp_path / name, **flags) for name in ("cold", "warm"))
    assert checkpoint_files(cold.folder) == checkpoint_files(warm.folder)


@pytest.mark.extensive
@pytest.mark.process
def test_two_processes_share_the_work_and_find_the_same_features(weights: Path, tmp_path: Path) -> None:
    words = ("train", "digits", "--long-tail", 60, "--epochs", 2, "--train", "head", "--model", "resnet8", "--weights")
    words = (*words, weights, "--batch-size", 32, "--set", "method.memory=64", "--set", "train.report=false", "--out")
    run(*words, tmp_path / "two", ranks=2)
    run(*words, tmp_path / "one")
    pairs = list(zip(caches(tmp_path / "one"), caches(tmp_path / "two"), strict=True))
    assert len(pairs) == 3
    for mine, theirs in pairs:
        assert mine.parent.name == theirs.parent.name
        one, two = (np.fromfile(path, np.float16) for path in (mine, theirs))
        np.testing.assert_allclose(one, two, rtol=2e-3, atol=1e-3)
    assert json.loads((tmp_path / "two" / "metrics.json").read_text())["environment"]["processes"] == 2


def of_one_image(folder: Path) -> Results:
    """The features of a single image, which only one process has."""
    samples = Samples(
        np.zeros(1, int), ("a",), images=np.random.default_rng(0).integers(0, 256, (1, 4, 4, 3), np.uint8)
    )
    card = made_card(model="none", size=4, mean=(0.5,) * 3, std=(0.5,) * 3, resize=4)
    settings = (torch.nn.Flatten(), 48, "sha", card, "off", 0, folder)
    features = Frozen(*settings, torch.device("cpu"), quiet).of_tested(samples)
    return {"features": features.take(np.array([0]), np.array([0]))}


@pytest.mark.process
def test_a_process_without_an_image_has_the_features_that_the_others_have(tmp_path: Path) -> None:
    first, second = run_ranks(2, partial(of_one_image, tmp_path / "two"))
    alone = of_one_image(tmp_path / "one")["features"]
    assert alone.any()
    assert torch.equal(first["features"], alone)
    assert torch.equal(second["features"], alone)


def wait_for_lock(folder: Path) -> Results:
    """The features of one image in a folder that is in use for longer than processes wait for each other."""
    said: list[str] = []
    if dist.get_rank() == 0:
        release = threading.Timer(4, Path(folder / "done").touch)
        release.start()
    with frozen._locked(folder / "features", said.append):
        assert (folder / "done").exists()
    return {"lines": torch.tensor(len(said))}


@pytest.mark.process
def test_all_processes_wait_for_a_folder_that_another_run_has(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from gpaco.system.locks import lock\n"
        "with lock(Path(sys.argv[1]) / 'features'):\n"
        "    print('locked', flush=True)\n"
        "    while not (Path(sys.argv[1]) / 'done').exists(): time.sleep(0.01)\n"
    )
    with forked.python("-c", code, tmp_path, env=forked.ENVIRONMENT, stdout=-1) as process:
        process.stdout.readline()
        results = run_ranks(2, partial(wait_for_lock, tmp_path))
    assert [int(one["lines"]) for one in results] == [1, 1]


@pytest.mark.process
def test_a_run_waits_for_another_one_that_embeds_the_same_images(weights: Path, tmp_path: Path) -> None:
    words = ("train", *SLOW, "--set", f"train.features={tmp_path / 'features'}", "--out")
    first = start(*words, tmp_path / "one")
    while not rows_in(tmp_path) and first.poll() is None:
        time.sleep(0.003)
    first.send_signal(signal.SIGSTOP)
    second = start(*words, tmp_path / "two")
    assert any(f"is in use by process {first.pid} on" in line for line in second.stdout)
    first.send_signal(signal.SIGCONT)
    for process in (first, second):
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    one, two = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("one", "two"))
    assert one["per_class"] == two["per_class"]


@pytest.mark.slow
def test_with_mixed_precision_the_metrics_are_those_of_the_finished_model(weights: Path, tmp_path: Path) -> None:
    run = head(weights, tmp_path / "run", [], amp="bf16", method="ce")
    again = gpaco.evaluate(run, say=quiet)
    for key in ("top1", "few", "macro"):
        assert again[key] == run.metrics[key], key
    assert again["ece"] == pytest.approx(run.metrics["ece"], abs=0.005)
