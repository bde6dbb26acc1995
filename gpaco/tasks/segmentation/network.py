"""The segmentation network: our DeepLabV3+, or an encoder and a decoder of segmentation-models-pytorch, with our heads.

As released, class scores come from the features of the decoder (1x1 convolution after dropout). Two more heads are used
only in training: embeddings from the same features (three 1x1 convolutions), and auxiliary class scores from the
second-to-last stage of the encoder.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.errors import EnvironmentProblem, UserError, installing, nearest
from gpaco.losses.checks import at_least_float32
from gpaco.models import backbones
from gpaco.models.backbones import NONE
from gpaco.models.weights.files import read_safetensors
from gpaco.models.weights.hub import is_hub
from gpaco.models.weights.packaged import PACKAGE, package_of
from gpaco.system.words import one_line
from gpaco.tasks.segmentation import deeplab
from gpaco.tasks.segmentation.inference import resized

OURS = "deeplabv3plus"  # as released; that of segmentation-models-pytorch is a different network
DECODERS = {  # our names for architectures of segmentation-models-pytorch
    OURS: "",
    "smp_deeplabv3plus": "DeepLabV3Plus",
    "upernet": "UPerNet",
    "deeplabv3": "DeepLabV3",
    "unet": "Unet",
    "unetplusplus": "UnetPlusPlus",
    "fpn": "FPN",
    "pspnet": "PSPNet",
    "pan": "PAN",
    "linknet": "Linknet",
    "manet": "MAnet",
    "segformer": "Segformer",
}
ENCODERS = {  # short names for timm encoders
    "swin-tiny": "tu-swin_tiny_patch4_window7_224",
    "swin-small": "tu-swin_small_patch4_window7_224",
    "swin-base": "tu-swin_base_patch4_window12_384",
    "swin-large": "tu-swin_large_patch4_window12_384",
    "efficientnet-lite0": "tu-tf_efficientnet_lite0",
}
DEEPLAB = ("deeplabv3", "smp_deeplabv3plus", OURS)  # decoders whose encoder is dilated
WIDTHS = {  # the option for the width of a decoder
    "segformer": "decoder_segmentation_channels",
    "fpn": "decoder_segmentation_channels",
    "pspnet": "psp_out_channels",
}
LEAST = {"pan": 128}  # smallest side in pixels for a decoder
STEP = 32  # all encoders support heights and widths that are multiples of this
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CONTRAST_STRIDE = 4  # pixels of the image per embedding, as released


class Output(NamedTuple):
    """Class scores (B, C, h, w); embeddings (B, D, h', w') of unit length and auxiliary scores, or None."""

    logits: Tensor
    embeddings: Tensor | None
    aux_logits: Tensor | None


class Segmenter(nn.Module):
    """Images (B, 3, H, W) -> `Output`. `classify` returns class scores (B, C, H, W) and skips the rest."""

    def __init__(
        self,
        encoder: Any,
        decoder: nn.Module,
        width: int,
        num_classes: int,
        *,
        dim: int,
        aux: bool,
        least: int = STEP,
        step: int = STEP,
        released: bool = True,
    ) -> None:
        """Build the heads; if not as `released`, class scores have no dropout and larger initial weights."""
        super().__init__()
        self.least, self.step = least, step  # smallest side in pixels, and the number that sides must be multiples of
        self.encoder, self.decoder = encoder, decoder
        scores = _scores(width, num_classes)
        if not released:
            nn.init.xavier_uniform_(scores.weight)
        self.classifier = nn.Sequential(nn.Dropout2d(0.1 if released else 0.0), scores)
        self.projector = _projector(width, dim) if dim else None
        self.aux = _aux_head(encoder.out_channels[-2], max(32, width // 2), num_classes) if aux else None

    def forward(self, images: Tensor) -> Output:
        features = self.encoder(images)
        aux_logits = None if self.aux is None else self.aux(features[-2])
        feature = self.decoder(list(features))
        logits = self.classifier(feature)
        if self.projector is None:
            return Output(logits, None, aux_logits)
        finer = images.shape[2] // CONTRAST_STRIDE
        if feature.shape[2] > finer:  # some decoders return features at the size of the image
            feature = F.adaptive_avg_pool2d(feature, (finer, images.shape[3] // CONTRAST_STRIDE))
        embeddings = F.normalize(at_least_float32(self.projector(feature)), dim=1)
        return Output(logits, embeddings, aux_logits)

    def classify(self, images: Tensor) -> Tensor:
        """Return class scores at the size of the images, which are padded to a size that the network supports."""
        height, width = images.shape[2:]
        wide, tall = (max(self.least, side + -side % self.step) for side in (width, height))
        filled = F.pad(images, (0, wide - width, 0, tall - height))  # with 0, the mean color
        logits = self.classifier(self.decoder(list(self.encoder(filled))))
        whole = resized(logits, (tall, wide))
        return whole[:, :, :height, :width]


def build(
    name: str,
    num_classes: int,
    *,
    weights: str | Path = NONE,
    dim: int = 128,
    aux: bool = True,
    channels: int = 0,
    output_stride: int = 8,
    drop_path: float = 0.0,
) -> Segmenter:
    """Build the network "decoder-encoder", such as "deeplabv3plus-resnet50" or "upernet-swin-tiny".

    Args:
        num_classes: C.
        weights: safetensors file for the encoder, with tensor names of timm or torchvision; "package": those of an
            installed package; "hub": timm's, downloaded; "none": from scratch.
        dim: length of an embedding; 0: no embeddings, for plain cross entropy.
        aux: whether to add the auxiliary head.
        channels: width of the decoder; 0: its default, as released for "deeplabv3plus".
        output_stride: output stride of DeepLab's encoder, 8 or 16; others have their own.
        drop_path: stochastic depth of the encoder.
    """
    word, encoder = _parts(name)
    if word == OURS:
        return _deeplab(encoder, num_classes, weights, channels, output_stride, drop_path, dim=dim, aux=aux)
    smp = _smp()
    options: dict[str, Any] = {"encoder_name": _encoder_name(encoder), "encoder_weights": None, "classes": 1}
    if word in DEEPLAB:
        options["encoder_output_stride"] = output_stride
        options["decoder_aspp_dropout"] = 0.0  # the released code has dropout only before the classifier
    if channels:
        options[WIDTHS.get(word, "decoder_channels")] = channels
    if "swin" in options["encoder_name"]:
        options |= {"strict_img_size": False, "img_size": 512}  # at 224, the last stage would not shift its windows
    if drop_path or "swin" in options["encoder_name"]:  # Swin's default is 0.1
        options["drop_path_rate"] = drop_path
    try:
        whole = getattr(smp, DECODERS[word])(**options)
    except (ValueError, KeyError, RuntimeError, TypeError, NotImplementedError) as error:
        raise UserError(
            f"segmentation-models-pytorch cannot build {name!r}: {one_line(error)}",
            "choose a ResNet, Swin or another of its encoders, or a timm model (tu-NAME)",
        ) from error
    _start(whole.encoder, name, weights)
    if len(whole.encoder.out_channels) < 6:
        _freeze_unused(whole.encoder)
    width = next(m.in_channels for m in whole.segmentation_head.modules() if isinstance(m, nn.Conv2d))
    options = {"dim": dim, "aux": aux, "least": LEAST.get(word, STEP), "released": not is_lite(name)}
    return Segmenter(whole.encoder, whole.decoder, width, num_classes, **options)


def is_lite(name: str) -> bool:
    """Return whether a package has weights for the encoder: a small one, with its own settings."""
    return package_of(timm_name(name)) is not None


def _deeplab(
    encoder: str,
    num_classes: int,
    weights: str | Path,
    channels: int,
    output_stride: int,
    drop_path: float,
    **heads: Any,
) -> Segmenter:
    """Build our DeepLabV3+, which takes images of any size."""
    name, width = _timm_encoder(encoder), channels or deeplab.default_width(encoder)
    try:
        layers = deeplab.Encoder(name, output_stride, drop_path)
    except (ValueError, KeyError, RuntimeError, TypeError, NotImplementedError, AssertionError) as error:
        raise UserError(
            f"timm cannot dilate {name!r}: {one_line(error)}",
            "choose a ResNet or another convolutional encoder, or the decoder upernet",
        ) from error
    _start(layers, f"{OURS}-{encoder}", weights)
    decoder = deeplab.Decoder(layers.out_channels, width, output_stride)
    heads["released"] = not is_lite(f"{OURS}-{encoder}")
    return Segmenter(layers, decoder, width, num_classes, least=1, step=1, **heads)


def _start(encoder: nn.Module, name: str, weights: str | Path) -> None:
    """Load pretrained weights into the encoder of a network, if requested."""
    if weights == PACKAGE or is_hub(weights):
        load_encoder(encoder, backbones.build(timm_name(name), weights=weights).module.state_dict(), weights)
    elif weights != NONE:
        load_encoder(encoder, read_safetensors(Path(weights)), weights)


def _smp() -> Any:
    try:
        import segmentation_models_pytorch as smp
    except ImportError as error:
        raise EnvironmentProblem(
            "segmentation needs segmentation-models-pytorch, which is not installed", installing("seg")
        ) from error
    return smp


def normalization(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of images that the encoder of a model expects."""
    import timm

    encoder = timm_name(name)
    config = timm.get_pretrained_cfg(encoder, allow_unregistered=True) if encoder else None
    return IMAGENET if config is None else (tuple(config.mean), tuple(config.std))


