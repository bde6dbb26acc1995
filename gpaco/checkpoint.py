"""What a run leaves on disk so that it can go on after a crash at any moment. No pickle anywhere.

A checkpoint is a folder `step-00001234` with one safetensors file for each part, `state.json`, and `MANIFEST.json`
with the size and SHA-256 of every other file. It is written under a hidden name, synced and renamed, so a folder of
that name is complete; `latest` names the last one.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from gpaco.errors import EnvironmentProblem, UserError
from gpaco.faults import explained
from gpaco.files import sync, write, write_atomic

SCHEMA = 1
_CHECKPOINT = re.compile(r"step-(\d{8,18})(\.old)?")
_LEFTOVER = re.compile(r"\.step-\d{8,18}(\.old)?\.(writing|removing)")
_FILE = re.compile(r"state\.json|[a-z][a-z0-9_]*\.safetensors")
_MANIFEST_BYTES = 1 << 20
_STATE_BYTES = 1 << 28

Tensors = Mapping[str, Mapping[str, Tensor]]


class DamagedError(UserError):
    """A checkpoint that is not what was written."""


@dataclass(frozen=True)
class Checkpoint:
    """What `load` found; `warnings` has one line for each newer checkpoint that was damaged."""

    path: Path
    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]
    warnings: tuple[str, ...] = ()


# Writing and reading checkpoints


def save(folder: Path, step: int, tensors: Tensors, state: Mapping[str, Any]) -> Path:
    """Write a checkpoint and return its path. Whatever happens, it is there complete or not at all.

    Args:
        folder: where a run keeps its checkpoints; made if missing.
        step: its number. A checkpoint that has it already is replaced.
        tensors: parts such as {"model": ..., "optimizer": ...}, each written to its own file.
        state: everything else, ready for JSON; numbers must be finite.
    """
    target = folder / f"step-{step:08d}"
    work = folder / f".{target.name}.writing"
    content = json.dumps({"schema": SCHEMA, "step": step, "state": state}, allow_nan=False)
    for name in tensors:
        if not _FILE.fullmatch(f"{name}.safetensors"):
            raise ValueError(f"a part must be called by small letters, digits and _, got {name!r}")
    with explained(f"cannot save the checkpoint {target}"):
        folder.mkdir(parents=True, exist_ok=True)
        for entry in folder.iterdir():  # of a process that was killed in here
            if _LEFTOVER.fullmatch(entry.name):
                shutil.rmtree(entry)
        try:
            work.mkdir()
            mode = work.stat().st_mode & 0o666  # as the umask wants it; safetensors would leave 0600
            for name, part in tensors.items():
                path = work / f"{name}.safetensors"
                save_file(_separate(part), path)
                path.chmod(mode)
                sync(path)
            write(work / "state.json", content.encode())
            write(work / "MANIFEST.json", _manifest(step, {path.name: _digest(path) for path in work.iterdir()}))
            sync(work)
            _put_in_place(work, target)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        write_atomic(folder / "latest", f"{target.name}\n")
    return target


def find(folder: Path) -> list[Path]:
    """The checkpoints in a folder, good or damaged, newest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if _CHECKPOINT.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: (_step(path), path.suffix != ".old"), reverse=True)


