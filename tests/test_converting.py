"""Checkpoints of other people: read as torch reads them, recognised, and the same network afterwards."""

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
import torch
import torchvision
from pictures import class_folders
from released import Released, SmallEncoder, lively
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import gpaco
from gpaco import backbones, layouts
from gpaco.converting import Foreign, convert, read
from gpaco.errors import UserError
from gpaco.imported import read_counts, recipe_of
from gpaco.layouts import Layout

IMAGENET = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
CIFAR = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1), torch.tensor([0.2023, 0.1994, 0.2010]).view(3, 1, 1)


@pytest.fixture(autouse=True)
def _nothing_large_stays(tmp_path: Path) -> Iterator[None]:
    yield
    shutil.rmtree(tmp_path)


def quiet(line: str) -> None:
    pass


def odd_tensors() -> dict[str, Tensor]:
    row = torch.arange(1000.0)
    shared = torch.randn(4)
    return {
        "channels last": torch.randn(4, 5, 6, 7).to(memory_format=torch.channels_last),
        "turned": torch.randn(3, 4).t(),
        "part": row[10:20],
        "every third": row[10:20:3],
        "inner": torch.randn(6, 6)[1:4, 2:5],
        "half": torch.randn(3).half(),
        "brain": torch.randn(3).bfloat16(),
        "double": torch.randn(2, 2).double().t(),
        "flags": torch.tensor([True, False]),
        "number": torch.tensor(3),
        "none": torch.zeros(0, 3),
        "bytes": torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).t(),
        "small": torch.tensor([-1], dtype=torch.int8),
        "short": torch.tensor([-1], dtype=torch.int16),
        "int": torch.tensor([-1], dtype=torch.int32),
        "parameter": nn.Parameter(torch.randn(2)),
        "twice": shared,
        "twice again": shared,
    }


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("where", ["", "state_dict", "model", "model_state_dict"])
def test_tensors_are_those_that_torch_reads(where: str, archive: bool, tmp_path: Path) -> None:
    more = {"args": argparse.Namespace(alpha=0.2, layers=[1]), "acc": np.float64(3), "epoch": 3, "a": np.zeros(2)}
    content: dict[str, Any] = {where: odd_tensors(), **more} if where else odd_tensors()
    torch.save(content, tmp_path / "a.pth", _use_new_zipfile_serialization=archive)
    found = read(tmp_path / "a.pth")
    if not where:
        content = {"": torch.load(tmp_path / "a.pth", weights_only=True)}
    assert found.where == where
    assert found.tensors.keys() == content[where].keys()
    for name, tensor in content[where].items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor), name
    assert found.values == ({"alpha": 0.2, "epoch": 3} if where else {})
    assert ("argparse.Namespace" in found.names) == bool(where)


MODELS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnext50_32x4d", "resnext101_32x8d")


@pytest.mark.parametrize("name", [*MODELS, "wide_resnet50_2", "wide_resnet101_2"])
def test_networks_of_torchvision_are_recognised_and_fit_those_of_timm(name: str) -> None:
    with torch.device("meta"):
        state = torchvision.models.get_model(name).state_dict()
    shapes = {f"module.{key}": tuple(value.shape) for key, value in state.items()}
    layout = layouts.layout_of(shapes)
    assert layout.model == name
    assert not layout.dropped
    assert not backbones.misfit(name, {new: shapes[old] for new, old in layout.backbone.items()})


@pytest.mark.parametrize(
    "name",
    ["resnet8", "resnet20", "resnet32", "resnet50_cifar", "resnet200", "resnext101_32x4d", "vit_large_patch16_224"],
)
def test_our_networks_and_those_of_timm_are_recognised(name: str) -> None:
    with torch.device("meta"):
        state = backbones.build(name).module.state_dict()
    assert layouts.model_of({key: tuple(value.shape) for key, value in state.items()}) == name


def test_another_network_is_not_taken_for_one_that_is_known() -> None:
    with torch.device("meta"):
        wide = {key: tuple(value.shape) for key, value in torchvision.models.resnet50().state_dict().items()}
        others = [backbones.build(name).module.state_dict() for name in ("convnext_atto", "vit_small_patch16_224")]
    wide["conv1.weight"] = (32, 3, 7, 7)
    shapes = [{key: tuple(value.shape) for key, value in state.items()} for state in others]
    assert [layouts.model_of(one) for one in [wide, *shapes]] == ["", "", ""]


