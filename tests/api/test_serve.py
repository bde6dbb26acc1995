"""The server: the answers of predict, over HTTP, within limits."""

import asyncio
import base64
import io
import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import forked
from helpers.commands import ENVIRONMENT, fails
from helpers.images import zeros_png
from helpers.serving import Server, multipart, png, serving
from PIL import Image

import gpaco
from gpaco.api.serving.app import make_app
from gpaco.api.serving.batching import Batcher
from gpaco.api.serving.server import listen
from gpaco.api.serving.uploads import Limits
from gpaco.data.readers.read import read
from gpaco.errors import EnvironmentProblem, UserError
from gpaco.tasks.classification.rows import ImageClassifier
from gpaco.training.run import Run

POST = "POST /predict HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def digits() -> list[np.ndarray]:
    samples = read("digits").test
    return [samples.load(i) for i in range(40)]


@pytest.fixture(scope="module")
def server(trained: Run) -> Iterator[Server]:
    with serving(trained.folder) as found:
        yield found


@pytest.fixture(scope="module")
def onnx_server(exported: Path) -> Iterator[Server]:
    with serving(exported) as found:
        yield found


@pytest.mark.process
def test_the_server_answers_what_predict_does_for_runs_and_exported_files(
    trained: Run, server: Server, onnx_server: Server, digits: list[np.ndarray], tmp_path: Path
) -> None:
    for k, image in enumerate(digits[:9]):
        (tmp_path / f"{k}.png").write_bytes(png(image))
    for prior in (None, "uniform", "train"):
        expected = gpaco.predict(trained, tmp_path, prior=prior)
        for one in (server, onnx_server):
            reply = one.predict(*map(png, digits[:9]), query=f"?prior={prior}&top=3" if prior else "?top=3")
            assert reply.status == 200
            rows = reply.json["images"]
            assert [row["image"] for row in rows] == [f"{k}.png" for k in range(9)]
            for row, own in zip(rows, expected, strict=True):
                for key in ("class", "group", "train"):
                    assert row[key] == own[key]
                assert [best["class"] for best in row["top"]] == [name for name, _ in own["top"][:3]]
                assert row["probability"] == pytest.approx(own["probability"], abs=1e-4)


@pytest.mark.process
def test_health_and_the_description_of_the_server(server: Server, digits: list[np.ndarray]) -> None:
    health = server.ask("/health").json
    assert (health["status"], health["task"], health["classes"]) == ("ok", "classification", 10)
    described = server.ask("/openapi.json").json
    assert described["openapi"].startswith("3.1")
    assert set(described["paths"]) == {"/predict", "/health"}
    row = server.predict(png(digits[0]), query="?scores=1").json["images"][0]
    assert "scores" not in server.predict(png(digits[0]), query="?scores=0").json["images"][0]
    schema = described["components"]["schemas"]["Answer"]
    assert set(row) == set(schema["properties"])
    assert len(row["scores"]) == 10
    assert row["top"][0]["class"] in schema["properties"]["class"]["enum"]
    assert np.exp(row["scores"]).max() == pytest.approx(row["probability"], abs=1e-3)


