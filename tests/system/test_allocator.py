"""The allocator keeps freed memory, unless it is told not to."""

import ctypes
import sys
from types import SimpleNamespace

import pytest
from helpers.forked import output_of

from gpaco.system.allocator import keep_freed_memory

PROGRAM = """
import os, resource, sys
os.environ["NUMPY_MADVISE_HUGEPAGE"] = "0"  # a fault for each page
import numpy
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
    kept, faults = output_of(PROGRAM, "1", cold=True).split()
    assert kept == "True"
    assert int(faults) < 100
    kept, faults = output_of(PROGRAM, "0", cold=True).split()
    assert kept == "False"
    assert int(faults) > 1000


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator of glibc")
def test_a_smaller_block_is_asked_for_where_a_gigabyte_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def mallopt(option: int, size: int) -> int:
        """As in glibc before 2.35: no more than 32 MiB for the mapping, anything for the trimming."""
        asked.append((option, size))
        return int(option == -1 or size <= 1 << 25)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    assert keep_freed_memory()
    assert asked == [(-3, 1 << 30), (-3, 1 << 25), (-1, 1 << 30)]
    asked.clear()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=lambda *option: asked.append(option)))
    assert not keep_freed_memory()
    assert {option for option, _ in asked} == {-3, -1}  # the second is set even if the first is refused
