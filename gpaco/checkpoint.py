"""What a run leaves on disk so that it can go on after a crash at any moment. No pickle anywhere.

A checkpoint is a folder `step-00001234` with one safetensors file for each part, `state.json`, and `MANIFEST.json`
with the size and SHA-256 of every other file. It is written under a hidden name, synced and renamed, so a folder of
that name is complete; `latest` names the last one. Beside that: the lock of a run folder, and logs of JSON lines.
"""

import fcntl
import hashlib
import json
import os
import random
import re
import shutil
import socket
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from errno import EACCES, EAGAIN, EDQUOT, EFBIG, ENOSPC, EPERM, EROFS
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim import Optimizer

from gpaco.errors import EnvironmentProblem, UserError

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
    with _explained(f"cannot save the checkpoint {target}"):
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
                _sync(path)
            _write(work / "state.json", content.encode())
            _write(work / "MANIFEST.json", _manifest(step, {path.name: _digest(path) for path in work.iterdir()}))
            _sync(work)
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
    with _explained(f"cannot delete old checkpoints in {folder}"):
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
    _sync(target.parent)
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


# State that is not a tensor yet, and back


def pack_optimizer(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimiser's state as named tensors, and all the rest of it ready for JSON."""
    whole = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for index, values in whole["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value
            else:
                numbers.setdefault(str(index), {})[name] = value
    groups = [
        {key: list(v) if isinstance(v, tuple) else v for key, v in group.items()} for group in whole["param_groups"]
    ]
    return tensors, {"kind": type(optimizer).__name__, "groups": groups, "numbers": numbers}


def unpack_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Give an optimiser the state that `pack_optimizer` took from one for the same model."""
    now = optimizer.state_dict()["param_groups"]
    theirs = [len(group["params"]) for group in meta["groups"]]
    ours = [len(group["params"]) for group in now]
    strange = [key for key in tensors if not re.fullmatch(r"\d+\..+", key) or int(key.split(".")[0]) >= sum(ours)]
    if strange or meta["kind"] != type(optimizer).__name__ or theirs != ours:
        raise UserError(
            f"the checkpoint is of {meta['kind']} with parameters in groups of {theirs}, this run has "
            f"{type(optimizer).__name__} with groups of {ours}",
            "resume with the recipe the run was started with, or choose another --out",
        )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {int(index): dict(values) for index, values in meta["numbers"].items()}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        like = parameters[int(index)]
        if tensor.shape == like.shape:  # in the memory layout of its parameter
            tensor = torch.empty_like(like, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
        state.setdefault(int(index), {})[name] = tensor
    groups = [
        {key: tuple(v) if isinstance(mine.get(key), tuple) else v for key, v in group.items()}
        for group, mine in zip(meta["groups"], now, strict=True)
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def random_state() -> dict[str, Any]:
    """The state of Python's, NumPy's and torch's generators, ready for JSON."""
    version, words, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=False)
    return {
        "python": {"version": version, "words": array("I", words).tobytes().hex(), "gauss": gauss},
        "numpy": {**legacy, "state": {**legacy["state"], "key": legacy["state"]["key"].tobytes().hex()}},
        "torch": _hex(torch.get_rng_state()),
        "cuda": [_hex(state) for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else [],
    }


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Put all generators back to where `random_state` found them."""
    try:
        python, numpy = state["python"], state["numpy"]
        words = array("I", bytes.fromhex(python["words"]))
        key = np.frombuffer(bytes.fromhex(numpy["state"]["key"]), np.uint32)
        random.setstate((python["version"], tuple(words), python["gauss"]))
        np.random.set_state({**numpy, "state": {**numpy["state"], "key": key}})
        torch.set_rng_state(_bytes(state["torch"]))
        for device, content in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(_bytes(content), device)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError("the random state in the checkpoint cannot be read", "use another checkpoint") from error


def _hex(state: Tensor) -> str:
    return state.numpy().tobytes().hex()


def _bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


# The lock of a run folder

_held: dict[Path, dict[str, Any]] = {}


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keep all other processes from writing to a run folder.

    The system's own lock on `run.lock` goes when its process does, however it ends, and also when that process closes
    the file for any reason: do not read it while holding it. The file says who has it. Where the file system has no
    locks, who is written there counts as long as that process lives.
    """
    path = folder.resolve() / "run.lock"
    with _explained(f"cannot lock {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        if path in _held:  # the system would allow it: its locks are between processes
            raise _in_use(folder, _held[path])
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with _explained(f"cannot lock {folder}"):
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = _holder(path)
                if error.errno in (EACCES, EAGAIN) or _may_live(holder):
                    raise _in_use(folder, holder) from None
            since = datetime.now().astimezone().isoformat(" ", "seconds")
            holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps(holder).encode())
        _held[path] = holder
        try:
            yield
        finally:
            del _held[path]
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _in_use(folder: Path, holder: Mapping[str, Any]) -> UserError:
    who = f"process {holder['pid']} on {holder['host']} since {holder['since']}" if holder else "another process"
    return UserError(
        f"{folder} is in use by {who}",
        "wait for it, stop it, or choose another --out; if it is gone for sure, delete run.lock there",
    )


def _may_live(holder: Mapping[str, Any]) -> bool:
    if not holder or holder["host"] != socket.gethostname():
        return bool(holder)  # of another machine we cannot know
    try:
        os.kill(holder["pid"], 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is somebody else's
        return True
    return True


def _holder(path: Path) -> dict[str, Any]:
    try:
        holder = json.loads(path.read_text())
        return {"host": str(holder["host"]), "pid": int(holder["pid"]), "since": str(holder["since"])}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}


# Single files


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace a file by one with this content: a reader finds the old one or the new one, also after a crash."""
    work = path.with_name(f".{path.name}.writing")
    with _explained(f"cannot write {path}"):
        try:
            _write(work, content.encode() if isinstance(content, str) else content)
            os.replace(work, path)
        except BaseException:
            work.unlink(missing_ok=True)
            raise
        _sync(path.parent)


def append_jsonl(path: Path, row: Mapping[str, Any]) -> None:
    """Add one line of JSON to a log, on disk when this returns. If it cannot be written whole, nothing of it is."""
    line = json.dumps(row, allow_nan=False).encode() + b"\n"
    with _explained(f"cannot write {path}"), path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            while line:
                line = line[file.write(line) :]
            os.fsync(file.fileno())
        except BaseException:
            os.ftruncate(file.fileno(), before)
            raise
        if before == 0:
            _sync(path.parent)


def trim_jsonl(path: Path, keep: Callable[[dict[str, Any]], bool] | int) -> list[dict[str, Any]]:
    """Cut a log back to the rows that `keep` accepts, or that are of step `keep` or earlier; return those.

    A last line without its end is one that was being written when the process died: it goes too.
    """
    if not path.exists():
        return []
    content = path.read_bytes()
    lines, rows = [], []
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            row = json.loads(line)
            wanted = keep(row) if callable(keep) else row["step"] <= keep
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise UserError(
                f"line {number} of {path} is not a row of this log", "correct or delete that line"
            ) from error
        if wanted:
            lines.append(line + b"\n")
            rows.append(row)
    if b"".join(lines) != content:
        write_atomic(path, b"".join(lines))
    return rows


def _text(path: Path) -> str:
    """What is in a small text file; nothing if it is missing or strange."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(100).strip()
    except (OSError, ValueError):
        return ""


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    """Make sure that a file's content, or a folder's list of names, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _explained(action: str) -> Iterator[None]:
    """Say in plain words why the system refused to write."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        found = re.search(r"os error (\d+)", str(error))  # how safetensors reports it
        number = error.errno if isinstance(error, OSError) else int(found[1]) if found else None
        if number is None:
            raise
        if number in (ENOSPC, EDQUOT, EFBIG):
            reason, remedy = f"the disk is full ({os.strerror(number).lower()})", "free some space"
        elif number in (EACCES, EPERM, EROFS):
            reason, remedy = "no permission to write there", "change the permissions, or choose another --out"
        else:
            reason, remedy = os.strerror(number).lower(), "see that the folder can be written to"
        remedy += "; then the same command goes on from the last checkpoint"
        raise EnvironmentProblem(f"{action}: {reason}", remedy) from error