def test_weights_of_torchvision_become_weights_to_start_from(tmp_path: Path) -> None:
    network = lively(torchvision.models.resnet18())
    torch.save({"state_dict": network.state_dict(), "epoch": 1}, tmp_path / "a.pth")
    told: list[str] = []
    result = convert(tmp_path / "a.pth", tmp_path / "new" / "a.safetensors", say=told.append)
    assert told[-1].endswith(f"--model resnet18 --weights {tmp_path / 'new' / 'a.safetensors'}")
    with safe_open(tmp_path / "new" / "a.safetensors", "pt") as file:
        assert file.metadata() == {"model": "resnet18", "source": "a.pth", "source_sha256": result["sha256"]}
    assert (tmp_path / "new" / "a.safetensors").stat().st_mode & 0o777 == 0o644
    ours = backbones.build("resnet18", weights=tmp_path / "new" / "a.safetensors").module.eval()
    images = torch.randn(2, 3, 64, 64)
    theirs = nn.Sequential(*list(network.children())[:-1])
    torch.testing.assert_close(ours(images), theirs(images).flatten(1), rtol=0, atol=1e-5)


def test_the_command_prints_what_it_found_as_json(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(2)}, tmp_path / "a.bin")
    said = json.loads(commands.run("convert", tmp_path / "a.bin", "--out", tmp_path / "a.safetensors", "--json"))
    assert said["kind"] == "weights"
    assert said["model"] == ""
    assert said["names"] == ["collections.OrderedDict", "torch.FloatStorage", "torch._utils._rebuild_tensor_v2"]
    assert load_file(tmp_path / "a.safetensors").keys() == {"w"}


def logits_of(run: Path, images: Tensor) -> Tensor:
    with torch.inference_mode():
        return gpaco.load(run)(images)


@pytest.fixture(scope="module")
def resnet50(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Released, Path]]:
    torch.manual_seed(0)
    network = Released(torchvision.models.resnet50(num_classes=16), classes=5, dim=16)
    lively(network)
    optimiser = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9).state_dict()
    file = network.save(tmp_path_factory.mktemp("checkpoint") / "moco_ckpt.pth.tar", optimizer=optimiser)
    yield network, file
    file.unlink()


def test_a_released_gpaco_checkpoint_becomes_a_run_with_the_same_logits(
    resnet50: tuple[Released, Path], tmp_path: Path
) -> None:
    network, file = resnet50
    (tmp_path / "names.txt").write_text("ant\nbee\ncow\ndog\nelk\n")
    (tmp_path / "counts.csv").write_text("class,count\nelk,3\nant,200\nbee,150\ncow,50\ndog,21\n")
    told: list[str] = []
    about: Any = {"classes": tmp_path / "names.txt", "counts": tmp_path / "counts.csv"}
    convert(file, tmp_path / "run", settings=["model.size=64", "method.alpha=0.045"], **about, say=told.append)
    assert "read as a checkpoint of the released GPaCo code, resnet50" in told
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
    np.testing.assert_allclose(run.about["centre_share"], share, rtol=1e-6)
    assert gpaco.evaluate(tmp_path / "run", data, unbiased=True)["n"] == 20
    assert "converted from moco_ckpt.pth.tar, SHA-256" in (tmp_path / "run" / "recipe.toml").read_text()


def test_without_class_counts_there_are_no_groups_and_nothing_is_made_up(
    resnet50: tuple[Released, Path], tmp_path: Path
) -> None:
    told: list[str] = []
    convert(resnet50[1], tmp_path / "run", settings=["model.size=64"], say=told.append)
    assert any("without --counts FILE there are no many, medium and few" in line for line in told)
    data = class_folders(tmp_path / "data", {str(c): 2 for c in range(5)})
    figures = gpaco.evaluate(tmp_path / "run", data, prior="uniform")
    assert figures["groups"] == {"many": None, "medium": None, "few": None}
    assert [figures[key] for key in ("many", "medium", "few", "long_tailed", "reversed")] == [None] * 5
    assert {row["train"] for row in figures["per_class"]} == {None}
    assert {row["group"] for row in gpaco.predict(tmp_path / "run", data)} == {None}
    for options in ({"unbiased": True}, {"prior": "train"}):
        with pytest.raises(UserError, match="does not know how many training images"):
            gpaco.evaluate(tmp_path / "run", data, **options)


