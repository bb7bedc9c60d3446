"""A chart of the cost per delta against the number of streams."""

from __future__ import annotations

from html import escape
from statistics import median
from typing import Any, Final

from benchmarks.servers import BUILTIN, KINDS, ON_HOST, OURS

type Json = dict[str, Any]

_STREAMS: Final = {"stream-1": 1, "stream-16": 16, "stream-64": 64}
_COLORS: Final = {OURS: "#0a7d36", ON_HOST: "#3566c0", BUILTIN: "#b3472d"}
_WIDTH: Final = 640
_HEIGHT: Final = 340
_LEFT: Final = 60
_RIGHT: Final = 470
_TOP: Final = 40
_BOTTOM: Final = 290


def picture(loads: Json) -> str:
    """Draw an SVG: microseconds of server CPU per text delta, at 1, 16 and 64 streams."""
    costs = {kind: [median(each["cpu"] for each in loads[load][kind]) * 1e6 for load in _STREAMS] for kind in KINDS}
    top = max(max(line) for line in costs.values()) * 1.1
    columns = [_LEFT + (_RIGHT - _LEFT) * number / (len(_STREAMS) - 1) for number in range(len(_STREAMS))]
    font = 'font-family="sans-serif" font-size="13"'
    marks = zip(columns, _STREAMS.values(), strict=True)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {font}>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 22, "server CPU per streamed text delta"),
        f'<path d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}" fill="none" stroke="#888888"/>',
        *(_text(x, _BOTTOM + 20, str(count), anchor="middle") for x, count in marks),
        _text((_LEFT + _RIGHT) / 2, _BOTTOM + 40, "streams at once", anchor="middle"),
    ]
    for kind, line in costs.items():
        heights = [_BOTTOM - (_BOTTOM - _TOP) * cost / top for cost in line]
        places = list(zip(columns, heights, strict=True))
        points = " ".join(f"{x:.0f},{y:.0f}" for x, y in places)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{_COLORS[kind]}" stroke-width="2.5"/>')
        for (x, y), cost in zip(places, line, strict=True):
            parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3.5" fill="{_COLORS[kind]}"/>')
            parts.append(_text(x, y - 8, f"{cost:.0f} µs", anchor="middle"))
        parts.append(_text(_RIGHT + 14, heights[-1] + 14, kind, color=_COLORS[kind], size=11))
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, words: str, *, anchor: str = "start", color: str = "#222222", size: int = 13) -> str:
    where = f'x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{color}" font-size="{size}"'
    return f"<text {where}>{escape(words, quote=False)}</text>"
