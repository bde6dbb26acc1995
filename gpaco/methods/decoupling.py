"""Decoupling representation and classifier (Kang et al., ICLR 2020): second stages on a trained network.

The features come from any other method; the layers below the classifier are frozen. Departure: the released code keeps
batch norm in training mode in the second stage; here the backbone is fixed, so that its features can be cached, by
default those of four views of each image (released: new views in every epoch).
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from gpaco.methods.method import LogitMethod, Method, Setup, class_means
from gpaco.models.classifier import Classifier
from gpaco.models.gaussian import Blocks

NORM_TAUS = [round(0.1 * k, 1) for k in range(21)]
USUAL_TAU = 0.7  # assumed if there is no validation data to select it on


class Crt(LogitMethod):
    """cRT: a new linear classifier, trained with cross entropy and class-balanced sampling.

    With another sampler, the logits learn its class frequencies. Departure: a class-balanced epoch draws every class
    equally often, while the released code draws four images of a class in a row.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        setup.model.hidden.requires_grad_(False)


class Lws(Crt):
    """LWS: z_j = s_j (w_j x + b_j) with the classifier of the first stage; only the scales s are trained, from 1."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        setup.model.centers.weight.requires_grad_(False)
        setup.model.centers.bias.requires_grad_(False)


class TauNorm(Method):
    """tau-norm: z_j = w_j x / |w_j|^tau, without bias; the tau of 0, 0.1, ..., 2 with the best macro recall.

    It is selected on validation data. Departure: without separate validation data, tau is 0.7.
    """

    tau: Tensor

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.register_buffer("tau", torch.tensor(setup.settings.norm_tau))

    @torch.no_grad()
    def prepare(self, model: Classifier, train: Blocks, val: Blocks | None) -> None:
        weight = model.centers.weight
        tau = float(self.tau)
        if tau < 0:
            tau = USUAL_TAU if val is None else best_norm_tau(weight, val)
        self.tau.fill_(tau)
        weight.copy_(normalized(weight, tau))
        model.centers.bias.zero_()


def normalized(weight: Tensor, tau: float) -> Tensor:
    scaled: Tensor = weight / weight.norm(dim=1, keepdim=True).clamp_min(1e-12) ** tau
    return scaled


def best_norm_tau(weight: Tensor, blocks: Blocks) -> float:
    """Return the tau with the highest macro recall."""
    right = torch.zeros(len(NORM_TAUS), len(weight), dtype=torch.float64)
    total = torch.zeros(len(weight), dtype=torch.float64)
    norms = weight.norm(dim=1).clamp_min(1e-12)
    for features, labels in blocks():
        labels, logits = labels.cpu(), F.linear(features, weight)
        total += torch.bincount(labels, minlength=len(weight))
        for k, tau in enumerate(NORM_TAUS):
            found = (logits / norms**tau).argmax(1).cpu()
            right[k] += torch.bincount(labels[found == labels], minlength=len(weight))
    recall = (right[:, total > 0] / total[total > 0]).mean(1)
    return NORM_TAUS[int(recall.argmax())]


class Ncm(Method):
    """Nearest class mean: logit -|u - mu_j|^2, u = hat(x - g), g the mean of all features, mu_j that of u in class j.

    The features are those of training images in the test view. This is `cl2n`, the default of the released code.
    """

    @torch.no_grad()
    def prepare(self, model: Classifier, train: Blocks, val: Blocks | None) -> None:
        head = model.centers
        means, counts = class_means(train, *head.centroids.shape)
        head.mean.copy_((means * counts[:, None]).sum(0) / counts.sum())

        def centered() -> Iterator[tuple[Tensor, Tensor]]:
            return ((F.normalize(x - head.mean, dim=1), labels) for x, labels in train())

        means, counts = class_means(centered, *head.centroids.shape)
        head.centroids.copy_(means)
        head.centroids[counts.to(head.centroids.device) == 0] = 100.0  # far away: the class has no images


class Mislas(Crt):
    """MiSLAS (Zhong et al., CVPR 2021), the second stage; the first is any method with mixup.

    z_j = s_j (w_j x + b_j): the scales are trained, and the classifier of the first stage at `classifier_rate` times
    the learning rate. Label-aware smoothing: eps_j = t + (h - t) sin(pi (n_j - n_min) / (2 (n_max - n_min))), and the
    loss is (1 - eps_y) (-log p_y) + eps_y mean_j(-log p_j). With `shift_norms`, the batch norms of the backbone use and
    update the statistics of class-balanced batches; nothing else in it changes. Defaults are those for ImageNet-LT.

    Departure: on Places-LT, the released code shifts only the batch norms of the block that it trains.
    """

    smoothing: Tensor

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        settings, counts = setup.settings, setup.train_counts.double()
        for parameter in (setup.model.centers.weight, setup.model.centers.bias):
            parameter.rate = settings.classifier_rate
        if settings.shift_norms:
            setup.model.shift_norms()
        least = counts[counts > 0].min()
        rank = (counts - least).clamp_min(0) / (counts.max() - least).clamp_min(1)
        eps = settings.smooth_tail + (settings.smooth_head - settings.smooth_tail) * torch.sin(torch.pi / 2 * rank)
        self.register_buffer("smoothing", eps.float(), persistent=False)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        costs = -logits.log_softmax(1)
        eps = self.smoothing.to(logits)[labels]
        return ((1 - eps) * costs.gather(1, labels[:, None]).squeeze(1) + eps * costs.mean(1)).mean()
