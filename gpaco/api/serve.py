"""serve(): a model as a web page and over HTTP."""

from pathlib import Path

from gpaco.api.exported import serve_file
from gpaco.api.serving.answers import Model
from gpaco.api.serving.server import HOST, PORT, listen, serve_model
from gpaco.errors import UserError
from gpaco.models.onnx_file import is_onnx
from gpaco.system.distributed import choose_device
from gpaco.system.progress import Say
from gpaco.tasks.classification.prediction import image_classifier
from gpaco.tasks.segmentation.prediction import image_segmenter
from gpaco.training.run import Run, as_run


def serve(
    run: Run | Path | str,
    *,
    host: str = HOST,
    port: int = PORT,
    prior: str | None = None,
    unbiased: bool = False,
    device: str | None = None,
    say: Say = print,
) -> None:
    """Serve a run, or an .onnx file that `gpaco export` wrote, until interrupted.

    Args:
        host: address to listen on; other machines can reach the server only if you change it.
        port: port to listen on; 0 for any free one.
        prior, unbiased: as for `predict`.

    >>> serve("runs/first", port=8080)  # doctest: +SKIP
    """
    if isinstance(run, Path | str) and is_onnx(run):
        serve_file(run, host=host, port=port, prior=prior, unbiased=unbiased, device=device, say=say)
        return
    with listen(host, port) as listener:
        run, where = as_run(run), choose_device(device)
        if run.recipe.train.task == "segmentation":
            if prior is not None or unbiased:
                raise UserError("--prior and --unbiased are for classifiers", "leave them out")
            model: Model = image_segmenter(run, device=where)
        else:
            model = image_classifier([run], prior=prior, unbiased=unbiased, device=where)
        serve_model(model, listener, say, host=host)
