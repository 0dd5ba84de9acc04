"""A page of HTML in one file, that loads nothing, for light, dark and paper."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from demitasse.core.atomic import atomic_write
from demitasse.core.text import escaped
from demitasse.version import __version__

__all__ = ["Page"]

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


class Page:
    """A page that is put together from top to bottom; all text is escaped.

    Args:
        title: Its title and first heading.
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
        """Add a chart, as :func:`line_chart` draws it.

        Args:
            svg: The chart.
            about: What it shows, for who cannot see it.
        """
        self._parts.append(
            f'<figure class="wide" role="img" aria-label="{_text(about)}">{svg}</figure>'
        )

    def drawing(self, svg: str, about: str) -> None:
        """Add a drawing in its own size, on paper's colour: it is made for a light ground.

        Args:
            svg: The drawing; from ourselves, as it is not escaped.
            about: What it shows, for who cannot see it.
        """
        self._parts.append(
            f'<figure class="wide drawing" role="img" aria-label="{_text(about)}">{svg}</figure>'
        )

    def table(
        self,
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        numbers: Sequence[int] = (),
        bad: Sequence[int] = (),
    ) -> None:
        """Add a table.

        Args:
            header: Names of the columns.
            rows: The cells.
            numbers: Indices of the columns that hold numbers.
            bad: Indices of the rows that something is wrong with.
        """
        kinds = [' class="number"' if i in numbers else "" for i in range(len(header))]

        def line(cells: Sequence[str], tag: str) -> str:
            return "".join(
                f"<{tag}{kind}>{_text(cell)}</{tag}>"
                for kind, cell in zip(kinds, cells, strict=True)
            )

        marks = [' class="bad"' if i in bad else "" for i in range(len(rows))]
        body = "\n".join(
            f"<tr{mark}>{line(row, 'td')}</tr>" for mark, row in zip(marks, rows, strict=True)
        )
        self._parts.append(
            f'<div class="wide"><table><thead><tr>{line(header, "th")}</tr></thead>\n'
            f"<tbody>\n{body}\n</tbody></table></div>"
        )

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
            OSError: It cannot be written.
        """
        with atomic_write(path) as file:
            file.write(self.html().encode())


def _text(text: str) -> str:
    return escape(escaped(text, one_line=True))
