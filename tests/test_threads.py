"""Threads: forked children, concurrent callers, the environment of floating point, signals."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import groupnorm
from conftest import bits
from groupnorm import _core, cases
from groupnorm.cases import Case

CASE = Case("case", (4, 32, 40, 40), 8)
ORDER = ("dy", "x", "mean", "rstd", "gamma")


def _arguments(seed=1):
    inputs = cases.make(CASE, np.float32, seed=seed)
    return [getattr(inputs, name) for name in ORDER]


def _run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_default_is_what_the_process_may_use(monkeypatch, threads_kept):
    groupnorm.threads._forced = None
    monkeypatch.delenv("GROUPNORM_NUM_THREADS", raising=False)
    assert 1 <= groupnorm.get_num_threads() <= len(os.sched_getaffinity(0))
    pinned = _run("import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); import groupnorm; "
                  "print(groupnorm.get_num_threads())", GROUPNORM_NUM_THREADS="")  # fmt: skip
    assert pinned.stdout.strip() == "1", pinned.stderr


def test_forked_child_of_a_threaded_process_finishes():
    arguments = _arguments()
    expected = bits(groupnorm.group_norm_backward(*arguments, num_threads=4).dx)
    for _ in range(3):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                again = bits(groupnorm.group_norm_backward(*arguments, num_threads=4).dx)
                status = 0 if again == expected else 2
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    assert bits(groupnorm.group_norm_backward(*arguments, num_threads=4).dx) == expected


def test_fork_while_other_threads_compute():
    result = _run(
        """
        import os, threading, numpy as np, groupnorm
        from groupnorm import cases
        inputs = cases.make(cases.Case("case", (4, 32, 40, 40), 8), np.float32)
        call = lambda: groupnorm.group_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, num_threads=3)
        stop = threading.Event()
        def work():
            while not stop.is_set():
                call()
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            child = os.fork()
            if child == 0:
                call()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.join()
        print("done")
        """
    )
    assert result.stdout.strip() == "done", result.stderr


def test_fork_in_the_middle_of_a_first_call():
    """What the first call finds out (CPUs, caches, ...) is not left half done in a child (it was, once in 20)."""
    result = _run(
        """
        import os, threading, numpy as np, groupnorm
        x = np.ones((4, 32, 40, 40), np.float32)
        call = lambda: groupnorm.group_norm_backward(x, x, x[:, :8, 0, 0], x[:, :8, 0, 0], num_threads=2)
        for _ in range(100):
            child = os.fork()  # one that has not called yet
            if child == 0:
                threads = [threading.Thread(target=call) for _ in range(2)]
                for thread in threads:
                    thread.start()
                for _ in range(4):
                    grandchild = os.fork()
                    if grandchild == 0:
                        call()
                        os._exit(0)
                    os.waitpid(grandchild, 0)
                os._exit(0)
            os.waitpid(child, 0)
        print("done")
        """
    )
    assert result.stdout.strip() == "done", result.stderr


def test_concurrent_callers_get_their_own_results():
    jobs = {seed: _arguments(seed) for seed in range(8)}
    expected = {seed: bits(groupnorm.group_norm_backward(*a, num_threads=1).dx) for seed, a in jobs.items()}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            futures = {
                seed: pool.submit(groupnorm.group_norm_backward, *a, num_threads=1 + seed % 4)
                for seed, a in jobs.items()
            }
            assert all(bits(future.result().dx) == expected[seed] for seed, future in futures.items())


def test_the_gil_is_released():
    case = Case("large", (8, 32, 256, 256), 8)
    inputs = cases.make(case, np.float32)
    arguments = [getattr(inputs, name) for name in ORDER]
    result = []
    import threading

    thread = threading.Thread(target=lambda: result.append(groupnorm.group_norm_backward(*arguments, num_threads=1)))
    thread.start()
    turns = 0
    while thread.is_alive():
        turns += 1  # runs only while the other thread does not hold the GIL
    thread.join()
    assert result
    assert turns > 1000


@pytest.mark.parametrize("threads", [1, 2])
def test_floating_point_environment_of_the_host_program_does_not_count(threads):
    """Subnormals are kept when the caller flushes them, and his setting is put back."""
    torch = pytest.importorskip("torch", reason="torch is not installed: `make test` installs it")
    case = Case("subnormal", (2, 8, 64, 64), 2)
    inputs = cases.make(case, np.float32)
    inputs = inputs._replace(dy=(inputs.dy * np.float32(2.0**-130)).astype(np.float32))
    arguments = [getattr(inputs, name) for name in ORDER]
    expected = [bits(a) for a in groupnorm.group_norm_backward(*arguments, num_threads=threads)]
    assert torch.set_flush_denormal(True)
    try:
        assert (np.float32(1e-40) * np.float32(1)) == 0
        found = [bits(a) for a in groupnorm.group_norm_backward(*arguments, num_threads=threads)]
        assert (np.float32(1e-40) * np.float32(1)) == 0
    finally:
        torch.set_flush_denormal(False)
    assert found == expected


def test_interrupt_leaves_no_lock_behind():
    result = _run(
        """
        import signal, numpy as np, groupnorm
        from groupnorm import cases
        inputs = cases.make(cases.Case("case", (8, 32, 128, 128), 8), np.float32)
        call = lambda: groupnorm.group_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, num_threads=2)
        caught = 0
        for _ in range(10):
            signal.setitimer(signal.ITIMER_REAL, 0.003)
            try:
                for _ in range(100):
                    call()
            except KeyboardInterrupt:
                caught += 1
        call()
        print(caught)
        """.replace(
            "import signal,", "import signal; signal.signal(signal.SIGALRM, signal.default_int_handler); import"
        )
    )
    assert result.stdout.strip() == "10", result.stderr
    assert signal.getsignal(signal.SIGINT) is not None


def test_child_of_a_pool_of_processes():
    result = _run(
        """
        import multiprocessing, numpy as np, groupnorm
        from groupnorm import cases
        inputs = cases.make(cases.Case("case", (4, 32, 40, 40), 8), np.float32)
        def call(_):
            grads = groupnorm.group_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, num_threads=2)
            return grads.dx.tobytes()
        expected = call(0)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(set(pool.map(call, range(6))) == {expected})
        """
    )
    assert result.stdout.strip() == "True", result.stderr


def test_maximum_of_threads_is_accepted():
    arguments = _arguments()
    expected = bits(groupnorm.group_norm_backward(*arguments, num_threads=1).dx)
    assert bits(groupnorm.group_norm_backward(*arguments, num_threads=_core.MAX_THREADS).dx) == expected
