"""Which class distribution logits are right for, and how they are made right for another (docs/priors.md).

What the network says is right for uniform classes, or for those of training: every method says which. Then, in order:

    unbiased   - log w         without what a parametric loss takes from the centers of frequent classes
    tuned      + tau * log q   tau chosen on validation data by macro recall: right for uniform classes
    --prior    + log p         for the classes expected at test time, - log of those it was right for
"""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from gpaco.errors import UserError, nearest
from gpaco.metrics.classification import adjust
from gpaco.system.files import write_atomic

Logits = NDArray[np.float32]
Floats = NDArray[np.float64]
About = Mapping[str, Any]  # what a model knows about itself
TAUS = np.round(np.arange(-40, 41) / 20, 2)  # -2 to 2; 0 is as trained, -1 takes the frequencies of training out
FILE = "prior.json"  # in a run whose prior was tuned
_ROWS = 2048


def log_prior(counts: ArrayLike) -> Floats:
    """Log of the class distribution of training; a class without images counts as one with one."""
    counts = np.maximum(np.asarray(counts, dtype=np.float64), 1)
    logs: Floats = np.log(counts / counts.sum())
    return logs


def final_logits(logits: Logits, about: About, *, prior: str | None = None, unbiased: bool = False) -> Logits:
    """Logits of a loaded model corrected for the loss's own bias, if asked, and made right for a class distribution."""
    tuned = about.get("tuned")
    if about["counts"] is None and (unbiased or (prior is not None and "train" in (prior, about["assumes"]))):
        raise UserError(
            "this run does not know how many training images its classes had",
            "convert it again with --counts FILE, or leave out --prior and --unbiased",
        )
    if unbiased:
        corrected = Correction(about, unbiased=True)
        if tuned is None:
            logits = corrected(torch.from_numpy(logits)).numpy()
        elif corrected.does_something and not tuned["unbiased"]:
            raise UserError(
                "the prior of this run was tuned on its logits as they are: they cannot be corrected after that",
                "leave out --unbiased, or tune again after it: gpaco evaluate RUN --unbiased --tune-prior",
            )
    if prior is None:
        return logits
    uniform = np.zeros(len(about["classes"]))
    train = uniform if about["counts"] is None else log_prior(about["counts"])
    assumed = log_assumed(about, len(uniform))
    wanted = {"train": train, "uniform": uniform}.get(prior)
    return adjust(logits, assumed, read_prior(Path(prior), about["classes"]) if wanted is None else wanted)


def log_assumed(about: About, num_classes: int) -> Floats:
    """Log of the class distribution that logits are right for, (C,); `about` may also be a run's metrics.json."""
    if about.get("tuned") or about["assumes"] == "uniform":
        return np.zeros(num_classes)
    return _log_shown(about)


class Correction(nn.Module):
    """Raw logits to corrected ones: without the loss's bias if `unbiased`, plus `tau` * log prior."""

    shift: Tensor

    def __init__(self, about: About, *, unbiased: bool, tau: float = 0.0) -> None:
        super().__init__()
        shift = np.float32(tau) * log_prior(about["counts"]).astype(np.float32)
        if unbiased:
            shift -= log_bias(about)
        self.does_something = bool(shift.any())
        self.register_buffer("shift", torch.from_numpy(shift), persistent=False)

    def forward(self, logits: Tensor) -> Tensor:
        return logits + self.shift


def log_bias(about: About) -> Logits:
    """What the loss has added to the logit of each class, (C,): log w, or 0 where training took it out already."""
    if about["center_share"] is None:
        raise UserError(
            "this run was not trained with parametric contrast: there is nothing to correct",
            "leave out --unbiased",
        )
    if about.get("label_smoothing", 0.0):
        raise UserError(
            "logits learned with label smoothing cannot be corrected for the bias of the loss",
            "leave out --unbiased, or let validation data choose a correction: gpaco evaluate RUN --tune-prior",
        )
    log_w = np.log(np.asarray(about["center_share"], dtype=np.float32))
    return np.zeros_like(log_w) if about["prior"] == "unbiased" else log_w


