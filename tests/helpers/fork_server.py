"""A process that has imported everything and forks: a new Python process in milliseconds instead of seconds.

`forked.py` starts it and sends it requests. It never starts a thread and computes nothing, so a fork of it is like a
new process whose imports are done. A fork cannot change what Python reads once at startup: the seed of string hashes
and most environment variables. `forked.py` starts a new process if those differ.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import threading
import warnings
from typing import Any

from helpers import no_network

# What gpaco and its dependencies import late. Not onnxruntime and pyarrow: importing them starts threads.
LATE = (
    *("torch._dynamo", "torch._inductor", "torch.distributed.launcher.api", "torch.utils.data", "torchvision", "timm"),
    *("rich.progress", "safetensors.torch", "segmentation_models_pytorch", "sklearn.datasets"),
    *(
        "scipy.ndimage",
        "scipy.optimize",
        "scipy.stats",
        "imagecorruptions",
        "pydantic.type_adapter",
        "typer._adapters",
        "cv2",
        "pytest",
        "hypothesis",
    ),
)

Request = dict[str, Any]


def preload() -> None:
    import gpaco

    found = [module.name for module in pkgutil.walk_packages(gpaco.__path__, "gpaco.")]
    for name in (*found, *LATE):
        if not name.endswith("__main__"):
            with contextlib.suppress(ModuleNotFoundError):  # then it is imported late, or its absence is tested
                importlib.import_module(name)
    from PIL import Image

    Image.init()
    threads = os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else [0]
    if len(threads) != 1:
        raise RuntimeError(f"an import started {len(threads) - 1} threads, a fork would lose them")
    gc.collect()
    gc.freeze()


def serve(requests: socket.socket) -> Request:
    """Fork for each request, and return the request in the child; exit when the client is gone."""
    children: dict[int, socket.socket] = {}
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            woken.recv(4096)
            _report_the_dead(children)
        if requests not in ready:
            continue
        message, files, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        if not message:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            os._exit(0)
        *streams, answer = files
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (requests, woken, wake, *children.values()):
                end.close()
            request = json.loads(message)
            if request["session"]:
                os.setsid()
            with socket.socket(fileno=answer) as told:
                _tell(told, os.getpid())
            for number, file in enumerate(streams):
                os.dup2(file, number)
                os.close(file)
            return request
        for file in streams:
            os.close(file)
        children[pid] = socket.socket(fileno=answer)


def _report_the_dead(children: dict[int, socket.socket]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with children.pop(pid) as answer:
            _tell(answer, os.waitstatus_to_exitcode(status))


def _tell(answer: socket.socket, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the one who asked has gone
        answer.sendall(number.to_bytes(4, "little", signed=True))


def become(request: Request) -> None:
    """Take over the folder, environment, warnings and random state of a new process."""
    os.chdir(request["cwd"])
    if "torch" in sys.modules:
        sys.modules["numpy"].random.seed()  # Python's own numbers are seeded by fork
        sys.modules["torch"].default_generator.seed()
    before = os.environ.get("PYTHONWARNINGS", "")
    os.environ.clear()
    os.environ.update(request["env"])
    wanted = os.environ.get("PYTHONWARNINGS", "")
    if wanted != before:
        for action in filter(None, before.split(",")):
            warnings.filters.remove((action, None, Warning, None, 0))  # type: ignore[attr-defined]
        for action in filter(None, wanted.split(",")):
            warnings.simplefilter(action)  # type: ignore[arg-type]


def execute(words: list[str]) -> None:
    """Do what `python *words` does, for a module, a line of code or a script."""
    if words[0] == "-m":
        sys.path[0], sys.argv = os.getcwd(), words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.path[0], sys.argv = "", ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
    else:
        sys.path[0], sys.argv = os.path.dirname(os.path.abspath(words[0])), words
        runpy.run_path(words[0], run_name="__main__")


def exit_code(words: list[str]) -> int:
    """Execute, and exit like the interpreter, but without tearing down every module, which takes a second."""
    code = 0
    try:
        execute(words)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = 120
    return code & 0xFF


if __name__ == "__main__":
    no_network.block()
    if sys.argv[2:] == ["preload"]:
        preload()
    asked = serve(socket.socket(fileno=int(sys.argv[1])))  # only a child comes back from here
    become(asked)
    os._exit(exit_code(asked["words"]))
