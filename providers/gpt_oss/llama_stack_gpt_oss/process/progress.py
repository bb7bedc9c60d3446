"""Progress bars for the loading of the weights and for the warm-up."""

from typing import TextIO

from ..engine.progress import Progress

WIDTH = 30
STEPS = 20  # number of lines in a log file, where a line cannot be overwritten


class ProgressBar:
    """A progress bar: one updated line in a terminal, a line every few per cent elsewhere."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shown = ("", -1)

    def show(self, progress: Progress) -> None:
        error = progress.quantisation_error
        quantised = "" if error is None else f", experts quantised to MXFP4 with an error of {error:.1%}"
        if progress.is_warm_up:
            self._draw("warming up", progress.share, progress.amounts)
        else:
            self._draw("loading", progress.share, progress.amounts + quantised)

    def _draw(self, activity: str, share: float, amounts: str) -> None:
        shown = activity, int(share * (STEPS if not self._out.isatty() else 100))
        if shown == self._shown:
            return
        self._shown = shown
        bar = ("#" * round(share * WIDTH)).ljust(WIDTH, ".")
        text = f"gpt-oss: {activity} [{bar}] {share:4.0%}  {amounts}"
        ending = "\n" if not self._out.isatty() or share >= 1 else "\r"
        self._out.write(text + ending)
        self._out.flush()
