"""The host runtime for the tests of it: a device, streams, memory, and work that waits to be let go."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from groupnorm import aclnn
from groupnorm.aclnn.prototypes import CALLBACK

H2D, D2H, D2D, DEFAULT = 1, 2, 3, 4
acl = aclnn.load("host")


@pytest.fixture(autouse=True)
def device():
    """ACL initialised, device 0 in this thread; both given back, and nothing left behind."""
    assert acl.init() == 0
    assert acl.rt.set_device(0) == 0
    yield
    assert acl.rt.reset_device_force(0) == 0
    assert acl.finalize() == 0


@pytest.fixture
def stream():
    made, ret = acl.rt.create_stream()
    assert ret == 0
    yield made
    assert acl.rt.destroy_stream(made) in (0, 107003)


@pytest.fixture
def memory():
    """256 bytes on the device."""
    made, ret = acl.rt.malloc(256, 0)
    assert ret == 0
    yield made
    acl.rt.free(made)


@pytest.fixture
def strict(monkeypatch):
    monkeypatch.setenv("GROUPNORM_ACL_STRICT", "1")


def message():
    return acl.get_recent_err_msg()


def in_thread(function):
    """What a function returns in a thread of its own."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join(60)
    return results[0]


def python(code, **environment):
    """Standard error of a program of its own that begins with device 0."""
    begin = "from groupnorm import aclnn\nacl = aclnn.load('host')\nacl.init(); acl.rt.set_device(0)\n"
    result = subprocess.run(
        [sys.executable, "-c", begin + code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stderr


class Gate:
    """Work that holds a stream until it is opened."""

    def __init__(self, stream):
        self.entered, self.opened = threading.Event(), threading.Event()
        self._callback = CALLBACK(self._run)
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,))
        self._stop = False
        self._thread.start()
        ready.wait(10)
        self.stream = stream
        assert acl.rt.subscribe_report(self._id, stream) == 0
        assert acl.rt.launch_callback(self._callback, None, 1, stream) == 0

    def _serve(self, ready):
        self._id = threading.get_ident()
        ready.set()
        while not self._stop:
            acl.rt.process_report(5)

    def _run(self, _):
        self.entered.set()
        self.opened.wait(30)

    def open(self):
        self.opened.set()

    def close(self):
        self.open()
        acl.rt.synchronize_stream(self.stream)
        acl.rt.unsubscribe_report(self._id, self.stream)
        self._stop = True
        self._thread.join(10)


@pytest.fixture
def gate(stream):
    made = Gate(stream)
    yield made
    made.close()
