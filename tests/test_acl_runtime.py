"""The host runtime through pyACL's manner: devices, contexts, memory, streams, events, callbacks, and their errors."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from groupnorm import aclnn
from groupnorm.aclnn.prototypes import CALLBACK, MallocAttribute, MallocConfig

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


# ---- the process ----


def test_init_and_finalize_count():
    assert acl.init() == 100002
    assert "already" in message()
    assert acl.finalize_reference() == (1, 0)
    assert acl.finalize() == 0
    assert acl.finalize() == 100037
    assert acl.finalize_reference()[-1] == 100037
    assert acl.init() == 0


def test_a_configuration_is_read_and_has_to_stay(tmp_path):
    config = tmp_path / "acl.json"
    config.write_text("{}")
    acl.finalize()
    assert acl.init(str(tmp_path / "missing.json")) == 100003
    assert "missing.json" in message()
    assert acl.init(str(config)) == 0
    assert acl.init(str(config)) == 100002
    assert acl.init() == 100002  # null has no opinion
    config.write_text('{"changed": 1}')
    assert acl.init(str(config)) == 100000


def test_versions():
    assert acl.rt.get_version() == (1, 17, 0, 0)
    version, ret = acl.sys.get_cann_version(0)
    assert ret == 0
    assert version.version.startswith(version.majorVersion + b".")
    number, ret = acl.sys.get_version_num("runtime")
    assert (number > 0, ret) == (True, 0)


def test_messages_belong_to_their_thread_and_are_given_once():
    assert acl.rt.malloc(0, 0)[-1] == 100000
    assert in_thread(message) is None
    assert in_thread(lambda: (acl.rt.free(None), message())[1]).endswith("devPtr is null; accepted: a pointer [100000]")
    assert "aclrtMalloc: size is 0; accepted: 1 or more [100000]" in message()
    assert message() is None


def test_the_last_error_is_kept_until_it_is_fetched():
    acl.rt.get_last_error(0)
    assert acl.rt.malloc(0, 0)[-1] == 100000
    assert acl.rt.get_device()[-1] == 0
    assert acl.rt.peek_at_last_error(0) == 100000
    assert acl.rt.get_last_error(0) == 100000
    assert acl.rt.get_last_error(0) == 0


# ---- devices and contexts ----


def test_devices_are_counted_by_the_environment(monkeypatch):
    assert acl.rt.get_device_count() == (1, 0)
    assert acl.rt.set_device(1) == 107001
    assert "deviceId is 1; accepted: 0 to 0" in message()
    monkeypatch.setenv("GROUPNORM_ACL_DEVICES", "3")
    assert acl.rt.get_device_count() == (3, 0)
    assert acl.rt.set_device(2) == 0
    assert acl.rt.get_device() == (2, 0)
    assert acl.rt.reset_device(2) == 0
    for bad in ("0", "65", "two", ""):
        monkeypatch.setenv("GROUPNORM_ACL_DEVICES", bad)
        assert acl.rt.get_device_count()[-1] == 207004
        assert f"GROUPNORM_ACL_DEVICES is '{bad}'" in message()


@pytest.mark.parametrize("device", [-1, 1, 2**31 - 1, -(2**31)])
def test_a_device_that_is_not_there(device):
    assert acl.rt.set_device(device) == 107001
    assert acl.rt.create_context(device)[-1] == 107001
    assert acl.rt.reset_device(device) == 107001


def test_a_thread_without_a_context():
    """The rule that programs with threads trip over: the device is set per thread."""
    assert in_thread(lambda: acl.rt.malloc(8, 0)[-1]) == 107002
    assert in_thread(lambda: acl.rt.create_stream()[-1]) == 107002
    assert in_thread(lambda: acl.rt.synchronize_device()) == 107002
    assert "call aclrtSetDevice" in in_thread(lambda: (acl.rt.get_device(), message())[1])
    context, _ = acl.rt.get_context()
    assert in_thread(lambda: (acl.rt.set_context(context), acl.rt.malloc(0, 0)[-1])) == (0, 100000)


def test_resetting_counts_and_the_last_takes_the_context():
    assert acl.rt.set_device(0) == 0
    assert acl.rt.reset_device(0) == 0
    stream, ret = acl.rt.create_stream()
    assert ret == 0
    assert acl.rt.reset_device(0) == 0
    assert acl.rt.get_context()[-1] == 107002
    assert acl.rt.reset_device(0) == 107002
    assert acl.rt.set_device(0) == 0
    assert acl.rt.synchronize_stream(stream) == 107003


def test_contexts_own_their_streams(memory):
    first, _ = acl.rt.get_context()
    stream, _ = acl.rt.create_stream()
    second, ret = acl.rt.create_context(0)
    assert ret == 0
    assert acl.rt.get_context() == (second, 0)
    assert acl.rt.synchronize_stream(stream) == 107003
    assert "another context" in message()
    assert acl.rt.memset_async(memory, 8, 0, 8, stream) == 107003
    assert acl.rt.destroy_context(second) == 0
    assert acl.rt.get_context()[-1] == 107002
    assert acl.rt.set_context(second) == 107000
    assert acl.rt.set_context(first) == 0
    assert acl.rt.destroy_context(first) == 107000
    assert acl.rt.destroy_stream(stream) == 0


def test_the_default_stream_stands_for_null(memory):
    default, ret = acl.rt.ctx_get_current_default_stream()
    assert ret == 0
    assert acl.rt.memset_async(memory, 4, 7, 4, None) == 0
    assert acl.rt.synchronize_stream(default) == 0
    assert acl.rt.destroy_stream(default) == 107000
    assert acl.rt.destroy_stream(None) == 100000


def test_what_a_device_says_of_itself():
    assert acl.get_soc_name() == "Ascend910B1"
    assert in_thread(acl.get_soc_name) is None
    assert acl.rt.get_run_mode() == (1, 0)
    assert acl.rt.get_device_info(0, 201) == (48, 0)
    assert acl.rt.get_device_info(0, 601)[-1] == 207000
    assert acl.rt.get_device_capability(0, 1) == (0, 0)
    free, total, ret = acl.rt.get_mem_info(1)
    assert (0 < free <= total, ret) == (True, 0)


def test_parameters_of_the_system_and_of_a_context():
    acl.rt.ctx_get_sys_param_opt(1)
    assert acl.rt.ctx_get_sys_param_opt(0)[-1] == 107021
    assert acl.rt.ctx_set_sys_param_opt(0, 1) == 0
    assert acl.rt.ctx_get_sys_param_opt(0) == (1, 0)
    assert acl.rt.set_sys_param_opt(0, 3) == 107000
    assert acl.rt.set_sys_param_opt(9, 1) == 100000
    assert acl.rt.set_sys_param_opt(0, 1) == 0
    assert acl.rt.get_sys_param_opt(0) == (1, 0)
    assert acl.rt.get_device_sat_mode() == (1, 0)
    assert acl.rt.set_device_sat_mode(0) == 207000
    assert acl.rt.set_device_sat_mode(1) == 0


# ---- memory ----


def test_memory_goes_there_and_back(memory):
    host = np.arange(64, dtype=np.float32)
    back = np.empty_like(host)
    assert memory % 64 == 0
    assert acl.rt.memcpy(memory, 256, host.ctypes.data, 256, H2D) == 0
    assert acl.rt.memcpy(back.ctypes.data, 256, memory, 256, D2H) == 0
    assert (back == host).all()
    other, _ = acl.rt.malloc(256, 0)
    assert acl.rt.memcpy(other, 256, memory, 256, D2D) == 0
    assert acl.rt.memset(memory, 256, 0, 128) == 0
    assert acl.rt.memcpy(back.ctypes.data, 256, memory, 256, DEFAULT) == 0
    assert (back == np.where(np.arange(64) < 32, 0, host)).all()
    assert acl.rt.memcpy2d(back.ctypes.data, 16, other, 32, 8, 4, D2H) == 0
    assert (back[:16].reshape(4, 4)[:, :2] == host[:32].reshape(4, 8)[:, :2]).all()
    assert acl.rt.free(other) == 0


MISTAKES = {
    "destMax": (lambda m, h: acl.rt.memcpy(m, 8, h, 16, H2D), 107000, "count is 16; accepted: up to destMax, 8"),
    "past the end": (
        lambda m, h: acl.rt.memcpy(m, 512, h, 257, H2D),
        107000,
        "1 more than its allocation of 256 bytes",
    ),
    "into the middle": (lambda m, h: acl.rt.memcpy(m + 250, 8, h, 8, H2D), 107000, "dst takes 8 bytes"),
    "from past the end": (lambda m, h: acl.rt.memcpy(h, 512, m, 512, D2H), 107000, "src takes 512 bytes"),
    "null dst": (lambda m, h: acl.rt.memcpy(None, 8, h, 8, H2D), 100000, "dst is null"),
    "null src": (lambda m, h: acl.rt.memcpy(m, 8, None, 8, H2D), 100000, "src is null"),
    "kind": (lambda m, h: acl.rt.memcpy(m, 8, h, 8, 9), 100000, "kind is 9"),
    "memset": (lambda m, h: acl.rt.memset(m, 8, 0, 9), 107000, "count is 9; accepted: up to maxCount, 8"),
    "memset past the end": (lambda m, h: acl.rt.memset(m, 300, 0, 300), 107000, "44 more"),
    "memset async": (lambda m, h: acl.rt.memset_async(m, 8, 0, 9, None), 107000, "count is 9"),
    "memcpy async": (lambda m, h: acl.rt.memcpy_async(m, 8, h, 9, H2D, None), 107000, "count is 9"),
    "pitch": (lambda m, h: acl.rt.memcpy2d(m, 4, h, 8, 8, 2, H2D), 107000, "width is 8"),
    "rows": (lambda m, h: acl.rt.memcpy2d(m, 128, h, 128, 128, 3, H2D), 107000, "dst takes 384 bytes"),
    "rows without end": (lambda m, h: acl.rt.memcpy2d(m, 2**63, h, 8, 8, 2**40, H2D), 107000, "height is"),
    "free of the host's": (lambda m, h: acl.rt.free(h), 107000, "not device memory"),
    "free of the middle": (lambda m, h: acl.rt.free(m + 8), 107000, "8 bytes into an allocation"),
    "free of null": (lambda m, h: acl.rt.free(None), 100000, "devPtr is null"),
    "free as host memory": (lambda m, h: acl.rt.free_host(m), 107000, "aclrtFree frees device memory"),
    "size 0": (lambda m, h: acl.rt.malloc(0, 0)[-1], 100000, "size is 0"),
    "policy": (lambda m, h: acl.rt.malloc(8, 8)[-1], 100000, "policy is 8"),
    "more than there is": (lambda m, h: acl.rt.malloc(2**62, 0)[-1], 207001, "bytes, what is free"),
    "more than fits": (lambda m, h: acl.rt.malloc(2**64 - 1, 0)[-1], 207001, "bytes, what is free"),
    "host size 0": (lambda m, h: acl.rt.malloc_host(0)[-1], 100000, "size is 0"),
    "host size": (lambda m, h: acl.rt.malloc_host(2**64 - 1)[-1], 207001, "more than the host has"),
    "flush": (lambda m, h: acl.rt.mem_flush(h, 8), 107000, "not device memory"),
}


@pytest.mark.parametrize(("call", "code", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_with_memory_is_named(call, code, words, memory):
    host = np.full(1024, 7, np.uint8)
    assert acl.rt.memset(memory, 256, 3, 256) == 0
    assert call(memory, host.ctypes.data) == code
    assert words in message()
    assert (host == 7).all()
    assert acl.rt.memcpy(host.ctypes.data, 256, memory, 256, D2H) == 0
    assert (host[:256] == 3).all()


def test_copies_that_do_nothing(memory):
    assert acl.rt.memcpy(memory, 0, memory, 0, D2D) == 0
    assert acl.rt.memcpy(memory, 256, memory, 256, D2D) == 0
    assert acl.rt.memset(memory, 0, 0, 0) == 0


def test_freed_memory_is_known_for_long(memory):
    """Also by kinds that do not say which side is the device's."""
    freed, _ = acl.rt.malloc(64, 0)
    host = np.zeros(64, np.uint8)
    assert acl.rt.free(freed) == 0
    for _ in range(100):
        other, _ = acl.rt.malloc(64, 0)
        assert other != freed
        assert acl.rt.free(other) == 0
    assert acl.rt.free(freed) == 107000
    assert "freed already" in message()
    for kind in (D2H, DEFAULT):
        assert acl.rt.memcpy(host.ctypes.data, 64, freed, 64, kind) == 107000
        assert "that was freed" in message()


