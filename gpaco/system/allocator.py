"""Configures the allocator of the C library for tensors on a CPU.

By default, glibc returns large blocks to the system when they are freed. A network allocates the same tensors in every
step, so the system clears the same pages again and again. `keep_freed_memory` keeps the blocks;
`benchmarks/allocator.py` measures the effect.
"""

import ctypes
import os
import sys

SWITCH = "GPACO_KEEP_MEMORY"  # environment variable; 0 leaves the allocator alone
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of the options in malloc.h
_LARGEST = (1 << 30, 1 << 25)  # largest block to keep, in bytes; older glibc allows only 32 MiB


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory for the next allocation. Return whether it does; elsewhere this does nothing."""
    if os.environ.get(SWITCH) == "0" or sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another C library, such as musl
        return False
    # Set each option separately, so that one can be refused without the other.
    done = [any(mallopt(option, size) for size in _LARGEST) for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD)]
    return all(done)
