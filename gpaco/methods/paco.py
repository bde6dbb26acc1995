"""PaCo: the queries are anchors; a momentum copy of the network computes the keys, which get no gradient."""

from torch import Tensor, nn

from gpaco.methods.contrastive import GPaCo, momentum_keys
from gpaco.methods.method import Setup, trial
from gpaco.models.classifier import Classifier, momentum_copy, update_momentum


class PaCo(GPaCo):
    """`GPaCoLoss` of the queries of the first view, with the keys of the last view as additional references."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup._replace(views=1))
        self.momentum, self.shuffle = setup.settings.momentum, setup.settings.shuffle_keys
        self.key_network = momentum_copy(setup.model)

    def batch(self, model: nn.Module, views: list[Tensor], labels: Tensor) -> tuple[Tensor, ...]:
        logits, queries = model(views[0])
        return logits, queries, labels, momentum_keys(self.key_network, views[-1], shuffle=self.shuffle)

    def start(self, model: Classifier, views: list[Tensor], labels: Tensor) -> float:
        with trial(self.key_network):
            return super().start(model, views, labels)

    def after_step(self, model: Classifier) -> None:
        update_momentum(self.key_network, model, self.momentum)