def test_the_kind_is_a_hint_unless_strict(memory, monkeypatch):
    host = np.arange(16, dtype=np.uint8)
    assert acl.rt.memcpy(memory, 16, host.ctypes.data, 16, D2D) == 0
    monkeypatch.setenv("GROUPNORM_ACL_STRICT", "1")
    assert acl.rt.memcpy(memory, 16, host.ctypes.data, 16, D2D) == 107000
    assert "src is 0x" in message()
    assert acl.rt.memcpy(host.ctypes.data, 16, memory, 16, 0) == 107000


def test_where_a_pointer_points(memory):
    block, _ = acl.rt.malloc_host(16)
    assert [acl.rt.pointer_get_attributes(p)[0].type for p in (memory, memory + 255, block, id(acl))] == [1, 1, 0, 2]
    assert acl.rt.memcpy(block, 32, memory, 32, D2H) == 107000
    assert "16 more than its block" in message()
    assert acl.rt.free(block) == 107000
    assert "aclrtFreeHost frees this one" in message()
    assert acl.rt.free_host(block) == 0
    assert acl.rt.free_host(block) == 107000


def test_memory_with_a_configuration():
    attributes = (MallocAttribute * 1)(MallocAttribute(1, 7))
    config = MallocConfig(attributes, 1)
    pointer, ret = acl.rt.malloc_with_cfg(64, 0, ctypes.byref(config))
    assert ret == 0
    assert acl.rt.free(pointer) == 0
    attributes[0].attr = 9
    assert acl.rt.malloc_with_cfg(64, 0, ctypes.byref(config))[-1] == 100000
    assert "cfg->attrs[0].attr is 9" in message()


