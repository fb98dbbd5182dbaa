"""Impairments of links: one file per kind, see :mod:`emu.impairments.base`."""
