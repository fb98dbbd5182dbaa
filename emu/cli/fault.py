"""The commands of faults on a testbed that is up: emu fault add, list, clear."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(name="fault", no_args_is_help=True, help="Break a testbed that is up, and mend it, also during a run.")

Testbed = Annotated[str, typer.Argument(metavar="NAME", help="The testbed, as emu up called it.")]
Json = Annotated[bool, typer.Option("--json", help="Everything, as JSON.")]


@app.command()
def add(
    name: Testbed,
    fault: Annotated[str, typer.Argument(metavar="TARGET=KIND,...", help="As for --fault of emu bench.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would hit.")] = False,
    json: Json = False,
) -> int:
    """Inject a fault now, from the next chunk on; with for= it ends by itself.

    emu fault add lab 'a3->s0=slow,factor=0.5,for=5ms'

    emu fault add lab 'rank3=late,by=300us'

    emu fault add lab 'a0->a5=background,rate=20GB/s'

    Background traffic without rate= sends back to back, at the rate of the slowest link on its way.
    """
    from emu.testbed.faults import add as run_add

    return run_add(name, fault, dry_run=dry_run, as_json=json)


@app.command("list")
def list_faults(name: Testbed, json: Json = False) -> int:
    """List a testbed's faults with the model times at which they took effect; --json has each as a schedule would."""
    from emu.testbed.faults import list_all

    return list_all(name, as_json=json)


@app.command()
def clear(
    name: Testbed,
    number: Annotated[int | None, typer.Argument(help="Of one fault, as listed. Default: all.")] = None,
    json: Json = False,
) -> int:
    """End a fault, or all of them, now."""
    from emu.testbed.faults import clear as run_clear

    return run_clear(name, number, as_json=json)
