"""Progress of loading the weights and of the warm-up that follows."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes on the device, completed layers, and completed steps of the warm-up; its total is 0 before it starts."""

    bytes_done: int
    bytes_total: int
    layers_done: int
    layers_total: int
    warm_up_steps_done: int = 0
    warm_up_steps_total: int = 0
