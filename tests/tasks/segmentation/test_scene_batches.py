"""Batches of crops: the same for any number of workers, processes and restarts; a bad file is named."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.scenes import card, scene_folder

from gpaco.data.batches import Batch
from gpaco.errors import EnvironmentProblem, UserError
from gpaco.recipes.settings import Recipe, Segmentation, Train
from gpaco.tasks.segmentation.batches import batches
from gpaco.tasks.segmentation.readers.read import read_scenes
from gpaco.tasks.segmentation.scenes import Scenes

CROPS = Segmentation(crop=(32, 48), base_size=(40, 56))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    return read_scenes(scene_folder(tmp_path_factory.mktemp("data"), train=9)).train


def loading(scenes: Scenes, *, epoch: int = 2, start: int = 0, **options: int) -> Iterator[Batch]:
    train = replace(Train(batch_size=4, seed=1, workers=0), **options)
    return batches(scenes, Recipe(train=train, segmentation=CROPS), card(), epoch=epoch, start=start)


def epoch(scenes: Scenes, **options: int) -> list[Batch]:
    return list(loading(scenes, **options))


def assert_same(one: list[Batch], other: list[Batch]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.views[0], b.views[0])
        assert torch.equal(a.labels, b.labels)


def test_a_batch_has_normalized_images_and_masks_of_classes(scenes: Scenes) -> None:
    first, second = epoch(scenes)
    assert first.views[0].shape == (4, 3, 32, 48)
    assert first.views[0].dtype == torch.float32
    assert -2 <= first.views[0].min() < 0 < first.views[0].max() <= 2
    assert first.labels.shape == (4, 32, 48)
    assert set(first.labels.unique().tolist()) <= {0, 1, 2, 255}
    assert not torch.equal(first.views[0], second.views[0])
    assert [len(part) for part in first.chunks(3)] == [2, 1, 1]  # as many parts as asked for
    assert len(first.chunks(9)) == 4


def test_workers_and_restarts_change_nothing_and_epochs_and_seeds_do(scenes: Scenes) -> None:
    whole = epoch(scenes)
    assert_same(epoch(scenes, workers=2), whole)
    assert_same(epoch(scenes, start=1), whole[1:])
    for other in ({"epoch": 3}, {"seed": 2}):
        assert not torch.equal(epoch(scenes, **other)[0].views[0], whole[0].views[0])


def test_processes_share_a_batch_and_together_have_all_of_it(scenes: Scenes, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = epoch(scenes), []
    monkeypatch.setattr("gpaco.system.distributed.world_size", lambda: 2)
    for rank in range(2):
        monkeypatch.setattr("gpaco.system.distributed.rank", lambda rank=rank: rank)
        parts.append(epoch(scenes))
    for k, batch in enumerate(whole):
        together = torch.stack([parts[0][k].views[0], parts[1][k].views[0]], 1).flatten(0, 1)
        assert torch.equal(together, batch.views[0])


def test_fewer_scenes_than_a_batch_come_again_in_other_crops(scenes: Scenes) -> None:
    (batch,) = epoch(scenes.subset([0]))
    assert len(batch) == 4
    assert len({image.numpy().tobytes() for image in batch.views[0]}) == 4


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_file_is_named_also_by_a_worker(tmp_path: Path, workers: int) -> None:
    folder = scene_folder(tmp_path, train=2)
    scenes = read_scenes(folder).train
    (folder / "masks" / "train" / "1.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"1.png.*not a JPEG, PNG"):
        epoch(scenes, workers=workers, batch_size=2)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_fault_of_the_machine_stays_one_also_in_a_worker(
    scenes: Scenes, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: object) -> None:
        raise EnvironmentProblem("input/output error", "look at the disk")

    monkeypatch.setattr("gpaco.tasks.segmentation.scenes.read_image", failing)
    with pytest.raises(EnvironmentProblem, match="input/output error") as caught:
        epoch(scenes, workers=workers)
    assert caught.value.exit_code == 3


def test_loading_leaves_the_global_generator_alone(scenes: Scenes) -> None:
    before = torch.get_rng_state()
    epoch(scenes)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_fault_of_the_disk_that_passes_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = scene_folder(tmp_path, train=2)
    scenes = read_scenes(folder).train
    whole = epoch(scenes, batch_size=2)
    for kind in ("images", "masks"):
        place, good = folder / kind / "train" / "1.png", tmp_path / "good.png"
        place.rename(good)
        os.symlink("/proc/self/mem", place)  # reading it is an input/output error
        monkeypatch.setattr("time.sleep", lambda _, good=good, place=place: good.replace(place))  # fixed meanwhile
        assert_same(epoch(scenes, batch_size=2), whole)
