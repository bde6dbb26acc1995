"""Reads weight files: only safetensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from gpaco.errors import UserError
from gpaco.system.words import one_line


def read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    with _explained(path):
        return load_file(path)


def check_readable(path: Path) -> None:
    """Raise an error unless this is a safetensors file; only its header is read."""
    from safetensors import safe_open

    with _explained(path), safe_open(path, "pt"):
        pass


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    if not path.is_file():
        raise UserError(
            f"there is no file {path}", "pass a .safetensors file (--weights FILE), or download weights: --weights hub"
        )
    try:
        yield
    except SafetensorError as error:
        raise UserError(
            f"{path} is not a safetensors file: {one_line(error)}",
            "convert pickled weights (.pth, .pt, .bin) first: gpaco convert FILE --out NAME.safetensors",
        ) from error
