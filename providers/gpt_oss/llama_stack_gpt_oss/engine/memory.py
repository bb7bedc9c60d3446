"""The available memory of a device."""

from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")


def free_bytes(device: torch.device) -> int:
    """Return the free bytes of a device; for the CPU, Linux's MemAvailable."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    for line in MEMINFO.read_text().splitlines() if MEMINFO.is_file() else ():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62  # a system without /proc/meminfo


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def blocks_that_fit(device: torch.device, share: float, block_bytes: int) -> int:
    """Return the number of KV cache blocks: the rest of this engine's share of the device once the weights are loaded.

    On a CPU, use a quarter of the share, since other programs need the memory too.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        budget = int(total * share) - (total - free)
    else:
        budget = int(free_bytes(device) * share / 4)
    return max(budget, 0) // block_bytes
