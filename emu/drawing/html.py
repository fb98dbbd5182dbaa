"""HTML: a picture as a page that can be zoomed and that names nodes under the pointer, by plotly."""

from __future__ import annotations

from pathlib import Path

from emu.drawing.picture import Picture, legend
from emu.errors import ConfigError

_SYMBOLS = {"o": "circle", "s": "square", "D": "diamond"}


def write(drawn: Picture, path: Path) -> None:
    """One file that needs no network.  Raises ConfigError without plotly."""
    try:
        from plotly import graph_objects
    except ImportError:
        raise ConfigError("--draw: a .html needs plotly; pip install plotly, or draw a .png") from None
    figure = graph_objects.Figure()
    n_paths = sum(len(strands.paths) for strands in drawn.strands)
    strength = min(0.9, max(0.08, 60 / (n_paths + 1) ** 0.75))
    for strands in drawn.strands:
        x: list[float | None] = []
        y: list[float | None] = []
        for strand in strands.paths:
            x += [*(place[0] for place in strand), None]
            y += [*(place[1] for place in strand), None]
        line = {"color": strands.colour, "width": 1}
        figure.add_scatter(x=x, y=y, mode="lines", line=line, opacity=strength, name=strands.label, hoverinfo="skip")
    size = min(16, max(4, 400 / len(drawn.dots) ** 0.75))
    for key in legend(drawn):
        own = [dot for dot in drawn.dots if dot.kind is key.kind]
        figure.add_scatter(
            x=[dot.x for dot in own],
            y=[dot.y for dot in own],
            mode="markers",
            marker={"symbol": _SYMBOLS[key.marker], "size": size, "color": [dot.colour for dot in own]},
            name=key.label,
            text=[f"{dot.name} ({dot.kind})" for dot in own],
            hoverinfo="text",
        )
    subtitle = f"<br><sub>{drawn.note}</sub>" if drawn.note else ""
    figure.update_layout(title=drawn.title + subtitle, template="plotly_white", legend={"orientation": "h"}, hovermode="closest")
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False, scaleanchor=None if drawn.is_layered else "x")
    figure.write_html(path, include_plotlyjs=True)
