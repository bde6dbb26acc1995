"""How a batch of scenes becomes a loss: cross entropy, the auxiliary head's, and GPaCo among pixels."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.errors import UserError
from gpaco.memory import Memory
from gpaco.pixels import pixel_gpaco_loss, pixel_labels
from gpaco.segmentation.inference import resized
from gpaco.segmentation.network import Output
from gpaco.segmentation.scoring import IGNORE, share_groups
from gpaco.settings import MethodSettings, Segmentation

METHODS = ("gpaco", "ce")
PUSHED = 64  # pixels of rare classes of one picture that go to the memory in a step


class SceneLoss(nn.Module):
    """Cross entropy + `aux_weight` * that of the auxiliary head + `weight` * GPaCo among pixels, as released.

    Beyond the paper, and off unless asked for: a draw of pixels in which all classes are alike, a log prior of
    training pixels on the centres, and a memory of pixels of rare classes from earlier pictures.
    """

    log_prior: Tensor | None
    rare: Tensor

    def __init__(self, method: MethodSettings, settings: Segmentation, pixels: NDArray[Any], dim: int) -> None:
        super().__init__()
        self.method, self.settings = method, settings
        counts = torch.as_tensor(pixels, dtype=torch.float64)
        prior = (counts.clamp(min=1) / counts.sum().clamp(min=1)).log().float() if settings.pixel_prior else None
        self.register_buffer("log_prior", prior)
        self.register_buffer("rare", torch.from_numpy(share_groups(pixels, settings.many, settings.few) == "few"))
        if settings.rare_memory and not self.rare.any():
            raise UserError(
                "no class is rare enough for a memory of rare pixels",
                f"raise what counts as rare: --set segmentation.few={10 * settings.few:g}, or leave rare_memory at 0",
            )
        self.memory = Memory(settings.rare_memory, dim) if settings.rare_memory else None

    def forward(self, output: Output, masks: Tensor) -> Tensor:
        loss = cross_entropy(output.logits, masks)
        if output.aux_logits is not None:
            loss = loss + self.settings.aux_weight * cross_entropy(output.aux_logits, masks)
        if output.embeddings is None:
            return loss
        return loss + self.settings.weight * self.contrast(output.logits, output.embeddings, masks)

    def contrast(self, logits: Tensor, embeddings: Tensor, masks: Tensor) -> Tensor:
        """`pixel_gpaco_loss` at the embeddings' places, with the memory if there is one."""
        if logits.shape[2:] != embeddings.shape[2:]:
            logits = F.adaptive_avg_pool2d(logits, (embeddings.shape[2], embeddings.shape[3]))
        past = (None, None) if self.memory is None or not len(self.memory) else self.memory.read()
        loss = pixel_gpaco_loss(
            logits,
            embeddings,
            masks,
            pixels=self.settings.pixels,
            sampling=self.settings.sampling,
            alpha=self.method.alpha,
            temperature=self.method.temperature,
            log_prior=self.log_prior,
            memory=past[0],
            memory_labels=past[1],
            ignore_index=IGNORE,
        )
        if self.memory is not None and self.training:
            self.memory.push(*self._rare_pixels(embeddings.detach(), masks))
        return loss

    def _rare_pixels(self, embeddings: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        """Some pixels of rare classes of each picture: embeddings (N, D) and labels (N,)."""
        labels = pixel_labels(masks, embeddings.shape[2], embeddings.shape[3])  # (B, h w)
        known = torch.cat([self.rare, self.rare.new_zeros(IGNORE + 1 - len(self.rare))])
        rows = []
        for image in range(len(labels)):
            places = known[labels[image]].nonzero()[:, 0]
            chosen = places[torch.randperm(len(places), device=places.device)[:PUSHED]]
            rows.append((embeddings[image].flatten(1)[:, chosen].t(), labels[image][chosen]))
        return torch.cat([row for row, _ in rows]), torch.cat([label for _, label in rows])


def cross_entropy(logits: Tensor, masks: Tensor) -> Tensor:
    """Mean over labelled pixels of the enlarged logits' cross entropy; 0 if there is none, with its gradient."""
    costs = F.cross_entropy(
        resized(logits.float(), (masks.shape[1], masks.shape[2])), masks, ignore_index=IGNORE, reduction="sum"
    )
    return costs / (masks != IGNORE).sum().clamp(min=1)
