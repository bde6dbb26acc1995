"""PaCo: the queries are anchors; a momentum copy of the network computes the keys, which get no gradient."""

from torch import Tensor, nn

from gpaco.methods.contrastive import GPaCo, balanced_start
from gpaco.methods.keys import momentum_keys
from gpaco.methods.method import Setup, trial
from gpaco.models.classifier import Classifier, momentum_copy, update_momentum


class PaCo(GPaCo):
    """`GPaCoLoss` of the queries of the first view, with the keys of the last view as additional references."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup._replace(views=1))
        self.momentum, self.shuffle = setup.settings.momentum, setup.settings.shuffle_keys
        self.key_network = momentum_copy(setup.model)

    def forward(self, model: nn.Module, views: list[Tensor], labels: Tensor) -> Tensor:
        logits, queries = model(views[0])
        keys = momentum_keys(self.key_network, views[-1], shuffle=self.shuffle)
        loss: Tensor = self.loss(logits, queries, labels, keys)
        return loss

    def start(self, model: Classifier, views: list[Tensor], labels: Tensor) -> float:
        if not self.balanced:
            return 0.0
        with trial(model):
            (logits, queries), (_, keys) = model(views[0]), model(views[-1])  # the copy still has the same weights
        shift = balanced_start(self.loss, model, logits, queries, labels, keys)
        self.key_network.load_state_dict(model.state_dict())
        return shift

    def after_step(self, model: Classifier) -> None:
        update_momentum(self.key_network, model, self.momentum)
