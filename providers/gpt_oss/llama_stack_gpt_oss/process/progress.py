"""A progress bar for the loading of the weights."""

from typing import TextIO

from ..engine.progress import Progress

WIDTH = 30
STEPS = 20  # number of lines in a log file, where a line cannot be overwritten


class ProgressBar:
    """A progress bar: one updated line in a terminal, a line every few per cent elsewhere."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shown = -1

    def show(self, progress: Progress) -> None:
        share = progress.bytes_done / max(progress.bytes_total, 1)
        step = int(share * (STEPS if not self._out.isatty() else 100))
        if step == self._shown:
            return
        self._shown = step
        bar = ("#" * round(share * WIDTH)).ljust(WIDTH, ".")
        done, total = progress.bytes_done / 1e9, progress.bytes_total / 1e9
        layers = f"{progress.layers_done} of {progress.layers_total} layers"
        text = f"gpt-oss: loading [{bar}] {share:4.0%}  {done:.1f} of {total:.1f} GB, {layers}"
        ending = "\n" if not self._out.isatty() or share >= 1 else "\r"
        self._out.write(text + ending)
        self._out.flush()
