"""The allocator keeps freed memory, unless it is told not to."""

import sys

import pytest
from helpers.forked import output_of

PROGRAM = """
import os, resource, sys, numpy
from gpaco.system.allocator import SWITCH, keep_freed_memory
os.environ[SWITCH] = sys.argv[1]
kept = keep_freed_memory()
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
numpy.ones(8_000_000).sum()
before = faults()
for _ in range(5): numpy.ones(8_000_000).sum()
print(kept, faults() - before)
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the allocator of glibc")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    kept, faults = output_of(PROGRAM, "1").split()
    assert kept == "True"
    assert int(faults) < 100
    kept, faults = output_of(PROGRAM, "0").split()
    assert kept == "False"
    assert int(faults) > 1000