def test_a_run_without_class_counts_is_tested_on_corrupted_pictures_without_groups(
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
    assert "the run does not know its class counts: no many, medium and few" in result["notes"]


def test_the_backbone_of_a_released_checkpoint_can_be_had_alone(
    resnet50: tuple[Released, Path], tmp_path: Path
) -> None:
    network, file = resnet50
    result = convert(file, tmp_path / "b.safetensors", say=quiet)
    assert result["kind"] == "weights"
    found = load_file(tmp_path / "b.safetensors")
    assert torch.equal(found["layer4.2.conv3.weight"], network.encoder_q.layer4[2].conv3.weight)
    assert not any(key.startswith(("fc.", "linear.", "queue")) for key in found)


def test_a_released_paco_checkpoint_keeps_its_projector_and_leaves_out_the_copy(tmp_path: Path) -> None:
    network = Released(torchvision.models.resnext50_32x4d(num_classes=8), classes=6, dim=8, paco=True)
    lively(network)
    told: list[str] = []
    convert(network.save(tmp_path / "p.tar"), tmp_path / "run", settings=["model.size=64"], say=told.append)
    assert "read as a checkpoint of the released PaCo code, resnext50_32x4d" in told
    assert any(line.startswith("left out: encoder_k (2), linear_k (2), queue,") for line in told)
    images = torch.rand(2, 3, 64, 64)
    normal = (images - IMAGENET[0]) / IMAGENET[1]
    model = gpaco.load(tmp_path / "run").model
    with torch.inference_mode():
        torch.testing.assert_close(logits_of(tmp_path / "run", images), network(normal), rtol=0, atol=1e-5)
        embeddings = nn.functional.normalize(network.encoder_q(normal), dim=1)
        torch.testing.assert_close(model(normal)[1], embeddings, rtol=0, atol=1e-5)
    assert gpaco.recipe.load(tmp_path / "run").method.name == "paco"


def test_a_released_cifar_checkpoint_takes_images_whole(tmp_path: Path) -> None:
    network = Released(SmallEncoder(), classes=4, dim=32, memory=1024, paco=True)
    lively(network)
    convert(network.save(tmp_path / "c.tar"), tmp_path / "run", say=quiet)
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    with torch.inference_mode():
        expected = network((images / 255 - CIFAR[0]) / CIFAR[1])
    torch.testing.assert_close(logits_of(tmp_path / "run", images), expected, rtol=0, atol=1e-5)
    about, recipe = gpaco.load(tmp_path / "run").about, gpaco.recipe.load(tmp_path / "run")
    assert (about["model"], about["size"], about["whole"], about["projector"]) == ("resnet32", 32, True, "paco")
    assert (recipe.model.dim, recipe.method.memory, recipe.train.epochs) == (32, 1024, 400)


def test_the_released_resnet50_for_small_images_has_its_shortcuts_renamed(tmp_path: Path) -> None:
    encoder = torchvision.models.resnet50(num_classes=8)
    encoder.conv1, encoder.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    network = Released(encoder, classes=4, dim=8)
    lively(network)
    state = {f"module.{k.replace('downsample', 'shortcut')}": v for k, v in network.state_dict().items()}
    torch.save({"state_dict": state}, tmp_path / "c.tar")
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


def test_a_released_vit_checkpoint_becomes_a_run_with_the_same_logits(tmp_path: Path) -> None:
    network, state = vit(num_classes=7, global_pool="avg")
    mlp = nn.Sequential(nn.Linear(768, 768), nn.GELU(), nn.Linear(768, 768), nn.GELU(), nn.Linear(768, 128))
    state |= {f"mlp.{name}": value for name, value in mlp.state_dict().items()}
    state |= {"queue": torch.randn(8, 128), "queue_l": torch.zeros(8, dtype=torch.long), "queue_ptr": torch.zeros(1)}
    args = argparse.Namespace(alpha=0.2, temperature=0.2, smoothing=0.1, drop_path=0.1, input_size=224, model="vit")
    file = tmp_path / "checkpoint-99.pth"
    torch.save({"model": state, "optimizer": {}, "epoch": 99, "scaler": {"scale": 2.0}, "args": args}, file)
    told: list[str] = []
    convert(file, tmp_path / "run", say=told.append)
    assert "read as a checkpoint of the released GPaCo code for ViTs, vit_base_patch16_224.mae" in told
    assert not any(line.startswith("method.alpha") for line in told)
    recipe = gpaco.recipe.load(tmp_path / "run")
    assert (recipe.method.alpha, recipe.method.label_smoothing, recipe.model.projector) == (0.2, 0.1, "mae")
    assert (recipe.train.epochs, recipe.model.interpolation) == (100, "bicubic")
    images = torch.rand(1, 3, 224, 224)
    with torch.inference_mode():
        expected = network((images - IMAGENET[0]) / IMAGENET[1])
    torch.testing.assert_close(logits_of(tmp_path / "run", images), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("projector", "epochs"), [("mae", {0: 1, 99: 100}), ("gpaco", {0: 1, 1: 1, 400: 400})])
def test_a_checkpoint_of_any_epoch_is_taken(projector: str, epochs: dict[int, int]) -> None:
    layout = Layout("a checkpoint", {}, "resnet32", {}, projector, "gpaco", [])
    for epoch, expected in epochs.items():
        foreign = Foreign(Path("a.pth"), "sha", {}, [], "model", [], {"epoch": epoch})
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


def test_pretraining_weights_of_a_masked_autoencoder_lose_their_decoder(tmp_path: Path) -> None:
    _, state = vit(num_classes=0)
    encoder = dict(state)
    state |= {"mask_token": torch.zeros(1, 1, 512), "decoder_embed.weight": torch.zeros(512, 768)}
    state |= {"decoder_blocks.0.norm1.bias": torch.zeros(512), "decoder_pos_embed": torch.zeros(1, 197, 512)}
    torch.save({"model": state}, tmp_path / "mae_pretrain_vit_base.pth")
    told: list[str] = []
    result = convert(tmp_path / "mae_pretrain_vit_base.pth", tmp_path / "mae.safetensors", say=told.append)
    assert result["model"] == "vit_base_patch16_224.mae"
    assert "read as pretraining weights of a masked autoencoder, vit_base_patch16_224.mae" in told
    assert any(
        line.startswith("left out: decoder_blocks, decoder_embed, decoder_pos_embed, mask_token") for line in told
    )
    found = load_file(tmp_path / "mae.safetensors")
    assert found.keys() == encoder.keys()
    assert torch.equal(found["blocks.5.attn.qkv.weight"], encoder["blocks.5.attn.qkv.weight"])
    shapes = {key: tuple(value.shape) for key, value in found.items()}
    assert not backbones.misfit("vit_base_patch16_224", shapes)  # a ViT that uses its token


def test_what_a_checkpoint_lacks_or_has_too_much_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    network = Released(SmallEncoder(), classes=4, dim=8)
    state = network.state_dict()
    state.pop("encoder_q.layer2.0.conv1.weight")
    torch.save({"state_dict": state}, tmp_path / "a.tar")
    with pytest.raises(UserError, match=r"missing in the file: backbone\.layer2\.0\.conv1\.weight"):
        convert(tmp_path / "a.tar", tmp_path / "run", say=quiet)
    torch.save({"state_dict": {"conv1.weight": torch.zeros(1)}}, tmp_path / "b.pth")
    with pytest.raises(UserError, match="does not fit resnet18: missing in the file"):
        convert(tmp_path / "b.pth", tmp_path / "b.safetensors", model="resnet18", say=quiet)
    with pytest.raises(UserError, match="holds weights and not a trained run"):
        convert(tmp_path / "b.pth", tmp_path / "run", say=quiet)
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar", "b.pth"}


def test_an_unknown_network_has_to_be_named(tmp_path: Path) -> None:
    network = Released(SmallEncoder(), classes=4, dim=8)
    del network.encoder_q.layer3[3:]
    file = network.save(tmp_path / "a.tar")
    with pytest.raises(UserError, match=r"which network a\.tar is of cannot be told.*\n.*--model"):
        convert(file, tmp_path / "run", say=quiet)
    with pytest.raises(UserError, match=r"missing in the file: backbone\.layer3\.3"):
        convert(file, tmp_path / "run", model="resnet32", say=quiet)
    told: list[str] = []
    convert(file, tmp_path / "a.safetensors", say=told.append)
    assert any("names were kept as they are" in line for line in told)


def test_what_is_there_already_is_not_written_over(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(2)}, tmp_path / "a.pth")
    (tmp_path / "a.safetensors").write_text("mine")
    for out in (tmp_path / "a.safetensors", tmp_path):
        with pytest.raises(UserError, match="is there already"):
            convert(tmp_path / "a.pth", out, say=quiet)
    assert (tmp_path / "a.safetensors").read_text() == "mine"


