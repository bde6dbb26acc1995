"""Order and batches: functions of seed and epoch, whatever the number of workers, processes and restarts."""

import os
import random
import signal
import subprocess
import threading
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from helpers.commands import children
from helpers.forked import ENVIRONMENT, python

from gpaco.data.batches import Batch, batches, class_shares, epoch_order, loader, mix, steps_per_epoch
from gpaco.data.counter_random import uniforms
from gpaco.data.samples import Samples
from gpaco.data.views.erasing import DRAWS_OF_ERASING, erased_box
from gpaco.data.views.views import View

LABELS = np.repeat([0, 1, 2], [60, 30, 6])
COMMON = {"seed": 3, "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}


@pytest.fixture
def small() -> Samples:
    images = np.random.default_rng(0).integers(0, 256, (len(LABELS), 16, 16, 3), dtype=np.uint8)
    return Samples(LABELS, ("a", "b", "c"), images=images)


@pytest.fixture
def files(tmp_path: Path) -> Samples:
    paths = []
    generator = np.random.default_rng(0)
    for k in range(12):
        paths.append(tmp_path / f"{k}.png")
        cv2.imwrite(str(paths[-1]), generator.integers(0, 256, (20 + k, 30, 3), dtype=np.uint8))
    return Samples(np.arange(12) % 3, ("a", "b", "c"), paths=tuple(paths))


def assert_equal(one: list[Batch], other: list[Batch]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.labels, b.labels)
        assert all(torch.equal(x, y) for x, y in zip(a.views, b.views, strict=True))


def test_an_epoch_shows_every_image_once_in_an_order_of_its_own() -> None:
    orders = [epoch_order(LABELS, "shuffle", 3, epoch)[0] for epoch in (0, 1)]
    assert all(sorted(order.tolist()) == list(range(len(LABELS))) for order in orders)
    assert not np.array_equal(*orders)
    assert np.array_equal(orders[0], epoch_order(LABELS, "shuffle", 3, 0)[0])


@pytest.mark.parametrize(("sampler", "epoch"), [("balanced", 0), ("sqrt", 2)])
def test_samplers_show_classes_as_often_as_they_say_and_use_all_images_of_a_class_before_one_again(
    sampler: str, epoch: int
) -> None:
    order, again = epoch_order(LABELS, sampler, 3, epoch)
    shown = np.bincount(LABELS[order])
    expected = class_shares(np.bincount(LABELS), sampler) * len(LABELS)
    assert np.abs(shown - expected).max() <= 1
    pairs = set(zip(order.tolist(), again.tolist(), strict=True))
    assert len(pairs) == len(order)
    times = np.bincount(order, minlength=len(LABELS))
    for c in range(3):
        assert np.ptp(times[c == LABELS]) <= 1


@pytest.mark.parametrize(
    ("sampler", "sizes"), [("reversed", [1000, 3, 3, 2, 2, 2]), ("balanced", [3, 3, 1, 1, 1, 1, 1])]
)
def test_over_many_epochs_a_sampler_shows_every_class_as_often_as_it_says(sampler: str, sizes: list[int]) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    expected = class_shares(np.array(sizes), sampler) * len(labels)
    epochs = [
        np.bincount(labels[epoch_order(labels, sampler, 3, epoch)[0]], minlength=len(sizes)) for epoch in range(400)
    ]
    assert np.abs(np.array(epochs) - expected).max() < 1
    assert np.abs(np.mean(epochs, 0) - expected).max() < 0.1  # four standard errors


def test_a_balanced_sampler_shows_all_classes_alike_but_those_without_images() -> None:
    assert np.allclose(class_shares(np.array([5, 0, 5]), "balanced"), [0.5, 0, 0.5])


def test_batches_are_the_same_after_a_restart_in_the_middle(small: Samples) -> None:
    views = [View("cifar_regular", 16), View("cifar_aug", 16)]
    whole = list(batches(small, views, batch_size=20, epoch=1, **COMMON))
    assert len(whole) == steps_per_epoch(96, 20) == 4
    assert_equal(list(batches(small, views, batch_size=20, epoch=1, start=2, **COMMON)), whole[2:])


@pytest.mark.parametrize("world", [2, 4])
def test_processes_share_the_rows_of_each_global_batch(small: Samples, world: int) -> None:
    views = [View("plain", 16)]
    whole = list(batches(small, views, batch_size=20, epoch=0, **COMMON))
    parts = [list(batches(small, views, batch_size=20, epoch=0, rank=r, world=world, **COMMON)) for r in range(world)]
    for step, batch in enumerate(whole):
        for rank in range(world):
            assert torch.equal(parts[rank][step].views[0], batch.views[0][rank::world])
            assert torch.equal(parts[rank][step].labels, batch.labels[rank::world])


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # four workers on two cores, on purpose
def test_any_number_of_workers_gives_the_same_bits(files: Samples) -> None:
    views = [View("rand_stack", 16), View("sim", 16)]
    alone = list(batches(files, views, batch_size=4, epoch=2, **COMMON))
    for workers in (1, 2, 4):
        assert_equal(list(batches(files, views, batch_size=4, epoch=2, workers=workers, **COMMON)), alone)


def test_an_image_that_comes_twice_in_an_epoch_comes_in_two_views() -> None:
    images = np.random.default_rng(0).integers(0, 256, (10, 16, 16, 3), dtype=np.uint8)
    samples = Samples(np.array([0] * 9 + [1]), ("common", "rare"), images=images)
    (batch,) = batches(samples, [View("cifar_aug", 16)], batch_size=10, epoch=0, sampler="balanced", **COMMON)
    rare = batch.views[0][batch.labels == 1]
    assert len(rare) == 5
    assert len({tuple(row.flatten().tolist()) for row in rare}) == 5


def test_fewer_images_than_a_batch_make_one_batch(small: Samples) -> None:
    (batch,) = batches(small.subset(range(7)), [View("plain", 16)], batch_size=20, epoch=0, **COMMON)
    assert len(batch) == 7


def test_chunks_are_the_batch_in_parts(small: Samples) -> None:
    (batch, *_) = batches(small, [View("plain", 16)] * 2, batch_size=10, epoch=0, **COMMON)
    parts = batch.chunks(3)
    assert [len(part) for part in parts] == [4, 3, 3]
    assert torch.equal(torch.cat([part.views[1] for part in parts]), batch.views[1])


def test_views_are_normalized_where_they_are_used(small: Samples, files: Samples) -> None:
    elsewhere = torch.device("meta")  # what takes shapes only has no numbers that came from the CPU
    for samples in (small, files):
        batch = next(
            batches(samples, [View("plain", 16)] * 2, batch_size=4, epoch=0, erase=1, device=elsewhere, **COMMON)
        )
        assert [(view.device.type, view.dtype) for view in batch.views] == [("meta", torch.float32)] * 2
        assert {tuple(view.shape) for view in batch.views} == {(4, 3, 16, 16)}


def test_erasing_puts_a_rectangle_of_noise_into_some_views(small: Samples) -> None:
    views = [View("plain", 32), View("plain", 32)]
    common = COMMON | {"batch_size": 96, "epoch": 0}
    (clean,), (holed,) = batches(small, views, **common), batches(small, views, erase=0.25, **common)
    shares, values = [], []
    for before, after in zip(clean.views, holed.views, strict=True):
        changed = (before != after).all(1)
        for mask, image in zip(changed, after, strict=True):
            if mask.any():
                rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
                height, width = (int(side.max() - side.min()) + 1 for side in (rows, columns))
                assert int(mask.sum()) == height * width  # a whole rectangle
                assert 0.01 < height * width / 32**2 < 0.35
                values.append(image[:, mask].flatten())
        shares.append(changed.any(1).any(1).float().mean().item())
    assert sum(shares) / 2 == pytest.approx(0.25, abs=0.08)
    noise = torch.cat(values)
    assert noise.mean().item() == pytest.approx(0, abs=0.05)
    assert noise.std().item() == pytest.approx(1, abs=0.05)
    assert not torch.equal(clean.views[0] != holed.views[0], clean.views[1] != holed.views[1])


def test_erasing_is_the_same_after_a_restart_and_for_any_number_of_workers(files: Samples) -> None:
    common = COMMON | {"views": [View("mae", 16)], "batch_size": 4, "epoch": 1, "erase": 0.9}
    whole = list(batches(files, **common))
    assert_equal(list(batches(files, start=1, workers=1, **common)), whole[1:])
    parts = [list(batches(files, rank=rank, world=2, **common)) for rank in range(2)]
    for step, batch in enumerate(whole):
        assert torch.equal(parts[1][step].views[0], batch.views[0][1::2])


def test_erased_rectangles_are_as_timm_draws_them() -> None:
    from timm.data.random_erasing import RandomErasing

    boxes = [erased_box(64, 96, row) for row in uniforms(0, 0, np.arange(4000), 0, DRAWS_OF_ERASING - 2).tolist()]
    ours = np.array([box for box in boxes if box is not None], float)
    random.seed(0)
    theirs = []
    erasing = RandomErasing(1.0, mode="pixel", device="cpu")
    for _ in range(4000):
        mask = erasing(torch.zeros(1, 64, 96)).ne(0)[0]
        rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
        if len(rows):
            top, left = int(rows.min()), int(columns.min())
            theirs.append((top, left, int(rows.max()) + 1 - top, int(columns.max()) + 1 - left))
    assert len(ours) / 4000 == pytest.approx(len(theirs) / 4000, abs=0.01)

    def features(found: np.ndarray) -> np.ndarray:
        top, left, h, w = found.T
        return np.stack([h * w, np.log(w / h), top + h / 2, left + w / 2, (h * w) ** 2, top * left], 1)

    one, other = features(ours), features(np.array(theirs, float))
    error = np.sqrt((one.var(0) + other.var(0)) / 4000)
    assert (np.abs(one.mean(0) - other.mean(0)) < 4 * error).all()


def test_processes_with_one_row_more_or_less_work_on_equally_many_parts(small: Samples) -> None:
    for parts in range(1, 6):
        for rows in range(parts, 12):
            batch = Batch([torch.zeros(rows, 3, 2, 2)], torch.zeros(rows))
            assert len(batch.chunks(parts)) == parts
    assert len(Batch([torch.zeros(2, 3, 2, 2)], torch.zeros(2)).chunks(5)) == 2


@pytest.mark.parametrize(("mixup", "cutmix"), [(1.0, 0.0), (0.0, 1.0), (0.5, 0.5)])
def test_mixing_mixes_all_views_and_the_labels_alike(mixup: float, cutmix: float) -> None:
    marked = torch.arange(8.0).view(8, 1, 1, 1).expand(8, 3, 8, 8)
    batch = Batch([marked, 10 * marked], torch.arange(8))
    mixed = mix(batch, mixup, cutmix, num_classes=8, seed=(0, 1, 2))
    torch.testing.assert_close(mixed.views[1], 10 * mixed.views[0])
    torch.testing.assert_close(mixed.labels.sum(1), torch.ones(8))
    # The mean pixel is the mixture that the label says.
    torch.testing.assert_close(mixed.views[0].mean((1, 2, 3)), mixed.labels @ torch.arange(8.0), rtol=1e-4, atol=1e-4)
    again = mix(batch, mixup, cutmix, num_classes=8, seed=(0, 1, 2))
    assert torch.equal(again.views[0], mixed.views[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_no_signal_ends_a_loader_not_even_one_that_comes_while_it_starts(number: int) -> None:
    others, over = set(children(os.getpid())), threading.Event()

    def hammer() -> None:
        while not over.is_set():
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread or process that has ended
                for pid in set(children(os.getpid())) - others:
                    os.kill(pid, number)

    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        for _ in range(3):
            assert list(loader(range(6), [[k] for k in range(6)], itemgetter(0), workers=2)) == list(range(6))
    finally:
        over.set()
        thread.join()


class Stuck(list[int]):
    """Data whose second item never comes."""

    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        if index:
            signal.pause()
        return index


@pytest.mark.extensive  # it has five seconds to end by itself
def test_a_loader_that_does_not_end_is_killed() -> None:
    others = set(children(os.getpid()))
    loaded = loader(Stuck(), [[0], [1]], itemgetter(0), workers=1)
    assert next(loaded) == 0
    assert set(children(os.getpid())) - others
    del loaded
    assert not set(children(os.getpid())) - others


SERVED = """
import os, socket, time
from multiprocessing.reduction import DupFd
from multiprocessing.resource_sharer import _resource_sharer
from gpaco.data.batches import _start_worker
_start_worker(0)
DupFd(os.open(os.devnull, os.O_RDONLY))  # as the storage of a batch: starts the thread that passes it on
with socket.socket(socket.AF_UNIX) as main:
    main.connect(_resource_sharer._address)
time.sleep(0.3)
"""


@pytest.mark.process
def test_a_loader_prints_nothing_if_the_main_process_leaves_while_it_passes_on_a_batch() -> None:
    with python("-c", SERVED, env=ENVIRONMENT, stderr=subprocess.PIPE) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors == ""


def test_mixing_pairs_images_from_both_ends_and_cuts_boxes_off_at_the_border_as_timm_does() -> None:
    marked = torch.arange(6.0).view(6, 1, 1, 1).expand(6, 3, 16, 16)
    corners, centers = 0, []
    for seed in range(300):
        mixed = mix(Batch([marked], torch.arange(6)), 0, 1.0, num_classes=6, seed=(seed,))
        other = mixed.views[0] != marked
        assert torch.equal(mixed.views[0][other], marked.flip(0)[other])  # each with the one from the other end
        rows, columns = other[0, 0].any(1).nonzero(), other[0, 0].any(0).nonzero()
        if len(rows):
            box = (int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1)
            area = (box[1] - box[0]) * (box[3] - box[2])
            assert float(mixed.labels[0, 0]) == pytest.approx(1 - area / 256)
            corners += 0 in box or 16 in box
            centers.append((box[0] + box[1]) / 2)
    assert corners > 150  # boxes that stay inside would touch the border less often
    assert min(centers) < 2
    assert max(centers) > 14


def test_each_part_of_a_batch_and_each_process_is_mixed_with_its_own_draw() -> None:
    view, images = View("plain", 8), np.zeros((16, 8, 8, 3), np.uint8)
    small = Samples(np.arange(16), tuple(map(str, range(16))), images=images)  # no two of a class
    options: dict[str, Any] = {"seed": 3, "epoch": 0, "mean": (0.5,) * 3, "std": (0.5,) * 3, "mixup": 0.8}

    def shares(rank: int = 0, accumulate: int = 1, **order: int) -> list[float]:
        """The larger share of the images of each part."""
        first = next(batches(small, [view], rank=rank, accumulate=accumulate, batch_size=16, **order, **options))
        return [round(float(part.labels.max(1).values.min()), 4) for part in first.chunks(accumulate)]

    assert len({*shares(accumulate=4)}) == 4
    assert shares(accumulate=4) == shares(accumulate=4)
    assert shares(rank=0, world=2) != shares(rank=1, world=2)
