"""Pages of HTML in one file, without external resources, for light, dark and paper."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path

from demitasse.core.atomic import write_bytes
from demitasse.core.text import escaped
from demitasse.pages.charts import Chart
from demitasse.version import __version__

STYLE = Path(__file__).with_name("style.css").read_text(encoding="utf-8")

NUMBER, BAD = ' class="number"', ' class="bad"'


class Page:
    """Builder of a page, from top to bottom; all text is escaped."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = []

    def heading(self, text: str) -> None:
        """Add a heading."""
        self._parts.append(f"<h2>{html_text(text)}</h2>")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{html_text(text)}</p>")

    def charts(self, charts: Sequence[tuple[Chart, str]]) -> None:
        """Add charts with texts for screen readers, beside each other where the window is wide."""
        figures = [_figure(chart.svg(), about) for chart, about in charts]
        self._parts.append(f'<div class="charts">{"".join(figures)}</div>')

    def wide_chart(self, chart: Chart, about: str) -> None:
        """Add a chart as wide as the page; on phones the same chart with fewer labels."""
        for kind, svg in (("only-wide", chart.svg(wide=True)), ("only-narrow", chart.svg())):
            self._parts.append(_figure(svg, about, kind))

    def drawing(self, svg: str, about: str) -> None:
        """Add a drawing, which is not escaped, shrunk to fit; a switch shows its own size."""
        self._parts.append(
            '<div class="drawing"><label><input type="checkbox"> full size</label>'
            f"{_figure(svg, about)}</div>"
        )

    @contextmanager
    def folded(self, title: str) -> Iterator[None]:
        """Put the parts added in the ``with`` block below a title, hidden until a click on it."""
        yield from self._within(f"<details><summary>{html_text(title)}</summary>", "</details>")

    @contextmanager
    def columns(self) -> Iterator[None]:
        """Put the parts added in the ``with`` block beside each other where the window is wide."""
        yield from self._within('<div class="columns">', "</div>")

    @contextmanager
    def block(self) -> Iterator[None]:
        """Put the parts added in the ``with`` block into one column."""
        yield from self._within("<div>", "</div>")

    def _within(self, begin: str, end: str) -> Iterator[None]:
        self._parts.append(begin)
        yield
        self._parts.append(end)

    def facts(self, facts: Sequence[tuple[str, str]]) -> None:
        """Add names with values, in as many columns as the window has room for."""
        pairs = (
            f"<div><dt>{html_text(n)}</dt><dd>{html_text(value)}</dd></div>" for n, value in facts
        )
        self._parts.append(f"<dl>{''.join(pairs)}</dl>")

    def table(
        self, header: Sequence[str], rows: Sequence[Sequence[str]], **marks: Collection[int]
    ) -> None:
        """Add a table; see ``html_table``."""
        self._parts.append(f'<div class="wide">{html_table(header, rows, **marks)}</div>')

    def html(self) -> str:
        """Return the whole page."""
        body = "\n".join(self._parts)
        return (
            "<!DOCTYPE html>\n"
            '<html lang="en"><head><meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html_text(self._title)}</title>\n<style>\n{STYLE}</style></head>\n"
            f"<body><h1>{html_text(self._title)}</h1>\n{body}\n"
            f"<footer>Demitasse {__version__}</footer></body></html>\n"
        )

    def write(self, path: Path) -> None:
        """Write the page."""
        write_bytes(path, self.html().encode())


def _figure(svg: str, about: str, kind: str = "") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<figure{name} role="img" aria-label="{html_text(about)}">{svg}</figure>'


def html_text(text: str) -> str:
    """Return text as HTML, with markup, control characters and line ends escaped."""
    return escape(escaped(text, one_line=True))


def number_columns(rows: Sequence[Sequence[object]]) -> list[int]:
    """Return the indices of the columns that contain numbers and None only."""
    return [
        index
        for index in range(len(rows[0]) if rows else 0)
        if all(isinstance(row[index], int | float) or row[index] is None for row in rows)
    ]


def html_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Collection[int] = (),
    bad: Collection[int] = (),
) -> str:  # fmt: skip
    """Return a table as HTML; without a header if all its names are empty.

    ``numbers`` are indices of right-aligned columns, ``bad`` those of marked rows.
    """

    def line(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{NUMBER if i in numbers else ''}>{html_text(cell)}</{tag}>"
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
