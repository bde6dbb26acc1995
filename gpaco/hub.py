"""Pretrained weights that timm names on its hub: fetched only when asked for, and refused at once without a network."""

from pathlib import Path

from gpaco.errors import EnvironmentProblem, UserError, nearest

FILE = "model.safetensors"  # the only one that is taken: others are pickled
PATIENCE = 5.0  # seconds for the hub's first word; its library by itself would try again for half a minute


def is_hub(weights: str | Path) -> bool:
    """Whether weights are asked from the hub: "hub", or "hub:OWNER/NAME@REVISION" as a run has recorded them."""
    return isinstance(weights, str) and (weights == "hub" or weights.startswith("hub:"))


def fetch(name: str, weights: str = "hub") -> str:
    """Bring the weights of timm's model `name` to the hub's own cache; where they are from: "OWNER/NAME@REVISION".

    "hub" takes the newest revision, or the one in the cache where there is no network; "hub:OWNER/NAME@REVISION" takes
    that one.
    """
    from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    owned, _, revision = (_home(name) if weights == "hub" else weights.removeprefix("hub:")).partition("@")
    try:
        found = HfApi().model_info(owned, revision=revision or None, timeout=PATIENCE)
        if FILE not in {file.rfilename for file in found.siblings or ()}:
            raise UserError(f"{owned} on the hub has no {FILE}", "choose another model, or give --weights FILE")
        kept = hf_hub_download(owned, FILE, revision=revision or None)
    except UserError:
        raise
    except (RepositoryNotFoundError, RevisionNotFoundError, GatedRepoError) as error:
        raise UserError(
            f"the hub does not give out {owned}{revision and f' at {revision}'}: {_first_line(error)}",
            "check the name, or give a local file: --weights FILE",
        ) from error
    except Exception as error:  # every version of the hub's library has errors of its own for a broken network
        before = try_to_load_from_cache(owned, FILE, revision=revision or None)
        if not isinstance(before, str):
            raise EnvironmentProblem(
                f"the hub cannot be reached for the weights of {name} ({owned}): {_first_line(error)}",
                "connect to the network, or give a local file: --weights FILE",
            ) from error
        kept = before
    return f"{owned}@{Path(kept).parent.name}"  # the cache has a folder for each revision


def _home(name: str) -> str:
    """Where timm keeps the weights of a model: OWNER/NAME."""
    from timm.models import get_pretrained_cfg, is_model, list_models

    config = get_pretrained_cfg(name) if is_model(name) else None
    if config is None or not config.hf_hub_id:
        known = [] if config is None else list_models(pretrained=True)
        raise UserError(
            f"timm has no weights for {name!r} on its hub{nearest(name, known)}",
            "choose a model from timm.list_models(pretrained=True), or give a local file: --weights FILE",
        )
    return str(config.hf_hub_id)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