@pytest.mark.process
def test_bad_requests_are_answered_with_4xx_and_a_message_and_the_server_lives_on(
    server: Server, digits: list[np.ndarray]
) -> None:
    good = png(digits[0])
    kind = multipart(())[1]
    odd, _ = multipart((good,), (r"xn--\ud800.png",))
    for reply, status, message in (
        (
            server.predict(zeros_png(100_000, 100_000, rows=1)),
            422,
            "cannot read '0.png': 100000 x 100000 pixels: more than 50,000,000",
        ),
        (server.predict(b"no image"), 422, "cannot read '0.png': not a JPEG, PNG"),
        (server.predict(b""), 422, "cannot read '0.png': the file is empty"),
        (server.predict(good, good[:60]), 422, "cannot read '1.png'"),
        (server.predict(*[good] * 65), 413, "more than 64 images"),
        (server.predict(bytes(33 * 2**20)), 413, "larger than 32 MB"),
        (server.predict(), 400, "no image"),
        (server.predict(good, query="?prior=trian"), 400, "did you mean 'train'"),
        (server.predict(b"no image", query="?prior=trian"), 400, "did you mean 'train'"),  # before the image is read
        (server.predict(good, query="?top=many"), 400, "top must be a positive"),
        (server.predict(good, query="?topp=3"), 400, "there is no parameter 'topp'; did you mean 'top'?"),
        (
            server.ask("/predict", multipart((good, good))[0][:-60], Content_Type=kind),
            400,
            "it ended early",
        ),
        (server.predict(good, query="?scores=yes"), 400, "scores must be 0 or 1"),
        (server.predict(good, query="?top=%C2%B2"), 400, "top must be a positive"),  # a digit that is no number
        (server.predict(good, query=f"?top={'1' * 5000}"), 400, "top must be a positive"),
        (
            server.ask("/predict", odd, Content_Type=f"{kind}; charset=unicode_escape"),
            400,
            "file name is not valid text",
        ),
        (server.ask("/predict", odd, Content_Type=f"{kind}; charset=idna"), 400, "file name is not valid text"),
        (server.ask("/", Host="attacker.example"), 400, "this server is not 'attacker.example'"),  # leads here, maybe
        (server.ask("/predict", good, Content_Type="image/png"), 415, "multipart/form-data"),
        (server.ask("/predict", b"nothing of the kind", Content_Type=kind), 400, "cannot be read"),
        (server.ask("/predict", b"", Content_Type="multipart/form-data"), 400, "cannot be read"),
        (server.ask("/predict"), 405, "Method Not Allowed"),
        (server.ask("/nowhere"), 404, "Not Found"),
    ):
        assert reply.status == status, reply
        assert message in reply.json["error"]
        assert reply.json["remedy"]
    assert server.predict(good).status == 200


