"""Images per second of the views, compared with Pillow and torchvision, one core. About two minutes.

    python benchmarks/views.py [--out benchmarks/results] [--quick]

    strong pair     `rand` + `rand_stack` (RandAugment n = 2, m = 10, 224 px) of a 500 x 375 JPEG file, decoded once
    crop            shift by up to 4 px, mirroring and Cutout of 32 px images in memory
    cifar pair      `cifar_regular` + `cifar_aug` of 32 px images in memory

Everything ends in a normalized float32 batch. The other side is the released code's pipeline: torchvision's transforms
on Pillow images, one by one, timm's RandAugment, torchvision's AutoAugment. Both sides take turns in one process, and
the best of several rounds counts, in seconds of processor time. Writes views.csv with the machine.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import cv2
import numpy as np
import numpy.typing as npt
import torch
import torchvision.transforms as T
from PIL import Image, ImageFilter
from table import write
from timm.data.auto_augment import rand_augment_transform
from torch import Tensor

from gpaco.data.counter_random import uniforms
from gpaco.data.images import read_image
from gpaco.data.views import photo_ops
from gpaco.data.views.views import View, batch_view, normalize, photo_view
from gpaco.system.allocator import keep_freed_memory

Array = npt.NDArray[Any]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def random_image(height: int, width: int, seed: int) -> Array:
    """Smooth colors, shapes and noise, about as hard to compress as a photograph."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / max(height, width)
    image = np.full((height, width, 3), 128.0)
    for frequency in (4, 8, 20, 36):
        for channel, (across, down, phase) in enumerate(rng.normal(0, 1, (3, 3))):
            wave = np.sin(frequency * (x * across + y * down) + phase)
            image[..., channel] += rng.normal(0, 160 / frequency) * wave
    for _ in range(12):
        top, left, size = rng.random(3)
        image[(y - top) ** 2 + (x - left) ** 2 < (0.02 + 0.1 * size) ** 2] = rng.random(3) * 255
    return np.clip(image + rng.normal(0, 6, image.shape), 0, 255).astype(np.uint8)


