"""Methods with branches: BBN, ResLT, RIDE. Their networks are in models/networks.py."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpaco.methods.method import LogitMethod, Method, Setup, each_view
from gpaco.methods.reweighted import LdamDrw


class Bbn(Method):
    """BBN (Zhou et al., CVPR 2020): rows of a batch alternate between a uniform and a reversed sampler.

    In epoch e of E, counted from 0, with a = 1 - (e / E)^2 and f_c, f_r the features of the two branches:

        z = W (2 [a f_c ; (1 - a) f_r]) + b,   loss = a CE(z, y_c) + (1 - a) CE(z, y_r)

    At test time, an image passes both branches with a = 0.5. Departures: the released code sets E to 100 for 90 epochs
    and 200 for 180; in every epoch, the reversed sampler draws classes in proportion to 1 / n_j, rounded up or down;
    the second block starts as a copy of the first (released: from other random numbers).
    """

    weight = 1.0  # a

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        self.weight = 1 - (epoch / epochs) ** 2

    def forward(self, model: nn.Module, views: list[Tensor], labels: Tensor) -> Tensor:
        common, reversed_ = (torch.cat([view[which::2] for view in views]) for which in (0, 1))
        logits, _ = model(common, reversed_, weight=self.weight)
        return self.loss(logits.float(), *(each_view(labels[which::2], views) for which in (0, 1)))

    def loss(self, logits: Tensor, common: Tensor, reversed_: Tensor) -> Tensor:
        a = self.weight
        return a * F.cross_entropy(logits, common) + (1 - a) * F.cross_entropy(logits, reversed_)


class ResLt(LogitMethod):
    """ResLT (Cui et al., TPAMI 2023): branches H, M, T for all classes, medium and rare ones, and rare ones.

    loss = alpha I + (1 - alpha) F, alpha = `branch_share`; F = CE(z^H + z^M + z^T, y), and I is the mean of
    -log(p_y + 1e-7) over all pairs of an image and a branch that has its class. M has the `medium` rarest share of the
    classes, T the `tail` rarest; these are not the many/medium/few groups. At test time, the logits are summed. With a
    `tail` of 0, there is no T, as released for iNaturalist. Defaults are those for CIFAR-100-LT with factor 50; factor
    100 has an alpha of 0.995, ImageNet-LT a `test_norm` of 0.7 and other groups.

    Departure: on large images, the released code pools before its 1 x 1 convolution at test time and after it in
    training; here, pooling always comes after it.
    """

    members: Tensor

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        settings = setup.settings
        self.alpha = settings.branch_share
        rarity = setup.train_counts.argsort(stable=True).argsort()  # 0 is the rarest class
        shares = [1.0, settings.medium, *([settings.tail] if settings.tail else [])]
        members = torch.stack([rarity < round(share * setup.num_classes) for share in shares], 1)  # (C, branches)
        self.register_buffer("members", members, persistent=False)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits (N, branches, C)."""
        fused = F.cross_entropy(logits.sum(1), labels)
        own = logits.softmax(2).gather(2, labels[:, None, None].expand(-1, logits.shape[1], 1)).squeeze(2)
        valid = self.members[labels].to(logits)
        alone = -((own + 1e-7).log() * valid).sum() / valid.sum()
        return self.alpha * alone + (1 - self.alpha) * fused


class Ride(LdamDrw):
    """RIDE without router (Wang et al., ICLR 2021): E experts with logits z^k = 30 cos and their mean z.

    loss = sum_k { CE_w(z^k - 30 m_y e_y, y) - lambda Tm^2 KL(softmax(z / T) || softmax(z^k / T)) }, lambda being
    `diversity`; margins and weights are as in LDAM-DRW; the first softmax of KL has no gradient. T = 1 until the
    weights start, then T_j = u_j / max u with u_j = C pi_j r + 1 - r, r = `spread`; Tm is the mean of T. At test time,
    the logits are z. Defaults are those for ImageNet-LT; CIFAR-100-LT has a `diversity` of 0.45 and a `spread` of 0.05.

    Departure: experts of a pretrained network, or of one that is not a ResNet, have its full width.
    """

    temperature: Tensor

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.diversity = setup.settings.diversity
        shares = setup.class_counts.double() / setup.class_counts.double().sum()
        level = setup.num_classes * shares * setup.settings.spread + 1 - setup.settings.spread
        self.register_buffer("temperature", (level / level.max()).float(), persistent=False)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits (N, E, C)."""
        temperature = torch.ones_like(self.temperature) if self.deferred else self.temperature
        mean = (logits.mean(1) / temperature).detach().log_softmax(1)
        total = logits.new_zeros(())
        for expert in logits.unbind(1):
            apart = F.kl_div((expert / temperature).log_softmax(1), mean, reduction="batchmean", log_target=True)
            total = total + super().loss(expert, labels) - self.diversity * temperature.mean() ** 2 * apart
        return total
