"""Memory use of this process."""

import sys

import torch


def peak_memory(device: torch.device) -> int:
    """Return the peak memory use so far in bytes: of the GPU, or on a CPU, of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
