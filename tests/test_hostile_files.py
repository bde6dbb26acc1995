"""Files that want something done, or that lie: `gpaco convert` refuses each with exit 2, and nothing is done."""

import io
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from torch_files import archive, call, legacy, name, number, program, sizes, storage, tensor, text

from gpaco.converting import convert, read
from gpaco.errors import UserError

# Instructions that leave one value, and that make the file `canary` in passing if they are followed.
Bite = Callable[[str], bytes]
BITES: dict[str, Bite] = {
    "os.system": lambda canary: call("os", "system", text(f"touch {canary}")),
    "posix.system": lambda canary: call("posix", "system", text(f"touch {canary}")),
    "subprocess.check_call": lambda canary: call("subprocess", "check_call", words("touch", canary)),
    "subprocess.Popen": lambda canary: call("subprocess", "Popen", words("touch", canary)),
    "builtins.eval": lambda canary: call("builtins", "eval", text(f"open({canary!r}, 'w').close()")),
    "builtins.exec": lambda canary: call("builtins", "exec", text(f"open({canary!r}, 'w').close()")),
    "builtins.getattr": lambda canary: (
        call("builtins", "getattr", call("builtins", "__import__", text("os")), text("system"))
        + arguments(text(f"touch {canary}"))
    ),
    "operator.attrgetter": lambda canary: (
        call("operator", "attrgetter", text("system"))
        + arguments(call("builtins", "__import__", text("os")))
        + arguments(text(f"touch {canary}"))
    ),
    "pathlib.Path.touch": lambda canary: call("pathlib", "Path.touch", call("pathlib", "PosixPath", text(canary))),
    "pickle.loads": lambda canary: call("pickle", "loads", as_bytes(f"cos\nsystem\n(S'touch {canary}'\ntR.")),
    "codecs.decode": lambda canary: call(
        "builtins", "eval", call("codecs", "decode", text(rot13(f"open({canary!r}, 'w').close()")), text("rot13"))
    ),
    "torch.serialization": lambda canary: call("torch.serialization", "os.system", text(f"touch {canary}")),
    "numpy.save": lambda canary: call("numpy", "save", text(canary), number(1)),
    "bait.run": lambda canary: call("bait", "run", text(canary)),  # a module that lies beside the file
    "protocol 0": lambda canary: f"cos\nsystem\n(S'touch {canary}'\ntR".encode(),
    "INST": lambda canary: b"(" + text(f"touch {canary}") + b"ios\nsystem\n",
    "OBJ": lambda canary: b"(" + name("subprocess", "Popen") + words("touch", canary) + b"o",
    "NEWOBJ": lambda canary: name("bait", "New") + b"(" + text(canary) + b"t\x81",
    "NEWOBJ_EX": lambda canary: name("bait", "New") + b"(" + text(canary) + b"t}\x92",
    "BUILD": lambda canary: name("bait", "Set") + b")\x81" + text(canary) + b"b",
    "STACK_GLOBAL": lambda canary: text("os") + text("system") + b"\x93" + arguments(text(f"touch {canary}")),
    "STACK_GLOBAL out of the memo": lambda canary: (
        text("system") + b"q\x050" + text("os") + b"q\x060h\x06h\x05\x93" + arguments(text(f"touch {canary}"))
    ),
    "a hostile element of an array": lambda canary: call(
        "numpy", "array", b"](" + call("os", "system", text(f"touch {canary}")) + b"e"
    ),
}


def arguments(*values: bytes) -> bytes:
    return b"(" + b"".join(values) + b"tR"


def words(*values: str) -> bytes:
    return b"](" + b"".join(map(text, values)) + b"e"


def as_bytes(value: str) -> bytes:
    return call("_codecs", "encode", text(value), text("latin1"))


def rot13(value: str) -> str:
    import codecs

    return codecs.encode(value, "rot13")


class Plain(pickle.Unpickler):
    """What others read such files with."""

    def persistent_load(self, pid: Any) -> Any:
        return pid


