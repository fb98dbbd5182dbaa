"""The command that reads a recorded run: emu explain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def explain(
    record: Annotated[Path, typer.Argument(help="Written by emu bench --record.")],
    call: Annotated[int | None, typer.Option("--call", help="Print the critical path of this call of the list.")] = None,
    rank: Annotated[int | None, typer.Option("--rank", help="Of this rank. Default: the one that took longest.")] = None,
) -> int:
    """Say where the time of every call of a recorded run went: by cause, or step by step along its critical path."""
    from emu.bench.explain import explain as run_explain

    return run_explain(record, call=call, rank=rank)
