"""A backbone that does not change sees every image once: its features are cached, and a head trains on them.

What an image looks like in a cached view depends on its own bytes and on the number of the view, not on its place in
the data or on the seed of a run. So methods, seeds, validation parts and long tails of the same data share a cache.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from gpaco import __version__, distributed
from gpaco.data.loading import views_of
from gpaco.data.samples import Samples
from gpaco.data.views import View, normalise
from gpaco.errors import EnvironmentProblem
from gpaco.evaluation import images_as_tested
from gpaco.features import Cache, Indices, digest
from gpaco.files import write_atomic
from gpaco.locking import lock
from gpaco.model import Classifier
from gpaco.progress import Show
from gpaco.settings import Recipe
from gpaco.signals import Stopped, catch_signals

PART = 64  # images that are embedded and written together: what a kill can cost
_SEEN = ("size", "mean", "std", "pool")  # of `about`, what any features depend on
_TESTED = ("resize", "whole", "interpolation")  # and those of test-time images beside
Chunks = list[Indices]


@dataclass(frozen=True)
class Features:
    """The cached features of some samples, in their order."""

    cache: Cache
    rows: Indices

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: Indices, views: Indices) -> Tensor:
        """Of each sample one view: (N, F)."""
        return self.cache.take(self.rows[indices], views)


@dataclass(frozen=True)
class Frozen:
    """A backbone in evaluation mode, and the folder that keeps what it said."""

    backbone: nn.Module
    width: int  # features of an image
    weights: str  # SHA-256 of its weights
    about: dict[str, Any]
    amp: str
    workers: int
    folder: Path
    device: torch.device
    say: Callable[[str], None]
    show: Show

    def of_views(self, samples: Samples, views: list[View]) -> Features:
        """Features of training images, in each of these views."""

        def images(chunks: Chunks, digests: list[bytes]) -> Iterator[list[Tensor]]:
            keys = np.array([int.from_bytes(one[:8], "little", signed=True) for one in digests], np.int64)
            planned = [(chunk, keys[chunk]) for chunk in chunks]
            return views_of(samples, views, planned, seed=0, epoch=0, workers=self.workers)

        return self._features(samples, {"views": [asdict(view) for view in views]}, len(views), images)

    def of_tested(self, samples: Samples) -> Features:
        """Features of validation or test images."""

        def images(chunks: Chunks, digests: list[bytes]) -> Iterator[list[Tensor]]:
            return ([pixels] for pixels in images_as_tested(samples, self.about, chunks))

        return self._features(samples, {"tested": {key: self.about[key] for key in _TESTED}}, 1, images)

    def _features(
        self,
        samples: Samples,
        key: dict[str, Any],
        views: int,
        images: Callable[[Chunks, list[bytes]], Iterator[list[Tensor]]],
    ) -> Features:
        """The features of all samples; what is missing is embedded, each process its share, and written."""
        key |= {
            "gpaco": __version__,
            "model": self.about["model"],
            "architecture": hashlib.sha256(repr(self.backbone).encode()).hexdigest(),
            "weights": self.weights,
            "amp": self.amp,
            "input": {name: self.about[name] for name in _SEEN},
        }
        digests = self._digests(samples)
        cache = Cache(self.folder, key, views, self.width)
        if cache.damaged:
            self.say(f"{len(cache.damaged)} damaged parts of {cache.path} are passed over")
        (missing,) = distributed.agree(int((cache.find(digests) < 0).any()))
        if missing:
            with lock(cache.path) if distributed.rank() == 0 else nullcontext():
                if distributed.rank() == 0:
                    cache.begin()
                distributed.barrier()
                self._embed(cache, digests, views, images)
                distributed.barrier()
                cache.refresh()
        rows = cache.find(digests)
        if (rows < 0).any():
            raise EnvironmentProblem(f"features in {cache.path} are not what was written", "look after the disk")
        return Features(cache, rows)

    def _digests(self, samples: Samples) -> list[bytes]:
        mine, found, began = distributed.mine(len(samples)), bytearray(), time.monotonic()
        for done, i in enumerate(mine, 1):
            found += digest(samples, i)
            if done % PART == 0:
                self._progress("looking at images", done, done, len(mine), began)
        rows = torch.from_numpy(np.frombuffer(found, np.uint8).reshape(len(mine), 32)).to(self.device)
        return [row.tobytes() for row in distributed.in_order(rows, len(samples)).cpu().numpy()]

    def _embed(
        self,
        cache: Cache,
        digests: list[bytes],
        views: int,
        images: Callable[[Chunks, list[bytes]], Iterator[list[Tensor]]],
    ) -> None:
        cache.refresh()  # as the process sees it that holds the lock: every process embeds its share of the same parts
        places = {one: i for i, one in reversed(list(enumerate(digests)))}  # of the same image twice, the first
        missing = np.array([i for one, i in places.items() if one not in cache.places], np.int64)
        missing.sort()
        if not len(missing):  # another process was faster
            return
        chunks = [missing[k : k + PART] for k in range(0, len(missing), PART)]
        self._announce(cache, len(missing), views)
        own = [chunk[distributed.rank() :: distributed.world_size()] for chunk in chunks]
        # A process without a share of the last few images takes one of them, for nothing.
        loaded = images([some if len(some) else chunk[:1] for some, chunk in zip(own, chunks, strict=True)], digests)
        began, done = time.monotonic(), 0
        doing = f"embedding images, {views} views each" if views > 1 else "embedding images"
        cpu = self.device.type == "cpu"
        few = max(4, 2**17 // self.about["size"] ** 2) if cpu else PART  # images that stay in a processor's cache
        with catch_signals() as received, one_thread_each() if cpu else ThreadPoolExecutor(1) as pool:
            for chunk, some, batch in zip(chunks, own, loaded, strict=True):
                parts = pool.map(self._forward, [part for pixels in batch for part in pixels.split(few)])
                features = torch.cat(list(parts)).view(views, -1, self.width).transpose(0, 1)[: len(some)]
                features = distributed.in_order(features.contiguous(), len(chunk)).cpu()
                if distributed.rank() == 0:
                    cache.add([digests[i] for i in chunk], features)
                done += len(chunk)
                self._progress(doing, done, done + len(places) - len(missing), len(places), began)
                (signal,) = distributed.agree(received())
                if signal:
                    raise Stopped(signal)

    @torch.inference_mode()
    def _forward(self, pixels: Tensor) -> Tensor:
        precision = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.amp)
        images = normalise(pixels.to(self.device), self.about["mean"], self.about["std"])
        with torch.autocast(self.device.type, dtype=precision) if precision else nullcontext():
            features: Tensor = self.backbone(images.contiguous(memory_format=torch.channels_last))
        return features.float()

    def _progress(self, doing: str, here: int, done: int, total: int, began: float) -> None:
        """Show that `here` images were done since `began`, and `done` of `total` with those of earlier runs."""
        seconds = time.monotonic() - began
        rate = here / max(seconds, 1e-9)
        self.show(
            {
                "doing": doing,
                "done": done,
                "total": total,
                "seconds": seconds,
                "images_per_second": rate,
                "seconds_left": (total - done) / rate,
            }
        )

    def _announce(self, cache: Cache, missing: int, views: int) -> None:
        size = missing * cache.kind.itemsize
        what = f"{missing:,} images" + (f" in {views} views each" if views > 1 else "")
        self.say(f"embedding {what}, once: {size / 1e6:,.1f} MB")
        free = shutil.disk_usage(cache.path).free if distributed.rank() == 0 else size
        if free < size:
            raise EnvironmentProblem(
                f"the features need {size / 1e6:,.0f} MB in {self.folder}, and {free / 1e6:,.0f} MB are free",
                "free some space, choose another --set train.features=FOLDER, or --set train.cached_views=0",
            )


@contextmanager
def one_thread_each() -> Iterator[ThreadPoolExecutor]:
    """As many workers as torch has threads; each computes alone: none waits for others, and bits are those of one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)


