"""Many requests: those that are there already are kept, the others made, in several processes where wanted."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from .request import Request
from .store import Layout, finished_entry, remove_unfinished, write_case, write_manifest


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
    ValueError for two requests of one name and for a case that is there but not as asked for (without `force`).
    """
    names = [request.name for request in requests]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"name: {twice[0]} twice; accepted: a name of its own for each case")
    folder.mkdir(parents=True, exist_ok=True)
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
        (folder / "manifest.json").unlink(missing_ok=True)
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
    """Processes that are spawned: a fork would copy the threads of the core in whatever state they are."""
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        pending = {pool.submit(write_case, folder, request, layout): request.name for request in requests}
        try:
            while pending:
                done, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    name = pending.pop(future)
                    entries[name] = future.result()
                    on_done(name, True)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
