"""The host runtime through pyACL's manner: the process, devices and contexts, and what a host does not have."""

from __future__ import annotations

import numpy as np
import pytest

from runtime import acl, device, in_thread, memory, message, stream  # noqa: F401

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