def timm_name(name: str) -> str:
    """Return timm's name for the encoder of a model; "" for an encoder of segmentation-models-pytorch itself."""
    word, encoder = _parts(name)
    if word == OURS:
        return _timm_encoder(encoder).removeprefix("tu-")
    encoder = _encoder_name(encoder)
    return encoder.removeprefix("tu-") if encoder.startswith("tu-") else ""


def crop_step(name: str, output_stride: int = 8) -> int:
    """Return the number that the height and width of a training crop must be multiples of."""
    return output_stride if _parts(name)[0] in DEEPLAB else STEP


def load_encoder(encoder: nn.Module, tensors: Mapping[str, Tensor], source: str | Path) -> None:
    """Load an encoder from the weights of a whole classifier, without its other layers."""
    theirs = {_plain(key): value for key, value in tensors.items()}
    mine = {key: value for key, value in encoder.state_dict().items() if not key.endswith("num_batches_tracked")}
    names = {key: _plain(key.removeprefix("model.")) for key in mine}
    found = {key: theirs[name] for key, name in names.items() if name in theirs}
    missing = [key for key in mine if key not in found]
    wrong = [key for key, value in found.items() if value.shape != mine[key].shape]
    if missing or wrong:
        what = f"lacks {missing[0]}" if missing else f"has {wrong[0]} of another shape"
        raise UserError(
            f"{source} does not fit this encoder: it {what} ({len(missing) + len(wrong)} tensors in total)",
            "give weights of the same architecture",
        )
    encoder.load_state_dict(found, strict=False)


