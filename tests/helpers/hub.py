"""A small hub on this machine that serves the weights of one model."""

import importlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import timm
import torch
from safetensors.torch import save

from gpaco.models.backbones import build

REVISION = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Serves one timm model for any request, and records the requests."""

    def __init__(self, model: str, home: Path) -> None:
        self.asked: list[str] = []
        torch.manual_seed(5)
        self.backbone = build(model).module
        content = save(timm.create_model(model).state_dict() | self.backbone.state_dict())
        about = json.dumps({"id": "timm/x", "sha": REVISION, "siblings": [{"rfilename": "model.safetensors"}]}).encode()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                hub.asked.append(self.path)
                body = about if self.path.startswith("/api/") else content
                self.send_response(200)
                self.send_header("Content-Type", "application/json" if body is about else "application/octet-stream")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("ETag", f'"{len(body)}"')
                self.send_header("X-Repo-Commit", REVISION)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_GET = do_HEAD

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.environment = {"HF_ENDPOINT": f"http://127.0.0.1:{self.server.server_port}", "HF_HOME": str(home)}


@contextmanager
def serving(model: str, home: Path) -> Iterator[Hub]:
    hub = Hub(model, home)
    try:
        yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()


def use(**environment: str) -> None:
    """Change the environment variables of the hub's library in this process, which reads them only once."""
    os.environ.update(environment)
    importlib.reload(huggingface_hub.constants)