def test_the_books_of_memory_balance():
    before = acl.rt.get_mem_info(1)[0]
    pointers = [acl.rt.malloc(2**20 + i, 0)[0] for i in range(16)]
    assert before - acl.rt.get_mem_info(1)[0] == 16 * 2**20 + sum(range(16))
    assert [acl.rt.free(pointer) for pointer in pointers] == [0] * 16
    assert acl.rt.get_mem_info(1)[0] == before


def test_a_leak_is_named_at_the_end():
    left = "acl.rt.malloc(1000, 0); acl.rt.create_event(); print(acl.finalize())"
    assert "aclFinalize: not freed: 1 allocation(s) of device memory, 1000 bytes" in python(left)
    assert python("assert acl.finalize() == 0") == ""
    assert "148051" in python(f"import sys; sys.stdout = sys.stderr; {left}", GROUPNORM_ACL_STRICT="1")


def test_a_device_before_aclinit_is_warned_of():
    code = "from groupnorm import aclnn\nacl = aclnn.load('host')\nprint(acl.rt.set_device(0))"
    for environment, out, err in (({}, "0", "called before aclInit"), ({"GROUPNORM_ACL_STRICT": "1"}, "100001", "")):
        result = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
        )
        assert (result.stdout.strip(), result.returncode) == (out, 0)
        assert err in result.stderr


