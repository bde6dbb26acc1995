"""Whether a file of weights fits a model."""

from collections.abc import Mapping

from torch import nn

Shapes = Mapping[str, tuple[int, ...]]


def faults(module: nn.Module, given: Shapes) -> str:
    """What in names and shapes keeps tensors from being loaded into `module`, in words; "" if nothing does.

    A file may have a classifier and a decoder (MAE's) beyond the model, and lack batch norm's counters. Where a norm
    follows the pooling ("fc_norm"), it may lack that one, and have the one before it instead.
    """
    wanted = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    spare: list[str] = [*classifiers_of(module)]
    fresh: tuple[str, ...] = ()
    if isinstance(getattr(module, "fc_norm", None), nn.LayerNorm):
        spare, fresh = [*spare, "norm"], ("fc_norm.",)
    dropped = (*(f"{name}." for name in spare), "decoder_", "mask_token")
    wrong = {
        "missing in the file": [k for k in wanted if k not in given and not is_counter(k) and not k.startswith(fresh)],
        "not in the model": [key for key in given if key not in wanted and not key.startswith(dropped)],
        "of another shape": [
            f"{key} {given[key]} for {shape}" for key, shape in wanted.items() if given.get(key, shape) != shape
        ],
    }
    return "; ".join(_first(what, keys) for what, keys in wrong.items() if keys)


def _first(what: str, keys: list[str], few: int = 3) -> str:
    more = f" and {len(keys) - few} more" if len(keys) > few else ""
    return f"{what}: {', '.join(keys[:few])}{more}"


def classifiers_of(module: nn.Module) -> tuple[str, ...]:
    """The names of a model's classifiers in files of its weights."""
    known = getattr(module, "pretrained_cfg", {}).get("classifier", ("fc", "linear")) or ()  # timm's config
    return (known,) if isinstance(known, str) else tuple(known)


def is_counter(key: str) -> bool:
    """Batch norm's counters of batches may be missing."""
    return key.endswith("num_batches_tracked")
