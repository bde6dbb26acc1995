"""Pretrained weights and shared models from the Hugging Face hub, downloaded only on request."""

import re
from pathlib import Path

from gpaco.errors import EnvironmentProblem, UserError
from gpaco.system.words import one_line

FILE = "model.safetensors"  # other files are pickled


def is_hub(weights: str | Path) -> bool:
    """Return whether weights come from the hub: "hub", or "hub:OWNER/NAME@REVISION" as recorded in a run."""
    return isinstance(weights, str) and (weights == "hub" or weights.startswith("hub:"))


def fetch(name: str, weights: str = "hub") -> str:
    """Download the weights of timm's model `name` to the hub's cache, and return "OWNER/NAME@REVISION"."""
    from huggingface_hub import hf_hub_download
    from timm.models import get_pretrained_cfg

    config = get_pretrained_cfg(name)
    home = weights.removeprefix("hub:") if weights != "hub" else config.hf_hub_id if config else None
    if not home:
        raise UserError(f"timm has no weights for {name!r} on its hub", "pass a local file: --weights FILE")
    owned, _, revision = home.partition("@")
    try:
        kept = hf_hub_download(owned, FILE, revision=revision or None)
    except Exception as error:  # network errors differ between versions of the library
        raise EnvironmentProblem(
            f"cannot download {FILE} of {owned} from the hub for {name}: {one_line(error)}",
            "check the name and the network (HF_HUB_OFFLINE=1: only the cache), or pass a local file: --weights FILE",
        ) from error
    return f"{owned}@{Path(kept).parent.name}"  # the cache has one folder per revision


def check_name(name: str) -> str:
    """Return a name on the hub, or raise an error."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UserError(f"{name!r} is not a name on the hub", "write OWNER/NAME, such as me/rare-birds")
    return name


def fetch_model(where: str) -> Path:
    """Download the model "hub:OWNER/NAME" or "hub:OWNER/NAME@REVISION" to the hub's cache, and return its folder."""
    from huggingface_hub import snapshot_download

    name, _, revision = where.removeprefix("hub:").partition("@")
    check_name(name)
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:  # network errors differ between versions of the library
        raise EnvironmentProblem(
            f"cannot download {name} from the hub: {one_line(error)}",
            "check the name and the network (HF_HUB_OFFLINE=1: only the cache)",
        ) from error
