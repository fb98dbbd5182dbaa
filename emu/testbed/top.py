"""``emu top``: a testbed as it runs, in a terminal, drawn anew every few seconds.

It reads the testbed's status and its exporters, once for each frame; a run that is under way is asked nothing else.  The frame
fills the terminal, and fits into 80 columns and 24 lines.
"""

from __future__ import annotations

import contextlib
import select
import sys
from collections.abc import Iterator, Sequence
from typing import Final, cast

from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from emu.errors import ConfigError, EmuError
from emu.fabric.account import Cause
from emu.telemetry.scrape import Samples, scrape
from emu.testbed import client
from emu.testbed.place import DEFAULT_NAME, Place, find, places
from emu.testbed.status import Plain, format_span
from emu.testbed.view import LinkView, QueueView, RankView, View, view
from emu.units import PS_PER_SECOND, format_bytes, format_time

FEWEST_COLUMNS: Final = 80
FEWEST_LINES: Final = 24
SCRAPE_S: Final = 10.0
"""How long an exporter may take: on a busy host it answers late."""
COLOURS: Final = {
    Cause.SERIALISATION: "blue",
    Cause.QUEUEING: "dark_orange3",
    Cause.CREDIT: "medium_purple",
    Cause.PAUSE: "red",
    Cause.RETRANSMISSION: "magenta",
    Cause.ENDPOINT: "orange4",
    Cause.PROPAGATION: "green",
    Cause.PEER_LATE: "yellow",
    Cause.COMPUTE: "grey50",
}
_HEAD: Final = 5
"""Lines above the boxes."""
_VIOLATIONS: Final = {
    "order": ("frame out of order", "frames out of order"),
    "backpressure": ("socket full", "sockets full"),
    "late_call": ("call late, by rank", "calls late, by rank"),
}
"""In words, of one and of more."""
_LETTERS: Final = "sqcprengw"
"""A letter for each cause, of which bars are made where there are no colours."""


def top(name: str | None, *, once: bool = False, interval_s: float = 2.0, console: Console | None = None) -> int:
    """Watch a testbed until q or Ctrl-C; with ``once``, or where there is no terminal, one frame.  Raises EmuError."""
    if not 0.2 <= interval_s <= 3600:
        raise ConfigError(f"--interval {interval_s:g} must be from 0.2 to 3600 seconds")
    console = console or Console()
    watched = find(name) if name is not None else _only()
    if once or not (console.is_terminal and sys.stdin.isatty()):
        width, height = max(FEWEST_COLUMNS, console.width), max(FEWEST_LINES, console.height)
        picture = render(_look(watched), width, height, is_live=False, in_colour=console.color_system is not None)
        console.print(picture, width=width, height=height, crop=False, overflow="ignore")
        return 0
    with contextlib.suppress(KeyboardInterrupt), _keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        _watch(watched, live, interval_s)
    return 0


def _only() -> Place:
    """The testbed that is up, where there is one, else the one with the usual name.  Raises ConfigError."""
    living = [place for place in places() if place.alive]
    return living[0] if len(living) == 1 else find(DEFAULT_NAME)


def _watch(watched: Place, live: Live, interval_s: float) -> None:
    """Draw until q is pressed.  A testbed that is only slow keeps its last frame.  Raises EmuError when it is gone."""
    before: Samples | None = None
    note = ""
    frame: View | None = None
    while True:
        try:
            status, now = _read(watched)
            frame, before, note = view(status, now, before), now, ""
        except (EmuError, OSError, ValueError) as error:
            find(watched.name)  # raises where it has ended
            note = f"no answer: {error}"
        if frame is not None:
            width, height = live.console.size
            size = max(FEWEST_COLUMNS, width), max(FEWEST_LINES, height)
            live.update(render(frame, *size, note, in_colour=live.console.color_system is not None), refresh=True)
        if _pressed(interval_s):
            return


def _look(watched: Place) -> View:
    status, now = _read(watched)
    return view(status, now)