# ---- streams ----


def test_streams_run_in_order_and_on_their_own(gate, stream, memory):
    other, _ = acl.rt.create_stream()
    host = np.zeros(4, np.uint8)
    gate.entered.wait(10)
    for value in (1, 2, 3):
        assert acl.rt.memset_async(memory, 4, value, 4, stream) == 0
    assert acl.rt.memcpy_async(host.ctypes.data, 4, memory, 4, D2H, stream) == 0
    assert acl.rt.stream_query(stream) == (1, 0)
    assert acl.rt.synchronize_stream_with_timeout(stream, 20) == 507046
    assert acl.rt.synchronize_stream(other) == 0
    assert (host == 0).all()
    gate.open()
    assert acl.rt.synchronize_stream(stream) == 0
    assert (host == 3).all()
    assert acl.rt.stream_query(stream) == (0, 0)
    assert acl.rt.destroy_stream(other) == 0


@pytest.mark.parametrize(("priority", "flag", "code"), [(0, 0, 0), (7, 0x3F, 0), (8, 0, 107000), (0, 0x40, 107000)])
def test_streams_with_a_configuration(priority, flag, code):
    stream, ret = acl.rt.create_stream_with_config(priority, flag)
    assert ret == code
    if code == 0:
        assert acl.rt.destroy_stream_force(stream) == 0