def test_a_recipe_tells_what_the_checkpoint_does_not(tmp_path: Path) -> None:
    file = Released(SmallEncoder(), classes=4, dim=8).save(tmp_path / "a.tar")
    (tmp_path / "mine.toml").write_text('[model]\nname = "resnet32"\n[method]\nalpha = 0.01\ntemperature = 0.07\n')
    told: list[str] = []
    convert(file, tmp_path / "run", recipe=tmp_path / "mine.toml", say=told.append)
    method = gpaco.recipe.load(tmp_path / "run").method
    assert (method.alpha, method.temperature, method.memory) == (0.01, 0.07, 64)
    assert not any("assumed" in line for line in told)
    (tmp_path / "mine.toml").write_text('[model]\nname = "resnet50"\n')
    with pytest.raises(UserError, match="is for resnet50, the checkpoint is of resnet32"):
        convert(file, tmp_path / "other", recipe=tmp_path / "mine.toml", say=quiet)


def test_class_counts_come_as_numbers_as_a_table_or_as_the_list_that_was_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    for text, expected in {
        "3\n1\n\n2\n": {"0": 3, "1": 1, "2": 2},
        "class,count\npolar bear,3\r\nseal , 1\n": {"polar bear": 3, "seal": 1},
        "a/b c.jpg 0\na/d.jpg 2\nx,y.jpg 0\n": {"0": 2, "2": 1},
    }.items():
        path.write_text(text)
        assert read_counts(path) == expected
    for text in ("one\ntwo\nthree\n", "a,1\na,2\n"):
        path.write_text(text)
        with pytest.raises(UserError, match="does not say how many training images each class has"):
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
    with pytest.raises(UserError, match="has a class 'e' that the model has not"):
        convert(file, tmp_path / "run", classes=tmp_path / "four.txt", counts=tmp_path / "counts.csv", say=quiet)
    convert(file, tmp_path / "run", counts=tmp_path / "counts.csv", say=quiet)
    assert gpaco.load(tmp_path / "run").classes == ("a", "b", "c", "e")


