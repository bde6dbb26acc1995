"""`gpaco weights`: what is found in the folder, in packages and in caches, and what is said about it."""

import hashlib
import json
from pathlib import Path

import commands
import pytest
import torch
from safetensors.torch import save_file

from gpaco import backbones
from gpaco.pretrained import lines, local_weights


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing on it but a folder `here`, a package folder `site` and empty caches."""
    settings = {"HF_HOME": tmp_path / "hf", "TORCH_HOME": tmp_path / "torch"}
    for name, path in settings.items():
        monkeypatch.setenv(name, str(path))
        monkeypatch.setitem(commands.ENVIRONMENT, name, str(path))
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "here").mkdir()
    return tmp_path


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    return dict(backbones.build("resnet18").module.state_dict())


def test_every_place_is_looked_at_and_every_file_told_with_its_source(
    machine: Path, tensors: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file(tensors, machine / "here" / "mine.safetensors")
    (machine / "here" / "notes.bin").write_bytes(bytes(2 << 20))  # nothing of torch's
    save_file({"w": torch.zeros(2)}, machine / "here" / "small.safetensors")

    package = machine / "site" / "some_weights"
    package.mkdir(parents=True)
    torch.save(tensors, package / "some net-1234.pth")
    facts = machine / "site" / "some_weights-0.1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: some-weights\nVersion: 0.1\n")
    (facts / "RECORD").write_text("some_weights/some net-1234.pth,sha256=x,1\nsome_weights/__init__.py,,\n")
    monkeypatch.syspath_prepend(machine / "site")

    repository = machine / "hf" / "hub" / "models--timm--resnet18.a1_in1k"
    (repository / "blobs").mkdir(parents=True)
    (repository / "snapshots" / "abc").mkdir(parents=True)
    (repository / "snapshots" / "def").mkdir(parents=True)
    classifier = {"fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}
    save_file(tensors | classifier, repository / "whole")
    digest = hashlib.sha256((repository / "whole").read_bytes()).hexdigest()
    (repository / "whole").rename(repository / "blobs" / digest)
    for snapshot in ("abc", "def"):  # the same file, twice in the cache
        (repository / "snapshots" / snapshot / "model.safetensors").symlink_to(f"../../blobs/{digest}")
    (machine / "torch" / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(tensors, machine / "torch" / "hub" / "checkpoints" / "resnet18-f37072fd.pth")

    rows = [row for row in local_weights(machine / "here") if machine in Path(row["path"]).parents]
    told = {Path(row["path"]).name: row for row in rows}
    assert list(told) == ["mine.safetensors", "some net-1234.pth", "model.safetensors", "resnet18-f37072fd.pth"]
    mine, packed, hub, old = told.values()
    assert mine["model"] == "resnet18"
    assert mine["use"] == f"gpaco train DATA --out RUN --model resnet18 --weights {mine['path']}"
    assert mine["sha256"] == hashlib.sha256(Path(mine["path"]).read_bytes()).hexdigest()[:12]
    assert mine["bytes"] == Path(mine["path"]).stat().st_size
    assert packed["source"] == "the package some-weights 0.1"
    assert packed["use"] == f"gpaco convert '{packed['path']}' --out 'some net-1234'.safetensors"
    assert packed["model"] is None
    assert (hub["model"], hub["source"]) == ("resnet18.a1_in1k", "the hub: timm/resnet18.a1_in1k")
    assert hub["sha256"] == digest[:12]
    assert old["source"] == "torch's cache"
    assert old["use"].startswith("gpaco convert ")

    printed = json.loads(commands.run("weights", machine / "here", "--json"))
    assert {row["path"] for row in printed} >= {row["path"] for row in rows if row is not packed}
    text = lines(rows)
    assert text[0].startswith("resnet18   44.")
    assert text[2] == f"  {mine['use']}"
    assert sum("to be converted first" in line for line in text) == 2


def test_a_name_is_believed_only_if_the_tensors_fit(machine: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, machine / "here" / "resnet34.safetensors")
    other = {f"body.{name}": value for name, value in tensors.items()}
    save_file(other, machine / "here" / "resnet18.safetensors")
    save_file(tensors, machine / "here" / "noted.safetensors", metadata={"model": "resnet18.tv_in1k"})
    (machine / "here" / "broken.safetensors").write_bytes(bytes(2 << 20))
    rows = {Path(row["path"]).stem: row["model"] for row in local_weights(machine / "here") if "here" in row["path"]}
    assert rows == {"broken": None, "noted": "resnet18.tv_in1k", "resnet18": None, "resnet34": "resnet18"}


def test_a_machine_without_weights_is_told_where_was_looked(machine: Path) -> None:
    said = "\n".join(lines([]))
    assert f"looked at {machine / 'hf' / 'hub'} and {machine / 'torch' / 'hub' / 'checkpoints'}" in said
    assert "gpaco convert" in said
