"""Each example runs as its head says, and the lines in the README as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

pytestmark = pytest.mark.extensive

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def run(*command: str, strict: bool = True) -> str:
    """Return what a script prints; unless `strict`, other packages may warn about each other."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, *(["-W", "error"] if strict else []), *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Network(nn.Module):
    """What somebody has who trains with cross entropy: features of 512 numbers, and a classifier."""

    projector: nn.Module

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(48, 512), nn.ReLU())
        self.classifier = nn.Linear(512, num_classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(images)
        return self.classifier(features), F.normalize(self.projector(features), dim=1)


def test_the_lines_of_the_readme_train_a_model() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (block,) = (block for block in blocks if "GPaCoLoss" in block)
    *setup, step = block.split("\n\n")
    num_classes, counts = 4, torch.tensor([16, 8, 4, 4])
    labels = torch.repeat_interleave(torch.arange(4), counts)
    images = torch.randn(32, 3, 4, 4) + labels.view(-1, 1, 1, 1)
    model = Network(num_classes)
    names = {"torch": torch, "nn": nn, "model": model, "num_classes": num_classes, "counts": counts, "labels": labels}
    exec("\n".join(setup), names)  # noqa: S102 - ours
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    right = []
    for _ in range(30):
        view1, view2 = (images + 0.1 * torch.randn(images.shape) for _ in range(2))
        names |= {"view1": view1, "view2": view2}
        exec(step, names)  # noqa: S102
        optimizer.zero_grad()
        names["loss"].backward()
        optimizer.step()
        right.append((names["logits"].argmax(1) == labels.repeat(2)).float().mean().item())
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    assert right[0] < 0.6
    assert right[-1] > 0.9


@pytest.mark.process
def test_own_loop_beats_cross_entropy_on_the_rare_digits() -> None:
    rows = run(str(EXAMPLES / "own_loop.py")).splitlines()
    rare = {line.rsplit(maxsplit=2)[0]: float(line.split()[-1]) for line in rows[2:]}
    assert rare["GPaCo"] > rare["cross entropy"] + 5


@pytest.mark.process
def test_mixup_learns() -> None:
    accuracies = re.findall(r"test accuracy ([\d.]+)%", run(str(EXAMPLES / "mixup.py")))
    assert len(accuracies) == 4
    assert float(accuracies[-1]) > 60


@pytest.mark.process
def test_ddp_runs_under_torchrun_with_one_memory() -> None:
    out = run("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(EXAMPLES / "ddp.py"))
    assert "2 processes" in out
    assert "the same memory of 256 rows everywhere: yes" in out
    assert float(re.findall(r"test accuracy ([\d.]+)%", out)[0]) > 55


@pytest.mark.process
def test_the_pixel_loss_learns_in_models_of_three_other_libraries() -> None:
    for library in ("smp", "torchvision", "transformers"):
        out = run(str(EXAMPLES / f"segmentation_{library}.py"))
        losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", out)]
        assert losses[-1] < losses[0] - 0.3, library
        assert float(re.findall(r"mean IoU ([\d.]+)%", out)[0]) > 18, library  # one class everywhere gives 13


@pytest.mark.process
def test_the_notebooks_run_open_with_the_install_line_and_hold_no_outputs(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    for path in sorted(EXAMPLES.glob("*.ipynb")):
        book = nbformat.read(path, as_version=4)
        assert "pip install ." in book.cells[0].source
        assert not any(cell.get("outputs") for cell in book.cells)
        NotebookClient(book, timeout=280, resources={"metadata": {"path": str(tmp_path)}}).execute()


@pytest.mark.process
def test_the_loss_learns_in_four_other_loops_with_five_marked_lines() -> None:
    for library in ("lightning", "accelerate", "transformers", "timm"):
        script = EXAMPLES / f"loop_{library}.py"
        comments = " ".join(re.findall(r"#.*", script.read_text()))
        marks = set(re.findall(r"\((\d)\)", comments))
        assert marks == set("12345"), library
        accuracy = re.findall(r"test accuracy ([\d.]+)%", run(str(script), strict=False))
        assert float(accuracy[0]) > 55, library
