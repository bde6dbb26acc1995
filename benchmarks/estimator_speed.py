"""Seconds that TailClassifier takes for 10,000 made-up vectors with 768 features, of 100 long-tailed classes.

    OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive python benchmarks/estimator_speed.py

Prints the seconds that passed, and the processor time of all threads. On a busy machine the latter, divided by the
threads, is closer to what an idle machine takes; a passive wait keeps threads that wait for each other out of it.
"""

import time

import numpy as np
import torch

from gpaco import TailClassifier

CLASSES, VECTORS, FEATURES = 100, 10_000, 768


def main() -> None:
    rng = np.random.default_rng(0)
    shares = 0.01 ** np.linspace(0, 1, CLASSES)
    labels = np.sort(np.append(np.arange(CLASSES), rng.choice(CLASSES, VECTORS - CLASSES, p=shares / shares.sum())))
    vectors = 0.35 * rng.normal(size=(CLASSES, FEATURES))[labels] + rng.normal(size=(VECTORS, FEATURES))
    began, worked = time.perf_counter(), time.process_time()
    TailClassifier().fit(vectors.astype(np.float32), labels)
    passed, worked = time.perf_counter() - began, time.process_time() - worked
    print(f"{passed:.1f} s, {worked:.1f} s of processor time, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
