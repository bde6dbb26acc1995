"""A server from its first to its last request."""

import ipaddress
import logging
import signal
import socket
from importlib.util import find_spec

import numpy as np

from gpaco.api.serving.answers import Model, mask_answer
from gpaco.api.serving.app import make_app
from gpaco.api.serving.uploads import Limits
from gpaco.errors import EnvironmentProblem, UserError, installing
from gpaco.system.progress import Say
from gpaco.tasks.classification.rows import Answering

HOST, PORT = "127.0.0.1", 8000


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens, or raise an error before a model is loaded for nothing."""
    missing = [name for name in ("starlette", "uvicorn", "python_multipart") if find_spec(name) is None]
    if missing:
        raise EnvironmentProblem(f"the server needs {missing[0]}, which is not installed", installing("serve"))
    if not 0 <= port <= 65535:
        raise UserError(f"there is no port {port}", "choose one from 1 to 65535, or 0 for any that is free")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=256)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(
            f"cannot listen on port {port} of {host}: {reason}", f"for example --port {port + 1 or 8001}"
        ) from None


def serve_model(model: Model, listener: socket.socket, say: Say, limits: Limits | None = None) -> None:
    """Answer requests until a signal comes, then finish those that are open."""
    import uvicorn

    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # who sends nonsense is told, the log is not
    host, port = listener.getsockname()[:2]
    local = ipaddress.ip_address(host).is_loopback
    blank = np.zeros((64, 64, 3), np.uint8)
    if isinstance(model, Answering):  # a model that does not work should fail now
        model.probabilities([model.see(blank)])
    else:
        mask_answer(model, blank)
    app = make_app(model, limits or Limits(), local=local)
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_keep_alive=30)
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn sends them to this process again at the end
        signal.signal(number, lambda number, frame: None)
    shown = f"[{host}]" if ":" in host else host
    say(f"serving {model.name} on http://{shown}:{port} (Ctrl+C stops it)")
    if not local:
        say("anybody who reaches this address can use the model: it asks for no password")
    uvicorn.Server(config).run(sockets=[listener])
    say("stopped; all requests were answered")