BAIT = """
def run(path):
    open(path, "w").close()

class New:
    def __new__(cls, path):
        run(path)

class Set:
    def __setstate__(self, path):
        run(path)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module in it that Python finds."""
    (tmp_path / "bait.py").write_text(BAIT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(commands.ENVIRONMENT, "PYTHONPATH", f"{tmp_path}:{commands.ENVIRONMENT.get('PYTHONPATH', '')}")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    sys.modules.pop("bait", None)


@pytest.mark.parametrize("title", BITES)
def test_a_file_that_would_run_code_is_refused_and_runs_none(title: str, folder: Path) -> None:
    canary = folder / "canary"
    bite = BITES[title](str(canary))
    made = Plain(io.BytesIO(b"\x80\x04" + bite + b".")).load()
    if isinstance(made, subprocess.Popen):
        made.wait()
    (caught,) = folder.glob("canary*")  # it does bite those who read it with an unpickler
    caught.unlink()

    file = archive(folder / "weights.pth", program(bite))
    reason = commands.fails("convert", file, "--out", folder / "out.safetensors")
    assert "is refused: it names '" in reason
    assert title in reason or "." not in title
    assert "nothing was executed or written" in reason
    assert {path.name for path in folder.iterdir()} == {"bait.py", "weights.pth"}


@pytest.mark.parametrize("title", ["os.system", "STACK_GLOBAL", "INST", "BUILD"])
def test_the_same_in_the_older_format(title: str, folder: Path) -> None:
    file = legacy(folder / "weights.pth", program(BITES[title](str(folder / "canary"))))
    assert "it names '" in refused(file)


def refused(file: Path) -> str:
    """The reason why a file is not converted, which is an error of exit code 2; its folder must stay as it is."""
    before = {path.name for path in file.parent.iterdir()}
    with pytest.raises(UserError) as caught:
        convert(file, file.parent / "out.safetensors")
    assert caught.value.exit_code == 2
    assert "nothing was executed or written" in caught.value.remedy
    assert "\n" not in caught.value.cause
    assert {path.name for path in file.parent.iterdir()} == before
    return caught.value.cause


def lying(**changes: Any) -> bytes:
    """A dictionary whose second tensor is wrong."""
    return program(tensor(**({"size": (4,), "stride": (1,)} | changes)))


def deep(levels: int) -> bytes:
    return b"(" * levels + b"N" + b"t" * levels


LIES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "an extension code": (lambda p: archive(p, program(b"\x82\x01")), "the instruction EXT1"),
    "a text as a reference": (lambda p: archive(p, program(b"Pcanary\n")), "the instruction PERSID"),
    "a reference that is no storage": (
        lambda p: archive(p, program(b"(" + text("module") + text("os") + b"tQ" + b"0N")),
        "'x0' in it is None",
    ),
    "state set on a global": (
        lambda p: archive(p, program(name("collections", "OrderedDict") + b"}b")),
        "sets the state of the global 'collections.OrderedDict'",
    ),
    "state set on a text": (lambda p: archive(p, program(text("a") + b"}b")), "sets the state of a str"),
    "a call of a number": (lambda p: archive(p, program(number(3) + b")R")), "calls a int with a tuple"),
    "a dictionary made of a text": (
        lambda p: archive(p, program(call("collections", "OrderedDict", text("ab")))),
        "calls collections.OrderedDict with something strange",
    ),
    "another encoding": (
        lambda p: archive(p, program(call("_codecs", "encode", text("ab"), text("rot13")))),
        "calls _codecs.encode with something strange",
    ),
    "an array of objects": (
        lambda p: archive(p, program(call("numpy", "dtype", text("O8"), b"\x89", b"\x88"))),
        "numpy array of something else than numbers",
    ),
    "a tensor of something else": (
        lambda p: archive(p, program(call("torch._utils", "_rebuild_tensor_v2", text("a"), number(0)))),
        "'x0' is not described as torch does it",
    ),
    "a tuple as a key": (lambda p: archive(p, program(b"}" + deep(3) + b"Ns")), "a tuple as the key of a dictionary"),
    "a key that would overflow the stack": (lambda p: archive(p, program(b"}" + deep(200_000) + b"Ns")), "a tuple as"),
    "a stack that is empty": (lambda p: archive(p, b"\x80\x020000."), "takes more from its stack than is there"),
    "a memory of nothing": (lambda p: archive(p, b"\x80\x02h\x05."), "remembers what it never saw"),
    "no end": (lambda p: archive(p, b"\x80\x02}"), "its pickle is damaged"),
    "a dictionary that holds itself": (
        lambda p: archive(p, b"\x80\x02}q\x01(" + text("w") + b"h\x01u."),
        "'w' in it is a dict, not a tensor",
    ),
    "no tensor": (lambda p: archive(p, b"\x80\x02}."), "it holds no tensor"),
    "a list": (lambda p: archive(p, b"\x80\x02]."), "it holds a list"),
    "a name that is no line": (
        lambda p: archive(p, b"\x80\x02}(" + text("a\nerror: b") + tensor((4,), (1,)) + b"u."),
        r"a tensor in it is called 'a\nerror: b'",
    ),
    "a view beyond its storage": (lambda p: archive(p, lying(offset=1)), "'x0' reaches beyond the 4 numbers"),
    "strides beyond the storage": (lambda p: archive(p, lying(size=(2, 2), stride=(3, 1))), "'x0' reaches beyond"),
    "a negative size": (lambda p: archive(p, lying(size=(-4,))), "not a number that can be"),
    "a negative offset": (lambda p: archive(p, lying(offset=-1)), "not a number that can be"),
    "sizes of a petabyte": (lambda p: archive(p, lying(size=(1 << 50,))), "not a number that can be"),
    "one number a million million times": (
        lambda p: archive(p, lying(size=(1 << 20, 1 << 20), stride=(0, 0))),
        "repeats numbers of its storage",
    ),
    "overlapping rows": (lambda p: archive(p, lying(size=(3, 2), stride=(1, 1))), "repeats numbers of its storage"),
    "a storage that is too short": (lambda p: archive(p, program(), data=bytes(12)), "there are 12 bytes"),
    "a storage that is not there": (
        lambda p: archive(
            p,
            program(
                call(
                    "torch._utils",
                    "_rebuild_tensor_v2",
                    storage(4, "../../1"),
                    number(0),
                    sizes(4),
                    sizes(1),
                    b"\x89",
                    b"N",
                )
            ),
        ),
        "the numbers of storage '../../1' are missing",
    ),
    "a storage of unknown numbers": (
        lambda p: archive(p, program().replace(b"FloatStorage", b"QUInt8Storage")),
        "it names 'torch.QUInt8Storage'",
    ),
    "a member that leads outside": (lambda p: archive(p, program(), more={"../canary": b"x"}), "'../canary'"),
    "a member with its own root": (lambda p: archive(p, program(), more={"/canary": b"x"}), "'/canary'"),
    "a bomb": (lambda p: archive(p, program(), more={"archive/data/1": bytes(20 << 20)}, packed=True), "compressed"),
    "members that overlap": (lambda p: overlapping(archive(p, program())), "larger than the file"),
    "no pickle": (lambda p: stripped(p), "has no data.pkl"),
    "big-endian numbers": (lambda p: archive(p, program(), more={"archive/byteorder": b"big"}), "big-endian"),
    "half of an archive": (lambda p: cut(archive(p, program()), 0.5), "damaged"),
    "most of an older file": (lambda p: cut(legacy(p, program()), 0.99), "it ends after"),
    "half of an older file": (lambda p: cut(legacy(p, program()), 0.5), "its pickle is damaged"),
    "damaged numbers": (lambda p: flipped(archive(p, program(), data=b"0123456789abcdef")), "Bad CRC-32"),
    "another length in an older file": (
        lambda p: legacy(p, program().replace(number(4) + b"tQ", number(5) + b"tQ")),
        "another length",
    ),
    "an older machine that calls": (
        lambda p: legacy(p, program(), system=b"\x80\x02" + call("os", "getpid") + b"."),
        "it names 'os.getpid'",
    ),
    "a bare pickle": (lambda p: written(p, program()), "a bare pickle"),
    "safetensors": (lambda p: written(p, b"\x02" + bytes(7) + b"{}"), "safetensors already"),
    "a web page": (lambda p: written(p, b"<!DOCTYPE html>"), "a web page: the download went wrong"),
    "a pointer": (lambda p: written(p, b"version https://git-lfs.github.com/spec/v1"), "a pointer of git LFS"),
    "nothing": (lambda p: written(p, b""), "an empty one"),
}


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def cut(path: Path, share: float) -> Path:
    content = path.read_bytes()
    return written(path, content[: int(len(content) * share)])


