"""Buffers: what a collective asks of the user's arrays before anything is sent.

Law: arrays are checked and never changed; what passes has one flat view, or a flat
copy that is written back, so that the executor knows contiguous memory only.
"""

from __future__ import annotations

import numpy as np

from emu.collectives.call import Call
from emu.collectives.reduce import Array
from emu.errors import ConfigError


def require_array(collective: str, array: object) -> Array:
    """The array.  Raises ConfigError for anything but numpy's, and for kinds that a flat view does not tell the whole of:
    a MaskedArray has elements that do not count, and a matrix stays two-dimensional."""
    if isinstance(array, np.ma.MaskedArray):
        raise ConfigError(f"{collective}: a MaskedArray cannot be sent, its mask would be lost; give array.filled(value)")
    if not isinstance(array, np.ndarray) or isinstance(array, np.matrix):
        raise ConfigError(f"{collective}: {type(array).__name__} is not a numpy array; convert it with numpy.asarray")
    return array


def needed(array: Array | None, collective: str, what: str) -> Array:
    """The root's array.  Raises ConfigError where it is missing."""
    if array is None:
        raise ConfigError(f"{collective}: the root needs a {what} array")
    return array


def check_sizes(collective: str, send: Array, recv: Array, recv_factor: int, send_factor: int, n_ranks: int) -> None:
    """Raises ConfigError unless dtypes are equal and send.size x recv_factor = recv.size x send_factor."""
    require_array(collective, send), require_array(collective, recv)
    if send.dtype != recv.dtype:
        raise ConfigError(f"{collective}: send is {send.dtype}, recv is {recv.dtype}; they must be the same")
    if send.size * recv_factor != recv.size * send_factor:
        raise ConfigError(
            f"{collective}: send has {send.size} elements and recv {recv.size}; with {n_ranks} ranks"
            f" {send.size} x {recv_factor} must equal {recv.size} x {send_factor}"
        )


def stage(array: Array | None, *, output: bool) -> tuple[Array | None, list[tuple[Array, Array]]]:
    """A flat view, or a flat copy that is written back at the end where the array is not contiguous.

    Raises ConfigError for an output that cannot be written.
    """
    if array is None:
        return None, []
    if array.flags.c_contiguous:
        return array.reshape(-1), []
    if output and not array.flags.writeable:
        raise ConfigError("the receive array is read-only (expanded or broadcast arrays cannot be written)")
    copy = np.ascontiguousarray(array).reshape(-1)
    return copy, [(array, copy)] if output else []


def check_overlap(call: Call, index: int, send: Array | None, recv: Array | None) -> None:
    """NCCL's in-place rule: equal pointers (at the rank's block), or no overlap at all.

    ``index``: the caller's position.  Raises ConfigError for other overlaps and for a receive array that cannot be written.
    """
    if recv is None or not call.count:
        return
    if not recv.flags.writeable:
        raise ConfigError(f"{call.collective}: the receive array is read-only; give a writeable one")
    if send is None or (send is recv and not call.collective.startswith("alltoall")):
        return
    if not np.may_share_memory(send, recv) or not (send.flags.c_contiguous and recv.flags.c_contiguous):
        return
    block = call.count * call.itemsize
    send_at = send.__array_interface__["data"][0]
    recv_at = recv.__array_interface__["data"][0]
    offset = {
        "all_gather": index * block,
        "gather": index * block,
        "reduce_scatter": -index * block,
        "scatter": -index * block,
    }.get(call.collective, 0)
    if call.collective.startswith("alltoall"):
        raise ConfigError(f"{call.collective}: send and recv overlap, and it does not work in place; use separate arrays")
    if send_at - recv_at != offset:
        raise ConfigError(
            f"{call.collective}: send and recv overlap but are not in place by NCCL's rule (recv at send {-offset:+d} bytes);"
            " use separate arrays"
        )
