"""Which libraries `aclnn.load` takes, and what it says of those it does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from groupnorm import aclnn
from test_acl_prefix import CXX, PREFIX

# A CANN of a kind: the functions that loading asks for, no marker, and one of the operators' libraries.
FAKE = """
extern "C" int aclInit(const char*) { return 0; }
extern "C" int aclrtGetDeviceCount(unsigned* count) { *count = DEVICES; return STATUS; }
extern "C" int aclrtSetDevice(int) { return 31; }
extern "C" const char* aclGetRecentErrMsg() { return nullptr; }
"""


@pytest.fixture
def fake_cann(tmp_path):
    """Makes the prefix of a CANN with so many devices."""

    def make(devices=1, status=0, libraries=("libascendcl.so", "libnnopbase.so")):
        home = tmp_path / "cann"
        (home / "lib64").mkdir(parents=True)
        source = tmp_path / "fake.cpp"
        source.write_text(FAKE)
        flags = [f"-DDEVICES={devices}", f"-DSTATUS={status}", "-shared", "-fPIC"]
        for name in libraries:
            subprocess.run([CXX, *flags, source, "-o", home / "lib64" / name], check=True)
        return home

    return make


def load(home=None, which="None"):
    """What a program of its own prints of the library it loads."""
    code = f"""
import logging
logging.basicConfig(level=logging.INFO)
from groupnorm import aclnn
try:
    library = aclnn.load({which})
    print(library.kind, library.prefix, library.why, sep="|")
except (OSError, RuntimeError, ValueError) as error:
    print(type(error).__name__, error, sep="|")
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ASCEND")}
    if home is not None:
        environment["ASCEND_HOME_PATH"] = str(home)
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip().split("|"), result.stderr


def test_without_a_cann_it_is_the_host():
    (kind, prefix, why), log = load()
    assert (kind, prefix, why) == ("host", str(PREFIX), "ASCEND_HOME_PATH is not set")
    assert "ASCEND_HOME_PATH is not set" in log


def test_the_host_prefix_by_its_variable():
    (kind, _, why), _ = load(PREFIX)
    assert kind == "host"
    assert "is the host prefix itself" in why


def test_a_copy_of_the_host_prefix_is_still_the_host(tmp_path):
    copy = shutil.copytree(PREFIX, tmp_path / "copy")
    (kind, _, why), _ = load(copy)
    assert kind == "host"
    assert "they are host libraries, of another groupnorm" in why
    (error, why), _ = load(None, f"'host') and aclnn.load({str(copy)!r}")
    assert (error, "accepted: one host prefix a process" in why) == ("OSError", True)


def test_a_cann_with_a_device_is_taken(fake_cann):
    home = fake_cann()
    (kind, prefix, why), log = load(home)
    assert (kind, prefix) == ("cann", str(home))
    assert "has a device" in why
    assert "has a device" in log
    assert load(home, "'cann'")[0][0] == "cann"
    assert load(home, "'host'")[0][0] == "host"
    assert load(None, repr(str(home)))[0] == ["cann", str(home), "asked for by path"]


@pytest.mark.parametrize(
    ("devices", "status", "reason"), [(0, 0, "they have no device"), (1, 107001, "aclrtGetDeviceCount returned 107001")]
)
def test_a_cann_without_a_device_is_not(fake_cann, devices, status, reason):
    home = fake_cann(devices, status)
    (kind, _, why), _ = load(home)
    assert kind == "host"
    assert reason in why
    (error, why), _ = load(home, "'cann'")
    assert error == "OSError"
    assert reason in why


def test_libraries_that_are_missing_are_named(fake_cann, tmp_path):
    home = fake_cann(libraries=["libascendcl.so"])
    assert "no libnnopbase.so in lib64 or lib" in load(home)[0][2]
    assert "no libascendcl.so or libacl_rt.so" in load(tmp_path / "nowhere")[0][2]
    (error, why), _ = load(None, repr(str(tmp_path / "nowhere")))
    assert (error, "no folder" in why) == ("OSError", True)
    (error, why), _ = load(None, repr(str(tmp_path)))
    assert (error, "no libascendcl.so" in why) == ("OSError", True)
    assert load(None, "''")[0][0] == "ValueError"
    assert load(None, "'cann'")[0] == ["OSError", "load('cann'): ASCEND_HOME_PATH is not set"]