def test_efficientnet_lite0_of_its_package_gets_the_names_of_timm(tmp_path: Path) -> None:
    with torch.device("meta"):
        wanted = backbones.build("tf_efficientnet_lite0").module.state_dict()
    draw = torch.Generator().manual_seed(0)
    wanted = {name: torch.rand(value.shape, generator=draw).to(value.dtype) for name, value in wanted.items()}
    counters = [name for name in wanted if name.endswith("num_batches_tracked")]
    wanted |= {name: torch.tensor(k) for k, name in enumerate(counters)}
    wanted |= {"classifier.weight": torch.rand(1000, 1280, generator=draw), "classifier.bias": torch.rand(1000)}
    torch.save(lite0(wanted), tmp_path / "efficientnet-lite0.pth")
    result = convert(tmp_path / "efficientnet-lite0.pth", tmp_path / "a.safetensors", say=quiet)
    assert result["model"] == "tf_efficientnet_lite0"
    found = load_file(tmp_path / "a.safetensors")
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


def lite0(wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's tensors by the names of the package: the other way round, by hand."""
    blocks = sorted({tuple(map(int, name.split(".")[1:3])) for name in wanted if name.startswith("blocks.")})
    found: dict[str, Tensor] = {}
    outer = {"conv_stem": "_conv_stem", "bn1": "_bn0", "conv_head": "_conv_head", "bn2": "_bn1", "classifier": "_fc"}
    inner = {"conv_pw": "_expand_conv", "bn1": "_bn0", "conv_dw": "_depthwise_conv", "bn2": "_bn1"}
    inner |= {"conv_pwl": "_project_conv", "bn3": "_bn2"}
    first = {"conv_dw": "_depthwise_conv", "bn1": "_bn1", "conv_pw": "_project_conv", "bn2": "_bn2"}
    for name, value in wanted.items():
        words = name.split(".")
        if words[0] == "blocks":
            number = blocks.index((int(words[1]), int(words[2])))
            found[f"_blocks.{number}.{(inner if number else first)[words[3]]}.{words[4]}"] = value
        else:
            found[f"{outer[words[0]]}.{words[1]}"] = value
    return found


def test_a_file_that_needs_no_conversion_is_to_be_used_as_it_is(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(2)}, tmp_path / "mine.safetensors")
    with pytest.raises(
        UserError, match=r"safetensors already: it needs no conversion\n.*use it as it is: --weights .*mine"
    ):
        convert(tmp_path / "mine.safetensors", tmp_path / "out.safetensors", say=quiet)