def encoder_weights(encoder: nn.Module) -> dict[str, Tensor]:
    """Return the weights of an encoder, with their names in a classifier."""
    return {_plain(key.removeprefix("model.")): value for key, value in encoder.state_dict().items()}


def _plain(key: str) -> str:
    """Normalize the list indices in the name of a tensor: layers_0.x and layers.0.x are the same.

    A stem of three convolutions gets timm's names, also for weights of OpenMMLab (`resnet50_v1c`).

    >>> _plain("layers_0.blocks.1.weight"), _plain("stem.3.weight"), _plain("stem.7.bias")
    ('layers.0.blocks.1.weight', 'conv1.3.weight', 'bn1.bias')
    """
    key = re.sub(r"_(\d+)\.", r".\1.", key)
    return re.sub(r"^stem\.([0-6])\.", r"conv1.\1.", re.sub(r"^stem\.7\.", "bn1.", key))


def _parts(name: str) -> tuple[str, str]:
    """Return the decoder and encoder of a name such as "upernet-swin-tiny"."""
    word, _, encoder = name.partition("-")
    if word not in DECODERS or not encoder:
        known = [f"{decoder}-{encoder or 'resnet50'}" for decoder in DECODERS]
        raise UserError(
            f"there is no segmentation model {name!r}{nearest(name, known)}",
            f"write decoder-encoder; decoders are {', '.join(DECODERS)}",
        )
    return word, encoder


def _encoder_name(word: str) -> str:
    """Return the name of an encoder in segmentation-models-pytorch: its own, or "tu-" and a timm model."""
    import timm

    own, name = _smp().encoders.get_encoder_names(), word.removeprefix("tu-")
    if word in ENCODERS or word in own:
        return ENCODERS.get(word, word)
    if timm.is_model(name):
        return f"tu-{name}"
    raise UserError(
        f"there is no encoder {word!r}{nearest(word, [*own, *ENCODERS])}", "choose a ResNet, a Swin, or a timm model"
    )


def _timm_encoder(word: str) -> str:
    """Return the encoder of our DeepLabV3+: "resnet18" to "resnet152" (v1c), else "tu-" and a timm model."""
    import timm

    name = ENCODERS.get(word, word)
    if name in deeplab.V1C:
        return name
    if timm.is_model(name.removeprefix("tu-")):
        return f"tu-{name.removeprefix('tu-')}"
    raise UserError(
        f"there is no encoder {word!r}{nearest(word, [*deeplab.V1C, *ENCODERS])}", "choose a ResNet, or a timm model"
    )


def _freeze_unused(encoder: nn.Module) -> None:
    """Freeze layers after the last stage that the decoder uses, since several processes wait for every gradient."""
    parameters = list(encoder.parameters())
    encoder.eval()  # keeps batch-norm statistics
    features = encoder(torch.zeros(1, 3, 64, 64))
    gradients = torch.autograd.grad(sum(part.sum() for part in features[1:]), parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.requires_grad_(gradient is not None)
    encoder.train()


def _projector(width: int, dim: int) -> nn.Sequential:
    def layer() -> list[nn.Module]:
        return [nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]

    return nn.Sequential(*layer(), *layer(), nn.Conv2d(width, dim, 1))


def _aux_head(wide: int, width: int, num_classes: int) -> nn.Sequential:
    """Return the fully convolutional head of the released configurations."""
    return nn.Sequential(*deeplab.convolution(wide, width, 3), nn.Dropout2d(0.1), _scores(width, num_classes))


def _scores(width: int, num_classes: int) -> nn.Conv2d:
    layer = nn.Conv2d(width, num_classes, 1)
    nn.init.normal_(layer.weight, std=0.01)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer
