"""A chart of ratios as SVG: one bar for each case, with a line where both are equally fast."""

from html import escape

__all__ = ["ratio_chart"]

NAMES, BARS, NUMBERS = 130, 400, 140
"""Widths of the three columns, in pixels."""

LINE, BAR = 22, 14
"""Heights of a line and of its bar, in pixels."""

HEAD = 18
"""Height of what is said above the bars, in pixels."""

AHEAD, BEHIND = "#43a047", "#e53935"
"""Both stand out on white and on black."""


def ratio_chart(title: str, ratios: list[tuple[str, float, str]]) -> str:
    """Return the chart as HTML, on one line, so that markdown takes it for one block.

    Args:
        title: What it shows, for those who cannot see it.
        ratios: Name of a case, how many times faster we are, and what the number is followed by.
    """
    most = max(2.0, *(ratio for _, ratio, _ in ratios))
    width, height = NAMES + BARS + NUMBERS, HEAD + LINE * len(ratios)
    one = NAMES + BARS / most
    parts = [
        f'<div class="chart"><svg role="img" viewBox="0 0 {width} {height}" width="100%" '
        'style="min-width: 28rem" font-size="12" font-family="sans-serif" fill="currentColor">'
        f"<title>{escape(title)}</title>"
        f'<text x="{one:.1f}" y="12" text-anchor="middle">as fast</text>'
    ]
    for number, (name, ratio, remark) in enumerate(ratios):
        y, length = HEAD + number * LINE + (LINE - BAR) // 2, BARS * ratio / most
        after = max(NAMES + length, one) + 6  # not across the line
        colour = AHEAD if ratio >= 1 else BEHIND
        parts += [
            f'<text x="{NAMES - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{NAMES}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>',
            f'<text x="{after:.1f}" y="{y + 12}">{ratio:.2f} {escape(remark)}</text>',
        ]
    line = f'x1="{one:.1f}" x2="{one:.1f}" y1="{HEAD}" y2="{height}"'
    return "".join([*parts, f'<line {line} stroke="currentColor"/></svg></div>'])
