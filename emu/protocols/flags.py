"""Flags: what a protocol writes between its data, so that a receiver sees each piece of a message come without a fence.

    LL       4 bytes after each 4 of data: twice the bytes
    LL128    8 bytes after each 120: a 15th more
    Simple   none

Law: flags are written into the receiver's buffer with the data, also by a host's proxy through a network, so that on links and in
ports, windows and buffers a message is ``flagged_bytes`` long; what is counted as payload, carried and checked is its data.
Of calls without a protocol (barriers, control data) both are the same.  Source: NCCL, ``src/include/device.h`` (its lines),
``src/device/prims_ll.h`` and ``prims_ll128.h``.

Not modelled: that a message ends with a whole line of 16 or 128 bytes.
"""

from __future__ import annotations

from typing import Final

from emu.protocols.legal import Protocol

FLAG_EVERY_BYTES: Final = {"": 0, str(Protocol.SIMPLE): 0, str(Protocol.LL): 1, str(Protocol.LL128): 15}
"""Data to each byte of flags; 0 where there are none."""


def flagged_bytes(n_bytes: int, flag_every_bytes: int) -> int:
    """So much data with its flags, rounded up."""
    return n_bytes - -n_bytes // flag_every_bytes if flag_every_bytes else n_bytes


def data_bytes(n_bytes: int, flag_every_bytes: int) -> int:
    """The most data that is no longer than ``n_bytes`` with its flags; at least a byte."""
    return max(1, n_bytes * flag_every_bytes // (flag_every_bytes + 1)) if flag_every_bytes else n_bytes
