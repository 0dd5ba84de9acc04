"""Pages of HTML in one file, without external resources, for light, dark and paper."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape
from pathlib import Path

from demitasse.core.atomic import atomic_write
from demitasse.core.text import escaped
from demitasse.version import __version__

STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8882; --bad: #c62828; }
@media (prefers-color-scheme: dark) { :root { --bad: #ff8a80; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid var(--line); text-align: left; }
th { position: sticky; top: 0; background: Canvas; }
td.number, th.number { text-align: right; }
tr.bad td { color: var(--bad); font-weight: 600; }
figure { margin: 1rem 0; }
svg { width: 100%; min-width: 42rem; height: auto; }
.drawing { background: #fff; width: fit-content; max-width: 100%; max-height: 40rem; }
.drawing { overflow: auto; }
.drawing svg { width: auto; min-width: 0; }
footer { margin-top: 3rem; font-size: .85rem; opacity: .7; }
@media print {
  body { margin: 0; max-width: none; } svg { min-width: 0; }
  .drawing { max-height: none; } .drawing svg { max-width: 100%; height: auto; }
  figure { break-inside: avoid; } h2 { break-after: avoid; }
  th { position: static; } tr { break-inside: avoid; }
}
"""


NUMBER, BAD = ' class="number"', ' class="bad"'


class Page:
    """Builder of a page, from top to bottom; all text is escaped.

    Args:
        title: Title and first heading.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = []

    def heading(self, text: str) -> None:
        """Add a heading."""
        self._parts.append(f"<h2>{_text(text)}</h2>")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{_text(text)}</p>")

    def chart(self, svg: str, about: str) -> None:
        """Add a chart of :func:`line_chart`.

        Args:
            svg: The chart.
            about: Text for screen readers.
        """
        self._parts.append(
            f'<figure class="wide" role="img" aria-label="{_text(about)}">{svg}</figure>'
        )

    def drawing(self, svg: str, about: str) -> None:
        """Add a drawing in its own size, on white ground.

        Args:
            svg: The drawing, which is not escaped.
            about: Text for screen readers.
        """
        self._parts.append(
            f'<figure class="wide drawing" role="img" aria-label="{_text(about)}">{svg}</figure>'
        )

    def table(
        self,
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        numbers: Collection[int] = (),
        bad: Collection[int] = (),
    ) -> None:
        """Add a table.

        Args:
            header: Names of the columns.
            rows: The cells.
            numbers: Indices of right-aligned columns.
            bad: Indices of marked rows.
        """
        content = html_table(header, rows, numbers=numbers, bad=bad)
        self._parts.append(f'<div class="wide">{content}</div>')

    def html(self) -> str:
        """Return the whole page."""
        body = "\n".join(self._parts)
        return (
            "<!DOCTYPE html>\n"
            '<html lang="en"><head><meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{_text(self._title)}</title>\n<style>{STYLE}</style></head>\n"
            f"<body><h1>{_text(self._title)}</h1>\n{body}\n"
            f"<footer>Demitasse {__version__}</footer></body></html>\n"
        )

    def write(self, path: Path) -> None:
        """Write the page.

        Raises:
            OSError: The file cannot be written.
        """
        with atomic_write(path) as file:
            file.write(self.html().encode())


def _text(text: str) -> str:
    return escape(escaped(text, one_line=True))


def number_columns(rows: Sequence[Sequence[object]]) -> list[int]:
    """Return the indices of the columns that contain numbers and None only."""
    return [
        index
        for index in range(len(rows[0]) if rows else 0)
        if all(isinstance(row[index], int | float) or row[index] is None for row in rows)
    ]


def html_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Collection[int] = (),
    bad: Collection[int] = (),
) -> str:
    """Return a table as HTML; without a header if all its names are empty.

    Args:
        header: Names of the columns.
        rows: The cells.
        numbers: Indices of right-aligned columns.
        bad: Indices of marked rows.
    """

    def line(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{NUMBER if i in numbers else ''}>{_text(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )

    head = f"<thead><tr>{line(header, 'th')}</tr></thead>\n" if any(header) else ""
    body = "\n".join(
        f"<tr{BAD if i in bad else ''}>{line(row, 'td')}</tr>" for i, row in enumerate(rows)
    )
    return f"<table>{head}<tbody>\n{body}\n</tbody></table>"


def rate(value: float) -> str:
    """Return a rate with four digits, or as an integer from 1,000 on."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