def _log_shown(about: About) -> Floats:
    """Log of the class distribution that the sampler showed."""
    shown = about.get("shown")
    return log_prior(about["counts"]) if shown is None else np.log(np.asarray(shown, dtype=np.float64))


# Tuning


def best_tau(logits: Logits, labels: NDArray[np.int64], counts: ArrayLike) -> tuple[float, float, float]:
    """The tau with the highest macro recall of logits + tau * log prior, nearest to 0; the recall at 0 and with it."""
    log_q = log_prior(counts).astype(np.float32)
    right = np.zeros((len(TAUS), len(log_q)))
    for start in range(0, len(logits), _ROWS):
        rows, own = logits[start : start + _ROWS], labels[start : start + _ROWS]
        for k, tau in enumerate(TAUS.astype(np.float32)):
            right[k] += np.bincount(own[(rows + tau * log_q).argmax(1) == own], minlength=len(log_q))
    images = np.bincount(labels, minlength=len(log_q))
    macro = (right[:, images > 0] / images[images > 0]).mean(1).round(12)
    best = min(range(len(TAUS)), key=lambda k: (-macro[k], abs(TAUS[k]), TAUS[k]))
    return float(TAUS[best]), float(macro[TAUS == 0][0]), float(macro[best])


def write_tuned(folder: Path, tuned: About) -> None:
    """Keep with a run what was chosen for it."""
    write_atomic(folder / FILE, json.dumps(tuned, indent=1))


def read_tuned(folder: Path) -> dict[str, Any] | None:
    """What was chosen for a run: tau, whether after the correction, for which step, macro recalls; None if nothing."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        tuned = json.loads(path.read_text())
        tau, step, unbiased = float(tuned["tau"]), int(tuned["step"]), bool(tuned["unbiased"])
        macros = {key: float(tuned[key]) for key in ("val_macro_before", "val_macro")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not what was written there", "choose it again: gpaco evaluate RUN --tune-prior"
        ) from error
    return {"tau": tau, "unbiased": unbiased, "step": step, **macros}


def in_words(tuned: About) -> str:
    """A line about a tuned prior."""
    before, after = (100 * tuned[key] for key in ("val_macro_before", "val_macro"))
    first = "unbiased, then " if tuned["unbiased"] else ""
    return (
        f"prior tuned on validation data: {first}logits {tuned['tau']:+.2f} * log prior "
        f"(macro recall there {after:.1f} %, {before:.1f} % without)"
    )


def no_validation() -> UserError:
    return UserError(
        "a prior is tuned on validation data, and there is none",
        "hold some back when training: --validation 0.1, or a folder val beside train and test",
    )


# A file of class shares


def read_prior(path: Path, classes: Sequence[str]) -> NDArray[np.float64]:
    """Log probabilities of a CSV file of `class,probability` rows (counts will do), one for each class."""
    if not path.is_file():
        raise UserError(
            f"--prior is 'uniform', 'train' or a CSV file, and there is no file {str(path)!r}"
            f"{nearest(str(path), ['uniform', 'train'])}",
            "write a file of class,probability rows",
        )
    shares: dict[str, float] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        what = "UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"CSV: {error}"
        raise UserError(f"{path} is not {what}", "write class,probability rows as CSV in UTF-8") from None
    for line, row in enumerate(rows, 1):
        if not row or (line == 1 and row[-1].strip().lower() in ("probability", "count", "prior")):
            continue
        if row[0] in shares:
            raise UserError(f"{path}, line {line}: a second row for class {row[0]!r}", "remove one of the two")
        try:
            shares[row[0]] = float(row[1])
        except (IndexError, ValueError):
            raise UserError(f"{path}, line {line}: expected class,probability, got {row}", "mend the line") from None
    unknown = [name for name in shares if name not in set(classes)]
    missing = [name for name in classes if name not in shares]
    if unknown or missing or not all(0 < share < np.inf for share in shares.values()):
        what = (
            f"unknown class {unknown[0]!r}{nearest(unknown[0], classes)}" if unknown else "a share that is not above 0"
        )
        raise UserError(
            f"{path}: {f'no row for class {missing[0]!r}' if missing else what}", "give every class one share above 0"
        )
    values = np.array([shares[name] for name in classes])
    result: NDArray[np.float64] = np.log(values / values.sum())
    return result
