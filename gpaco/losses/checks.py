"""Shared by all losses: input checks that raise a `ValueError` with a remedy, conversions, reductions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_HALF = (torch.float16, torch.bfloat16)
Counts = Tensor | Sequence[int] | Sequence[float]


def check_scores(x: Tensor, name: str, shape: str = "(N, C)") -> None:
    """Require a matrix of floats with at least one column."""
    if x.dim() != 2 or x.shape[1] == 0 or not x.is_floating_point():
        raise ValueError(f"{name} must be a float tensor of shape {shape}, got {_describe(x)}")


def check_same_rows(x: Tensor, y: Tensor, names: str) -> None:
    if len(x) != len(y):
        raise ValueError(f"{names} must have the same number of rows, one per sample, got {len(x)} and {len(y)} rows")


def check_match(x: Tensor, other: Tensor, names: str) -> None:
    """Require two tensors on the same device that are both float64 or both narrower."""
    if x.device != other.device:
        raise ValueError(f"{names} must be on the same device, got {x.device} and {other.device}; move one with .to()")
    if (x.dtype == torch.float64) != (other.dtype == torch.float64):
        raise ValueError(
            f"{names} must both be float64 or both be narrower, got {x.dtype} and {other.dtype}; "
            "convert one with .to(), or a criterion with its memory with .double() or .float()"
        )


def check_labels(
    labels: Tensor, rows: Tensor, num_classes: int | None, ignore_index: int, name: str = "labels"
) -> None:
    """Require class indices (N,) or rows of probabilities (N, C); a row of zeros is ignored like `ignore_index`."""
    if labels.device != rows.device:
        raise ValueError(f"{name} are on {labels.device} but their rows on {rows.device}; move one with .to()")
    indices = labels.dim() == 1 and not labels.is_floating_point() and labels.dtype != torch.bool
    soft = labels.dim() == 2 and labels.is_floating_point() and labels.shape[1] == (num_classes or labels.shape[1])
    if not indices and not soft:
        raise ValueError(
            f"{name} must be class indices, integers of shape (N,), or rows of probabilities, floats of shape "
            f"(N, {num_classes or 'C'}), got {_describe(labels)}"
        )
    check_same_rows(rows, labels, f"rows and {name}")
    values = readable_values(at_least_float32(labels))
    if values is None:
        return
    if soft:
        sums = values.sum(1)
        far = ~(abs(sums - 1) <= 1e-2) & (sums != 0)  # half precision has three digits; nan is far too
        if far.any() or (values < 0).any():
            raise ValueError(
                f"rows of {name} must be probabilities: nonnegative, each summing to 1 (or all 0: ignored)"
            )
    elif num_classes is not None:
        wrong = values[((values < 0) | (values >= num_classes)) & (values != ignore_index)]
        if len(wrong):
            raise ValueError(
                f"{name} must be 0 to {num_classes - 1} or ignore_index ({ignore_index}), got {int(wrong[0])}; "
                "check the number of classes, or renumber the labels from 0"
            )


def check_pairs(pairs: Tensor, rows: Tensor, num_classes: int | None, name: str) -> None:
    """Require pairs as `Memory.read` returns them (pairs.py), of known classes."""
    if num_classes is None:
        raise ValueError(f"{name} are from mixed images: pass labels as rows of probabilities, (N, C), too")
    if pairs.shape[1:] != (2, 2) or not pairs.is_floating_point():
        raise ValueError(f"{name} must be (M,), (M, C), or as read from a Memory, got {_describe(pairs)}")
    check_same_rows(rows, pairs, f"rows and {name}")
    values = readable_values(pairs)
    if values is not None and values[:, 0].max() >= num_classes:
        raise ValueError(f"{name} are of class {values[:, 0].max():.0f}, but there are {num_classes} classes")


def check_number(value: float, name: str, low: float, high: float = float("inf")) -> None:
    """Require low <= value < high."""
    if not low <= value < high:
        bounds = f"at least {low}" + ("" if high == float("inf") else f" and below {high}")
        raise ValueError(f"{name} must be {bounds}, got {value}")


def check_contrast(alpha: float, temperature: float) -> None:
    """Check the weight of positives and the temperature: float32 overflows outside these bounds."""
    numbers: tuple[object, ...] = alpha, temperature
    if any(isinstance(value, Tensor) and value.requires_grad for value in numbers):
        raise ValueError("alpha and temperature are constants and get no gradient; pass numbers, or tensor.item()")
    check_number(alpha, "alpha", 0, 1e6)
    check_number(temperature, "temperature", 1e-6)


def check_weight(weight: Tensor | None, num_classes: int) -> None:
    """Require one nonnegative weight for each class."""
    if weight is None:
        return
    if weight.shape != (num_classes,):
        raise ValueError(f"weight must be ({num_classes},), one per class, got {tuple(weight.shape)}")
    values = readable_values(at_least_float32(weight))
    if values is not None and not ((values >= 0) & np.isfinite(values)).all():
        raise ValueError("weight must be finite and nonnegative for every class")


def check_choice(value: object, name: str, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def class_counts_tensor(class_counts: object, num_classes: int) -> Tensor:
    """Return class counts, all above 0, as float64 (C,) on the CPU, since some devices have no float64."""
    if isinstance(class_counts, Mapping) or hasattr(class_counts, "to_dict"):  # a Series is ordered by frequency
        raise ValueError(
            "class_counts must be a list or tensor with the number of images of class 0, 1 and so on, "
            f"got {type(class_counts).__name__}; [class_counts[c] for c in range({num_classes})] makes one"
        )
    # As an array, so that values can be read even if the default device is not the CPU.
    counts = np.asarray(class_counts.detach().cpu().double() if isinstance(class_counts, Tensor) else class_counts)
    if counts.shape != (num_classes,):
        raise ValueError(
            f"class_counts must have one entry for each of {num_classes} classes, got shape {counts.shape}"
        )
    good = (counts > 0) & np.isfinite(counts)
    if not good.all():
        c = int(good.argmin())
        raise ValueError(
            f"class_counts must be above 0, got {float(counts[c])} for class {c}; "
            "leave the class out, or count one image: [max(n, 1) for n in class_counts]"
        )
    return torch.from_numpy(counts.astype(np.float64))


def log_frequencies(class_counts: Counts, num_classes: int) -> Tensor:
    """Return the log of the share of each class, float64 (C,) on the CPU."""
    counts = class_counts_tensor(class_counts, num_classes)
    return (counts / counts.sum()).log()


def widened(labels: Tensor) -> Tensor:
    """Return indices as int64: in uint8, 156 would equal -100. `check_labels` handles anything else."""
    return labels if labels.is_floating_point() or labels.dtype == torch.bool else labels.long()


def at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in _HALF else x


def kept_wide(convert: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a conversion for `nn.Module._apply` that makes no tensor narrower than float32."""

    def wide(x: Tensor) -> Tensor:
        new = convert(x)
        return x.to(new.device, torch.float32) if new.dtype in _HALF else new

    return wide


def reduced(losses: Tensor, weights: Tensor, reduction: str) -> Tensor:
    """Return the losses (N,) unchanged, their sum, or their sum divided by the sum of the weights."""
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else mean_over_anchors(losses.sum(), weights.sum())


def mean_over_anchors(total: Tensor, weight: Tensor) -> Tensor:
    return total / weight.where(weight > 0, 1)  # 0, not nan, if there is no anchor


def readable_values(x: Tensor) -> NDArray[Any] | None:
    """Return the values of a tensor on the CPU, or None if only shapes can be checked.

    Reading values breaks compiled graphs and synchronizes accelerators; transforms of `torch.func` do not allow it.
    """
    if x.device.type != "cpu" or not len(x) or torch.compiler.is_compiling():
        return None
    try:
        return np.asarray(x.detach().numpy())
    except RuntimeError:
        return None


def _describe(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)}"
