"""Checkpoints of other programs: read without running code in them, recognized, and the same network afterwards."""

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from helpers import commands
from helpers.images import class_folders
from helpers.released import Released, SmallEncoder, lively
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import gpaco
from gpaco.api.convert import convert
from gpaco.errors import UserError
from gpaco.models import backbones
from gpaco.models.weights.foreign import Foreign, read_foreign
from gpaco.models.weights.layouts import Layout
from gpaco.recipes import recipe as recipes
from gpaco.system.progress import quiet
from gpaco.tasks.classification.released import read_counts, recipe_of

IMAGENET = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
CIFAR = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1), torch.tensor([0.2023, 0.1994, 0.2010]).view(3, 1, 1)


@pytest.fixture(autouse=True)
def _nothing_large_stays(tmp_path: Path) -> Iterator[None]:
    yield
    shutil.rmtree(tmp_path)


def test_both_formats_of_torch_are_read_with_their_args_and_numpy_scalars(tmp_path: Path) -> None:
    row = torch.randn(12)
    state = {"channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), "half": row.half()}
    state |= {"view": row[2:8:2], "same memory": row, "parameter": nn.Parameter(torch.randn(2)), "n": torch.tensor(3)}
    more = {"args": argparse.Namespace(alpha=0.2, layers=[1]), "acc": np.float64(3), "epoch": 3, "n": np.int64(1)}
    for archive in (True, False):
        for where in ("state_dict", "model", "model_state_dict"):
            torch.save({where: state, **more}, tmp_path / "a.pth", _use_new_zipfile_serialization=archive)
            found = read_foreign(tmp_path / "a.pth")
            assert found.keys == ["args", "acc", "epoch", "n"]
            assert found.values == {"alpha": 0.2, "acc": 3, "epoch": 3}
            assert found.tensors.keys() == state.keys()
            for name, tensor in state.items():
                assert found.tensors[name].dtype == tensor.dtype
                assert torch.equal(found.tensors[name], tensor), name
        torch.save(state, tmp_path / "b.pth", _use_new_zipfile_serialization=archive)
        assert read_foreign(tmp_path / "b.pth").tensors.keys() == state.keys()
    convert(tmp_path / "b.pth", tmp_path / "b.safetensors", say=quiet)
    assert torch.equal(load_file(tmp_path / "b.safetensors")["view"], state["view"])


class Runs:
    """Unpickled without care, this writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_code_in_a_file_is_refused_by_its_name_and_not_run(tmp_path: Path) -> None:
    for archive in (True, False):
        content = {"w": torch.zeros(2), "x": Runs(tmp_path / "ran")}
        torch.save(content, tmp_path / "a.pth", _use_new_zipfile_serialization=archive)
        with pytest.raises(UserError, match=r"refused to load .*a\.pth: .*(getattr|Path)[^\n]*\nno code was executed"):
            convert(tmp_path / "a.pth", tmp_path / "a.safetensors", say=quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["a.pth"]


def test_a_file_that_is_damaged_or_has_no_tensors_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "a.pth"
    torch.save({"w": torch.zeros(1000)}, file)
    for content in (b"", b"hello", bytes(100), file.read_bytes()[:2000]):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.pth is damaged, or was not written by torch\.save"):
            read_foreign(file)
    for nothing in ({"net": {"w": torch.zeros(2)}}, [torch.zeros(2)], {"state_dict": {}}):
        torch.save(nothing, file)
        with pytest.raises(UserError, match=r"a\.pth has no named tensors"):
            read_foreign(file)
    for missing in (tmp_path / "none.pth", tmp_path):
        with pytest.raises(UserError, match="there is no file"):
            read_foreign(missing)


def test_a_safetensors_file_needs_no_conversion(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(2)}, tmp_path / "mine.safetensors")
    with pytest.raises(UserError, match=r"needs no conversion\nuse it as it is: --weights .*mine"):
        convert(tmp_path / "mine.safetensors", tmp_path / "out.safetensors", say=quiet)


def test_weights_of_torchvision_become_weights_to_start_from(tmp_path: Path) -> None:
    network = lively(torchvision.models.resnet18())
    torch.save({"state_dict": network.state_dict(), "arch": "resnet18"}, tmp_path / "a.pth")
    told: list[str] = []
    result = convert(tmp_path / "a.pth", tmp_path / "new" / "a.safetensors", say=told.append)
    assert told[-1].endswith(f"--model resnet18 --weights {tmp_path / 'new' / 'a.safetensors'}")
    with safe_open(tmp_path / "new" / "a.safetensors", "pt") as file:
        assert file.metadata() == {"model": "resnet18", "source": "a.pth", "source_sha256": result["sha256"]}
    ours = backbones.build("resnet18", weights=tmp_path / "new" / "a.safetensors").module.eval()
    images = torch.randn(2, 3, 64, 64)
    theirs = nn.Sequential(*list(network.children())[:-1])
    torch.testing.assert_close(ours(images), theirs(images).flatten(1), rtol=0, atol=1e-5)


@pytest.mark.process
def test_the_command_prints_what_it_found_as_json(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(2)}, tmp_path / "a.bin")
    said = json.loads(commands.run("convert", tmp_path / "a.bin", "--out", tmp_path / "a.safetensors", "--json"))
    assert said["kind"] == "weights"
    assert said["model"] == ""
    assert load_file(tmp_path / "a.safetensors").keys() == {"w"}


def logits_of(run: Path, images: Tensor) -> Tensor:
    with torch.inference_mode():
        return gpaco.load(run)(images)


@pytest.fixture(scope="module")
def resnet50(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Released, Path]]:
    torch.manual_seed(0)
    network = Released(torchvision.models.resnet50(num_classes=16), classes=5, dim=16)
    lively(network)
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9).state_dict()
    file = network.save(tmp_path_factory.mktemp("checkpoint") / "moco_ckpt.pth.tar", "resnet50", optimizer=optimizer)
    yield network, file
    file.unlink()


@pytest.mark.process
def test_a_released_gpaco_checkpoint_becomes_a_run_with_the_same_logits(
    resnet50: tuple[Released, Path], tmp_path: Path
) -> None:
    network, file = resnet50
    (tmp_path / "names.txt").write_text("ant\nbee\ncow\ndog\nelk\n")
    (tmp_path / "counts.csv").write_text("class,count\nelk,3\nant,200\nbee,150\ncow,50\ndog,21\n")
    told: list[str] = []
    files: Any = {"classes": tmp_path / "names.txt", "counts": tmp_path / "counts.csv"}
    convert(file, tmp_path / "run", settings=["model.size=64", "method.alpha=0.045"], **files, say=told.append)
    assert told[0].endswith("tensors, read as a checkpoint of the released GPaCo code, resnet50")
    assert "left out: queue, queue_l, queue_ptr, epoch, arch, acc, optimizer" in told
    assert any(line.startswith("method.temperature = 0.2 is assumed") for line in told)
    assert not any(line.startswith("method.alpha") for line in told)

    images = torch.randint(0, 256, (3, 3, 64, 64), dtype=torch.uint8)
    with torch.inference_mode():
        expected = network((images / 255 - IMAGENET[0]) / IMAGENET[1])
    torch.testing.assert_close(logits_of(tmp_path / "run", images), expected, rtol=0, atol=1e-5)

    data = class_folders(tmp_path / "data", {"ant": 4, "bee": 4, "cow": 4, "dog": 4, "elk": 4})
    figures = json.loads(commands.run("evaluate", tmp_path / "run", data, "--json"))
    assert figures["groups"] == {"many": 2, "medium": 2, "few": 1}
    rows = gpaco.predict(tmp_path / "run", data, prior="train")
    assert len(rows) == 20
    assert {row["group"] for row in rows} <= {"many", "medium", "few"}
    run = gpaco.load(tmp_path / "run")
    share = 1 / (1 + 0.045 * (1 + 64 * np.array([200, 150, 50, 21, 3]) / 424))
    np.testing.assert_allclose(run.card.center_share, share, rtol=1e-6)
    assert gpaco.evaluate(tmp_path / "run", data, unbiased=True)["n"] == 20
    assert "converted from moco_ckpt.pth.tar, SHA-256" in (tmp_path / "run" / "recipe.toml").read_text()


@pytest.mark.slow
def test_without_class_counts_there_are_no_groups_and_nothing_is_made_up(
    resnet50: tuple[Released, Path], tmp_path: Path
) -> None:
    told: list[str] = []
    convert(resnet50[1], tmp_path / "run", settings=["model.size=64"], say=told.append)
    assert any("without --counts FILE, there are no groups" in line for line in told)
    data = class_folders(tmp_path / "data", {str(c): 2 for c in range(5)})
    figures = gpaco.evaluate(tmp_path / "run", data, prior="uniform")
    assert figures["groups"] == {"many": None, "medium": None, "few": None}
    assert [figures[key] for key in ("many", "medium", "few", "long_tailed", "reversed")] == [None] * 5
    assert {row["train"] for row in figures["per_class"]} == {None}
    assert {row["group"] for row in gpaco.predict(tmp_path / "run", data)} == {None}
    for options in ({"unbiased": True}, {"prior": "train"}):
        with pytest.raises(UserError, match="does not have the number of training images"):
            gpaco.evaluate(tmp_path / "run", data, **options)


@pytest.mark.process
def test_a_run_without_class_counts_is_tested_on_corrupted_images_without_groups(
    resnet50: tuple[Released, Path], tmp_path: Path
) -> None:
    convert(resnet50[1], tmp_path / "run", settings=["model.size=64"], say=quiet)
    data = class_folders(tmp_path / "data", {str(c): 2 for c in range(5)})
    command = ("robustness", tmp_path / "run", data, "--corruptions", "fog", "--severities", 1)
    result = json.loads(commands.run(*command, "--json"))
    assert result["clean_error"] == pytest.approx(1 - gpaco.evaluate(tmp_path / "run", data)["top1"])
    cell = result["corruptions"]["fog"]["1"]
    assert cell["error"] is not None
    assert [cell[name] for name in ("many", "medium", "few")] == [None] * 3
    assert {value for group in result["groups"].values() for value in group.values()} == {None}
    assert "the run does not have class counts, so there are no groups (many, medium, few)" in result["notes"]


def test_the_backbone_of_a_released_checkpoint_can_be_had_alone(
    resnet50: tuple[Released, Path], tmp_path: Path
) -> None:
    network, file = resnet50
    result = convert(file, tmp_path / "b.safetensors", say=quiet)
    assert result["kind"] == "weights"
    found = load_file(tmp_path / "b.safetensors")
    assert torch.equal(found["layer4.2.conv3.weight"], network.encoder_q.layer4[2].conv3.weight)
    assert not any(key.startswith(("fc.", "linear.", "queue")) for key in found)


@pytest.mark.slow
def test_a_released_paco_checkpoint_keeps_its_projector_and_leaves_out_the_copy(tmp_path: Path) -> None:
    network = Released(torchvision.models.resnext50_32x4d(num_classes=8), classes=6, dim=8, paco=True)
    lively(network)
    told: list[str] = []
    file = network.save(tmp_path / "p.tar", "resnext50_32x4d")
    convert(file, tmp_path / "run", settings=["model.size=64"], say=told.append)
    assert told[0].endswith("read as a checkpoint of the released PaCo code, resnext50_32x4d")
    assert told[1].startswith("left out: queue, queue_l, queue_ptr, encoder_k (2), linear_k (2),")
    images = torch.rand(2, 3, 64, 64)
    normal = (images - IMAGENET[0]) / IMAGENET[1]
    model = gpaco.load(tmp_path / "run").model
    with torch.inference_mode():
        torch.testing.assert_close(logits_of(tmp_path / "run", images), network(normal), rtol=0, atol=1e-5)
        embeddings = nn.functional.normalize(network.encoder_q(normal), dim=1)
        torch.testing.assert_close(model(normal)[1], embeddings, rtol=0, atol=1e-5)
    assert recipes.load(tmp_path / "run").method.name == "paco"


def test_a_released_cifar_checkpoint_takes_images_whole(tmp_path: Path) -> None:
    network = Released(SmallEncoder(), classes=4, dim=32, memory=1024, paco=True)
    lively(network)
    convert(network.save(tmp_path / "c.tar"), tmp_path / "run", say=quiet)
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    with torch.inference_mode():
        expected = network((images / 255 - CIFAR[0]) / CIFAR[1])
    torch.testing.assert_close(logits_of(tmp_path / "run", images), expected, rtol=0, atol=1e-5)
    card, recipe = gpaco.load(tmp_path / "run").card, recipes.load(tmp_path / "run")
    assert (card.model, card.size, card.whole, card.projector) == ("resnet32", 32, True, "paco")
    assert (recipe.model.dim, recipe.method.memory, recipe.train.epochs) == (32, 1024, 400)


@pytest.mark.slow
def test_the_released_resnet50_for_small_images_has_its_shortcuts_renamed(tmp_path: Path) -> None:
    encoder = torchvision.models.resnet50(num_classes=8)
    encoder.conv1, encoder.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    network = Released(encoder, classes=4, dim=8)
    lively(network)
    state = {f"module.{k.replace('downsample', 'shortcut')}": v for k, v in network.state_dict().items()}
    torch.save({"state_dict": state, "arch": "resnet50"}, tmp_path / "c.tar")
    assert convert(tmp_path / "c.tar", tmp_path / "run", say=quiet)["model"] == "resnet50_cifar"
    images = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        expected = network((images - CIFAR[0]) / CIFAR[1])
    torch.testing.assert_close(logits_of(tmp_path / "run", images), expected, rtol=0, atol=1e-5)


def vit(**options: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """A ViT-B of timm's and its tensors; random, without the time that timm takes to draw them."""
    from timm import create_model

    with torch.device("meta"):
        network = create_model("vit_base_patch16_224", **options)
    state = {name: torch.rand(value.shape).sub_(0.5).mul_(0.05) for name, value in network.state_dict().items()}
    network.load_state_dict(state, assign=True)
    return network.eval(), state


@pytest.mark.extensive
@pytest.mark.slow
def test_a_released_vit_checkpoint_becomes_a_run_with_the_same_logits(tmp_path: Path) -> None:
    network, state = vit(num_classes=7, global_pool="avg")
    mlp = nn.Sequential(nn.Linear(768, 768), nn.GELU(), nn.Linear(768, 768), nn.GELU(), nn.Linear(768, 128))
    state |= {f"mlp.{name}": value for name, value in mlp.state_dict().items()}
    state |= {"queue": torch.randn(8, 128), "queue_l": torch.zeros(8, dtype=torch.long), "queue_ptr": torch.zeros(1)}
    args = argparse.Namespace(alpha=0.2, temperature=0.2, smoothing=0.1, drop_path=0.1, input_size=224)
    args.model = "vit_base_patch16"
    file = tmp_path / "checkpoint-99.pth"
    torch.save({"model": state, "optimizer": {}, "epoch": 99, "scaler": {"scale": 2.0}, "args": args}, file)
    told: list[str] = []
    convert(file, tmp_path / "run", say=told.append)
    assert told[0].endswith("read as a checkpoint of the released GPaCo code for ViTs, vit_base_patch16_224.mae")
    assert not any(line.startswith("method.alpha") for line in told)
    recipe = recipes.load(tmp_path / "run")
    assert (recipe.method.alpha, recipe.method.label_smoothing, recipe.model.projector) == (0.2, 0.1, "mae")
    assert (recipe.train.epochs, recipe.model.interpolation) == (100, "bicubic")
    images = torch.rand(1, 3, 224, 224)
    with torch.inference_mode():
        expected = network((images - IMAGENET[0]) / IMAGENET[1])
    torch.testing.assert_close(logits_of(tmp_path / "run", images), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("projector", "epochs"), [("mae", {0: 1, 99: 100}), ("gpaco", {0: 1, 1: 1, 400: 400})])
def test_a_checkpoint_of_any_epoch_is_taken(projector: str, epochs: dict[int, int]) -> None:
    layout = Layout("a checkpoint", "resnet32", {}, {}, projector, "gpaco", [])
    for epoch, expected in epochs.items():
        foreign = Foreign(Path("a.pth"), "sha", {}, [], {"epoch": epoch})
        tensors = {"projector.0.weight": torch.zeros(8, 64)}
        assert recipe_of(foreign, layout, "resnet32", tensors, None, (), quiet).train.epochs == expected


def test_an_empty_folder_that_one_is_in_becomes_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Released(SmallEncoder(), classes=4, dim=8).save(tmp_path / "a.tar")
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    convert(file, ".", say=quiet)
    assert {path.name for path in Path().iterdir()} == {"checkpoints", "recipe.toml"}
    assert gpaco.load(".").classes == ("0", "1", "2", "3")
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar", "run"}


@pytest.mark.slow
def test_pretraining_weights_of_a_masked_autoencoder_lose_their_decoder(tmp_path: Path) -> None:
    _, state = vit(num_classes=0)
    encoder = dict(state)
    state |= {"mask_token": torch.zeros(1, 1, 512), "decoder_embed.weight": torch.zeros(512, 768)}
    state |= {"decoder_blocks.0.norm1.bias": torch.zeros(512), "decoder_pos_embed": torch.zeros(1, 197, 512)}
    torch.save({"model": state}, tmp_path / "mae_pretrain_vit_base.pth")
    file, told = tmp_path / "mae_pretrain_vit_base.pth", list[str]()
    convert(file, tmp_path / "mae.safetensors", model="vit_base_patch16_224.mae", say=told.append)
    assert "left out: mask_token, decoder_embed, decoder_blocks, decoder_pos_embed" in told
    found = load_file(tmp_path / "mae.safetensors")
    assert found.keys() == encoder.keys()
    assert torch.equal(found["blocks.5.attn.qkv.weight"], encoder["blocks.5.attn.qkv.weight"])
    shapes = {key: tuple(value.shape) for key, value in found.items()}
    assert not backbones.misfit("vit_base_patch16_224", shapes)  # a ViT that uses its token


def test_what_a_checkpoint_lacks_or_has_too_much_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    network = Released(SmallEncoder(), classes=4, dim=8)
    state = network.state_dict()
    state.pop("encoder_q.layer2.0.conv1.weight")
    torch.save({"state_dict": state, "arch": "resnet32"}, tmp_path / "a.tar")
    with pytest.raises(UserError, match=r"missing in the file: backbone\.layer2\.0\.conv1\.weight"):
        convert(tmp_path / "a.tar", tmp_path / "run", say=quiet)
    torch.save({"state_dict": {"conv1.weight": torch.zeros(1)}}, tmp_path / "b.pth")
    with pytest.raises(UserError, match="does not fit resnet18: missing in the file"):
        convert(tmp_path / "b.pth", tmp_path / "b.safetensors", model="resnet18", say=quiet)
    with pytest.raises(UserError, match="has weights, but is not a trained run"):
        convert(tmp_path / "b.pth", tmp_path / "run", say=quiet)
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar", "b.pth"}


def test_a_network_that_the_file_does_not_name_has_to_be_named(tmp_path: Path) -> None:
    file = Released(SmallEncoder(), classes=4, dim=8).save(tmp_path / "a.tar", "my_net")
    with pytest.raises(UserError, match=r"a\.tar does not name its network\ngive it.*--model"):
        convert(file, tmp_path / "run", say=quiet)
    with pytest.raises(UserError, match=r"missing in the file: backbone\.layer1\.0\.conv3"):
        convert(file, tmp_path / "run", model="resnet50", say=quiet)
    told: list[str] = []
    convert(file, tmp_path / "a.safetensors", say=told.append)
    assert "the file does not name its model; --model NAME checks that the weights fit" in told
    convert(file, tmp_path / "run", model="resnet32", say=quiet)
    assert gpaco.load(tmp_path / "run").card.model == "resnet32"


def test_options_of_runs_are_refused_for_weights(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(2)}, tmp_path / "a.pth")
    with pytest.raises(UserError, match="--recipe, --set, --classes and --counts are for runs"):
        convert(tmp_path / "a.pth", tmp_path / "b.safetensors", classes=tmp_path / "names.txt", say=quiet)


