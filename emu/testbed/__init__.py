"""Testbeds that stay: a process of its own keeps a session up, and commands talk to it over a socket.

``place`` is the directory that a testbed has, ``protocol`` what travels over its socket, ``daemon`` the process,
``handlers`` what can be asked of it, ``client`` and ``commands`` the other end.
"""
