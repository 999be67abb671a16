"""Plots without a plotting library: bars for the terminal, and one SVG of waits per class."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a")
_WIDTH, _HEIGHT, _MARGIN = 720, 360, 48


def bar(share: float, width: int = 30) -> str:
    """`share` of a bar of `width` characters, to an eighth of one."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def curves_svg(title: str, samples: Mapping[str, Sequence[float]], targets: Mapping[str, float]) -> str:
    """Share of requests served within a time, per name: x is milliseconds (logarithmic), y is 0 to 100 %.

    Infinite values never rise into the picture. `targets`: a dashed line at that many milliseconds.
    """
    finite = [value for values in samples.values() for value in values if 0 < value < math.inf]
    finite += [value for value in targets.values() if 0 < value < math.inf]
    low = math.floor(math.log10(min(finite, default=1.0)))
    high = max(math.ceil(math.log10(max(finite, default=10.0))), low + 1)

    def x_of(value: float) -> float:
        share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return _MARGIN + share * (_WIDTH - 2 * _MARGIN)

    def y_of(share: float) -> float:
        return _HEIGHT - _MARGIN - share * (_HEIGHT - 2 * _MARGIN)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_MARGIN}" y="24" font-size="14">{escape(title)}</text>',
    ]
    for power in range(low, high + 1):
        x = x_of(10.0**power)
        parts.append(f'<path d="M{x:.1f} {y_of(0):.1f}V{y_of(1):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 28}" text-anchor="middle">{_milliseconds(power)}</text>')
    for percent in range(0, 101, 20):
        y = y_of(percent / 100)
        parts.append(f'<path d="M{_MARGIN} {y:.1f}H{_WIDTH - _MARGIN}" stroke="#ddd"/>')
        parts.append(f'<text x="{_MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">{percent}%</text>')
    for index, (name, values) in enumerate(samples.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        parts.append(f'<path d="{_steps(values, x_of, y_of)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(
            f'<text x="{_WIDTH - _MARGIN - 4}" y="{y_of(0) - 12 - 16 * index:.1f}" text-anchor="end" '
            f'fill="{colour}">{escape(name)}</text>'
        )
        if name in targets:
            x = x_of(targets[name])
            parts.append(f'<path d="M{x:.1f} {y_of(0):.1f}V{y_of(1):.1f}" stroke="{colour}" stroke-dasharray="4 4"/>')
    return "\n".join([*parts, "</svg>", ""])


def _steps(values: Sequence[float], x_of: Callable[[float], float], y_of: Callable[[float], float]) -> str:
    """An SVG path over at most 200 quantiles."""
    ordered = sorted(values)
    num = len(ordered)
    path: list[str] = []
    for step in range(1, 201):
        rank = max(math.ceil(step / 200 * num), 1)
        value = ordered[rank - 1] if num else math.inf
        if value == math.inf:
            break
        path.append(f"{'L' if path else 'M'}{x_of(value):.1f} {y_of(rank / num):.1f}")
    return "".join(path)


def _milliseconds(power: int) -> str:
    return f"{10**power} ms" if 0 <= power < 3 else f"{10 ** (power - 3)} s" if power >= 3 else f"1e{power} ms"
