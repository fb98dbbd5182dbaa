"""Page: sections of text, tables and figures as one HTML file that loads nothing.

Law: plotly's script stands in the file once; whatever a user named is escaped; there is no address that a browser would fetch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final

from emu.errors import ConfigError

_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1180px; padding: 0 1em; color: #222 }
h1 { font-size: 1.5em; margin-bottom: .2em } h2 { font-size: 1.15em; border-bottom: 1px solid #ddd; margin-top: 2em }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2em .7em; text-align: right; border-bottom: 1px solid #eee; white-space: nowrap }
th { color: #666; font-weight: 600 } td.word, th.word { text-align: left }
.ok { color: #1b7837 } .degraded, .wrong { color: #b2182b; font-weight: 600 } .note { color: #666 }
pre { background: #f6f6f6; padding: .8em; overflow-x: auto }
"""
_WORD: Final = ' class="word"'


@dataclass(slots=True)
class Page:
    """A report as it is put together.  ``title`` and texts are plain; what they say is escaped here."""

    title: str
    _parts: list[str] = field(default_factory=list)
    _n_figures: int = 0

    def section(self, title: str) -> None:
        self._parts.append(f"<h2>{escape(title)}</h2>")

    def note(self, text: str) -> None:
        self._parts.append(f'<p class="note">{escape(text)}</p>')

    def code(self, text: str) -> None:
        self._parts.append(f"<pre>{escape(text)}</pre>")

    def facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """Names and values, a line each."""
        rows = "".join(
            f'<tr><th class="word">{escape(name)}</th><td class="word">{escape(value)}</td></tr>' for name, value in facts
        )
        self._parts.append(f'<div class="wide"><table>{rows}</table></div>')

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Cells that are words (a verdict, an algorithm) stand on the left, figures on the right; verdicts have colours."""
        lines = list(rows)
        words = [_is_word(text) for text in lines[0]] if lines else [False] * len(heads)
        head = "".join(f"<th{_WORD * is_word}>{escape(name)}</th>" for name, is_word in zip(heads, words, strict=True))
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in lines)
        self._parts.append(f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>')

    def figure(self, figure: Any, caption: str = "") -> None:
        """Nothing where there is no figure."""
        if figure is None:
            return
        if caption:
            self.note(caption)
        self._n_figures += 1
        options = {"full_html": False, "include_plotlyjs": False, "div_id": f"figure-{self._n_figures}"}
        self._parts.append(figure.to_html(**options, config={"displaylogo": False, "responsive": True}))

    def html(self) -> str:
        """The whole file."""
        from plotly.offline import get_plotlyjs

        script = f"<script>{get_plotlyjs()}</script>" if self._n_figures else ""
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(self.title)}</title>'
            f"<style>{_STYLE}</style>{script}</head><body><h1>{escape(self.title)}</h1>{''.join(self._parts)}</body></html>\n"
        )


def check_plotly() -> None:
    """Raises ConfigError without plotly."""
    try:
        import plotly  # noqa: F401
    except ImportError:
        raise ConfigError("emu report needs plotly; install it with: pip install '.[plots]' in the clone") from None


def _is_word(text: str) -> bool:
    return text[:1].isalpha()


def _cell(text: str) -> str:
    if text in ("ok", "degraded"):
        return f'<td class="word {text}">{text}</td>'
    return f"<td{_WORD * _is_word(text)}>{escape(text)}</td>"
