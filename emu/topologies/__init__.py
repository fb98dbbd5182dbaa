"""Topologies: graphs of accelerators and switches, how flows cross them, and the files that describe them.

To add one, drop a file here (or anywhere importable, and name it ``my_lab.torus:build``).  It holds

* ``class Parameters``: a pydantic model of what ``--set`` may say, with defaults that build;
  :class:`emu.topologies.cabling.LinkParameters` brings what all links share;
* ``def build(parameters: Parameters) -> Topology``.

The first line of its docstring is what ``emu fabrics`` prints.  ``tests/unit/test_topologies.py``
runs its conformance tests over every such file in this folder.
"""
