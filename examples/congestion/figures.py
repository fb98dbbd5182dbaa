"""Figures for the studies beside this file.  Needs matplotlib (``pip install '.[plots]'``)."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

COLOURS = ("#1f6f8b", "#d1495b", "#edae49", "#66a182", "#5b5f97", "#8d6a9f")


def figure_path(text: str) -> Path:
    """For argparse: a file that a figure can be written to, known before a study begins."""
    path = Path(text)
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("figures need matplotlib: pip install '.[plots]'")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise argparse.ArgumentTypeError(f"{text!r} must end in .png, .svg or .pdf")
    return path


def bars(
    path: Path, title: str, y_label: str, groups: Sequence[str], series: Mapping[str, Sequence[float]], line: float | None = None
) -> None:
    """Grouped bars, one colour a series; ``line`` is a level to compare with.  Infinity is drawn hatched, over all others."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.2), layout="constrained")
    width = 0.8 / len(series)
    tallest = 1.2 * max((value for values in series.values() for value in values if value < float("inf")), default=1.0)
    for number, (name, values) in enumerate(series.items()):
        at = [group + (number - (len(series) - 1) / 2) * width for group in range(len(groups))]
        heights = [value if value < float("inf") else tallest for value in values]
        drawn = axes.bar(at, heights, width * 0.92, label=name, color=COLOURS[number % len(COLOURS)])
        for bar, value in zip(drawn, values, strict=True):
            if value == float("inf"):
                bar.set(hatch="//", facecolor="white", edgecolor=COLOURS[number % len(COLOURS)])
        if len(groups) * len(series) <= 24:
            axes.bar_label(drawn, [_label(value) for value in values], fontsize=7, padding=1)
    if line is not None:
        axes.axhline(line, color="#444444", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(groups)), groups)
    _finish(figure, axes, path, title, y_label, len(series) > 1)


def _label(value: float) -> str:
    if value == float("inf"):
        return "never"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def lines(
    path: Path, title: str, x_label: str, y_label: str, series: Mapping[str, tuple[Sequence[float], Sequence[float]]]
) -> None:
    """Curves: (x, y) by name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.2), layout="constrained")
    for number, (name, (x, y)) in enumerate(series.items()):
        style = "--" if number == len(series) - 1 else "-"  # so that the last does not hide what it lies upon
        axes.plot(x, y, label=name, color=COLOURS[number % len(COLOURS)], linewidth=1.8, linestyle=style)
    axes.set_xlabel(x_label)
    axes.set_ylim(bottom=0)
    _finish(figure, axes, path, title, y_label, len(series) > 1)


def _finish(figure, axes, path: Path, title: str, y_label: str, legend: bool) -> None:
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_ylabel(y_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
    if legend:
        figure.legend(loc="outside lower center", frameon=False, fontsize=8, ncols=4)
    figure.savefig(path, dpi=130)
    print(f"figure: {path}")
