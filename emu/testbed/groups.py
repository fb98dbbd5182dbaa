"""Groups: many alike in a line, and only what is unlike by name.

Law: the largest group is the rule.  Another is listed by name only while it is small, at most a quarter of all and at most ten;
a larger one is a second kind, not an exception, and gets a line without names.  NCCL's RAS prints communicators by this rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MOST_OUTLIERS: Final = 10
MOST_OUTLIER_SHARE: Final = 0.25


def grouped(members: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each group of (name, what is told of it): ``7 alike: 21 MB sent`` and ``but a3: 10 MB sent``."""
    found: dict[str, list[str]] = {}
    for name, told in members:
        found.setdefault(told, []).append(name)
    n_all = sum(map(len, found.values()))
    lines: list[str] = []
    for told, names in sorted(found.items(), key=lambda item: -len(item[1])):
        outliers = bool(lines) and len(names) <= min(MOST_OUTLIERS, MOST_OUTLIER_SHARE * n_all)
        alike = f"{len(names)} alike" if len(names) > 1 else names[0]
        lines.append(f"but {', '.join(names)}: {told}" if outliers else f"{alike}: {told}")
    return lines
