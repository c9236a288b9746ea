"""Streams of the host runtime, their events and callbacks."""

from __future__ import annotations

import ctypes
import os
import threading
import time

import numpy as np
import pytest

from groupnorm.aclnn.prototypes import CALLBACK
from runtime import D2H, H2D, acl, device, gate, in_thread, memory, message, stream, strict  # noqa: F401

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
