"""Methods with a memory of features: De-confound-TDE (causal-norm) and OLTR."""

import torch
from torch import Tensor
from torch.nn import functional as F

from gpaco.methods.method import LogitMethod, Setup, as_rows, class_means
from gpaco.models.classifier import Classifier
from gpaco.models.gaussian import Blocks


class CausalNorm(LogitMethod):
    """De-confound-TDE (Tang et al., NeurIPS 2020): cross entropy of a normalized classifier with several heads.

    The head (models/heads.py) keeps a moving average of the features, e <- mu e + mean(x), and at test time subtracts
    `effect` times the projection onto its direction. Defaults are those for CIFAR-100-LT; ImageNet-LT has an effect of
    3. Departures: mu does not follow the learning rate; on CIFAR, the released code concatenates two last blocks.
    """


class Oltr(LogitMethod):
    """OLTR (Liu et al., CVPR 2019), the second stage: memory of centroids, meta-embedding and modulated attention.

    loss = CE(z, y) + 0.01 (A + 0.01 R), with features f and centroids c: A = 1/(2 B) sum_i |f_i - c_y|^2, and
    R = max(0, 10 - 1/(B C) sum_i sum_{j != y} |f_i - c_j|^2). The gradient of A at a centroid is also divided by
    1 + the number of its images in the batch. Centroids start as class means of the features; the hallucinator is the
    classifier of the first stage. Backbone and centroids train at a tenth of the learning rate.

    Departures: features are those of the backbone, or of `model.hidden` (released: 512 numbers after a new layer); the
    attention is new and trains at the full rate; `--train` selects the layers of both stages, by default all (on
    Places-LT, the released code trains only attention and new layers); the distance to a centroid has a lower bound;
    the learning rate follows a cosine (released: a tenth after each third of the epochs); all images belong to known
    classes (released: a probability below 0.1 is an unknown class).
    Assumed: R also moves the centroids; the classifier starts uniform.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        for parameter in (*setup.model.backbone.parameters(), setup.model.centers.centroids):
            parameter.rate = 0.1

    @torch.no_grad()
    def prepare(self, model: Classifier, train: Blocks, val: Blocks | None) -> None:
        centroids = model.centers.centroids
        means, _ = class_means(train, *centroids.shape)
        centroids.copy_(means)

    def loss(self, shown: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits and squared distances, (N, 3, C) as `MetaEmbedding.parts` gives them."""
        logits, from_features, from_centroids = shown.unbind(1)
        rows = torch.arange(len(labels), device=labels.device)
        counts = as_rows(labels, logits).sum(0)[labels]
        pulled = from_centroids[rows, labels] / (1 + counts)  # only for its gradient
        attract = (from_features[rows, labels].sum() + (pulled - pulled.detach()).sum()) / (2 * len(labels))
        distances = from_features + from_centroids - from_centroids.detach()
        others = distances.sum() - distances[rows, labels].sum()
        repel = F.relu(10 - others / distances.numel())
        return F.cross_entropy(logits, labels) + 0.01 * (attract + 0.01 * repel)
