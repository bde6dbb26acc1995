"""Several processes: the same weights everywhere though one has no labels, and figures as one process gives them."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.ranks import Results, run_ranks
from helpers.scenes import card, scene_folder, tiny_segmenter
from torch.nn.parallel import DistributedDataParallel

from gpaco.recipes.settings import MethodSettings, Segmentation
from gpaco.tasks.segmentation import scenes
from gpaco.tasks.segmentation.evaluation import evaluate_scenes
from gpaco.tasks.segmentation.inspection import inspect
from gpaco.tasks.segmentation.losses import SceneLoss
from gpaco.tasks.segmentation.predictor import ScenePredictor
from gpaco.tasks.segmentation.readers.read import read_scenes
from gpaco.tasks.segmentation.scenes import pixel_counts

pytestmark = pytest.mark.process


def trained() -> Results:
    """Two steps in which only the second process has labels, and class 1 is nowhere."""
    network = tiny_segmenter(classes=4)
    settings = Segmentation(pixels=20)
    criterion = SceneLoss(MethodSettings(alpha=0.01, temperature=0.07), settings)
    wrapped = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    rank = torch.distributed.get_rank()
    torch.manual_seed(rank)
    labels = torch.full((2, 32, 32), 255)
    if rank:
        labels[:, 8:24] = torch.tensor([0, 3])[:, None, None]
    for _ in range(2):
        loss = criterion(wrapped(torch.randn(2, 3, 32, 32)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = torch.cat([parameter.flatten() for parameter in network.parameters()])
    return {"loss": loss.detach(), "weights": weights}


def evaluated(folder: Path) -> dict[str, Any]:
    part = read_scenes(folder).train  # 5 of them: one process has more than the other
    predictor = ScenePredictor(tiny_segmenter(seed=3), card()).eval()
    return evaluate_scenes(predictor, part) | {"counts": pixel_counts(part).tolist()}


def inspected_together(folder: Path) -> Results:
    """What all find by decoding each its share is what one finds alone."""
    read: list[Path] = []
    real = scenes.read_stored

    def counted(path: Path) -> Any:
        read.append(path)
        return real(path)

    alone = inspect(read_scenes(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scenes, "read_stored", counted)
        splits = read_scenes(folder, shared=True)  # without a table of classes
        found = inspect(splits, shared=True)
    for one, other in zip(found["train"], alone["train"], strict=True):
        assert (one.reason, one.size, one.digest) == (other.reason, other.size, other.digest)
        assert one.pixels.tolist() == other.pixels.tolist()
    return {"read": torch.tensor(len(read)), "classes": torch.tensor(len(splits.classes))}


def both() -> Results:
    with tempfile.TemporaryDirectory() as folder:
        data = scene_folder(Path(folder), train=5, val=0, test=0)
        figures = evaluated(data)
        found = inspected_together(data)
    keys = ("miou", "pixel_accuracy", "boundary_iou", "confusion", "counts")
    return trained() | found | {key: torch.tensor(figures[key], dtype=torch.float64) for key in keys}


@pytest.fixture(scope="module")
def results() -> list[Results]:
    return run_ranks(2, both)


def test_a_process_without_labels_stays_finite_and_equal_to_the_other(results: list[Results]) -> None:
    unlabeled, labeled = results
    assert unlabeled["loss"] == 0 < labeled["loss"]
    assert labeled["weights"].isfinite().all()
    assert torch.equal(unlabeled["weights"], labeled["weights"])


def test_each_mask_is_decoded_by_one_process_before_training(results: list[Results]) -> None:
    assert [one["classes"].item() for one in results] == [3, 3]
    assert [one["read"].item() for one in results] == [6, 4]  # for the classes and again for the check


def test_figures_of_two_processes_are_those_of_one_to_the_last_bit(results: list[Results], tmp_path: Path) -> None:
    alone = evaluated(scene_folder(tmp_path, train=5, val=0, test=0))
    assert alone["pixels"] == sum(alone["counts"]) > 0
    for shared in results:
        for key in ("miou", "pixel_accuracy", "boundary_iou", "confusion", "counts"):
            assert shared[key].tolist() == alone[key], key
