"""Words of the command line for the inference of a segmenter."""

from typing import Any

from gpaco.errors import UserError


def inference_options(scales: str | None, flip: bool, window: str | None) -> dict[str, Any]:
    """The options that were given, as `segment` takes them.

    >>> inference_options("0.5,1", True, "480x640/320")
    {'scales': (0.5, 1.0), 'flip': True, 'window': (480, 640), 'stride': (320, 320)}
    """
    how: dict[str, Any] = {}
    if scales is not None:
        try:
            how["scales"] = tuple(float(word) for word in scales.split(","))
        except ValueError:
            raise UserError(f"--scales {scales} is not understood", "for example --scales 0.5,1,1.5") from None
    if flip:
        how["flip"] = True
    if window is not None:
        size, _, stride = window.partition("/")
        try:
            how["window"] = pair(size)
            if stride:
                how["stride"] = pair(stride)
        except ValueError:
            raise UserError(
                f"--window {window} is not understood", "for example --window 480, 480x640 (height x width) or 480/320"
            ) from None
    return how


def pair(text: str) -> tuple[int, int]:
    """Height and width.

    >>> pair("480x640"), pair("480")
    ((480, 640), (480, 480))
    """
    height, _, width = text.partition("x")
    return int(height), int(width or height)
