"""How much memory a device has to give."""

from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")


def free_bytes(device: torch.device) -> int:
    """Bytes that can be had on the device now; for the CPU what Linux calls available."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    for line in MEMINFO.read_text().splitlines() if MEMINFO.is_file() else ():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62  # a system that does not say


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def pages_that_fit(device: torch.device, share: float, page_bytes: int) -> int:
    """Pages for the KV store: what is left of the device's share for this engine once the weights are loaded.

    Elsewhere than on a GPU a quarter of the share, as the machine has other uses for its memory.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        budget = int(total * share) - (total - free)
    else:
        budget = int(free_bytes(device) * share / 4)
    return max(budget, 0) // page_bytes
