"""PNG: a picture as an image, by matplotlib."""

from __future__ import annotations

import textwrap
from pathlib import Path

from emu.drawing.picture import Picture, legend
from emu.errors import ConfigError

_MOST_NAMES = 80


def write(drawn: Picture, path: Path) -> None:
    """Raises ConfigError without matplotlib."""
    try:
        import matplotlib
        from matplotlib.collections import LineCollection
        from matplotlib.lines import Line2D
    except ImportError:
        raise ConfigError("--draw: a .png needs matplotlib; pip install matplotlib, or draw a .html") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(12, 7.5) if drawn.is_layered else (9.5, 10), dpi=110)
    n_paths = sum(len(strands.paths) for strands in drawn.strands)
    strength = min(0.9, max(0.08, 60 / (n_paths + 1) ** 0.75))
    for strands in drawn.strands:
        axes.add_collection(LineCollection(strands.paths, colors=strands.colour, linewidths=0.9, alpha=strength, zorder=1))
    size = min(170, max(9, 9000 / len(drawn.dots)))
    for key in legend(drawn):
        own = [dot for dot in drawn.dots if dot.kind is key.kind]
        places = [dot.x for dot in own], [dot.y for dot in own]
        axes.scatter(
            *places, s=size, c=[dot.colour for dot in own], marker=key.marker, edgecolors="white", linewidths=0.6, zorder=2
        )
    if len(drawn.dots) <= _MOST_NAMES:
        for dot in drawn.dots:
            axes.annotate(dot.name, (dot.x, dot.y), ha="center", va="center", fontsize=5.5, color="white", zorder=3)
    if not drawn.is_layered:
        axes.set_aspect("equal")
    axes.margins(0.04, 0.06)
    axes.autoscale_view()
    axes.axis("off")
    figure.suptitle("\n".join(textwrap.wrap(drawn.title, 100)), fontsize=12)
    axes.set_title(drawn.note, fontsize=9, color="#5f6b73")
    handles = [
        Line2D([], [], marker=key.marker, color=key.colour, linestyle="", markersize=7, label=key.label) for key in legend(drawn)
    ]
    handles += [Line2D([], [], color=strands.colour, linewidth=1.6, label=strands.label) for strands in drawn.strands]
    figure.legend(handles=handles, loc="lower center", ncol=2 if len(handles) < 6 else 3, fontsize=8, frameon=False)
    figure.subplots_adjust(left=0.02, right=0.98, top=0.91, bottom=0.04 + 0.03 * -(-len(handles) // 2))
    try:
        figure.savefig(path)
    finally:
        pyplot.close(figure)
