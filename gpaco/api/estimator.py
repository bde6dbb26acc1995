"""TailClassifier: the head of `--train head` as a scikit-learn estimator, for feature vectors."""

import math
import signal
import threading
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from gpaco.errors import UserError, nearest
from gpaco.metrics.classification import adjust
from gpaco.recipes import recipe as recipes
from gpaco.recipes.settings import Recipe
from gpaco.system.distributed import alone, choose_device
from gpaco.system.signals import Stopped
from gpaco.tasks.classification.defaults import head_settings
from gpaco.tasks.classification.logits import log_prior
from gpaco.tasks.classification.predictor import Predictor
from gpaco.tasks.classification.priors import log_assumed
from gpaco.tasks.classification.vectors import METHODS, fit_vectors

Prior = str | ArrayLike | Mapping[Any, float] | None
_ROWS = 4096  # vectors per forward pass
_FITTING = threading.Lock()  # the random numbers of torch belong to the process, not to a thread


class TailClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier for feature vectors, for data with rare classes.

    It trains what `gpaco train --train head` trains: a small network with the chosen method, and a closed-form
    classifier. Cross-validation calibrates both, and their logits are added. Predictions assume that all classes are
    equally likely, unless `prior` says otherwise.

    Args:
        method: how the network trains, as `gpaco train --method`: "balanced-softmax", "gpaco" (several times slower),
            "paco", "multitask", "ce", "focal", "class-balanced" or "cb-focal"; or "gaussian", the closed form alone,
            which needs no training.
        hidden: width of the hidden layer; 0 for a linear classifier.
        epochs: passes over the data.
        learning_rate: peak learning rate for batches of 128; reduced in proportion for smaller batches.
        weight_decay: weight decay of the network.
        batch_size: vectors per step; at most an eighth of the data, but at least 8.
        alpha: weight of a positive sample in the contrastive methods.
        temperature: temperature of the similarities in the contrastive methods.
        fuse: add the closed form to the trained network.
        calibrate: fit the probabilities on held-out vectors, which takes up to five more training runs. Without it,
            the network is used alone, uncalibrated. "gaussian" is always calibrated.
        device: "cpu", "cuda" and so on; None: a GPU if available.
        random_state: seed of the initial weights, the order of the data, and the folds; None: another one in every fit.

    Attributes:
        classes_: the classes, sorted.
        counts_: number of training vectors per class.
        n_features_in_: number of features.
        predictor_: the fitted model, a PyTorch module.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = TailClassifier(epochs=20).fit(X[:120], y[:120])  # 50, 50 and 20 flowers
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    def __init__(
        self,
        method: str = "balanced-softmax",
        *,
        hidden: int = 512,
        epochs: int = 30,
        learning_rate: float = 0.05,
        weight_decay: float = 5e-4,
        batch_size: int = 128,
        alpha: float = 0.05,
        temperature: float = 0.2,
        fuse: bool = True,
        calibrate: bool = True,
        device: str | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.method = method
        self.hidden = hidden
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.alpha = alpha
        self.temperature = temperature
        self.fuse = fuse
        self.calibrate = calibrate
        self.device = device
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # noqa: N803 - scikit-learn's name
        """Train on vectors (N, F) and their classes (N,)."""
        vectors, targets = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(targets)
        self.classes_, labels, self.counts_ = np.unique(targets, return_inverse=True, return_counts=True)
        if len(self.classes_) < 2:
            raise UserError(f"y has only one class, {self.classes_[0]}", "a classifier needs at least two classes")
        recipe = self._recipe()
        # The closed form takes the square root of nonnegative features, such as pixels or ReLU outputs.
        self.center_ = vectors.mean(0) if (vectors < 0).any() else np.zeros(vectors.shape[1])
        self.scale_ = float(np.sqrt((vectors - vectors.mean(0)).var())) or 1.0
        names, where = tuple(map(str, self.classes_)), choose_device(self.device)
        try:
            devices = [where] if where.type == "cuda" else []
            with _FITTING, alone(), torch.random.fork_rng(devices), torch.inference_mode(False), torch.enable_grad():
                fitted = fit_vectors(
                    recipe, self._scaled(vectors), labels.astype(np.int64), names, where, calibrate=self.calibrate
                )
        except Stopped as stopped:  # nothing to save: let the signal take its normal course
            signal.raise_signal(stopped.number)
            raise
        # In float64, a row's result does not depend on other rows. A model saved on the CPU can be loaded anywhere.
        self.predictor_: Predictor = fitted.cpu().double()
        return self

    def predict(self, X: ArrayLike, prior: Prior = None) -> NDArray[Any]:  # noqa: N803
        """Return the most probable class of each vector; `prior` as for `predict_proba`."""
        best = self.predict_proba(X, prior).argmax(1)
        classes: NDArray[Any] = self.classes_[best]
        return classes

    def predict_proba(self, X: ArrayLike, prior: Prior = None) -> NDArray[np.float64]:  # noqa: N803
        """Return the probability of each class, (N, C), ordered as `classes_`.

        Args:
            prior: how frequent the classes are where the model is used: "uniform"; "train", as in training; or a share
                for each class, ordered as `classes_` or by name. None: what the method assumes, which is uniform
                except for "ce" and "focal" without `fuse` or without `calibrate`.
        """
        check_is_fitted(self)
        vectors = self._scaled(validate_data(self, X, dtype=np.float64, reset=False))
        model = self.predictor_
        device = model.shift.device
        with torch.inference_mode():
            parts = [model.logits(rows.to(device)).cpu() for rows in torch.from_numpy(vectors).double().split(_ROWS)]
        logits = torch.cat(parts).numpy()
        if prior is not None:
            logits = adjust(logits, log_assumed(model.card), self._log_prior(prior))
        return torch.from_numpy(logits).softmax(1).numpy()

    def _recipe(self) -> Recipe:
        if self.method not in METHODS:
            raise UserError(
                f"there is no method {self.method!r} for vectors{nearest(str(self.method), METHODS)}",
                f"methods are {', '.join(METHODS)}",
            )
        number = int(self.counts_.sum())
        batch_size = min(self.batch_size, max(number // 8, 8), number)
        seed = self.random_state
        if seed is None or isinstance(seed, np.random.RandomState):
            seed = int(check_random_state(seed).randint(2**31))
        positives = batch_size * ((self.counts_ / number) ** 2).sum()  # of a vector in its batch
        values = head_settings(self.counts_) | {
            "method.name": self.method,
            "model.name": "resnet8",  # not built: vectors are features
            "model.hidden": self.hidden,
            "views.second": "",
            "train.part": "head",
            "train.cached_views": 1,
            "train.epochs": self.epochs,
            "train.batch_size": batch_size,
            "train.seed": seed,
            "data.seed": seed % 2**32 if isinstance(seed, int) else seed,
            "schedule.warmup": min(5, self.epochs // 6),
            "optimizer.lr": self.learning_rate * batch_size / 128,
            "optimizer.weight_decay": self.weight_decay,
            "method.alpha": self.alpha,
            "method.temperature": self.temperature,
            "method.start": "balanced" if positives >= 2 else "released",  # to balance, a batch needs positives
            "method.fuse": bool(self.fuse),
        }
        return recipes.fill(Recipe(), values)

    def _scaled(self, vectors: NDArray[np.float64]) -> NDArray[np.float32]:
        return np.asarray((vectors - self.center_) / self.scale_, np.float32)

    def _log_prior(self, prior: str | ArrayLike | Mapping[Any, float]) -> NDArray[np.float64]:
        """Return the log of the share of each class."""
        classes = self.classes_.tolist()
        if isinstance(prior, str):
            known = {"uniform": np.ones(len(classes)), "train": self.counts_}
            if prior not in known:
                raise UserError(
                    f"prior is 'uniform', 'train' or a share for each class, got {prior!r}{nearest(prior, known)}",
                    "for example prior='train'",
                )
            return log_prior(known[prior])
        if not isinstance(prior, Mapping) and hasattr(prior, "to_dict"):  # a Series of pandas
            prior = prior.to_dict()
        if isinstance(prior, Mapping):
            if wrong := [name for name in (*prior, *classes) if name not in classes or name not in prior]:
                what = "is not a class" if wrong[0] not in classes else "has no share"
                raise UserError(f"prior: {wrong[0]!r} {what}", f"give each of the {len(classes)} classes one share")
            prior = [prior[name] for name in classes]
        shares = np.asarray(prior, np.float64)
        if shares.shape != (len(classes),) or not all(0 < share < math.inf for share in shares):
            raise UserError(
                f"prior needs {len(classes)} shares above 0, one for each class, got {shares.tolist()!r}"[:200],
                "order them as classes_, or give a dict by class",
            )
        logs: NDArray[np.float64] = np.log(shares / shares.sum())
        return logs