def _read(watched: Place) -> tuple[Plain, Samples]:
    status = cast(Plain, client.ask(watched, "status"))
    try:
        return status, scrape(status["metrics"], timeout_s=SCRAPE_S)
    except (OSError, ValueError) as error:
        raise EmuError(f"the metrics of testbed {watched.name!r} cannot be read: {error}") from None


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Keys come at once and are not shown."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pressed(timeout_s: float) -> bool:
    """Wait; whether q was pressed meanwhile."""
    return bool(select.select([sys.stdin], [], [], timeout_s)[0]) and sys.stdin.read(1) in ("q", "Q", "")


# -- drawing -------------------------------------------------------------------------------------


def render(
    frame: View, width: int, height: int, note: str = "", *, is_live: bool = True, in_colour: bool = True
) -> RenderableType:
    """A frame of so many columns and lines; where there is no colour, bars are letters."""
    lower = max(7, height // 4) + min(len(frame.faults), height // 8)
    upper = height - _HEAD - lower
    layout = Layout()
    layout.split_column(
        Layout(_head(frame, note, is_live), size=_HEAD), Layout(name="upper", size=upper), Layout(name="lower", size=lower)
    )
    half = width // 2
    layout["upper"].split_row(
        Layout(_box("ranks: time by cause", _ranks(frame.ranks, upper - 2, half - 4, in_colour)), size=half),
        Layout(_box("links by use", _links(frame.links, upper - 3, width - half - 4))),
    )
    layout["lower"].split_row(
        Layout(_box("queues", _queues(frame.queues, lower - 3)), size=half + width // 16),
        Layout(_box("fidelity and faults", _fidelity(frame, lower - 2))),
    )
    return layout


def _box(title: str, content: RenderableType) -> Panel:
    return Panel(content, title=title, title_align="left", padding=(0, 1), border_style="grey50")


def _head(frame: View, note: str, is_live: bool) -> RenderableType:
    status = frame.status
    state = status["state"] + (f", {len(status['dead'])} dead: {', '.join(status['dead'])}" if status["dead"] else "")
    lines = [
        Text.assemble((status["name"], "bold"), "  ", (state, "red" if status["dead"] else "green"), f"  {status['fabric']}"),
        Text(f"{status['n_ranks']} ranks, {status['n_actors']} actors, up {format_span(status['up_s'])}, {_runs(status)}"),
    ]
    now = status["now"]
    what = "no run under way" if now is None else f"{now['what']}, {format_span(now['for_s'])}, {now['n_rows']} rows"
    lines.append(Text(f"now  {what}" + (f": {now['doing']}" if now is not None and now["doing"] else "")))
    window = f"the last {_time(frame.passed_s)}" if frame.is_recent else "all of it"
    clock = f"model time {_time(frame.model_s)}, shown: {window}; dilation {frame.dilation:g}"
    lines.append(Text(clock if frame.has_metrics else "no metrics: it was started with --metrics off"))
    lines.append(Text(note, style="red") if note else _legend(frame, is_live))
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _runs(status: Plain) -> str:
    failed = f", {status['n_failed']} failed" if status["n_failed"] else ""
    last = f", last {status['runs'][-1]['outcome']}" if status["runs"] else ""
    return f"{status['n_runs']} {'run' if status['n_runs'] == 1 else 'runs'}{failed}{last}"


def _legend(frame: View, is_live: bool) -> Text:
    """The causes that are there."""
    found = Text("q ends  " if is_live else "", style="grey50")
    for cause in Cause:
        if any(rank.shares[cause] >= 0.005 for rank in frame.ranks):
            found.append(f" {_LETTERS[cause]} ", style=f"white on {COLOURS[cause]}")
            found.append(f" {cause.name.lower().replace('_', ' ')}  ", style="default")
    return found


def _ranks(ranks: Sequence[RankView], n_rows: int, width: int, in_colour: bool) -> RenderableType:
    """A bar for each; where they do not fit, those whose mix is farthest from the mean of all."""
    shown = list(ranks)
    left_out = ""
    if len(ranks) > n_rows:
        mean = [sum(rank.shares[cause] for rank in ranks) / len(ranks) for cause in Cause]
        shown.sort(key=lambda rank: (rank.is_alive, -sum(abs(rank.shares[cause] - mean[cause]) for cause in Cause)))
        shown = sorted(shown[: n_rows - 1], key=lambda rank: rank.rank)
        left_out = f"{len(ranks) - len(shown)} more, nearer to the mean"
    n_digits = len(str(max((rank.rank for rank in ranks), default=0)))
    lines = [
        Text.assemble(f"{rank.rank:>{n_digits}} ", _bar(rank, width - n_digits - 1, in_colour), no_wrap=True, overflow="crop")
        for rank in shown
    ]
    return Group(*lines, *([Text(left_out, style="grey50")] if left_out else []))


def _bar(rank: RankView, width: int, in_colour: bool) -> Text:
    if not rank.is_alive:
        return Text("dead", style="red")
    if not any(rank.shares):
        return Text("no calls", style="grey50")
    found = Text()
    at = 0.0
    for cause in Cause:
        begin, at = round(at * width), at + rank.shares[cause]
        n = round(at * width) - begin
        letters = _LETTERS[cause].ljust(n) if in_colour else _LETTERS[cause] * n
        found.append(letters if n else "", style=f"white on {COLOURS[cause]}")
    return found


def _table(*columns: str) -> Table:
    found = Table(box=None, padding=(0, 1, 0, 0), expand=True, header_style="grey50", show_edge=False)
    for number, name in enumerate(columns):
        found.add_column(
            name, justify="right" if number else "left", no_wrap=True, overflow="ellipsis", ratio=None if number else 1
        )
    return found


def _links(links: Sequence[LinkView], n_rows: int, width: int) -> RenderableType:
    n_bar = max(4, width - 34)
    table = _table("link", "busy", "", "bytes", "waits")
    table.columns[2].justify = "left"
    for link in links[:n_rows]:
        bar = "█" * round(link.busy * n_bar)
        name = Text(f"{link.name}{' !' if link.is_faulty else ''}", style="red" if link.is_faulty else "")
        table.add_row(
            name,
            f"{link.busy * 100:.0f}%",
            Text(f"{bar:<{n_bar}}", style=_heat(link.busy)),
            format_bytes(link.n_bytes),
            _time(link.wait_s),
        )
    return table if links else Text("nothing is known of links", style="grey50")


def _heat(busy: float) -> str:
    return "red" if busy >= 0.9 else "yellow" if busy >= 0.6 else "green"


def _queues(queues: Sequence[QueueView], n_rows: int) -> RenderableType:
    if not queues:
        return Text("no switching: buffers are infinite", style="grey50")
    table = _table("port", "now", "peak", "marks", "paused", "drops")
    several = len({queue.priority for queue in queues}) > 1
    for queue in queues[:n_rows]:
        table.add_row(
            f"{queue.port} p{queue.priority}" if several else queue.port,
            format_bytes(queue.n_bytes),
            format_bytes(queue.peak_bytes),
            f"{queue.marks:.0f}",
            _time(queue.pause_s),
            f"{queue.drops:.0f}",
        )
    return table


def _fidelity(frame: View, n_rows: int) -> RenderableType:
    counted = ", ".join(f"{n} {_VIOLATIONS[reason][n != 1]}" for reason, n in frame.violations.items() if n)
    lines = [
        Text(f"{frame.n_up} of {frame.status['n_actors']} actors up, {frame.n_calls} calls"),
        Text(counted or "the host kept pace", style="yellow" if counted else "green"),
        Text(f"host lag {_time(frame.lags_s[0])}, p99 {_time(frame.lags_s[1])}"),
    ]
    lines += [Text(fault, style="red") for fault in frame.faults] or [Text("no faults", style="grey50")]
    if len(lines) > n_rows:
        lines = [*lines[: n_rows - 1], Text(f"and {len(lines) - n_rows + 1} more faults", style="red")]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _time(seconds: float) -> str:
    return format_time(round(seconds * PS_PER_SECOND))
