"""A frozen backbone embeds every image once; a head trains on the cached features.

A cached view depends on the index of the image and the number of the view, not on the seed of a run. So runs with
different methods and seeds share the features of the same list of images.
"""

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from gpaco import __version__
from gpaco.data.batches import views_of
from gpaco.data.samples import Samples
from gpaco.data.views.eval import images_as_tested
from gpaco.data.views.views import View, normalize
from gpaco.errors import EnvironmentProblem
from gpaco.models.classifier import Classifier
from gpaco.recipes.settings import Recipe
from gpaco.system import distributed
from gpaco.system.files import write_atomic
from gpaco.system.locks import InUseError, lock
from gpaco.system.precision import autocast
from gpaco.system.progress import Say, as_progress
from gpaco.system.signals import Stopped, catch_signals
from gpaco.tasks.classification.card import Card
from gpaco.tasks.classification.feature_cache import BLOCK, Features, Indices, fingerprint

_SEEN = ("size", "mean", "std", "pool")  # fields of the card that all features depend on
_TESTED = ("resize", "whole", "interpolation")  # fields that features of the test view also depend on
Images = Callable[[list[Indices]], Iterator[list[Tensor]]]  # blocks of indices -> their views, (B, 3, S, S) each


@dataclass(frozen=True)
class Frozen:
    """A backbone in evaluation mode, and the folder of its features."""

    backbone: nn.Module
    width: int  # number of features
    weights: str  # SHA-256 of its weights
    card: Card
    amp: str
    workers: int
    folder: Path
    device: torch.device
    say: Say

    def of_views(self, samples: Samples, views: list[View]) -> Features:
        """Return the features of training images in each of these views."""

        def images(blocks: list[Indices]) -> Iterator[list[Tensor]]:
            planned = [(block, block) for block in blocks]
            return views_of(samples, views, planned, seed=0, epoch=0, workers=self.workers)

        return self._features(samples, {"views": [asdict(view) for view in views]}, len(views), images, self.amp)

    def of_tested(self, samples: Samples) -> Features:
        """Return the features of images in the test view."""

        def images(blocks: list[Indices]) -> Iterator[list[Tensor]]:
            return ([pixels] for pixels in images_as_tested(samples, self.card.view, blocks))

        tested = {"tested": {key: getattr(self.card, key) for key in _TESTED}}
        return self._features(samples, tested, 1, images, "off")  # as the finished model does

    def _features(self, samples: Samples, seen_as: dict[str, Any], views: int, images: Images, amp: str) -> Features:
        """Return the features of all samples. Each process computes a share of the missing ones, which are stored."""
        key = seen_as | {
            "gpaco": __version__,
            "model": self.card.model,
            "architecture": hashlib.sha256(repr(self.backbone).encode()).hexdigest(),
            "weights": self.weights,
            "amp": amp,
            "input": {name: getattr(self.card, name) for name in _SEEN},
            "images": fingerprint(samples),
        }
        features = Features(self.folder, key, (len(samples), views, self.width))
        (missing,) = distributed.agree(len(features) - features.done())
        if missing:
            with _locked(features.path, self.say):
                if distributed.rank() == 0:
                    features.begin()
                    check_room(features)
                distributed.barrier()
                self._embed(features, images, amp)
                distributed.barrier()
            if features.done() < len(features):
                raise EnvironmentProblem(f"features in {features.path} are incomplete after writing", "check the disk")
        return features

    def _embed(self, features: Features, images: Images, amp: str) -> None:
        """Compute and write missing features, block by block; a signal stops it between blocks."""
        total, views, _ = features.shape
        first = features.done()
        if first == total:  # another process was faster
            return
        each = f", {views} views each" if views > 1 else ""
        room = (total - first) * features.row_bytes
        size = f": {room / 1e6:,.1f} MB" if room >= 1e5 else ""
        self.say(f"embedding {total - first:,} images{each}, once{size}")
        step = BLOCK * distributed.world_size()  # a block per process
        blocks = [np.arange(start, min(start + step, total)) for start in range(first, total, step)]
        progress = as_progress(self.say, "embedding images")
        progress(first, total)
        pools = one_thread_each() if self.device.type == "cpu" else ThreadPoolExecutor(1)
        with catch_signals() as received, pools as pool:
            for block, pixels in zip(blocks, images([_share(block) for block in blocks]), strict=True):
                own = self._forward(pixels, pool, amp)[: len(distributed.own_share(len(block)))].contiguous()
                rows = distributed.in_order(own, len(block)).cpu()
                if distributed.rank() == 0:
                    features.append(rows)
                progress(int(block[-1]) + 1, total)
                (signal,) = distributed.agree(received.number)
                if signal:
                    raise Stopped(signal)

    def _forward(self, views: list[Tensor], pool: ThreadPoolExecutor, amp: str) -> Tensor:
        """Return features (B, views, width) of images, (B, 3, S, S) in each view."""
        cpu = self.device.type == "cpu"
        few = max(4, 2**17 // self.card.size**2) if cpu else BLOCK  # images that fit in the CPU cache
        parts = pool.map(partial(self._backbone, amp=amp), [part for pixels in views for part in pixels.split(few)])
        return torch.cat(list(parts)).view(len(views), -1, self.width).transpose(0, 1)

    @torch.inference_mode()
    def _backbone(self, pixels: Tensor, amp: str) -> Tensor:
        images = normalize(pixels.to(self.device), self.card.mean, self.card.std)
        with autocast(self.device, amp):
            features: Tensor = self.backbone(images.contiguous(memory_format=torch.channels_last))
        return features.float()


@contextmanager
def _locked(folder: Path, say: Say) -> Iterator[None]:
    """Lock a folder in the first process. While another run has it, all processes wait, without a time limit."""
    with ExitStack() as stack:
        said = False
        while True:
            cause = ""
            if distributed.rank() == 0:
                try:
                    stack.enter_context(lock(folder))
                except InUseError as error:
                    cause = error.cause
            (busy,) = distributed.agree(int(bool(cause)))
            if not busy:
                break
            if not said:
                say(f"waiting: {cause}")
                said = True
            time.sleep(1)
        yield


def _share(block: Indices) -> Indices:
    """Return the share of a block that this process embeds; without a share, one image that is discarded later."""
    own = block[distributed.rank() :: distributed.world_size()]
    return own if len(own) else block[:1]


def check_room(features: Features) -> None:
    """Raise an error if the disk is too small for the features."""
    size = (len(features) - features.done()) * features.row_bytes
    free = shutil.disk_usage(features.path).free
    if free < size:
        raise EnvironmentProblem(
            f"the features need {size / 1e6:,.0f} MB in {features.folder}, which has {free / 1e6:,.0f} MB free",
            "free some space, choose another --set train.features=FOLDER, or --set train.cached_views=0",
        )


@contextmanager
def one_thread_each() -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of single-threaded workers, one per thread of PyTorch. Results are bit-identical to one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)


def take_backbone(model: Classifier, recipe: Recipe, card: Card, home: Path, device: torch.device, say: Say) -> Frozen:
    """Move the backbone out of the model, which then takes features, and store its weights with the run."""
    backbone, model.backbone = model.backbone, nn.Identity()
    folder = Path(recipe.train.features) if recipe.train.features else home / "features"
    content = save({name: tensor.contiguous() for name, tensor in sorted(backbone.state_dict().items())})
    sha256 = hashlib.sha256(content).hexdigest()
    path = home / "backbone.safetensors"
    if distributed.rank() == 0 and not (path.is_file() and path.read_bytes() == content):
        write_atomic(path, content)
    distributed.barrier()
    say(f"features are stored in {folder}  (--set train.features=FOLDER shares them between runs)")
    return Frozen(
        backbone=backbone.eval().to(device).to(memory_format=torch.channels_last),
        width=model.num_features,
        weights=sha256,
        card=replace(card, backbone=sha256),
        amp=recipe.train.amp,
        workers=recipe.train.workers,
        folder=folder,
        device=device,
        say=say,
    )
