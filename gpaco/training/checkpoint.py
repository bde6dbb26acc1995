"""Checkpoints, from which a run can resume after a crash at any moment. Nothing is pickled.

A checkpoint is a folder `step-00001234` with one safetensors file per part, `state.json`, and `MANIFEST.json` with the
SHA-256 of every other file, because neither PyTorch nor safetensors notices a flipped bit. It is written under a hidden
name, synced and renamed, so a checkpoint is always complete; `latest` names the last one. One that is replaced keeps
another hidden name until its successor is there.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from gpaco.errors import EnvironmentProblem, UserError
from gpaco.system.faults import RESUMES, explained
from gpaco.system.files import sync, write, write_atomic
from gpaco.system.words import one_line

FORMAT = 3
_CHECKPOINT = re.compile(r"step-(\d{8,})")
REPLACED = ".replaced"
_LEFTOVER = re.compile(r"\.step-\d{8,}\.(writing|removing)")

Tensors = Mapping[str, Mapping[str, Tensor]]


class DamagedError(UserError):
    """A checkpoint whose contents have changed since it was written."""


@dataclass(frozen=True)
class Checkpoint:
    """The result of `load`; `warnings` has one line for each newer checkpoint that is damaged."""

    path: Path
    step: int
    parts: tuple[str, ...]  # all of them
    tensors: dict[str, dict[str, Tensor]]  # only of the parts that were read
    state: dict[str, Any]
    warnings: tuple[str, ...] = ()


def save(folder: Path, step: int, tensors: Tensors, state: Mapping[str, Any]) -> Path:
    """Write a checkpoint and return its path. It is complete or does not exist, even after a crash.

    Args:
        folder: where a run stores its checkpoints; created if missing. The folder of the run must exist: if it was
            moved away during training, it is not recreated with half of its files.
        step: number of the checkpoint. One with the same number is replaced.
        tensors: parts such as {"model": ..., "optimizer": ...}, each written to its own file.
        state: everything else, ready for JSON; numbers must be finite.
    """
    target = folder / f"step-{step:08d}"
    work, old = folder / f".{target.name}.writing", folder / f".{target.name}{REPLACED}"
    whole = {"format": FORMAT, "step": step, "parts": sorted(tensors), "state": state}
    content = json.dumps(whole, allow_nan=False).encode()
    with explained(f"cannot save the checkpoint {target}", RESUMES):
        folder.mkdir(exist_ok=True)
        for entry in folder.iterdir():  # left by a process that was killed while saving
            if _LEFTOVER.fullmatch(entry.name):
                shutil.rmtree(entry)
        restore(folder)
        try:
            work.mkdir()
            mode = work.stat().st_mode & 0o666  # follow the umask; safetensors would leave 0600
            for name, part in tensors.items():
                path = work / f"{name}.safetensors"
                save_file(_separate(part), path)
                path.chmod(mode)
                sync(path)
            write(work / "state.json", content)
            manifest = {path.name: _sha256(path) for path in sorted(work.iterdir())}
            write(work / "MANIFEST.json", json.dumps(manifest, indent=1).encode())
            sync(work)
            if target.exists():
                os.replace(target, old)
            os.replace(work, target)
            sync(folder)
            if old.exists():
                shutil.rmtree(old)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            if old.exists() and not target.exists():
                os.replace(old, target)
            raise
        name_latest(target)
    return target


def restore(folder: Path) -> None:
    """Finish what a process that was killed while replacing a checkpoint has left, in a folder that is locked."""
    for old in folder.glob(f".step-*{REPLACED}"):
        target = folder / old.name.removeprefix(".").removesuffix(REPLACED)
        if target.exists():
            shutil.rmtree(old)
        else:
            os.replace(old, target)


def find(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, good or damaged, newest first."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _CHECKPOINT.fullmatch(path.name)), key=_step, reverse=True)


def load(path: Path, parts: Sequence[str] | None = None) -> Checkpoint:
    """Load the newest good checkpoint in a folder, or the one at `path` itself, with all or some of its parts.

    Parts that are not read are not verified: they may be damaged or deleted. Damaged checkpoints are skipped and named
    in the `warnings` of the result; a damaged one at `path` itself is an error, and so is a folder without a good one.
    """
    if _CHECKPOINT.fullmatch(path.name):
        return _read(path, parts)
    warnings: list[str] = []
    for candidate in find(path):
        try:
            return replace(_read(candidate, parts), warnings=tuple(warnings))
        except DamagedError as error:
            warnings.append(error.cause)
    if warnings:
        raise UserError(
            f"all checkpoints in {path} are damaged: {'; '.join(warnings)}", "restore it from a backup, or train again"
        )
    raise UserError(f"there is no checkpoint in {path}", "give the folder of a run that has saved at least once")


def name_latest(path: Path) -> None:
    """Name a checkpoint in `latest`."""
    write_atomic(path.parent / "latest", f"{path.name}\n")


def latest_name(folder: Path) -> str:
    """Return the name of the checkpoint that was written last; "" if unknown."""
    path = folder / "latest"
    return path.read_text(errors="replace").strip() if path.is_file() else ""


def hashes(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each file, from the manifest of a checkpoint."""
    with _readable(path):
        found = json.loads((path / "MANIFEST.json").read_bytes())
        if not isinstance(found, dict):
            raise _damaged(path, "MANIFEST.json is not a manifest")
        return found


