"""The handwritten digits inside scikit-learn: real images without a download."""

import numpy as np

from gpaco.data.holdout import stratified_split
from gpaco.data.samples import Samples, Splits


def read_digits() -> Splits:
    """Return 1,797 images of 8 x 8 pixels, scaled from 0 to 16 to 0 to 255; a fixed quarter is the test split."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    colors = np.repeat(images[..., None], 3, axis=3)
    names = tuple(f"digits/{i}" for i in range(len(images)))
    samples = Samples(bunch.target, tuple(map(str, bunch.target_names)), images=colors, names=names)
    train, test = stratified_split(samples.labels, 0.25, seed=0)
    return Splits(samples.subset(train), None, samples.subset(test), "scikit-learn's digits")
