"""How far the loading of the weights is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes on the device, and layers that are complete."""

    bytes_done: int
    bytes_total: int
    layers_done: int
    layers_total: int