def test_a_recipe_tells_what_the_checkpoint_does_not(tmp_path: Path) -> None:
    file = Released(SmallEncoder(), classes=4, dim=8).save(tmp_path / "a.tar")
    (tmp_path / "mine.toml").write_text('[model]\nname = "resnet32"\n[method]\nalpha = 0.01\ntemperature = 0.07\n')
    told: list[str] = []
    convert(file, tmp_path / "run", recipe=tmp_path / "mine.toml", say=told.append)
    method = recipes.load(tmp_path / "run").method
    assert (method.alpha, method.temperature, method.memory) == (0.01, 0.07, 64)
    assert not any("assumed" in line for line in told)
    (tmp_path / "mine.toml").write_text('[model]\nname = "resnet50"\n')
    with pytest.raises(UserError, match="is for resnet50, the checkpoint is of resnet32"):
        convert(file, tmp_path / "other", recipe=tmp_path / "mine.toml", say=quiet)


def test_class_counts_are_rows_of_class_and_count(tmp_path: Path) -> None:
    path = tmp_path / "counts.csv"
    for text, expected in {
        "0,3\n1,1\n\n2,2\n": {"0": 3, "1": 1, "2": 2},
        "class,count\npolar bear,3\r\nseal , 1\n": {"polar bear": 3, "seal": 1},
    }.items():
        path.write_text(text)
        assert read_counts(path) == expected
    for text in ("3\n1\n2\n", "one\ntwo\nthree\n", "a,1\na,2\n", "class,count\n"):
        path.write_text(text)
        with pytest.raises(UserError, match="does not have the number of training images per class"):
            read_counts(path)
    path.write_text("\n")
    with pytest.raises(UserError, match="is empty"):
        read_counts(path)


