"""The memory of the host runtime: copies, mistakes, books."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest

from groupnorm.aclnn.prototypes import MallocAttribute, MallocConfig
from runtime import D2D, D2H, DEFAULT, H2D, acl, device, memory, message, python  # noqa: F401

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
