"""Where mixed precision saves time."""

import pytest
import torch

from gpaco.system.precision import bf16_is_fast


def test_bf16_is_fast_on_processors_with_instructions_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    for found, fast in (({"amx_bf16": True}, True), ({"avx512_bf16": True}, True), ({"avx512_f": True}, False)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=found: found)
        assert bf16_is_fast(cpu) is fast
        assert not bf16_is_fast(torch.device("meta"))  # it asks about the CPU only
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert not bf16_is_fast(cpu)