@pytest.mark.extensive
@pytest.mark.process
def test_an_upload_in_pieces_of_unknown_length_ends_at_the_limit(server: Server) -> None:
    with socket.create_connection((server.host, server.port), timeout=30) as connection:
        kind = multipart(())[1]
        head = (
            f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        connection.sendall(head.encode())
        part = b'--boundary\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n'
        piece = bytes(2**20)
        connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        for _ in range(32):  # with the last bytes it is above the limit: the server has read all of it and can answer
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        assert b" 413 " in connection.recv(4096)
    assert server.ask("/health").json["requests"] == 0


@pytest.mark.extensive
@pytest.mark.process
def test_a_segmenter_answers_with_a_mask_in_its_colors(segmenter: Run, tmp_path: Path) -> None:
    image = Path(segmenter.recipe.data.path) / "images" / "test" / "0.png"
    (expected,) = gpaco.predict(segmenter, image, out=tmp_path / "masks")
    with serving(segmenter.folder) as server:
        reply = server.predict(image.read_bytes()).json["images"][0]
        assert set(reply) == set(server.ask("/openapi.json").json["components"]["schemas"]["Answer"]["properties"])
        assert b"Image segmenter" in server.ask("/").body
    mask = Image.open(io.BytesIO(base64.b64decode(reply["mask"])))
    np.testing.assert_array_equal(np.asarray(mask), np.asarray(Image.open(expected["mask"])))
    np.testing.assert_array_equal(np.asarray(mask.convert("RGB")), np.asarray(Image.open(expected["colors"])))
    assert {row["class"]: row["share"] for row in reply["classes"]} == expected["shares"]
    assert reply["probability"] == expected["probability"]


def in_a_thread(coroutine: Any) -> Any:
    """Run a coroutine where no other loop runs, as that of a browser may."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


class Gate:
    """A model that works when it is told to, and remembers its batches."""

    def __init__(self) -> None:
        self.open, self.began, self.batches, self.seen = threading.Event(), threading.Event(), list[int](), list[Any]()

    def logits(self, images: Any) -> Any:
        self.began.set()
        assert self.open.wait(30)
        self.batches.append(len(images))
        return np.zeros((len(images), 2), np.float32)

    def model(self) -> ImageClassifier:
        known = {"counts": None, "groups": None, "assumed": None, "least": 8}
        return ImageClassifier("gate", ("a", "b"), **known, see=self.see, logits=self.logits)

    def see(self, image: Any) -> list[Any]:
        self.seen.append(image)
        return [image]


def asgi(app: Any, *images: bytes, receive: Any = None) -> Any:
    """Return a coroutine that posts images to an application and returns the status of its answer."""
    body, kind = multipart(images or (png(np.zeros((8, 8, 3))),))
    headers = [(b"host", b"localhost"), (b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "method": "POST", "path": "/predict", "query_string": b"", "headers": headers}
    scope |= {"http_version": "1.1", "scheme": "http", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2)}
    sent: list[Any] = []

    async def all_at_once() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def post() -> tuple[int, dict[bytes, bytes]]:
        await app(dict(scope), receive or all_at_once, send)
        return sent[0]["status"], dict(sent[0]["headers"])

    return post()


def test_uploads_that_take_too_long_end_early_or_fill_the_memory_are_refused() -> None:
    async def silent() -> None:
        await asyncio.sleep(60)

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def statuses() -> list[int]:
        cases = ((Limits(seconds=0.01), silent), (Limits(), gone), (Limits(bytes=10), None))
        return [(await asgi(make_app(Gate().model(), limits), receive=how))[0] for limits, how in cases]

    assert in_a_thread(statuses()) == [408, 400, 429]


def test_requests_beyond_the_queue_are_asked_to_come_back_and_the_others_are_answered_together() -> None:
    gate = Gate()

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def silent() -> None:
        await asyncio.sleep(60)

    async def crowd() -> tuple[list[Any], list[Any]]:
        app = make_app(gate.model(), Limits(requests=64, patience=0.1))
        first = [asyncio.create_task(asgi(app)) for _ in range(64)]
        while len(gate.seen) < 64:
            await asyncio.sleep(0.01)
        refused = [await asgi(app, receive=how) for how in (None, gone, silent)]
        gate.open.set()
        return await asyncio.gather(*first), refused

    answered, refused = in_a_thread(crowd())
    assert [status for status, _ in answered] == [200] * 64
    assert [(status, headers[b"retry-after"]) for status, headers in refused] == [(429, b"1")] * 3
    assert sum(gate.batches) == 64
    assert max(gate.batches) == 32  # what came while the model was at work goes through it together


def test_a_request_that_is_refused_leaves_none_of_its_images_at_work() -> None:
    gate = Gate()

    async def ask() -> tuple[bool, Any]:
        task = asyncio.create_task(asgi(make_app(gate.model(), Limits()), b"no image", png(np.zeros((8, 8, 3)))))
        while not gate.began.is_set():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        early = task.done()
        gate.open.set()
        return early, await task

    early, (status, _) = in_a_thread(ask())
    assert (early, status, gate.batches) == (False, 422, [1])


def test_an_error_of_the_model_reaches_all_who_wait_and_the_next_are_answered() -> None:
    def work(items: list[int]) -> list[int]:
        if -1 in items:
            raise RuntimeError("broken")
        return [2 * item for item in items]

    async def use() -> tuple[list[Any], int]:
        batcher = Batcher(work, 4)
        return await asyncio.gather(batcher(-1), return_exceptions=True), await batcher(3)

    ((error,), six) = in_a_thread(use())
    assert isinstance(error, RuntimeError)
    assert six == 6


@pytest.mark.extensive
@pytest.mark.process
def test_a_signal_lets_open_requests_finish(trained: Run, digits: list[np.ndarray]) -> None:
    body, kind = multipart((png(digits[0]),))
    with serving(trained.folder) as server:
        with socket.create_connection((server.host, server.port), timeout=30) as connection:
            head = f"{POST}Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body[:50])
            while server.ask("/health").json["requests"] != 1:
                time.sleep(0.02)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            connection.sendall(body[50:])
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        with pytest.raises(OSError, match="refused"):
            server.ask("/health")


MANY = 20_000  # classes: an answer is larger than what a socket keeps
SERVE = f"""
import signal, sys, threading, urllib.request
import numpy as np
from gpaco.api.serving.server import listen, serve_model
from gpaco.api.serving.uploads import Limits
from gpaco.tasks.classification.rows import ImageClassifier

known = {{"counts": None, "groups": None, "assumed": None, "least": 8}}
names = tuple(map(str, range({MANY})))
zeros = lambda all: np.zeros((len(all), {MANY}))
model = ImageClassifier("many", names, **known, see=lambda image: [image], logits=zeros)
handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

def at_once(line):
    if line.startswith("serving"):
        signal.raise_signal(signal.SIGTERM)  # before the server has started

serve_model(model, listen("127.0.0.1", 0), at_once)
started = threading.Event()
elsewhere = listen("127.0.0.1", 0)
threading.Thread(target=serve_model, args=(model, elsewhere, lambda line: started.set()), daemon=True).start()
assert started.wait(30)
address = "http://127.0.0.1:" + str(elsewhere.getsockname()[1])
assert urllib.request.urlopen(address + "/health").status == 200
assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
serve_model(model, listen("127.0.0.2", 0), lambda line: print(line, flush=True), Limits(ending=1), "127.0.0.2")
assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
"""


@pytest.mark.extensive
@pytest.mark.process
def test_a_client_that_does_not_read_does_not_keep_a_server_alive_and_signals_are_given_back() -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with forked.python("-c", SERVE, env=ENVIRONMENT | {"PYTHONWARNINGS": "default"}, **pipes) as process:
        server = Server(process, "127.0.0.2", int(process.stdout.readline().split(":")[2].split()[0]))
        assert server.ask("/health").status == 200  # under its own name
        body, kind = multipart(tuple([png(np.zeros((8, 8, 3)))] * 8))
        with socket.create_connection((server.host, server.port), timeout=30) as connection:
            head = f"{POST}Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.replace("/predict", f"/predict?top={MANY}").encode() + body)
            assert connection.recv(12) == b"HTTP/1.1 200"  # and no more
            process.send_signal(signal.SIGTERM)
            out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert out == "stopped; 1 client did not get an answer\n"


def test_an_address_that_cannot_be_used_comes_with_one_that_can() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for host, number, cause, remedy in (
            ("127.0.0.1", port, "already in use", f"--port {port + 1}"),
            ("a..b", 8000, "no host 'a..b'", "--host 127.0.0.1"),
        ):
            with pytest.raises(UserError) as caught:
                listen(host, number)
            assert cause in caught.value.cause
            assert remedy in caught.value.remedy
    with socket.create_server(("127.0.0.1", 65535)), pytest.raises(UserError, match="--port 8080"):
        listen("127.0.0.1", 65535)


@pytest.mark.process
def test_a_server_that_cannot_start_says_why(trained: Run, segmenter: Run, server: Server, tmp_path: Path) -> None:
    assert "address already in use" in fails("serve", trained.folder, "--port", server.port)
    (tmp_path / "wrong.csv").write_text("0,1\n")
    for model, options, message in (
        (trained, {"port": 99999}, "there is no port 99999"),
        (tmp_path, {}, "is not a run"),
        (tmp_path / "none.onnx", {}, "there is no file"),
        (trained, {"prior": str(tmp_path / "wrong.csv")}, "no row for class '1'"),
        (segmenter, {"prior": "train"}, "for classifiers"),
    ):
        with pytest.raises(UserError) as caught:
            gpaco.serve(model, **{"port": 0} | options)
        assert message in caught.value.cause


def test_without_the_extra_it_is_named(trained: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpaco.api.serving.server.find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match=r"pip install '\.\[serve\]'"):
        gpaco.serve(trained, port=0)


@pytest.mark.extensive
@pytest.mark.process
def test_a_thousand_requests_of_sixteen_clients_are_all_answered(server: Server, digits: list[np.ndarray]) -> None:
    images = list(map(png, digits))
    expected = [server.predict(image).json["images"][0]["class"] for image in images]

    def ask(k: int) -> tuple[int, str]:
        reply = server.predict(images[k % 40], query="?scores=1" if k % 2 else "")
        return reply.status, json.loads(reply.body)["images"][0]["class"]

    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(ask, range(1000)))
    assert [status for status, _ in answers] == [200] * 1000
    assert [name for _, name in answers] == [expected[k % 40] for k in range(1000)]
