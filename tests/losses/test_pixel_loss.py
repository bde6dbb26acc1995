"""`pixel_gpaco_loss`: which pixels it takes, what it makes of them, and its edges."""

import pytest
import torch
from helpers import reference
from torch import Tensor
from torch.nn import functional as F

from gpaco import pixel_gpaco_loss


def maps(images: int = 2, num_classes: int = 4, size: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    logits = torch.randn(images, num_classes, size, size, dtype=torch.float64)
    embeddings = F.normalize(torch.randn(images, 5, size, size, dtype=torch.float64), dim=1)
    return logits, embeddings, torch.randint(num_classes, (images, size, size))


def test_values_and_gradients_are_those_of_loops_over_the_pixels_of_each_image() -> None:
    """From the paper's equation, pixel by pixel: ignored ones are references of the others and no anchors."""
    logits, embeddings, masks = maps(size=4)
    masks[0, :2, 1:] = 255
    masks[1, 3] = 255
    inputs = [logits.requires_grad_(), embeddings.requires_grad_()]
    losses = [pixel_gpaco_loss(logits, embeddings, masks, pixels=pixels) for pixels in (-1, 16, 8192)]
    costs = []
    for i in range(2):
        each = reference.gpaco(
            logits[i].flatten(1).t(),
            embeddings[i].flatten(1).t(),
            masks[i].flatten(),
            torch.zeros(0, 5, dtype=torch.float64),
            torch.zeros(0, dtype=torch.long),
            alpha=0.01,
            temperature=0.07,
            log_prior=torch.zeros(4, dtype=torch.float64),
            label_smoothing=0.0,
            ignore_index=255,
        )
        costs.append(each.sum() / (masks[i] != 255).sum())
    expected = torch.stack(costs).mean()
    for loss in losses:
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    for ours, loops in zip(torch.autograd.grad(losses[0], inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(ours, loops, rtol=1e-11, atol=1e-12)


def test_masks_are_reduced_to_the_nearest_label_as_torch_does() -> None:
    logits, embeddings, _ = maps(size=6)
    masks = torch.randint(4, (2, 24, 17), dtype=torch.uint8)
    small = F.interpolate(masks[:, None].float(), size=(6, 6), mode="nearest")[:, 0].long()
    assert torch.equal(
        pixel_gpaco_loss(logits, embeddings, masks, pixels=-1), pixel_gpaco_loss(logits, embeddings, small, pixels=-1)
    )


def test_the_draw_is_the_generators_and_without_replacement() -> None:
    logits, embeddings, masks = maps()

    def draw(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        x = logits.clone().requires_grad_()
        pixel_gpaco_loss(x, embeddings, masks, pixels=9, generator=generator).backward()
        return x.grad.any(1)

    taken = draw(1)
    assert taken.sum((1, 2)).tolist() == [9, 9]
    assert torch.equal(taken, draw(1))
    assert not torch.equal(taken, draw(2))


@pytest.mark.parametrize("pixels", [-1, 1, 5])
def test_an_image_without_labels_costs_nothing_and_all_gradients_are_finite(pixels: int) -> None:
    logits, embeddings, masks = maps()
    logits.requires_grad_()
    masks[:] = 255
    loss = pixel_gpaco_loss(logits, embeddings, masks, pixels=pixels)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.item() == 0
    assert not gradient.any()


def test_an_image_without_labels_counts_in_the_mean_over_images() -> None:
    logits, embeddings, masks = maps()
    alone = pixel_gpaco_loss(logits[:1], embeddings[:1], masks[:1])
    masks[1] = 255
    torch.testing.assert_close(pixel_gpaco_loss(logits, embeddings, masks), alone / 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"masks": torch.full((2, 6, 6), 7)}, r"labels must be 0 to 3 or ignore_index \(255\), got 7"),
        ({"masks": torch.zeros(2, 6, 6)}, r"masks must be integers \(B, H, W\) for 2 images"),
        ({"masks": torch.zeros(3, 6, 6, dtype=torch.int64)}, r"for 2 images, at least one, got \(3, 6, 6\)"),
        ({"embeddings": torch.zeros(2, 5, 3, 3)}, "with the same h and w.*enlarge the smaller map"),
        ({"pixels": 0}, "pixels must be at least 1, or -1 for all, got 0"),
    ],
)
def test_bad_input_says_what_was_expected(change: dict[str, object], message: str) -> None:
    logits, embeddings, masks = maps()
    arguments: dict[str, object] = {"logits": logits, "embeddings": embeddings, "masks": masks} | change
    with pytest.raises(ValueError, match=message):
        pixel_gpaco_loss(**arguments)  # type: ignore[arg-type]
