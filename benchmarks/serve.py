"""Throughput of the server against `gpaco predict`, on the same images and with the same model.

    python benchmarks/serve.py RUN IMAGES [--clients 16] [--per-request 8] [--repeats 3]

RUN is a run or an .onnx file, IMAGES a folder. Both read and classify every image once per repeat, in turns, so that a
busy machine slows both. Prints images per second of each, their ratio, the processor time of each, and
latencies. Server and clients share the machine.
"""

import argparse
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpaco.api.exported import open_model
from gpaco.data.files import find_files
from gpaco.data.members import File
from gpaco.models.onnx_file import is_onnx
from gpaco.system.distributed import choose_device
from gpaco.tasks.classification.prediction import image_classifier
from gpaco.tasks.classification.rows import ImageClassifier, predict_rows
from gpaco.training.run import as_run


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def form(files: Sequence[File]) -> bytes:
    """The files as the body of a multipart request."""
    parts = []
    for file in files:
        head = f'--b\r\nContent-Disposition: form-data; name="images"; filename="{Path(str(file)).name}"\r\n\r\n'
        parts += [head.encode(), file.read_bytes(), b"\r\n"]
    return b"".join([*parts, b"--b--\r\n"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--per-request", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    files = find_files([options.images])
    bodies = [form(files[k : k + options.per_request]) for k in range(0, len(files), options.per_request)]
    if is_onnx(options.run):
        model = open_model(options.run)
    else:
        model = image_classifier([as_run(options.run)], prior=None, unbiased=False, device=choose_device("cpu"))
    if not isinstance(model, ImageClassifier):
        sys.exit("give a classifier")
    command = [sys.executable, "-m", "gpaco", "serve", str(options.run), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        found = re.search(r"http://([\d.]+):(\d+)", server.stdout.readline() if server.stdout else "")
        if not found:
            sys.exit("the server did not start")
        host, port = found[1], int(found[2])

        def ask(body: bytes) -> tuple[int, float]:
            began = time.perf_counter()
            connection = http.client.HTTPConnection(host, port, timeout=300)
            connection.request("POST", "/predict", body, {"Content-Type": "multipart/form-data; boundary=b"})
            reply = connection.getresponse()
            images = len(json.loads(reply.read())["images"]) if reply.status == 200 else 0
            connection.close()
            return images, time.perf_counter() - began

        ratios: list[float] = []
        for _ in range(options.repeats):
            began, cpu = time.perf_counter(), time.process_time()
            rows = predict_rows(model, files, top=5, batch_size=64)
            direct, own = len(rows) / (time.perf_counter() - began), time.process_time() - cpu
            began, cpu = time.perf_counter(), cpu_seconds(server.pid)
            with ThreadPoolExecutor(options.clients) as clients:
                answers = list(clients.map(ask, bodies))
            served = sum(images for images, _ in answers) / (time.perf_counter() - began)
            cpu = cpu_seconds(server.pid) - cpu
            late = sorted(seconds for _, seconds in answers)
            ratios.append(served / direct)
            print(
                f"predict {direct:7.1f} images/s   serve {served:7.1f} images/s   ratio {ratios[-1]:.2f}   "
                f"processor time {1000 * own / len(files):.0f} and {1000 * cpu / len(files):.0f} ms an image   "
                f"latency {1000 * statistics.median(late):.0f} ms median, {1000 * late[-1]:.0f} ms worst",
                flush=True,
            )
        print(f"median ratio {statistics.median(ratios):.2f} with {options.clients} clients, {len(files)} images")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


if __name__ == "__main__":
    main()
