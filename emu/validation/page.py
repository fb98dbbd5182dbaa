"""Page: measured and simulated times by size, as one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from emu.errors import ConfigError
from emu.host import write_whole
from emu.units import format_bytes
from emu.validation.errors import Compared
from emu.validation.report import table_lines
from emu.validation.split import FITTED_TABLE

_PANEL_PIXELS: Final = 360
_TICKS_BYTES: Final = tuple(512 << power for power in range(0, 25, 4))
_STYLE: Final = "body{font-family:sans-serif;margin:24px;max-width:1250px}pre{font-size:12px;white-space:pre-wrap}"
_INTRO: Final = (
    "Time of a call by its size, on a machine with the costs of NCCL's kernels. Lines are what emu simulates, dots what was"
    " measured; parameters were fitted to the filled dots only."
)


def check_plotly() -> None:
    """Raises ConfigError without plotly."""
    try:
        import plotly  # noqa: F401
    except ImportError:
        raise ConfigError("--html needs plotly; install it with: pip install '.[plots]' in the clone") from None


def write_page(rows: Sequence[Compared], path: Path) -> None:
    """A panel for each fabric and number of ranks, and the table of errors below."""
    import plotly.graph_objects as go
    from plotly.colors import qualitative
    from plotly.subplots import make_subplots

    its = [row for row in rows if row.measurement.table == FITTED_TABLE]
    panels = list(dict.fromkeys((row.measurement.fabric, row.measurement.n_ranks) for row in its))
    collectives = list(dict.fromkeys(row.measurement.collective for row in its))
    n_columns = min(2, len(panels)) or 1
    n_lines = max(1, -(-len(panels) // n_columns))
    figure = make_subplots(
        rows=n_lines,
        cols=n_columns,
        subplot_titles=[f"{fabric}, {n_ranks} ranks" for fabric, n_ranks in panels],
        shared_yaxes=True,
        horizontal_spacing=0.03,
        vertical_spacing=0.2 / n_lines,
    )
    for number, panel in enumerate(panels):
        for color, collective in zip(qualitative.D3, collectives, strict=False):
            here = [
                row
                for row in its
                if (row.measurement.fabric, row.measurement.n_ranks) == panel and row.measurement.collective == collective
            ]
            here.sort(key=lambda row: row.measurement.size_bytes)
            sizes = [row.measurement.size_bytes for row in here]
            place = {"row": number // n_columns + 1, "col": number % n_columns + 1}
            common = {"legendgroup": collective, "showlegend": number == 0}
            texts = [
                f"{row.algorithm} {row.protocol}, {100 * row.error:+.1f} %{', fitted' if row.fitted else ''}" for row in here
            ]
            figure.add_trace(
                go.Scatter(
                    x=sizes,
                    y=[row.simulated_us for row in here],
                    name=f"{collective}, emu",
                    line={"color": color},
                    text=texts,
                    **common,
                ),
                **place,
            )
            figure.add_trace(
                go.Scatter(
                    x=sizes,
                    y=[row.measurement.time_us for row in here],
                    name=f"{collective}, measured",
                    mode="markers",
                    marker={"color": color, "symbol": ["circle" if row.fitted else "circle-open" for row in here]},
                    **common,
                ),
                **place,
            )
    figure.update_xaxes(type="log", tickvals=_TICKS_BYTES, ticktext=[format_bytes(size) for size in _TICKS_BYTES])
    figure.update_yaxes(type="log", dtick=1)
    figure.update_yaxes(title="us", col=1)
    figure.update_layout(
        height=_PANEL_PIXELS * n_lines + 60,
        template="plotly_white",
        margin={"l": 60, "r": 10, "t": 70, "b": 30},
        legend={"orientation": "h", "y": 1 + 40 / (_PANEL_PIXELS * n_lines), "yanchor": "bottom", "x": 0},
    )
    text = "\n".join(table_lines(rows)).replace("&", "&amp;").replace("<", "&lt;")
    write_whole(
        path,
        f"<!doctype html><meta charset='utf-8'><title>emu validate</title><style>{_STYLE}</style>"
        f"<h2>emu against measurements</h2><p>{_INTRO}</p>"
        f"{figure.to_html(full_html=False, include_plotlyjs=True)}<h3>Errors</h3><pre>{text}</pre>",
    )
