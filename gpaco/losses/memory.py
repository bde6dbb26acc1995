"""A ring buffer of past embeddings and their labels: the queue of MoCo and PaCo, for any size and batch size."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from gpaco.losses.checks import check_labels, check_number, check_same_rows, kept_wide, widened
from gpaco.losses.pairs import to_pairs
from gpaco.system.distributed import gather, row_counts

IGNORED = -100


class Memory(nn.Module):
    """The last `size` embeddings pushed, with their labels. Size may be 0, and batches may have any size.

    Only rows that were written are read. All state is in persistent buffers that are updated in place, so it is saved
    and restored with the module. Labels are stored as indices until rows of probabilities are pushed; from then on, as
    the two most likely classes of each row, which is all there is to a mixup or cutmix label. Nothing here synchronizes
    with an accelerator, except to count the rows of other processes: the number of rows is also known on the host.

    Args:
        size: number of rows; the paper's length(queue).
        dim: length of an embedding.

    >>> memory = Memory(size=3, dim=2)
    >>> memory.push(torch.eye(2), torch.tensor([7, 8]))
    >>> memory.push(torch.zeros(2, 2), torch.tensor([5, 6]))
    >>> len(memory), memory.read()[1].tolist()
    (3, [6, 8, 5])
    """

    embeddings: Tensor
    labels: Tensor
    pushed: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        check_number(size, "size", 0)
        check_number(dim, "dim", 1)
        self.register_buffer("embeddings", torch.zeros(size, dim))
        self.register_buffer("labels", torch.full((size,), IGNORED))
        self.rows = 0  # pushed so far, as `pushed` in the state_dict
        self.register_buffer("pushed", torch.tensor(0))

    def __len__(self) -> int:
        return min(self.rows, len(self.embeddings))

    def read(self) -> tuple[Tensor, Tensor]:
        """Return views of the rows written so far: embeddings (M, D), and labels (M,) or pairs (M, 2, 2) (pairs.py)."""
        written = len(self)
        return self.embeddings[:written], self.labels[:written]

    @torch.no_grad()
    def push(self, embeddings: Tensor, labels: Tensor) -> None:
        """Overwrite the oldest rows with the rows of all processes, in order of rank.

        Ignored rows (a negative label, or probabilities that are all 0) and rows that are not finite, which would spoil
        every loss until overwritten, are skipped: their slots keep the old row. While the memory fills, the old row is
        an ignored row of zeros: a reference that is never a positive and as similar to any anchor as unrelated
        embeddings are on average. To avoid it, the host would have to wait for the device in every step to count the
        good rows.

        Args:
            embeddings: (B, D), of this process.
            labels: class indices (B,) or rows of probabilities (B, C).
        """
        if embeddings.dim() != 2 or embeddings.shape[1] != self.embeddings.shape[1]:
            raise ValueError(
                f"this memory takes embeddings of shape (B, {self.embeddings.shape[1]}), "
                f"got {tuple(embeddings.shape)}; the length is set by dim"
            )
        check_same_rows(embeddings, labels, "embeddings and labels")
        labels = self._in_stored_form(widened(labels))
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
        """Write the last pushed rows, at most as many as fit."""
        places = torch.arange(self.rows - len(labels), self.rows, device=labels.device) % len(self.embeddings)
        good = embeddings.isfinite().all(1)
        good &= labels >= 0 if labels.dim() == 1 else labels[:, 1].isfinite().all(1) & labels[:, 1].any(1)
        self.labels[places] = labels.where(good.view(-1, *[1] * (labels.dim() - 1)), self.labels[places])
        self.embeddings[places] = embeddings.where(good.unsqueeze(1), self.embeddings[places])

    def _in_stored_form(self, labels: Tensor) -> Tensor:
        check_labels(labels, labels, None, IGNORED)
        if labels.dim() == 2 and self.labels.dim() == 1:
            with torch.inference_mode(False):
                self.labels = to_pairs(self.labels, self.embeddings.dtype)
        if self.labels.dim() == 1:
            return labels
        if self.labels.dtype in (torch.float16, torch.bfloat16):  # built with such a default type
            raise ValueError("a memory of mixed labels must be in float32 (memory.float())")
        return to_pairs(labels, self.labels.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Half precision would round the classes of pairs.
        super()._apply(kept_wide(fn), recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # The saved memory may hold pairs and this one indices, or the reverse: adopt the saved form.
        labels = state_dict.get(f"{prefix}labels")
        if labels is not None and labels.dim() != self.labels.dim():
            self.labels = torch.zeros_like(labels, device=self.labels.device)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.rows = int(self.pushed)
