"""Settings for all tests: the same examples on every run, and no time limit per example."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