def test_a_stream_that_is_none(stream, memory):
    gone, _ = acl.rt.create_stream()
    assert acl.rt.destroy_stream(gone) == 0
    event, _ = acl.rt.create_event()
    for handle, words in (
        (gone, "already destroyed"),
        (event, "which is an aclrtEvent"),
        (12345, "not an aclrtStream"),
    ):
        assert acl.rt.synchronize_stream(handle) == 107003
        assert words in message()
        assert acl.rt.memset_async(memory, 4, 0, 4, handle) == 107003
        assert acl.rt.destroy_stream(handle) == 107003
    assert acl.rt.destroy_event(event) == 0
    assert acl.rt.synchronize_stream_with_timeout(stream, -2) == 107000


def test_aborting_drops_what_has_not_begun(gate, stream, memory):
    gate.entered.wait(10)
    acl.rt.memset(memory, 4, 1, 4)
    assert acl.rt.memset_async(memory, 4, 9, 4, stream) == 0
    threading.Timer(0.1, gate.open).start()
    assert acl.rt.stream_abort(stream) == 0
    assert acl.rt.synchronize_stream(stream) == 0
    host = np.zeros(4, np.uint8)
    assert acl.rt.memcpy(host.ctypes.data, 4, memory, 4, D2H) == 0
    assert (host == 1).all()


def test_synchronising_the_device_waits_for_all(gate):
    gate.entered.wait(10)
    assert acl.rt.synchronize_device_with_timeout(20) == 507046
    gate.open()
    assert acl.rt.synchronize_device() == 0


def test_memory_freed_in_use_is_warned_of(capfd, gate, stream):
    gate.entered.wait(10)
    pointer, _ = acl.rt.malloc(64, 0)
    assert acl.rt.memset_async(pointer, 64, 1, 64, stream) == 0
    assert acl.rt.free(pointer) == 0
    assert "is freed while queued work still uses it" in capfd.readouterr().err
    gate.open()
    assert acl.rt.synchronize_stream(stream) == 0


def test_host_memory_freed_in_use_ends_well(capfd, gate, stream):
    gate.entered.wait(10)
    size = 1 << 20
    pointer, _ = acl.rt.malloc(size, 0)
    block, _ = acl.rt.malloc_host(size)
    ctypes.memset(block, 7, size)
    assert acl.rt.memcpy_async(pointer, size, block, size, H2D, stream) == 0
    assert acl.rt.free_host(block) == 0
    assert "is freed while queued work still uses it" in capfd.readouterr().err
    gate.open()
    assert acl.rt.synchronize_stream(stream) == 0
    host = np.zeros(size, np.uint8)
    assert acl.rt.memcpy(host.ctypes.data, size, pointer, size, D2H) == 0
    assert (host == 7).all()
    assert acl.rt.free(pointer) == 0


def test_memory_freed_in_use_is_an_error_when_strict(strict, gate, stream):
    gate.entered.wait(10)
    pointer, _ = acl.rt.malloc(64, 0)
    host = np.zeros(64, np.uint8)
    assert acl.rt.memset_async(pointer, 64, 1, 64, stream) == 0
    assert acl.rt.free(pointer) == 207002
    assert acl.rt.memcpy(host.ctypes.data, 64, pointer, 64, D2H) == 507004
    assert "still written by queued work" in message()
    gate.open()
    assert acl.rt.synchronize_stream(stream) == 0
    assert acl.rt.memcpy(host.ctypes.data, 64, pointer, 64, D2H) == 0
    assert (host == 1).all()
    assert acl.rt.free(pointer) == 0


