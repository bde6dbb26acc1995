"""predict(): the class of each image, or of each pixel."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpaco.api.exported import predict_file
from gpaco.errors import UserError
from gpaco.models.onnx_file import is_onnx
from gpaco.system import distributed
from gpaco.system.progress import Progress, no_progress
from gpaco.tasks.classification.prediction import predict_classes
from gpaco.tasks.classification.rows import check_options
from gpaco.tasks.segmentation.prediction import predict_masks
from gpaco.training.run import Runs, of_one_task


def predict(
    runs: Runs,
    paths: Path | str | Sequence[Path | str],
    *,
    out: Path | str | None = None,
    prior: str | None = None,
    unbiased: bool = False,
    top: int = 5,
    batch_size: int = 64,
    uncertain: float | None = None,
    device: str | None = None,
    progress: Progress = no_progress,
    **how: Any,
) -> list[dict[str, Any]]:
    """Return a row for each image: path, class, probability, group of the class, `top` classes, error (or None).

    For a segmenter, the rows are those of `tasks.segmentation.prediction.predict_masks`. With several processes, each
    predicts its share and all return the whole table, which the first one writes.

    Args:
        runs: one run, or several as an ensemble; or an .onnx file that `gpaco export` wrote.
        paths: files, folders (searched for images), and .txt lists with one path per line; a class number after a path
            is ignored.
        out: .csv, .jsonl or .parquet file for the rows; for a segmenter, a folder for masks and overlays.
        top, batch_size: for classifiers: classes in `top`, and images classified at once.
        prior: class distribution expected at test time, as for `evaluate`.
        unbiased: correct the bias of the loss, as for `evaluate`.
        uncertain: mark rows with a probability below this: `uncertain` is True.
        how: `scales`, `flip`, `window` and `stride` of a segmenter.

    >>> for row in predict("runs/first", ["new"]):
    ...     print(row["path"], 0 < row["probability"] <= 1)
    new/0.png True
    new/1.png True
    """
    given: dict[str, Any] = {"out": out, "uncertain": uncertain, "progress": progress}
    for_classes: dict[str, Any] = {"prior": prior, "unbiased": unbiased, "top": top, "batch_size": batch_size}
    if isinstance(runs, Path | str) and is_onnx(runs):
        return predict_file(runs, paths, device=device, **given, **for_classes, **how)
    check_options(uncertain, top=top, batch_size=batch_size)
    several, where = of_one_task(runs), distributed.choose_device(device)
    distributed.start(where, several[0].recipe.train.timeout)
    paths = [paths] if isinstance(paths, Path | str) else paths
    if several[0].recipe.train.task == "segmentation":
        if len(several) > 1 or prior is not None or unbiased:
            raise UserError(
                "a segmenter does not support ensembles, --prior and --unbiased", "pass one run, without these options"
            )
        return predict_masks(several[0], paths, device=where, **given, **how)
    if how:
        raise UserError(
            f"a classifier does not support --{sorted(how)[0]}", "--scales, --flip and --window are for segmentation"
        )
    return predict_classes(several, paths, device=where, **given, **for_classes)