def flipped(path: Path) -> Path:
    return written(path, path.read_bytes().replace(b"0123456789abcdef", b"0123456789abcdeF"))


def stripped(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("readme.txt", "hello")
    return path


def overlapping(path: Path) -> Path:
    """An archive whose list has its large member a thousand times."""
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("archive/data/1", bytes(100_000))
        original = file.getinfo("archive/data/1")
        for k in range(2, 100):
            copy = zipfile.ZipInfo(f"archive/data/{k}")
            for key in ("compress_size", "file_size", "header_offset", "CRC"):
                setattr(copy, key, getattr(original, key))
            file.filelist.append(copy)
            file.NameToInfo[copy.filename] = copy
    return path


@pytest.mark.parametrize("title", LIES)
def test_a_file_that_lies_is_refused_with_the_reason(title: str, tmp_path: Path) -> None:
    make, reason = LIES[title]
    assert reason in refused(make(tmp_path / "weights.pth"))


@pytest.mark.parametrize("make", [archive, legacy])
def test_a_good_file_made_by_the_same_means_is_taken(make: Callable[..., Path], tmp_path: Path) -> None:
    numbers = np.arange(4, dtype=np.float32)
    file = make(tmp_path / "good.pth", program(tensor((2, 2), (1, 2))), data=numbers.tobytes())
    found = read(file)
    assert found.tensors["w"].tolist() == [0, 1, 2, 3]
    assert found.tensors["x0"].tolist() == [[0, 2], [1, 3]]
    assert found.names == ["collections.OrderedDict", "torch.FloatStorage", "torch._utils._rebuild_tensor_v2"]


def test_all_names_of_a_refused_file_are_listed_and_five_of_them_in_the_error(tmp_path: Path) -> None:
    later = text("a") + text("b\x1b[2J") + b"\x93"  # behind an instruction that ends the reading
    content = program(*(name("os", f"f{k}") for k in range(7)), b"\x82\x01", later)
    file, told = archive(tmp_path / "many.pth", content), list[str]()
    reason = refused(file)
    assert "it names 'os.f0', 'os.f1', 'os.f2', 'os.f3', 'os.f4' and more" in reason
    with pytest.raises(UserError):
        convert(file, tmp_path / "out.safetensors", say=told.append)
    known = "collections.OrderedDict, os.f0, os.f1, os.f2, os.f3, os.f4, os.f5, os.f6, torch.FloatStorage"
    assert told == [f"names in it: 'a.b\\x1b[2J', {known}, torch._utils._rebuild_tensor_v2"]


def test_a_file_that_takes_too_long_is_refused_for_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = "c.SECONDS, c.report = 1, lambda *of: next(one for one in iter(int, 1) if one); c.main()"
    reader = f"import sys; sys.path.append(sys.argv[1]); import gpaco.confined as c; {endless}"
    monkeypatch.setattr("gpaco.converting._READER", reader)
    assert "reading it takes more than" in refused(archive(tmp_path / "long.pth", program()))


def test_a_folder_a_pipe_and_a_missing_file_are_no_files_to_convert(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pth")
    for path in (tmp_path, tmp_path / "pipe.pth", tmp_path / "missing.pth"):
        with pytest.raises(UserError, match="there is no file"):
            convert(path, tmp_path / "out.safetensors")


@pytest.mark.parametrize(
    "attempt",
    [
        "open('/etc/hostname')",
        "open('made', 'w')",
        "__import__('wave')",
        "eval('1')",
        "exec('1')",
        "os.system('true')",
        "os.fork()",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "os.execv('/bin/true', ['true'])",
        "os.listdir('/')",
        "os.remove('made')",
        "socket.socket()",
        "ctypes.CDLL(None)",
        "pickle.loads(b'cos\\ngetpid\\n.')",
    ],
)
def test_the_process_that_reads_can_reach_nothing_else(attempt: str, tmp_path: Path) -> None:
    code = f"import ctypes, os, pickle, socket\nfrom gpaco.confined import confine\nconfine()\n{attempt}"
    # The code is compiled whole before it is confined; its last line is what is tried.
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=commands.ENVIRONMENT
    )
    assert process.returncode == 1
    assert "Refused: reading it came to" in process.stderr
    assert not list(tmp_path.iterdir())


def test_the_limits_of_that_process_hold_without_its_hook(tmp_path: Path) -> None:
    code = """
import os, sys
sys.addaudithook = lambda hook: None
from gpaco.confined import MEMORY, confine
confine()
for attempt in (lambda: os.open("/dev/null", 0), lambda: os.pipe(), lambda: bytearray(MEMORY)):
    try:
        attempt()
    except (OSError, MemoryError) as error:
        print(type(error).__name__)
"""
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=commands.ENVIRONMENT
    )
    assert process.stdout.split() == ["OSError", "OSError", "MemoryError"], process.stderr
