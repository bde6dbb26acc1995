"""The positions of sliding windows. Needs no torch."""

from gpaco.errors import UserError


def starts(length: int, window: int, stride: int) -> list[int]:
    """Return where windows start to cover `length` pixels; the last one is moved back to end with them.

    >>> starts(10, 4, 3), starts(11, 4, 3), starts(3, 4, 3)
    ([0, 3, 6], [0, 3, 6, 7], [0])
    """
    if window < 1 or not 1 <= stride <= window:
        raise UserError(
            f"windows of {window} pixels with a stride of {stride} leave gaps",
            "choose a stride from 1 to the size of the window",
        )
    last = max(length - window, 0)
    return [*range(0, last, stride), last]


def usual_stride(window: tuple[int, ...]) -> tuple[int, int]:
    """Return two thirds of a window.

    >>> usual_stride((480, 1))
    (320, 1)
    """
    return max(1, window[0] * 2 // 3), max(1, window[1] * 2 // 3)
