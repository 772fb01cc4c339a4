"""What kernels of ports ask of the machine, by Triton's names: `driver.active`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Target:
    """The device that kernels are compiled for: `cuda` or `cpu`, and its compute capability."""

    backend: str
    arch: int
    warp_size: int


class _Utilities:
    def get_device_properties(self, device: int | None = None) -> dict[str, Any]:
        """Sizes of a GPU; of a CPU its threads, and what blocks may take as on a GPU."""
        if not torch.cuda.is_available():
            sizes = {"max_shared_mem": 1 << 17, "max_num_regs": 1 << 16, "warpSize": 32}
            return {**sizes, "multiprocessor_count": torch.get_num_threads()}
        found = torch.cuda.get_device_properties(device if device is not None else torch.cuda.current_device())
        return {
            "max_shared_mem": found.shared_memory_per_block_optin,
            "max_num_regs": found.regs_per_multiprocessor,
            "multiprocessor_count": found.multi_processor_count,
            "warpSize": found.warp_size,
        }


class _Driver:
    utils = _Utilities()
    is_cpu = False

    def get_active_torch_device(self) -> torch.device:
        """The current GPU, or the CPU."""
        if self.is_cpu or not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())

    def get_current_device(self) -> int:
        """The number of the current GPU."""
        return torch.cuda.current_device() if torch.cuda.is_available() else 0

    def get_current_target(self) -> Target:
        """What kernels are compiled for."""
        if self.is_cpu or not torch.cuda.is_available():
            return Target("cpu", 0, 1)
        major, minor = torch.cuda.get_device_capability()
        return Target("cuda", 10 * major + minor, 32)

    def get_device_interface(self) -> Any:
        """torch's module for the device."""
        return torch.cuda if torch.cuda.is_available() else torch.cpu


class _Active:
    active = _Driver()

    def set_active_to_cpu(self) -> None:
        """From now on the CPU is the active device, as for Triton's CPU port."""
        self.active.is_cpu = True

    def get_active_gpus(self) -> list[int]:
        """The numbers of all GPUs."""
        return list(range(torch.cuda.device_count()))

    def set_active_to_gpu(self) -> None:
        """From now on a GPU is the active device, if there is one."""
        self.active.is_cpu = False


driver = _Active()