def test_a_library_for_another_machine_is_named(fake_cann):
    home = fake_cann()
    library = home / "lib64" / "libascendcl.so"
    content = bytearray(library.read_bytes())
    content[18:20] = (0x28).to_bytes(2, "little")  # 32-bit ARM
    library.write_bytes(content)
    (kind, _, why), _ = load(home)
    assert kind == "host"
    assert "libascendcl.so: built for machine 40; accepted: " in why


@pytest.mark.parametrize("content", [b"", b"not a library at all"])
def test_a_library_that_cannot_be_loaded_is_not(fake_cann, content):
    home = fake_cann()
    (home / "lib64" / "libascendcl.so").write_bytes(content)
    (kind, _, why), _ = load(home)
    assert kind == "host"
    assert "they cannot be loaded: OSError" in why


def test_what_the_libraries_lack_is_said_when_it_is_called(fake_cann):
    code = f"""
from groupnorm import aclnn
library = aclnn.load({str(fake_cann())!r})
try:
    library.nn.group_norm(None, 0, None, None)
except NotImplementedError as error:
    print(error)
try:
    library.check("aclrtSetDevice", library.rt.set_device(0))
except aclnn.AclError as error:
    print(error.code, error.name, repr(error.message))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    missing, failed = result.stdout.splitlines()
    assert missing.startswith("aclnnGroupNorm: not in the libraries of ")
    assert failed == "31 unknown ''"


def test_the_host_libraries_keep_to_themselves_beside_a_cann(fake_cann):
    """A CANN in the same process has every name in the global scope: ours must not call its functions."""
    code = f"""
import numpy as np
from groupnorm import aclnn
cann, host = aclnn.load({str(fake_cann())!r}), aclnn.load("host")
assert cann.rt.set_device(0) == 31 and host.rt.get_device_count() == (1, 0)
with aclnn.Device(0, library=host):
    x, stats = np.ones((1, 1, 4), np.float32), np.ones((1, 1), np.float32)
    print(aclnn.group_normalization_grad(x, x, x, stats, stats).ravel())
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout == "[0. 0. 0. 0.]\n", result.stderr


def test_pyacl_manner():
    """Values first, the status last; a status alone where there is nothing else."""
    acl = aclnn.load("host")
    assert acl.rt.get_device_count() == (1, 0)
    assert acl.rt.synchronize_stream(1) == 107002
    with pytest.raises(TypeError, match=r"aclrtMalloc: 1 arguments; accepted: 2 \(size, policy\)"):
        acl.rt.malloc(8)
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    address = acl.util.numpy_to_ptr(array)
    assert (acl.util.ptr_to_numpy(address, (2, 3), np.int16) == array).all()
    assert acl.util.ptr_to_bytes(address, 12) == array.tobytes()
    data = b"bytes of ours"
    assert acl.util.ptr_to_bytes(acl.util.bytes_to_ptr(data), 5) == b"bytes"
    assert set(vars(acl.rt)) >= {
        *("set_device", "reset_device", "get_device", "get_device_count", "create_context", "get_context"),
        *("set_context", "destroy_context", "create_stream", "destroy_stream", "synchronize_stream", "malloc"),
        *("malloc_host", "free", "free_host", "memcpy", "memcpy_async", "memset", "create_event"),
        *("query_event_status", "event_elapsed_time", "get_version", "subscribe_report", "unsubscribe_report"),
    }


def test_errors_decode_their_code():
    error = aclnn.AclError("aclrtMalloc", 107002, "")
    assert str(error) == (
        "aclrtMalloc returned 107002 (ACL_ERROR_RT_CONTEXT_NULL); "
        "likely cause: this thread has no context: call aclrtSetDevice in this thread"
    )
    error = aclnn.AclError("aclrtMalloc", 107002, "what the library said")
    assert str(error) == "aclrtMalloc returned 107002 (ACL_ERROR_RT_CONTEXT_NULL): what the library said"
    assert "call aclrtSetDevice" in error.cause
    assert aclnn.AclError("aclInit", 100001, "").name == "ACL_ERROR_UNINITIALIZE"
    assert aclnn.AclError("aclnnGroupNorm", 561003, "").name == "ACLNN_ERR_INNER_FIND_KERNEL_ERROR"
    assert aclnn.AclError("f", 7, "").name == "unknown"
