"""Validation: emu's numbers beside measured ones, and parameters fitted to them."""
