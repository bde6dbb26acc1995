"""A device without float64, such as Apple's: nothing that is computed on it may ask for that."""

from typing import Any

import pytest
import torch
from helpers.small_methods import TRAINED, batch, make
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from gpaco import balanced_softmax_loss, class_balanced_weights, pixel_gpaco_loss
from gpaco.data.batches import Batch, mix
from gpaco.recipes.settings import used


class OnDevice(Tensor):
    """A tensor that is played to be on such a device, with all that is made from it until it goes to the CPU."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(function, types, args, kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            if function is Tensor.cpu:
                return result.as_subclass(Tensor)
            if any(isinstance(leaf, OnDevice) and leaf.dtype == torch.float64 for leaf in tree_leaves(result)):
                raise RuntimeError(f"{function.__name__} asks for float64, which this device does not have")
        return result


def there(x: Tensor) -> Tensor:
    return x.as_subclass(OnDevice)


def test_the_device_of_these_tests_refuses_float64_and_its_results_stay_on_it() -> None:
    x = there(torch.ones(3))
    assert isinstance(F.linear(x, torch.eye(3)).sum(), OnDevice)
    for ask in (lambda: x.double(), lambda: x.sum(dtype=torch.float64), lambda: x * torch.ones(3).double()):
        with pytest.raises(RuntimeError, match="asks for float64"):
            ask()
    assert type(x.cpu().double()) is Tensor


@pytest.mark.parametrize("mixed", [False, True], ids=["indices", "mixed"])
@pytest.mark.parametrize("name", TRAINED)
def test_a_training_step_of_every_method_does_without_float64(name: str, mixed: bool) -> None:
    mixed = mixed and "mixup" in used(name)
    model, method = make(name, "method.prior=unbiased", "method.rebalance=weights", "method.label_smoothing=0.1")
    assert not [key for key, value in [*model.state_dict().items(), *method.state_dict().items()] if _wide(value)]
    for owner, key in [(part, key) for part in method.modules() for key in dict(part.named_buffers(recurse=False))]:
        setattr(owner, key, there(getattr(owner, key)))
    views, labels = batch()
    pair = mix(Batch(views, labels), 0.2, 0, 3, seed=[0]) if mixed else Batch(views, labels)
    pair = Batch([there(view) for view in pair.views], there(pair.labels))
    method.start(model, pair.views, pair.labels)
    for _ in range(2):
        loss = method(model, pair.views, pair.labels)
        assert isinstance(loss, OnDevice)
        loss.backward()
        method.after_step(model)


def test_the_other_losses_do_without_float64() -> None:
    counts = there(torch.tensor([20, 8, 4]))
    assert isinstance(
        balanced_softmax_loss(there(torch.randn(4, 3)), there(torch.tensor([0, 1, 2, 0])), counts), OnDevice
    )
    assert class_balanced_weights(counts).dtype == torch.float32
    logits, embeddings = there(torch.randn(2, 3, 8, 8)), there(F.normalize(torch.randn(2, 4, 8, 8), dim=1))
    masks = there(torch.randint(3, (2, 8, 8)))
    assert isinstance(pixel_gpaco_loss(logits, embeddings, masks, pixels=20), OnDevice)


def _wide(x: Tensor) -> bool:
    return x.dtype == torch.float64
