"""Progress of loading the weights."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes on the device, and completed layers."""

    bytes_done: int
    bytes_total: int
    layers_done: int
    layers_total: int
