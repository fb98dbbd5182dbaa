"""Scale: one call of a collective over thousands of ranks, by arithmetic on arrays instead of events.

Law: times are those of the machines, to the picosecond, or a :class:`emu.scale.call.NotExact` says why they cannot be
had so.  Then the machines run the call; only where that takes too long is there an estimate, which says that it is one and how
far off such estimates were (``fluid``, ``trees.long_tree``, ``ring_slices.long_ring``).  No schedule is built and no data moves.
"""
