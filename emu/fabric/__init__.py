"""Fabric: the machines that decide when bytes move.  Pure: no clock, no I/O, no globals."""
