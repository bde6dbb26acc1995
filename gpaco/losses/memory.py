"""A ring buffer of past embeddings and their labels: the queue of MoCo and PaCo, for any size and batch."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.losses.checks import check_labels, check_number, check_same_rows, readable_values
from gpaco.system.distributed import gather, row_counts

IGNORED = -100


class Memory(nn.Module):
    """The last `size` embeddings pushed, with their labels. Any size, 0 included, and any batch.

    Only rows that were written are read. All state is in persistent buffers that are updated in place, so it is saved
    and restored with the module. Labels are stored as indices, or as rows of probabilities if `num_classes` is given.
    Nothing here synchronizes with an accelerator: the number of rows is also known on the host.

    Args:
        size: number of rows; the paper's length(queue).
        dim: length of an embedding.
        num_classes: store labels as rows of probabilities over that many classes.
        official_start: start full of random rows with random labels, as the released code does. It normalizes the rows
            over the wrong axis (their length is about sqrt(dim / size), not 1), and the random labels act as false
            positives until the memory has been filled once. Needs `num_classes`, and stores labels as indices.

    >>> memory = Memory(size=3, dim=2)
    >>> memory.push(torch.eye(2), torch.tensor([7, 8]))
    >>> memory.push(torch.zeros(2, 2), torch.tensor([5, 6]))
    >>> len(memory), memory.read()[1].tolist()
    (3, [6, 8, 5])
    """

    embeddings: Tensor
    labels: Tensor
    pushed: Tensor

    def __init__(self, size: int, dim: int, *, num_classes: int | None = None, official_start: bool = False) -> None:
        super().__init__()
        check_number(size, "size", 0)
        check_number(dim, "dim", 1)
        embeddings = torch.zeros(size, dim)
        labels = torch.full((size,), IGNORED)
        if official_start:
            if num_classes is None:
                raise ValueError("official_start draws random labels: pass num_classes too")
            embeddings = F.normalize(torch.randn(size, dim), dim=0)
            labels = torch.randint(num_classes, (size,))
        elif num_classes is not None:
            labels = torch.zeros(size, num_classes)
        self.register_buffer("embeddings", embeddings)
        self.register_buffer("labels", labels)
        self.rows = size if official_start else 0  # pushed so far; `pushed` is the same for the state_dict
        self.register_buffer("pushed", torch.tensor(self.rows))

    def __len__(self) -> int:
        return min(self.rows, len(self.embeddings))

    def read(self) -> tuple[Tensor, Tensor]:
        """Return views of the rows written so far: embeddings (M, D) and labels (M,) or (M, C). A push changes them."""
        written = len(self)
        return self.embeddings[:written], self.labels[:written]

    @torch.no_grad()
    def push(self, embeddings: Tensor, labels: Tensor) -> None:
        """Overwrite the oldest rows with the rows of all processes, in order of rank.

        Ignored rows (a negative label, or probabilities that are all 0) and rows that are not finite, which would spoil
        every loss until overwritten, are skipped: their slots keep the old row. While the memory fills, that is an
        ignored row of zeros: a reference that is never a positive, as similar to any anchor as unrelated embeddings
        are on average, until the next round overwrites it. To close the gap, the host would have to wait for the
        device and count the good rows in every step.

        Args:
            embeddings: (B, D), those of this process.
            labels: class indices (B,) or rows of probabilities (B, C).
        """
        if embeddings.dim() != 2 or embeddings.shape[1] != self.embeddings.shape[1]:
            raise ValueError(
                f"this memory takes embeddings of shape (B, {self.embeddings.shape[1]}), "
                f"got {tuple(embeddings.shape)}; the length is set by dim"
            )
        check_same_rows(embeddings, labels, "embeddings and labels")
        labels = self._in_our_form(labels)
        if embeddings.device != self.embeddings.device or labels.device != self.embeddings.device:
            raise ValueError(
                f"the memory is on {self.embeddings.device}, the rows pushed on {embeddings.device} with labels on "
                f"{labels.device}; move the memory (or the criterion that holds it) with .to()"
            )
        counts = row_counts(embeddings)
        embeddings = gather(embeddings.to(self.embeddings.dtype), counts)
        labels = gather(labels, counts)
        self.rows += len(embeddings)
        self.pushed += len(embeddings)
        size = len(self.embeddings)
        if size and len(embeddings):
            self._write(embeddings[-size:], labels[-size:])

    def _write(self, embeddings: Tensor, labels: Tensor) -> None:
        """Write the last pushed rows, no more than fit."""
        places = torch.arange(self.rows - len(labels), self.rows, device=labels.device) % len(self.embeddings)
        good = embeddings.isfinite().all(1)
        if labels.dim() == 1:
            good &= labels >= 0
            self.labels[places] = labels.where(good, self.labels[places])
        else:
            good &= labels.isfinite().all(1) & labels.any(1)
            self.labels[places] = labels.where(good.unsqueeze(1), self.labels[places])
        self.embeddings[places] = embeddings.where(good.unsqueeze(1), self.embeddings[places])

    def hold_probabilities(self, num_classes: int) -> None:
        """Store labels as rows of probabilities from now on; labels stored before become one-hot."""
        if self.labels.dim() == 1:
            values = readable_values(self.labels)
            if values is not None and values.max() >= num_classes:
                raise ValueError(f"the memory holds labels of {num_classes} and above; renumber them from 0")
            with torch.inference_mode(False):
                self.labels = one_hot(self.labels, num_classes).to(self.embeddings.dtype)

    def _in_our_form(self, labels: Tensor) -> Tensor:
        if self.labels.dim() == 1:
            if labels.dim() != 1 or labels.is_floating_point():
                raise ValueError(
                    f"this memory keeps labels as indices, got {tuple(labels.shape)} {labels.dtype}; "
                    "for rows of probabilities build it with num_classes"
                )
            return labels.long()
        num_classes = self.labels.shape[1]
        if labels.dim() == 1:
            check_labels(labels.clamp_min(-1), labels, num_classes, -1)
            return one_hot(labels, num_classes).to(self.labels.dtype)
        check_labels(labels, labels, num_classes, -1)
        return labels.to(self.labels.dtype)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # The saved memory may hold rows of probabilities and this one indices, or the reverse: adopt the saved form.
        labels = state_dict.get(f"{prefix}labels")
        if labels is not None and labels.dim() != self.labels.dim():
            self.labels = torch.zeros_like(labels, device=self.labels.device)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.rows = int(self.pushed)


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Return rows (N, C), all False for an ignored label."""
    return labels.unsqueeze(1) == torch.arange(num_classes, device=labels.device)