def take_backbone(
    model: Classifier,
    recipe: Recipe,
    about: dict[str, Any],
    home: Path,
    device: torch.device,
    say: Callable[[str], None],
    show: Show,
) -> Frozen:
    """Move the backbone out of the model, which then takes features. Its weights are written to the run, and what they
    are to `about`.
    """
    backbone, model.backbone = model.backbone, nn.Identity()
    folder = Path(recipe.train.features) if recipe.train.features else home / "features"
    content = save({name: tensor.contiguous() for name, tensor in sorted(backbone.state_dict().items())})
    sha256 = hashlib.sha256(content).hexdigest()
    if distributed.rank() == 0:
        keep_backbone(content, folder / f"backbone-{sha256[:16]}.safetensors", home / "backbone.safetensors")
    distributed.barrier()
    say(f"features are kept in {folder}  (--set train.features=FOLDER shares them between runs)")
    about["backbone"] = sha256
    return Frozen(
        backbone=backbone.eval().to(device).to(memory_format=torch.channels_last),
        width=model.num_features,
        weights=sha256,
        about=about,
        amp=recipe.train.amp,
        workers=recipe.train.workers,
        folder=folder,
        device=device,
        say=say,
        show=show,
    )


def keep_backbone(content: bytes, shared: Path, path: Path) -> None:
    """Write the weights, once for all runs that share a folder where the file system has hard links.

    Other runs may be at it: each writes to its own folder only, and `shared` is a link to whichever file came first.
    """
    if path.is_file() and path.read_bytes() == content:
        return
    path.unlink(missing_ok=True)
    with suppress(OSError):
        if shared.read_bytes() == content:
            os.link(shared, path)
            return
        shared.unlink()
    write_atomic(path, content)
    with suppress(OSError):
        shared.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, shared)
