"""Diagnosis: what made a run slow or fail, from what a monitoring system sees of it, and how often that is right.

    finding.py   causes, and what is said of one
    limits.py    every threshold
    windows.py   the run by intervals, and where in it a rule holds
    steps.py     calls of all ranks side by side: who was late, what was lost
    links.py ranks.py traffic.py host.py     a rule each for what can be wrong with those
    diagnose.py  all rules, ranked

    cases.py campaign.py evaluate.py emulated.py     faults on purpose, simulated and emulated
    score.py report.py                               how many of them are found, and how that is said

What ports and adapters count of congestion is read by ``emu/telemetry/diagnosis.py``, on which this builds.
"""
