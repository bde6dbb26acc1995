"""A server in its own process, and a client."""

import http.client
import io
import json
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import uvicorn
from PIL import Image

from gpaco.api.serving.answers import Model
from gpaco.api.serving.app import make_app
from gpaco.api.serving.server import listen
from gpaco.api.serving.uploads import Limits
from helpers.commands import start


class Reply(NamedTuple):
    """An answer of the server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Server(NamedTuple):
    """Where a server listens."""

    process: subprocess.Popen[str]
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.port}"

    def ask(self, path: str, body: bytes | None = None, **headers: str) -> Reply:
        """Return the answer to a request: GET, or POST with a body."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request("GET" if body is None else "POST", path, body, names)
            reply = connection.getresponse()
            return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def predict(self, *images: bytes, query: str = "", names: tuple[str, ...] = ()) -> Reply:
        """Send images, which are called 0.png and so on unless they have names."""
        body, kind = multipart(images, names)
        return self.ask(f"/predict{query}", body, Content_Type=kind)


def multipart(images: tuple[bytes, ...], names: tuple[str, ...] = ()) -> tuple[bytes, str]:
    """Return the body of a form with files, and its content type."""
    parts = []
    for k, content in enumerate(images):
        name = names[k] if names else f"{k}.png"
        head = f'--boundary\r\nContent-Disposition: form-data; name="images"; filename="{name}"\r\n\r\n'
        parts += [head.encode(), content, b"\r\n"]
    return b"".join([*parts, b"--boundary--\r\n"]), "multipart/form-data; boundary=boundary"


def png(image: Any) -> bytes:
    """Return an image (H, W, 3) as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(np.asarray(image, np.uint8)).save(file, "PNG")
    return file.getvalue()


@contextmanager
def serving(*words: object) -> Iterator[Server]:
    """Start `gpaco serve` with these words, on a free port, and stop it at the end."""
    process = start("serve", *words, "--port", 0)
    try:
        found = re.search(r"http://\[?([^\]/]+)\]?:(\d+)", process.stdout.readline())
        if not found:
            _, errors = process.communicate(timeout=60)
            raise AssertionError(f"the server did not start: {errors}")
        yield Server(process, found[1], int(found[2]))
    finally:
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "all requests were answered" in out, out
    assert not errors, errors


@contextmanager
def serving_here(model: Model) -> Iterator[str]:
    """Serve a model in a thread of this process, and yield the address."""
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(make_app(model, Limits()), log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()
