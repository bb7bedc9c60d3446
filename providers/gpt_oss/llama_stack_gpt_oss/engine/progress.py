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

    @property
    def is_warm_up(self) -> bool:
        return self.warm_up_steps_total > 0

    @property
    def share(self) -> float:
        """The share of the bytes or of the steps."""
        if self.is_warm_up:
            return self.warm_up_steps_done / self.warm_up_steps_total
        return self.bytes_done / max(self.bytes_total, 1)

    @property
    def amounts(self) -> str:
        if self.is_warm_up:
            return f"{self.warm_up_steps_done} of {self.warm_up_steps_total} steps"
        gigabytes = f"{self.bytes_done / 1e9:.1f} of {self.bytes_total / 1e9:.1f} GB"
        return f"{gigabytes}, {self.layers_done} of {self.layers_total} layers"
