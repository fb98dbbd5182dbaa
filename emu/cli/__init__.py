"""The command line: ``app.py`` has the program and its main commands, the other files those of one subject each."""

from emu.cli.app import main

__all__ = ["main"]
