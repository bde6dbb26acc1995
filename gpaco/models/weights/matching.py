"""Checks whether the tensors of a weight file fit a model."""

from collections.abc import Mapping

from torch import nn

Shapes = Mapping[str, tuple[int, ...]]


def faults(module: nn.Module, given: Shapes) -> str:
    """Return which names and shapes do not fit `module`; "" if all do.

    A file may also have a classifier and a MAE decoder, and may lack batch-norm counters. If the model has a norm after
    pooling ("fc_norm"), the file may have the norm before pooling instead.
    """
    wanted = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    dropped = (*(f"{name}." for name in classifiers_of(module)), "decoder_", "mask_token")
    fresh: tuple[str, ...] = ()
    if isinstance(getattr(module, "fc_norm", None), nn.LayerNorm):
        dropped, fresh = (*dropped, "norm."), ("fc_norm.",)
    wrong = {
        "missing in the file": [k for k in wanted if k not in given and not is_counter(k) and not k.startswith(fresh)],
        "not in the model": [key for key in given if key not in wanted and not key.startswith(dropped)],
        "of another shape": [
            f"{key} {given[key]} for {shape}"
            for key, shape in wanted.items()
            if given.get(key, shape) not in (shape, (1,) if is_counter(key) else shape)
        ],
    }
    return "; ".join(_first(what, keys) for what, keys in wrong.items() if keys)


def _first(what: str, keys: list[str]) -> str:
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return f"{what}: {', '.join(keys[:3])}{more}"


def classifiers_of(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the classifiers of a model in its weight files."""
    known = getattr(module, "pretrained_cfg", {}).get("classifier", ("fc", "linear")) or ()  # timm's config
    return (known,) if isinstance(known, str) else tuple(known)


def is_counter(key: str) -> bool:
    """Return whether this is a batch-norm counter, which may be missing."""
    return key.endswith("num_batches_tracked")
