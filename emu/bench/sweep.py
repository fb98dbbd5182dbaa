"""The rows of a table: which sizes -b, -e, -f and -i ask for."""

from __future__ import annotations

from collections.abc import Iterator

from emu.bench.options import BenchOptions


def sizes_bytes(options: BenchOptions) -> Iterator[int]:
    """Sizes from -b to -e, as nccl-tests steps them: times the factor, or plus the step.

    A factor leaves 0 at once (0, 1, ...), and each size is larger than the one before, however small the factor.
    """
    size = options.begin_bytes
    while size <= options.end_bytes:
        yield size
        if options.step_factor > 1:
            size = max(size + 1, int(size * options.step_factor))
        else:
            size += options.step_bytes
