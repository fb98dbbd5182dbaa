"""Topologies: graphs of accelerators and switches, how flows cross them, and the files that describe them.

To add one, drop a file here (or anywhere importable, and name it ``my_lab.torus:build``).  It holds

* ``class Parameters``, a pydantic model of what ``--set`` may say, with defaults that build and a docstring under each field.
  It inherits :class:`emu.topologies.cabling.LinkParameters`, which brings what all links share;
* ``def build(parameters: Parameters) -> Topology``.  Its name is the file's, and rank 0, 1, ... are the nodes a0, a1, ...

The first line of the file's docstring is what ``emu fabrics`` prints.  ``tests/unit/test_conformance.py`` finds the file;
``tests/unit/test_topologies.py`` says what every topology shares.
"""