class Blur:
    """Pillow's blur with a random radius, as released."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(np.random.uniform(0.1, 2.0)))


class Cutout:
    """One black square, as released."""

    def __call__(self, image: Tensor) -> Tensor:
        height, width = image.shape[1:]
        mask = np.ones((height, width), np.float32)
        y, x = np.random.randint(height), np.random.randint(width)
        mask[max(y - 8, 0) : y + 8, max(x - 8, 0) : x + 8] = 0
        return image * torch.from_numpy(mask)


def strong_pair(files: list[Path]) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    size, indices = 224, np.arange(len(files))
    views = [View("rand", size), View("rand_stack", size)]
    epoch = 0

    def ours() -> Tensor:
        nonlocal epoch
        epoch += 1
        draws = [uniforms(0, epoch, indices, i, view.draws) for i, view in enumerate(views)]
        out = np.empty((2, len(files), size, size, 3), np.uint8)
        for sample, file in enumerate(files):
            image = read_image(file)
            for i, view in enumerate(views):
                out[i, sample] = photo_view(image, view, draws[i][sample])
        return normalize(torch.from_numpy(out).flatten(0, 1).permute(0, 3, 1, 2), MEAN, STD)

    start = [T.RandomResizedCrop(size), T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4, 0.4, 0)]
    policy = {"translate_const": 100, "img_mean": (124, 116, 104)}
    end = [rand_augment_transform("rand-n2-m10-mstd0.5", policy), T.ToTensor(), T.Normalize(MEAN, STD)]
    rand = T.Compose([*start, *end])
    stack = T.Compose([*start, T.RandomGrayscale(0.2), T.RandomApply([Blur()], 0.5), *end])

    def theirs() -> Tensor:
        first, second = [], []
        for file in files:
            image = Image.open(file).convert("RGB")
            first.append(rand(image))
            second.append(stack(image))
        return torch.stack(first + second)

    return ours, theirs


def crop(images: Array) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    indices = np.arange(len(images))
    epoch = 0

    def ours() -> Tensor:
        nonlocal epoch
        epoch += 1
        view = View("plain", 32)
        draws = uniforms(0, epoch, indices, 0, view.draws)
        out = batch_view(images, view, draws).permute(0, 2, 3, 1).numpy()
        centers = (draws[:, -2:] * 32).astype(np.int64).tolist()
        holed = [photo_ops.cutout(image, row, column, 16) for image, (row, column) in zip(out, centers, strict=True)]
        return normalize(torch.from_numpy(np.stack(holed)).permute(0, 3, 1, 2), MEAN, STD)

    transform = T.Compose(
        [T.RandomCrop(32, 4), T.RandomHorizontalFlip(), T.ToTensor(), Cutout(), T.Normalize(MEAN, STD)]
    )

    def theirs() -> Tensor:
        return torch.stack([transform(Image.fromarray(image)) for image in images])

    return ours, theirs


def cifar_pair(images: Array) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    indices = np.arange(len(images))
    views = [View("cifar_regular", 32), View("cifar_aug", 32)]
    epoch = 0

    def ours() -> Tensor:
        nonlocal epoch
        epoch += 1
        out = [batch_view(images, view, uniforms(0, epoch, indices, i, view.draws)) for i, view in enumerate(views)]
        return normalize(torch.cat(out), MEAN, STD)

    end = [T.ToTensor(), T.Normalize(MEAN, STD)]
    auto = T.AutoAugment(T.AutoAugmentPolicy.CIFAR10, fill=[128.0, 128.0, 128.0])
    regular = T.Compose(
        [T.RandomCrop(32, 4), T.RandomHorizontalFlip(), auto, T.ToTensor(), Cutout(), T.Normalize(MEAN, STD)]
    )
    jitter = T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8)
    aug = T.Compose(
        [
            T.RandomResizedCrop(32, (0.2, 1)),
            T.RandomHorizontalFlip(),
            jitter,
            T.RandomGrayscale(0.2),
            T.RandomApply([Blur()], 0.2),
            *end,
        ]
    )

    def theirs() -> Tensor:
        pil_images = [Image.fromarray(image) for image in images]
        return torch.stack([regular(image) for image in pil_images] + [aug(image) for image in pil_images])

    return ours, theirs


def speeds(runs: tuple[Callable[[], Tensor], ...], images: int, rounds: int) -> list[float]:
    """Images per second of each, taken in turn."""
    best = [float("inf")] * len(runs)
    for _ in range(rounds + 1):  # the first one warms up
        for i, run in enumerate(runs):
            start = time.process_time()
            run()
            best[i] = min(best[i], time.process_time() - start)
    return [images / seconds for seconds in best]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--quick", action="store_true", help="try the script: fewer rounds, no files")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    keep_freed_memory()  # as `gpaco train` does; for both sides
    small = np.stack([random_image(32, 32, seed) for seed in range(128)])
    rounds = 2 if options.quick else 10
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{i}.jpg" for i in range(64)]
        for i, file in enumerate(files):
            Image.fromarray(random_image(375, 500, i)).save(file, quality=90)
        size = sum(file.stat().st_size for file in files) / len(files) / 1024
        print(f"{len(files)} JPEG files of {size:.0f} KB on average", flush=True)
        for name, pair, images in (
            ("strong pair", strong_pair(files), len(files)),
            ("crop", crop(small), len(small)),
            ("cifar pair", cifar_pair(small), len(small)),
        ):
            ours, theirs = speeds(pair, images, rounds if name == "strong pair" else 3 * rounds)
            rows.append(
                {
                    "what": name,
                    "gpaco images/s": round(ours),
                    "pillow images/s": round(theirs),
                    "times": round(ours / theirs, 2),
                }
            )
            print(f"{name:<12} {ours:9.0f} images/s, Pillow {theirs:7.0f}: {ours / theirs:5.2f} times", flush=True)
    if not options.quick:
        write(options.out / "views.csv", rows)


if __name__ == "__main__":
    main()
