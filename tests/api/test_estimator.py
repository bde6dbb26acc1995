"""TailClassifier: a scikit-learn estimator that trains the head of `--train head` on vectors."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from gpaco import TailClassifier
from gpaco.api.estimator import METHODS
from gpaco.errors import UserError
from gpaco.models.gaussian import fit_gaussian

Data = tuple[NDArray[np.float64], NDArray[Any]]


def tail(counts: tuple[int, ...] = (60, 20, 6), seed: int = 0, spread: float = 0.6) -> Data:
    """Vectors of Gaussian classes with names, around the same centers for every seed."""
    centers = np.random.default_rng(1).normal(size=(len(counts), 8))
    rng = np.random.default_rng(seed)
    y = np.repeat(np.array(["cat", "dog", "elk"][: len(counts)]), counts)
    return np.repeat(centers, counts, axis=0) + spread * rng.normal(size=(sum(counts), 8)), y


@pytest.fixture(scope="module")
def fitted() -> TailClassifier:
    return TailClassifier(epochs=5).fit(*tail())


@pytest.mark.slow
def test_it_passes_the_checks_of_scikit_learn_in_closed_form() -> None:
    check_estimator(TailClassifier(method="gaussian"), on_skip=None)


@pytest.mark.extensive
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_it_passes_the_checks_of_scikit_learn() -> None:
    check_estimator(TailClassifier(epochs=20), on_skip=None)


def test_the_closed_form_needs_no_calibration_to_be_fitted() -> None:
    fresh, labels = tail((30, 30, 30), seed=2)
    assert TailClassifier(method="gaussian", calibrate=False).fit(*tail()).score(fresh, labels) > 0.9


def test_every_parameter_reaches_the_training_and_every_method_is_fitted() -> None:
    given = {"epochs": 7, "hidden": 3, "learning_rate": 0.2, "weight_decay": 0.3, "batch_size": 16, "random_state": 4}
    model = TailClassifier(**given, alpha=0.01, temperature=0.3, fuse=False)
    model.counts_ = np.array([500, 100])
    recipe = model._recipe()
    assert (recipe.train.epochs, recipe.model.hidden, recipe.train.batch_size, recipe.train.seed) == (7, 3, 16, 4)
    assert (recipe.optimizer.lr, recipe.optimizer.weight_decay) == (pytest.approx(0.2 * 16 / 128), 0.3)
    assert (recipe.method.alpha, recipe.method.temperature, recipe.method.fuse) == (0.01, 0.3, False)
    vectors, labels = tail()
    for method in METHODS:
        fitted = TailClassifier(method=method, epochs=1, hidden=0, calibrate=False).fit(vectors, labels)
        usual, train, uniform = (fitted.predict_proba(vectors, prior=prior) for prior in (None, "train", "uniform"))
        expected = train if method in ("ce", "focal") else uniform
        np.testing.assert_allclose(usual, expected, atol=1e-9, err_msg=method)
        assert not np.allclose(train, uniform)


def test_a_fit_in_a_thread_is_that_of_its_seed() -> None:
    def probabilities(seed: int | None) -> NDArray[np.float64]:
        return (
            TailClassifier(epochs=3, hidden=8, calibrate=False, random_state=seed).fit(*tail()).predict_proba(tail()[0])
        )

    alone = [probabilities(seed) for seed in (0, 1)]
    with ThreadPoolExecutor(2) as threads:
        np.testing.assert_array_equal(list(threads.map(probabilities, (0, 1))), alone)
    assert not np.array_equal(probabilities(None), probabilities(None))
    assert probabilities(2**32).shape == alone[0].shape


def test_it_works_in_a_pipeline_a_grid_search_a_clone_and_a_file(fitted: TailClassifier) -> None:
    X, y = tail()
    fresh, labels = tail((30, 30, 30), seed=2)
    assert clone(fitted).get_params() == fitted.get_params()
    file = BytesIO()
    joblib.dump(fitted, file)
    file.seek(0)
    np.testing.assert_array_equal(joblib.load(file).predict_proba(fresh), fitted.predict_proba(fresh))
    pipeline = make_pipeline(StandardScaler(), TailClassifier(method="gaussian"))
    search = GridSearchCV(pipeline, {"tailclassifier__calibrate": [True, False]}, cv=2).fit(X, y)
    assert search.predict(fresh).shape == labels.shape


def test_the_same_seed_gives_the_same_model_and_rare_classes_are_found(fitted: TailClassifier) -> None:
    fresh, labels = tail((30, 30, 30), seed=2)
    again = TailClassifier(epochs=5).fit(*tail())
    np.testing.assert_array_equal(again.predict_proba(fresh), fitted.predict_proba(fresh))
    assert fitted.classes_.tolist() == ["cat", "dog", "elk"]
    assert fitted.counts_.tolist() == [60, 20, 6]
    assert (fitted.predict(fresh) == labels)[labels == "elk"].mean() > 0.8


def test_a_prior_shifts_the_probabilities_by_its_ratio(fitted: TailClassifier) -> None:
    fresh, _ = tail((5, 5, 5), seed=3)
    uniform = fitted.predict_proba(fresh)
    shares = np.array([60, 20, 6]) / 86
    expected = uniform * shares
    expected /= expected.sum(1, keepdims=True)
    named = dict(zip(["cat", "dog", "elk"], [60, 20, 6], strict=True))
    series = SimpleNamespace(to_dict=lambda: dict(reversed(named.items())))  # as of pandas, in any order
    for prior in ("train", [60, 20, 6], shares, named, series):
        np.testing.assert_allclose(fitted.predict_proba(fresh, prior=prior), expected, rtol=1e-9)
    np.testing.assert_allclose(fitted.predict_proba(fresh, prior="uniform"), uniform, rtol=1e-12)
    for wrong, message in (
        ("trian", "did you mean 'train'"),
        ([1, 2], "needs 3 shares above 0"),
        ([1, 2, 0], "needs 3 shares above 0"),
        ({"cat": 1, "dog": 1}, "'elk' has no share"),
        ({**named, "cow": 1}, "'cow' is not a class"),
    ):
        with pytest.raises(UserError, match=message):
            fitted.predict_proba(fresh, prior=wrong)


def test_wrong_parameters_are_named() -> None:
    X, y = tail((6, 6))
    for options, message in (
        ({"method": "gpcao"}, "did you mean 'gpaco'"),
        ({"method": "supcon"}, "no method 'supcon' for vectors"),
        ({"epochs": 0}, "train.epochs"),
        ({"learning_rate": -1.0}, "optimizer.lr"),
    ):
        with pytest.raises(UserError, match=message):
            TailClassifier(**options).fit(X, y)
    with pytest.raises(UserError, match="only one class"):
        TailClassifier().fit(X[:6], y[:6])


def test_ctrl_c_ends_a_search_and_the_random_numbers_of_torch_stay_as_they_are() -> None:
    X, y = tail()
    torch.manual_seed(3)
    TailClassifier(epochs=1).fit(X, y)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs without it
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):  # not a fit that failed, after which the search would go on
            GridSearchCV(TailClassifier(epochs=100_000), {"hidden": [0, 8]}, cv=2).fit(X, y)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)


def test_the_closed_form_is_the_one_of_a_run() -> None:
    X, y = tail()
    model = TailClassifier(method="gaussian").fit(X, y)
    vectors = torch.from_numpy(model._scaled(X))
    labels = torch.from_numpy(np.unique(y, return_inverse=True)[1])
    expected = fit_gaussian(lambda: iter([(vectors, labels)]), 8, 3)
    torch.testing.assert_close(model.predictor_.gaussian.weight.float(), expected.weight)


def test_probabilities_are_calibrated() -> None:
    """The mean probability of the answers is near their accuracy; without calibration the head is too sure."""
    X, y = tail((60, 20, 6), spread=1.3)
    fresh, labels = tail((300, 300, 300), seed=5, spread=1.3)
    gaps = []
    for calibrate in (True, False):
        model = TailClassifier("balanced-softmax", epochs=20, calibrate=calibrate).fit(X, y)
        p = model.predict_proba(fresh)
        gaps.append(abs(p.max(1).mean() - (model.predict(fresh) == labels).mean()))
    assert gaps[0] < 0.1
    assert gaps[0] < gaps[1]


def test_data_with_two_vectors_of_each_class_is_fitted() -> None:
    """A batch may then have no positive, so that its start cannot be balanced."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(60), 2)
    vectors = rng.normal(size=(60, 8))[labels] + 0.1 * rng.normal(size=(120, 8))
    for seed in range(3):
        assert TailClassifier(epochs=2, random_state=seed).fit(vectors, labels).score(vectors, labels) > 0.5


