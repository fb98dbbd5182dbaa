"""Scale: one call of a collective over thousands of ranks, by arithmetic on arrays instead of events.

Law: times are those of the machines, to the picosecond, or a :class:`emu.scale.call.NotExact` says why they cannot be
had so: nothing is approximated.  No schedule is built and no data moves.
"""
