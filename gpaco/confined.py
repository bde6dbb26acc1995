"""The process that foreign files are read in: it reads one file, writes one, and can do nothing else.

    python -I -S -c 'import sys; sys.path.append(...); from gpaco.confined import main; main()' FILE OUT

writes the tensors of FILE to OUT as safetensors, and a report in JSON to standard output. Before it reads a byte, the
process gives up the right to open a file or a socket, to start a process and to import. The files are read by code
that needs none of that (torchfile.py, unpickling.py): should it have a hole, there is not much on the other side.
"""

import io
import json
import sys
from contextlib import suppress
from itertools import islice
from typing import Any, BinaryIO

from gpaco.torchfile import SETTINGS, open_source, state_of, write
from gpaco.unpickling import Made, Refused

MEMORY = 4 << 30  # bytes that the process may take
SECONDS = 120  # that it may compute; a gigabyte takes about two


def confine() -> None:
    """Give up what reading does not need; from here on any attempt of it is an error."""
    "".encode("cp437")  # of names in archives: loaded while it can be
    try:
        import resource
    except ImportError:  # Windows has none
        limits = []
    else:
        wanted = {"AS": MEMORY, "CPU": SECONDS, "CORE": 0, "NOFILE": 0, "NPROC": 0}
        limits = [(getattr(resource, f"RLIMIT_{name}", None), most) for name, most in wanted.items()]
    for number, most in limits:
        if number is not None:
            # At the soft limit of time a process is told why it ends, at the hard one it is just killed.
            last = most + 5 if number == resource.RLIMIT_CPU else most
            _, hard = resource.getrlimit(number)
            most, last = ((n if hard == resource.RLIM_INFINITY else min(n, hard)) for n in (most, last))
            with suppress(ValueError, OSError):  # a system may not have one of them; the others hold, and the hook
                resource.setrlimit(number, (most, last))
    sys.addaudithook(_refuse)


def _refuse(event: str, _: Any) -> None:
    """Python announces here what reaches out of it: imports, files, sockets, processes, code to compile and more."""
    raise Refused(f"reading it came to {event!r}, which reading never needs")


def report(file: BinaryIO, out: BinaryIO, length: int) -> dict[str, Any]:
    """The tensors of a file to `out`, and what there is to say about it."""
    names: dict[str, None] = {}
    said: dict[str, Any] = {}
    try:
        source = open_source(file, names)
        where, tensors = state_of(source.value)
        write(tensors, source.read, out, 2 * length)
        if where:
            said = {"values": _plain(source.value), "settings": _plain(source.value.get("args"))}
            others = (key for key in source.value if isinstance(key, str) and key.isprintable() and key != where)
            said["keys"] = [key[:200] for key in islice(others, 100)]
        said["where"] = where
    except Refused as error:
        said["refused"] = str(error)
    except MemoryError:
        said["refused"] = f"reading it takes more than {MEMORY >> 30} GB of memory"
    except OSError as error:
        said["system"] = error.strerror
    except Exception as error:  # a damaged archive fails in any way
        said["refused"] = f"it is damaged: {' '.join(str(error).split())[:200] or type(error).__name__}"
    return said | {"names": sorted(name[:200] for name in names)[:1000]}


def _plain(value: Any) -> dict[str, Any]:
    """Texts and numbers of a dictionary, or of settings of a command line."""
    if isinstance(value, Made) and value.by == SETTINGS:
        value = value.state
    if not isinstance(value, dict):
        return {}
    plain = ((key, item) for key, item in value.items() if isinstance(key, str) and _is_plain(item))
    return dict(islice(plain, 1000))


def _is_plain(item: Any) -> bool:
    if isinstance(item, str):
        return len(item) <= 200
    return item is None or (isinstance(item, int | float) and -(2**53) < item < 2**53)


def main() -> None:
    path, target = sys.argv[-2:]
    with open(path, "rb") as file, open(target, "wb") as out:
        length = file.seek(0, io.SEEK_END)
        file.seek(0)
        confine()
        print(json.dumps(report(file, out, length)))
