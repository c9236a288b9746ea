"""Many requests: those that are there already are kept, the others made, in several processes where wanted."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from .request import Request
from .store import (
    MANIFEST,
    Layout,
    check_manifest,
    check_replaceable,
    finished_entry,
    remove_unfinished,
    write_case,
    write_manifest,
)


def make_all(
    folder: Path,
    requests: list[Request],
    layout: Layout,
    *,
    jobs: int = 1,
    force: bool = False,
    on_done: Callable[[str, bool], None] = lambda name, made: None,
) -> Path:
    """Writes every case and the manifest, whose path it returns; `on_done` hears each name and whether it was made.

    A run that is interrupted leaves whole cases and no manifest over them; the next run goes on from there. Raises
    ValueError for two requests of one name, for a case that is there but not as asked for (without `force`), and for
    what is there and was not made here, which `force` does not replace either.
    """
    names = [request.name for request in requests]
    taken: dict[str, str] = {}
    for name in names:  # in upper and lower case they would be one folder on some disks
        other = taken.setdefault(name.casefold(), name)
        if other is not name:
            twice = f"{name} twice" if other == name else f"{other} and {name}, which differ in case alone"
            raise ValueError(f"name: {twice}; accepted: a name of its own for each case")
    folder.mkdir(parents=True, exist_ok=True)
    check_manifest(folder)
    if force:
        for name in names:
            if os.path.lexists(folder / name):
                check_replaceable(folder / name)
    remove_unfinished(folder)
    entries: dict[str, dict[str, Any]] = {}
    if not force:
        for request in requests:
            entry = finished_entry(folder, request, layout)
            if entry is not None:
                entries[request.name] = entry
                on_done(request.name, False)
    left = [request for request in requests if request.name not in entries]
    if left:  # what it says is about to be no longer so
        (folder / MANIFEST).unlink(missing_ok=True)
    if jobs == 1 or len(left) < 2:
        for request in left:
            entries[request.name] = write_case(folder, request, layout)
            on_done(request.name, True)
    else:
        _make_in_processes(folder, left, layout, min(jobs, len(left)), entries, on_done)
    return write_manifest(folder, [entries[name] for name in names])


def _make_in_processes(
    folder: Path,
    requests: list[Request],
    layout: Layout,
    jobs: int,
    entries: dict[str, dict[str, Any]],
    on_done: Callable[[str, bool], None],
) -> None:
    """Processes that are spawned: a fork would copy the threads of the core in whatever state they are.

    They never hear of an interrupt, which a terminal sends to all of them, but are ended by this process; and they end
    when it does.
    """
    before = set(multiprocessing.active_children())
    # Blocked while they start, which they inherit: they have no handler before they have imported this.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_with_parent) as pool:
            try:
                pending = {pool.submit(write_case, folder, request, layout): request.name for request in requests}
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                while pending:
                    done, _ = wait(pending, return_when=FIRST_COMPLETED)
                    for future in done:
                        name = pending.pop(future)
                        entries[name] = future.result()
                        on_done(name, True)
            except KeyboardInterrupt:
                for process in set(multiprocessing.active_children()) - before:
                    process.terminate()
                raise
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    except KeyboardInterrupt:
        remove_unfinished(folder)  # of those that were ended
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