def load(path: Path, parts: Sequence[str] | None = None) -> Checkpoint:
    """The newest good checkpoint of a folder, or the one at `path` itself; of it all parts or only some.

    Damaged checkpoints are passed over and named in the result's `warnings`; one that was asked for by its own path
    is an error, and so is a folder that has no good one.
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
            f"no checkpoint in {path} is whole: {'; '.join(warnings)}", "restore it from a copy, or start anew"
        )
    raise UserError(f"there is no checkpoint in {path}", "give the folder of a run that has saved at least once")


def verify(path: Path, parts: Sequence[str] | None = None) -> None:
    """Raise an error unless every file of a checkpoint (or of these parts of it) is what was written."""
    with _readable(path):
        files = _read_manifest(path)
        missing = [part for part in parts or () if f"{part}.safetensors" not in files]
        if missing:
            raise UserError(f"{path} has no part {missing[0]!r}", f"it has {', '.join(sorted(files))}")
        for name, expected in files.items():
            if parts is not None and name != "state.json" and name.removesuffix(".safetensors") not in parts:
                continue
            if (path / name).is_symlink() or not (path / name).is_file():
                raise _damaged(path, f"{name} is missing")
            if (path / name).stat().st_size != expected["bytes"] or _digest(path / name) != expected:
                raise _damaged(path, f"{name} is not what was written")


def prune(folder: Path, keep: int, protect: Iterable[str | Path] = ()) -> list[Path]:
    """Delete all but the newest `keep` checkpoints and those protected; return what was deleted.

    Deleted are only folders that hold what `save` wrote and nothing else. The last one stays, whatever `keep` is, and
    so does everything newer: that has been left behind, for example because it was damaged.
    """
    latest = folder / _text(folder / "latest")
    if not _CHECKPOINT.fullmatch(latest.name) or not latest.is_dir():
        return []
    spared = {Path(name).name for name in protect}
    ours = [
        path for path in find(folder) if _step(path) <= _step(latest) and path.name not in spared and _is_ours(path)
    ]
    current = [path for path in ours if path.suffix != ".old" or path.with_suffix("") not in ours]
    kept = {*current[: max(keep, 0)], latest}
    gone = [path for path in ours if path not in kept]
    with explained(f"cannot delete old checkpoints in {folder}"):
        for path in gone:
            _remove(path)
    return gone


def _read(path: Path, parts: Sequence[str] | None) -> Checkpoint:
    verify(path, parts)
    with _readable(path):
        if (path / "state.json").stat().st_size > _STATE_BYTES:
            raise _damaged(path, "state.json is too large")
        whole = json.loads((path / "state.json").read_bytes())
        if not isinstance(whole, dict) or not isinstance(whole.get("state"), dict) or whole.get("step") != _step(path):
            raise _damaged(path, "state.json is not a state")
        names = [name.removesuffix(".safetensors") for name in _read_manifest(path) if name != "state.json"]
        chosen = names if parts is None else parts
        tensors = {name: load_file(path / f"{name}.safetensors") for name in chosen}
        return Checkpoint(path, _step(path), tensors, whole["state"])


def _read_manifest(path: Path) -> dict[str, dict[str, Any]]:
    """Files of a checkpoint with their sizes and hashes, if the manifest itself is untouched."""
    manifest = path / "MANIFEST.json"
    if manifest.is_symlink() or not manifest.is_file():
        raise _damaged(path, "MANIFEST.json is missing")
    with manifest.open("rb") as file:
        content = file.read(_MANIFEST_BYTES)
    whole = json.loads(content)
    if not isinstance(whole, dict) or not isinstance(whole.get("files"), dict):
        raise _damaged(path, "MANIFEST.json is not a manifest")
    if whole.get("schema") != SCHEMA and content == _signed({k: v for k, v in whole.items() if k != "sha256"}):
        raise UserError(
            f"{path} is of a kind that this version does not know (schema {whole.get('schema')!r}, not {SCHEMA})",
            "use the version of gpaco that wrote it, or a newer one",
        )
    files: dict[str, dict[str, Any]] = whole["files"]
    if content != _manifest(_step(path), files):
        raise _damaged(path, "MANIFEST.json is not what was written")
    if "state.json" not in files or not all(_FILE.fullmatch(name) for name in files):
        raise _damaged(path, "MANIFEST.json names files that no checkpoint has")
    if not all(isinstance(entry, dict) and {"bytes", "sha256"} <= entry.keys() for entry in files.values()):
        raise _damaged(path, "MANIFEST.json does not describe its files")
    return files


def _manifest(step: int, files: Mapping[str, Mapping[str, Any]]) -> bytes:
    return _signed({"schema": SCHEMA, "step": step, "files": files})


def _signed(body: Mapping[str, Any]) -> bytes:
    """JSON in one fixed form with a hash of itself: no byte of it can change unnoticed."""
    signature = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({**body, "sha256": signature}, sort_keys=True, indent=1).encode()


def _digest(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _separate(part: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as safetensors takes them: contiguous, and no two on the same memory."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in part.items():
        tensor = tensor.detach().contiguous()
        place = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return separate


def _put_in_place(work: Path, target: Path) -> None:
    """Rename; a checkpoint that is there already stays readable under another name until the new one is in place."""
    old = target.with_name(f"{target.name}.old")
    if _is_ours(target):
        _clear(old)
        os.replace(target, old)
    else:
        _clear(target)
    os.replace(work, target)
    sync(target.parent)
    if _is_ours(old):
        _remove(old)


def _clear(path: Path) -> None:
    """Free a name: delete what is there if it is ours, put it aside if it is not, or too damaged to tell."""
    if _is_ours(path):
        _remove(path)
    elif path.exists():
        asides = (path.with_name(f"{path.name}.aside-{n}") for n in count(1))
        os.replace(path, next(aside for aside in asides if not aside.exists()))


def _remove(path: Path) -> None:
    """Delete a folder so that it is never there in part under its own name."""
    gone = path.with_name(f".{path.name}.removing")
    os.replace(path, gone)
    shutil.rmtree(gone)


def _is_ours(path: Path) -> bool:
    """Whether a folder holds exactly the files that its manifest lists."""
    try:
        return not path.is_symlink() and {entry.name for entry in path.iterdir()} == {
            *_read_manifest(path),
            "MANIFEST.json",
        }
    except (OSError, ValueError, RecursionError):
        return False


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-").removesuffix(".old"))


def _damaged(path: Path, reason: str) -> DamagedError:
    return DamagedError(f"the checkpoint {path} is damaged: {reason}", "use another checkpoint of the run")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn everything that strange files do to their readers into an error about the checkpoint."""
    try:
        yield
    except UserError:
        raise
    except PermissionError as error:
        raise EnvironmentProblem(f"no permission to read {path}", "change the permissions of its files") from error
    except (OSError, ValueError, RecursionError, SafetensorError, RuntimeError, KeyError, TypeError) as error:
        raise _damaged(path, " ".join(str(error).split())[:200] or type(error).__name__) from error


def _text(path: Path) -> str:
    """What is in a small text file; nothing if it is missing or strange."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(100).strip()
    except (OSError, ValueError):
        return ""