def test_a_stream_does_not_survive_a_fork(stream, memory):
    assert acl.rt.memset_async(memory, 4, 0, 4, stream) == 0
    assert acl.rt.synchronize_stream(stream) == 0
    child = os.fork()
    if child == 0:  # the context was the parent's; another can be had, and the memory is there
        codes = [acl.rt.synchronize_stream(stream), acl.rt.set_device(0), acl.rt.synchronize_stream(stream)]
        codes += [acl.rt.memset_async(memory, 4, 0, 4, None), acl.rt.synchronize_stream(None), acl.rt.free(memory)]
        os._exit(0 if codes == [107002, 0, 107003, 0, 0, 0] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- events ----


def test_events_order_streams_and_tell_time(gate, stream, memory):
    other, _ = acl.rt.create_stream()
    start, _ = acl.rt.create_event()
    end, _ = acl.rt.create_event()
    host = np.zeros(4, np.uint8)
    assert acl.rt.query_event_status(start) == (0, 0)
    assert acl.rt.event_elapsed_time(start, end)[-1] == 107006
    assert acl.rt.record_event(start, other) == 0
    assert acl.rt.memset_async(memory, 4, 5, 4, stream) == 0
    assert acl.rt.record_event(end, stream) == 0
    assert acl.rt.stream_wait_event(other, end) == 0
    assert acl.rt.memcpy_async(host.ctypes.data, 4, memory, 4, D2H, other) == 0
    assert acl.rt.synchronize_event(start) == 0
    assert acl.rt.synchronize_event_with_timeout(end, 30) == 507047
    assert acl.rt.query_event(end) == (1, 0)
    assert acl.rt.query_event_wait_status(end) == (1, 0)
    assert acl.rt.event_elapsed_time(start, end)[-1] == 107006
    assert (host == 0).all()
    gate.open()
    assert acl.rt.synchronize_stream(other) == 0
    assert (host == 5).all()
    assert acl.rt.query_event(end) == (0, 0)
    assert acl.rt.query_event_status(end) == (1, 0)
    assert acl.rt.query_event_wait_status(end) == (0, 0)
    elapsed, ret = acl.rt.event_elapsed_time(start, end)
    assert (elapsed > 20, ret) == (True, 0)
    assert acl.rt.event_elapsed_time(end, start)[-1] == 107007
    for event in (start, end):
        assert acl.rt.destroy_event(event) == 0
    assert acl.rt.destroy_event(end) == 107000
    assert acl.rt.destroy_stream(other) == 0


def test_event_times_are_real(stream):
    start, _ = acl.rt.create_event()
    end, _ = acl.rt.create_event()
    acl.rt.record_event(start, stream)
    acl.rt.synchronize_stream(stream)
    time.sleep(0.05)
    acl.rt.record_event(end, stream)
    acl.rt.synchronize_stream(stream)
    elapsed, ret = acl.rt.event_elapsed_time(start, end)
    assert (elapsed >= 50, ret) == (True, 0)
    for event in (start, end):
        acl.rt.destroy_event(event)


def test_an_event_without_time_keeps_none(stream):
    event, ret = acl.rt.create_event_with_flag(1)
    assert ret == 0
    assert acl.rt.record_event(event, stream) == 0
    assert acl.rt.synchronize_event(event) == 0
    assert acl.rt.event_elapsed_time(event, event)[-1] == 107006
    assert "ACL_EVENT_TIME_LINE" in message()
    assert acl.rt.reset_event(event, stream) == 0
    assert acl.rt.synchronize_stream(stream) == 0
    assert acl.rt.query_event_status(event) == (0, 0)
    assert acl.rt.destroy_event(event) == 0
    for flag in (0, 0x100):
        assert acl.rt.create_event_with_flag(flag)[-1] == 107000


def test_waiting_for_an_event_that_was_never_recorded(stream, strict):
    event, _ = acl.rt.create_event()
    assert acl.rt.synchronize_event(event) == 0
    assert acl.rt.stream_wait_event(stream, event) == 107000
    assert "never recorded" in message()
    assert acl.rt.destroy_event(event) == 0


@pytest.mark.parametrize("handle", [None, 1, 2**63])
def test_an_event_that_is_none(handle, stream):
    code = 100000 if handle is None else 107000
    for call in (acl.rt.synchronize_event, acl.rt.destroy_event, lambda e: acl.rt.query_event_status(e)[-1]):
        assert call(handle) == code
    assert acl.rt.record_event(handle, stream) == code
    assert acl.rt.stream_wait_event(stream, handle) == code


# ---- callbacks ----


def test_callbacks_run_in_the_thread_that_asked_for_them(stream):
    seen = []
    ran = threading.Event()

    @CALLBACK
    def callback(data):
        seen.append((data, threading.get_ident()))
        ran.set()

    def serve():
        me = threading.get_ident()
        assert acl.rt.process_report(1) == 107012
        assert acl.rt.subscribe_report(me, stream) == 0
        assert acl.rt.process_report(1) == 507012
        assert acl.rt.launch_callback(callback, 42, 0, stream) == 0
        assert acl.rt.process_report(5000) == 0
        assert acl.rt.unsubscribe_report(me, stream) == 0
        return me

    context, _ = acl.rt.get_context()
    assert acl.rt.launch_callback(callback, 42, 0, stream) == 107015
    me = in_thread(lambda: (acl.rt.set_context(context), serve())[1])
    assert seen == [(42, me)]
    assert acl.rt.unsubscribe_report(me, stream) == 107012


def test_one_thread_a_stream(stream):
    assert acl.rt.subscribe_report(1, stream) == 0
    assert acl.rt.subscribe_report(2, stream) == 107011
    assert acl.rt.unsubscribe_report(1, stream) == 0


# ---- what there is not, and what needs no device ----


def test_what_a_host_does_not_have():
    calls = [
        acl.mdl.load_from_file("model.om")[-1],
        acl.mdl.unload(1),
        acl.mdl.init_dump(),
        acl.mdl.set_dump("dump.json"),
        acl.mdl.finalize_dump(),
        acl.prof.init("profile", 7),
        acl.prof.finalize(),
        acl.op.set_model_dir("models"),
        acl.rt.launch_kernel(None, 1, None, 0, None),
    ]
    assert set(calls) == {200006}
    assert "aclrtLaunchKernel: not available on a host" in message()


def test_float16_conversions():
    """Every float16, the ties between neighbours, and what is beyond: it saturates."""
    bits = np.arange(2**16, dtype=np.uint16)
    halves = bits.view(np.float16)
    widened = np.array([acl.float16_to_float(int(b)) for b in bits], np.float32)
    assert np.array_equal(widened, halves.astype(np.float32), equal_nan=True)
    finite = halves[np.isfinite(halves)]
    assert [acl.float_to_float16(float(h)) for h in finite] == finite.view(np.uint16).tolist()
    ordered = np.sort(finite[finite >= 0]).astype(np.float32)
    ties = (ordered[:-1].astype(np.float64) + ordered[1:].astype(np.float64)) / 2
    expected = ties.astype(np.float16).view(np.uint16)
    assert [acl.float_to_float16(float(t)) for t in ties] == expected.tolist()
    assert [acl.float_to_float16(v) for v in (np.inf, 1e9, -np.inf, -7e4)] == [0x7BFF, 0x7BFF, 0xFBFF, 0xFBFF]
    assert acl.float_to_float16(float("nan")) & 0x7FFF == 0x7BFF


@pytest.mark.parametrize(
    ("dtype", "size"),
    [(0, 4), (1, 2), (27, 2), (11, 8), (12, 1), (17, 16), (13, 0), (-1, 0), (29, 1), (40, 8), (99, 8)],
)
def test_sizes_of_data_types(dtype, size):
    assert acl.data_type_size(dtype) == size


def test_data_buffers():
    buffer = acl.create_data_buffer(1234, 56)
    assert acl.get_data_buffer_addr(buffer) == 1234
    assert acl.get_data_buffer_size_v2(buffer) == 56
    assert acl.destroy_data_buffer(buffer) == 0
    assert acl.destroy_data_buffer(buffer) == 100000
    assert acl.get_data_buffer_addr(buffer) is None
