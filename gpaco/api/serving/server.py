"""Runs the server: listens, answers requests, and stops on a signal."""

import asyncio
import errno
import ipaddress
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np

from gpaco.api.serving.answers import Model, mask_answer
from gpaco.api.serving.app import LOCAL, make_app
from gpaco.api.serving.uploads import Limits
from gpaco.errors import EnvironmentProblem, UserError, installing
from gpaco.system.progress import Say
from gpaco.system.words import plural
from gpaco.tasks.classification.rows import ImageClassifier

HOST, PORT = "127.0.0.1", 8000
NEEDED = ("jinja2", "starlette", "uvicorn", "python_multipart")


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise an error before a model is loaded for nothing."""
    missing = [name.replace("_", "-") for name in NEEDED if find_spec(name) is None]
    if missing:
        raise EnvironmentProblem(
            f"the server needs {missing[0]}, which is not installed",
            f"{installing('serve')}, or without torch: pip install {' '.join(missing)}",
        )
    if not 0 <= port <= 65535:
        raise UserError(f"there is no port {port}", "choose one from 1 to 65535, or 0 for any free one")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=256)
    except (socket.gaierror, UnicodeError):
        raise UserError(f"there is no host {host!r}", _OWN) from None
    except OSError as error:
        elsewhere = error.errno == errno.EADDRNOTAVAIL
        other = port + 1 if 1024 <= port < 65535 else 8080
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise UserError(
            f"cannot listen on port {port} of {host}: {reason}", _OWN if elsewhere else f"for example --port {other}"
        ) from None


_OWN = "give an address of this machine, such as --host 127.0.0.1"


def serve_model(
    model: Model, listener: socket.socket, say: Say, limits: Limits | None = None, host: str = HOST
) -> None:
    """Answer requests until a signal arrives, then finish open ones. `host` is an additional name for this machine."""
    import uvicorn

    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # clients get its errors
    limits = limits or Limits()
    address, port = listener.getsockname()[:2]
    local = ipaddress.ip_address(address).is_loopback
    shown = f"[{address}]" if ":" in address else address
    blank = np.zeros((64, 64, 3), np.uint8)
    if isinstance(model, ImageClassifier):  # a broken model should fail now
        model.probabilities([model.see(blank)])
    else:
        mask_answer(model, blank)
    config = uvicorn.Config(
        make_app(model, limits, {*LOCAL, shown, host.lower()} if local else None),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=limits.ending,
        limit_concurrency=limits.connections,
    )
    server = uvicorn.Server(config)

    async def run() -> int:
        """Return the number of connections that were open at the end."""
        await server.serve([listener])
        return len(server.server_state.connections)

    with signals_stop(server):
        say(f"serving {model.name} on http://{shown}:{port} (Ctrl-C stops it)")
        if not local:
            say("anyone who can reach this address can use the model: there is no password")
        still_open = asyncio.run(run())
    unanswered = f"{plural(still_open, 'client')} did not get an answer"
    say(f"stopped; {unanswered if still_open else 'all requests were answered'}")


@contextmanager
def signals_stop(server: Any) -> Iterator[None]:
    """Stop a server on SIGINT and SIGTERM, even before it has started; uvicorn raises them again after it has stopped.

    Python handles signals only in the main thread; in other threads, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
