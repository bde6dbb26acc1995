"""A disk that becomes full at any byte, one that is read-only, a folder that vanishes."""

import json
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

from helpers import forked
from helpers.commands import run, start

from faults.namespaces import NEW_MOUNTS, READ_ONLY, REMOUNT, mount_disk, unshare
from faults.promise import Promise, scratch
from faults.runs import PATIENCE, check_same, dice_of, plain_error, train, undisturbed, wait_until
from gpaco.cli.main import main
from gpaco.training import checkpoint

KINDS = ("full", "full", "full", "read-only", "vanished")
ROOM = 64 << 20


def attempt(number: int, home: Path) -> int:
    kind = KINDS[number % len(KINDS)]
    with scratch(home, number) as folder:
        return vanish(number, home, folder) if kind == "vanished" else _fail(kind, number, home, folder)


def _fail(kind: str, number: int, home: Path, folder: Path) -> int:
    """Call `resume_on_disk` in a process of its own."""
    begun, (whole, _) = _begun(home), undisturbed("gpaco", home)
    size = sum(path.stat().st_size for path in checkpoint.find(begun / "checkpoints")[0].iterdir())
    room = dice_of("disks", number).randrange(size)  # too little for another checkpoint
    words = [str(word) for word in train("gpaco", home, folder / "disk" / "run")]
    return int(forked.printed("-m", "faults.disks", kind, folder / "disk", begun, whole, room, json.dumps(words)))


def _begun(home: Path) -> Path:
    """A run that was killed after its second checkpoint."""
    folder = home / "begun"
    while not folder.exists():
        process = start(*train("gpaco", home, folder))
        wait_until(lambda one=process: one.poll() is not None or len(checkpoint.find(folder / "checkpoints")) > 1)
        process.kill()
        process.communicate()
        if (folder / "metrics.json").exists():  # the kill came too late
            shutil.rmtree(folder)
    return folder


def resume_on_disk(kind: str, disk: Path, begun: Path, whole: Path, room: int, words: list[str]) -> int:
    """Resume on a disk with little room or none to write on, look at what is left, resume with enough room."""
    folder, limit = disk / "run", resource.RLIM_INFINITY
    disk.mkdir()
    try:
        unshare(NEW_MOUNTS)
        mount_disk(disk, ROOM)
        own = True
    except OSError:  # not allowed here: limit the size of a file, take away the permission
        own = False
    shutil.copytree(begun, folder)
    before = {path.name: _files(path) for path in checkpoint.find(folder / "checkpoints")}
    if kind == "read-only":
        mount_disk(disk, ROOM, REMOUNT | READ_ONLY) if own else folder.chmod(0o500)
    elif own:
        free = os.statvfs(disk)
        (disk / "filler").write_bytes(bytes(max(free.f_bavail * free.f_frsize - room, 0)))
    else:
        limit = room // 3

    code, errors = _run(words, limit)
    assert code or not own, "the disk had room for all of it"
    if code:
        plain_error(errors, code, 3, "the disk is full" if kind == "full" else "")
    found = checkpoint.load(folder / "checkpoints")  # verifies the SHA-256 of every file
    assert not found.warnings, found.warnings
    assert found.step >= max(int(name.removeprefix("step-")) for name in before), found.step
    for path in checkpoint.find(folder / "checkpoints"):
        assert before.get(path.name, _files(path)) == _files(path), path
    left = [path for path in folder.rglob(".*") if path.name.endswith((".writing", ".removing"))]
    left = [path for path in left if not (begun / path.relative_to(folder)).exists()]  # of the kill before
    assert not left, left

    if kind == "read-only":
        mount_disk(disk, ROOM, REMOUNT) if own else folder.chmod(0o700)
    (disk / "filler").unlink(missing_ok=True)
    again, errors = _run(words, resource.RLIM_INFINITY)
    assert again == 0, errors
    check_same(folder, whole)
    return int(code != 0)  # 0: no file was larger than the limit


def _run(words: list[str], limit: int) -> tuple[int, str]:
    """The exit code of the command in a process of its own, and what it said."""
    with tempfile.TemporaryFile("w+") as said:
        pid = os.fork()
        if pid == 0:
            code: object = 1
            try:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
                main(words)
            except SystemExit as left:
                code = left.code
            finally:
                sys.stdout.flush()
                os._exit(code if isinstance(code, int) else 1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        said.seek(0)
        return code, said.read()


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def vanish(number: int, home: Path, folder: Path) -> int:
    """Somebody moves the folder of a run that trains."""
    pause = dice_of("disks", number).uniform(0, 0.3)
    while True:
        process = start(*train("gpaco", home, folder / "run"))
        wait_until(lambda one=process: one.poll() is not None or checkpoint.find(folder / "run" / "checkpoints"))
        time.sleep(pause)
        (folder / "run").rename(folder / "moved")
        _, errors = process.communicate(timeout=PATIENCE)
        if process.returncode:
            break
        pause /= 2  # the run had ended
        shutil.rmtree(folder / "moved")
    plain_error(errors, process.returncode, 3, "no such file or directory")
    assert not (folder / "run").exists(), "a new folder was made where the old one was"
    run(*train("gpaco", home, folder / "moved"))
    check_same(folder / "moved", undisturbed("gpaco", home)[0])
    return 1


PROMISE = Promise(
    "The disk is full at any byte, read-only, or the run folder is moved away: the previous checkpoint is intact, "
    "exit 3 with a plain message, and with room the same command resumes to the same bits",
    attempt,
    attempts=5,
    goal=40,
)

if __name__ == "__main__":
    kind, *places, room, words = sys.argv[1:]
    print(resume_on_disk(kind, *map(Path, places), int(room), json.loads(words)))
