"""The page of what ``demitasse lint`` finds, from its codes and their examples."""

from collections.abc import Iterator

from demitasse.lint.examples import EXAMPLES, Example
from demitasse.lint.findings import CODES

PAGE = "reference/lint_codes.md"
HEAD = """\
# Lint codes

What `demitasse lint` finds. Every finding ends in one of these codes, which stay the same from
version to version. An *error* will not run, or not rightly; a *warning* runs, but probably not as
meant; a *note* is worth knowing. Many examples are parts of a net with the data layer `data`, the
scores `fc` and the loss `loss`, or of a solver.

| code | severity | meaning |
| --- | --- | --- |
"""


def lint_page() -> str:
    """Return the page."""
    return HEAD + "\n".join(_lines())


def _lines() -> Iterator[str]:
    for code, meaning in CODES.items():
        yield f"| [{code}](#{code}) | {_severities(code)} | {meaning.text} |"
    for code, meaning in CODES.items():
        yield f"\n## {code}\n\n*{_severities(code).capitalize()}.* {meaning.text}\n"
        yield f"What to do: {meaning.remedy}\n"
        for example in EXAMPLES[code]:
            yield from _example(code, example)


def _severities(code: str) -> str:
    return " or ".join(dict.fromkeys(example.severity for example in EXAMPLES[code]))


def _example(code: str, example: Example) -> Iterator[str]:
    kind = f" ({example.severity})" if len(EXAMPLES[code]) > 1 else ""
    for title, text in (("Found", example.wrong), ("Not found", example.right)):
        shown = f":\n\n```protobuf\n{text}\n```\n" if text else ": where nothing is written.\n"
        yield f"{title}{kind if title == 'Found' else ''}{shown}"