def test_repeated_vectors_do_not_make_it_overconfident() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [60, 30, 12])
    vectors = rng.normal(size=(len(labels), 20)) + 0.8 * np.eye(20)[labels]
    settings = {"epochs": 20, "hidden": 64}
    once = TailClassifier(**settings).fit(vectors, labels)
    often = TailClassifier(**settings).fit(np.tile(vectors, (5, 1)), np.tile(labels, 5))
    test, right = rng.normal(size=(600, 20)) + 0.8 * np.eye(20)[np.arange(600) % 3], np.arange(600) % 3
    sure = [model.predict_proba(test).max(1).mean() - model.score(test, right) for model in (once, often)]
    assert sure[1] < sure[0] + 0.15  # 0.5 more if copies of a vector are in other folds


def test_what_torch_and_scikit_learn_are_set_to_around_it_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(40, 5)), np.arange(40) % 2
    expected = TailClassifier(epochs=2).fit(vectors, labels).predict_proba(vectors)
    for around in (torch.no_grad, torch.inference_mode):
        with around():
            found = TailClassifier(epochs=2, fuse=np.bool_(True)).fit(vectors, labels)
        np.testing.assert_array_equal(found.predict_proba(vectors), expected)
    TailClassifier(epochs=2, random_state=np.random.RandomState(0)).fit(vectors, labels)
