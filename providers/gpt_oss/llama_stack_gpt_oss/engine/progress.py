"""Progress of loading the weights and of the warm-up that follows."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes on the device, completed layers, and completed steps of the warm-up; its total is 0 before it starts.

    quantisation_error: of the experts that were quantised to MXFP4 so far, the root of the squared error's share; None
    for a checkpoint whose experts are in MXFP4.
    """

    bytes_done: int
    bytes_total: int
    layers_done: int
    layers_total: int
    warm_up_steps_done: int = 0
    warm_up_steps_total: int = 0
    quantisation_error: float | None = None