def prune(folder: Path, keep: int, protect: Iterable[str] = ()) -> list[Path]:
    """Delete all checkpoints except the newest `keep` and the protected ones; return what was deleted.

    The last one written is always kept, and so are newer ones, which were skipped, for example because of damage.
    """
    latest = folder / latest_name(folder)
    old = [path for path in find(folder) if _step(path) <= _step(latest) and path.name not in protect]
    gone = [path for path in old[max(keep, 0) :] if path != latest]
    with explained(f"cannot delete old checkpoints in {folder}", RESUMES):
        for path in gone:
            _remove(path)
    return gone


def _read(path: Path, parts: Sequence[str] | None) -> Checkpoint:
    expected = hashes(path)
    with _readable(path):
        _verify(path, "state.json", expected)
        whole = json.loads((path / "state.json").read_bytes())
        if whole["format"] != FORMAT:
            raise UserError(
                f"{path} has format {whole['format']}, not {FORMAT}", "use the version of gpaco that wrote it"
            )
        if whole["step"] != _step(path):
            raise _damaged(path, f"it is from step {whole['step']}")
        if expected.keys() != {"state.json", *(f"{part}.safetensors" for part in whole["parts"])}:
            raise _damaged(path, "MANIFEST.json does not match the files")
        tensors = {}
        for part in whole["parts"] if parts is None else parts:
            if part not in whole["parts"]:
                raise UserError(f"{path} has no part {part!r}", f"it has {', '.join(whole['parts'])}")
            _verify(path, f"{part}.safetensors", expected)
            tensors[part] = load_file(path / f"{part}.safetensors")
        return Checkpoint(path, whole["step"], tuple(whole["parts"]), tensors, whole["state"])


def _verify(path: Path, name: str, expected: Mapping[str, str]) -> None:
    if not (path / name).is_file():
        raise _damaged(path, f"{name} is missing")
    if _sha256(path / name) != expected.get(name):
        raise _damaged(path, f"{name} has changed since it was written")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _separate(part: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as safetensors requires: contiguous, without shared memory."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in part.items():
        tensor = tensor.detach().contiguous()
        place = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return separate


def _remove(path: Path) -> None:
    """Delete a folder in such a way that it is never incomplete under its own name."""
    gone = path.with_name(f".{path.name}.removing")
    os.replace(path, gone)
    shutil.rmtree(gone)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _damaged(path: Path, reason: str) -> DamagedError:
    return DamagedError(
        f"the checkpoint {path} is damaged: {reason}",
        "restore it from a backup, or delete that folder to use the previous checkpoint",
    )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn errors from reading damaged files into an error about the checkpoint."""
    try:
        yield
    except UserError:
        raise
    except PermissionError as error:
        raise EnvironmentProblem(f"no permission to read {path}", "change the permissions of its files") from error
    except (OSError, ValueError, SafetensorError) as error:
        raise _damaged(path, one_line(error)) from error
