"""Faults: what goes wrong on command, at a model time and for a while.

A fault hits links, ranks, or puts traffic between two endpoints.  On a link it is an impairment in a window
(:mod:`emu.faults.window`), so that scheduled ones are integrated exactly; on a rank it changes what its endpoint does.
"""
