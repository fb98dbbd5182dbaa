"""Actors: one Ray actor per share of the fabric, and the backend that owns them.  The only room that imports ray.

Two planes: Ray carries control (create, connect, begin, run, abort, stop), ZeroMQ carries frames.  There is no Ray call per
step.

    actor.py      a share of the fabric in its own process
    backend.py    starts, watches and ends all of them; the emulating driver behind a session
    cluster.py    the Ray that they run on
    exporter.py   one on each node: what they counted, for Prometheus
    pickling.py   a user's function there, its results back
"""
