"""What this machine is: the name of its CPU, and its caches."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import NamedTuple

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


class Caches(NamedTuple):
    """The caches of the first CPU, in bytes, as csrc/core/cache.h finds them."""

    core: int  # level 2: what a core has to itself
    last: int  # the largest level
    sharing: int  # CPUs that share the largest level

    def share(self, threads: int) -> int:
        """What one of so many threads can keep: its core's cache, or its part of the last where that is more."""
        return max(self.core, self.last // max(1, min(threads, self.sharing)))


def cpu_name() -> str:
    """The model of the CPU, as the kernel tells it."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _count(cpus: str) -> int:
    """How many CPUs a list such as 0-3,8 names."""
    spans = [part.split("-") for part in cpus.strip().split(",")]
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)


def caches() -> Caches:
    """As Linux reports them; 512 KiB, 8 MiB and one CPU where it does not."""
    found = Caches(512 * 1024, 8 * 1024 * 1024, 1)
    largest = 1
    for folder in sorted(_CACHES.glob("index*")):
        try:
            level = int((folder / "level").read_text())
            size = int((folder / "size").read_text().strip().removesuffix("K")) * 1024
            sharing = _count((folder / "shared_cpu_list").read_text())
        except (OSError, ValueError):
            continue
        if level == 2:
            found = found._replace(core=size)
        if level >= max(2, largest):
            largest = level
            found = found._replace(last=size, sharing=sharing)
    return found
