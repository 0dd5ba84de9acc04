"""A chart of ratios as SVG: one bar for each case, with a line where both are equally fast."""

import math
from html import escape

__all__ = ["ratio_chart"]

NAMES, BARS, NUMBERS = 130, 122, 106
"""Widths of the three columns, in pixels; together they are as wide as a page on a phone."""

ROW, BAR, HEAD = 22, 14, 44
"""Heights of a row, of its bar, and of the title and the axis, in pixels."""

AHEAD, BEHIND = "#43a047", "#e53935"
"""Both stand out on white and on black."""


def ratio_chart(
    title: str,
    ratios: list[tuple[str, float, str]],
    ink: str = "currentColor",
    bars: tuple[str, str] = (AHEAD, BEHIND),
) -> str:
    """Return the chart on one line, so that markdown takes it for one block.

    Args:
        title: The title.
        ratios: Name of a case, how many times faster we are, and what the number is followed by.
        ink: Colour of text and lines.
        bars: Colours of bars where we are faster, and of the others.
    """
    most = max(2, *(math.ceil(ratio) for _, ratio, _ in ratios))
    width, height = NAMES + BARS + NUMBERS, HEAD + ROW * len(ratios)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-size="11" font-family="system-ui, sans-serif" '
        f'fill="{ink}"><title>{escape(title)}</title>'
        f'<text y="14" font-size="12" font-weight="600">{escape(title)}</text>'
    ]
    for tick in range(1, most + 1):
        x = NAMES + BARS * tick / most
        look = f'stroke="{ink}" stroke-opacity="{0.9 if tick == 1 else 0.15}"'
        parts += [
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{HEAD - 8}" y2="{height}" {look}/>',
            f'<text x="{x:.1f}" y="{HEAD - 12}" text-anchor="middle">{tick}x</text>',
        ]
    for number, (name, ratio, remark) in enumerate(ratios):
        y, length = HEAD + number * ROW + (ROW - BAR) // 2, BARS * ratio / most
        after = NAMES + max(length, BARS / most) + 6  # not across the line
        parts += [
            f'<text x="{NAMES - 6}" y="{y + 11}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{NAMES}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2" '
            f'fill="{bars[ratio < 1]}"/>',
            f'<text x="{after:.1f}" y="{y + 11}">{f"{ratio:.2f} {escape(remark)}".rstrip()}</text>',
        ]
    return "".join([*parts, "</svg>"])