def test_class_names_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = Released(SmallEncoder(), classes=4, dim=8).save(tmp_path / "a.tar")
    (tmp_path / "three.txt").write_text("a\nb\nc\n")
    (tmp_path / "four.txt").write_text("a\nb\nc\nd\n")
    (tmp_path / "counts.csv").write_text("a,1\nb,1\nc,1\ne,1\n")
    with pytest.raises(UserError, match=r"the model has 4 classes, .*three.txt has 3 names"):
        convert(file, tmp_path / "run", classes=tmp_path / "three.txt", say=quiet)
    with pytest.raises(UserError, match="has a class 'e' that is not in the model"):
        convert(file, tmp_path / "run", classes=tmp_path / "four.txt", counts=tmp_path / "counts.csv", say=quiet)
    for text in ("0,500\n1,300\n", "a,1\nb,2\nc,3\n"):  # of another model
        (tmp_path / "short.csv").write_text(text)
        with pytest.raises(UserError, match=r"no number of training images for .* class|3 names"):
            convert(file, tmp_path / "run", counts=tmp_path / "short.csv", say=quiet)
    convert(file, tmp_path / "run", counts=tmp_path / "counts.csv", say=quiet)
    assert gpaco.load(tmp_path / "run").classes == ("a", "b", "c", "e")
