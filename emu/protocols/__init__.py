"""Protocols: how an accelerator's kernels move a message (Simple, LL, LL128), what that costs, and who chooses one.

``costs.py`` has the costs of an endpoint, ``legal.py`` what goes with what.  Every other file is a *tuner*, found by its name
(``--tuner nccl`` is ``nccl.py``), with one function::

    choose(question: Question) -> Choice
"""
