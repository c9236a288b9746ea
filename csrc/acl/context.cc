#include "context.h"

#include <cerrno>
#include <cstdlib>

#include "error.h"
#include "init.h"
#include "memory.h"

namespace groupnorm::host {
namespace {

constexpr int kMaxDevices = 64;
constexpr int64_t kNotSet = INT64_MIN;

// What an Ascend 910B1, the chip of the operators here, would answer.
constexpr int64_t kCores = 24;
constexpr int64_t kVectorCores = 48;
constexpr int64_t kUnifiedBuffer = 196608;

Handles<Context>& contexts() { return handles_of<Context>(Kind::kContext); }
[[maybe_unused]] const auto& g_contexts = contexts();

struct Device {
  int uses = 0;  // aclrtSetDevice less aclrtResetDevice
  std::shared_ptr<Context> primary;
  aclrtFloatOverflowMode overflow = ACL_RT_OVERFLOW_MODE_INFNAN;
};

struct Devices {
  std::mutex mutex;
  std::array<Device, kMaxDevices> all;
  std::array<int64_t, kSysParams> params{kNotSet, kNotSet, kNotSet, kNotSet};

  Devices() {
    contexts();  // made before its lock is taken under this one: to make it takes the lock that a fork holds
    keep_over_forks(LockRank::kDevices, mutex);
  }
  static Devices& get() {
    static Devices* const devices = new Devices;
    return *devices;
  }
};

[[maybe_unused]] const auto& g_devices = Devices::get();

// The handle of the thread's context, live or not.
void*& thread_context() {
  thread_local void* context = nullptr;
  return context;
}

std::shared_ptr<Context> make_context(int device) {
  auto context = std::make_shared<Context>(device);
  for (auto& param : context->params) param = kNotSet;
  context->handle = contexts().add(context);
  return context;
}

void check_device(int64_t device) {
  const int count = device_count();
  if (device < 0 || device >= count) {
    throw Fault{ACL_ERROR_RT_INVALID_DEVICEID, text("deviceId is ", device, "; accepted: 0 to ", count - 1,
                                                    " (GROUPNORM_ACL_DEVICES says how many devices there are)")};
  }
}

void reset_device(int32_t id, bool force) {
  check_device(id);
  std::shared_ptr<Context> closing;
  {
    Devices& devices = Devices::get();
    const std::lock_guard<std::mutex> lock(devices.mutex);
    Device& device = devices.all[static_cast<size_t>(id)];
    if (device.primary) device.primary->check_may_wait();
    if (device.uses == 0) {
      throw Fault{ACL_ERROR_RT_CONTEXT_NULL,
                  text("deviceId is ", id, ", a device that is not set; accepted: one from aclrtSetDevice")};
    }
    device.uses = force ? 0 : device.uses - 1;
    if (device.uses == 0) closing = std::exchange(device.primary, nullptr);
  }
  if (!closing) return;
  contexts().take(closing->handle);
  closing->close();
}

void check_param(int opt, int64_t value) {
  const int64_t largest = opt == ACL_OPT_DETERMINISTIC ? 2 : 1;
  if (value < 0 || value > largest) {
    throw Fault{ACL_ERROR_RT_PARAM_INVALID, text("value is ", value, "; accepted: 0 to ", largest)};
  }
}

size_t param_index(int opt) {
  if (opt < 0 || opt >= kSysParams) {
    throw Fault{ACL_ERROR_INVALID_PARAM, text("opt is ", opt, "; accepted: a value of aclSysParamOpt")};
  }
  return static_cast<size_t>(opt);
}

int64_t param_value(int64_t value) {
  if (value == kNotSet) throw Fault{ACL_ERROR_RT_SYSPARAMOPT_NOT_SET, "the option was never set"};
  return value;
}

}  // namespace

int device_count() {
  const char* value = std::getenv("GROUPNORM_ACL_DEVICES");
  if (!value) return 1;
  char* end = nullptr;
  errno = 0;
  const long count = std::strtol(value, &end, 10);
  if (end == value || *end != '\0' || errno != 0 || count < 1 || count > kMaxDevices) {
    throw Fault{ACL_ERROR_RT_NO_DEVICE,
                text("GROUPNORM_ACL_DEVICES is '", value, "'; accepted: a number from 1 to ", kMaxDevices)};
  }
  return static_cast<int>(count);
}

std::shared_ptr<Context> current_context() {
  std::shared_ptr<Context> context = contexts().find(thread_context());
  if (!context || context->born != generation()) {
    throw Fault{ACL_ERROR_RT_CONTEXT_NULL,
                "this thread has no context: call aclrtSetDevice or aclrtSetCurrentContext in it first"};
  }
  return context;
}

std::shared_ptr<Stream> Context::default_stream() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!default_stream_) {
    default_stream_ = std::make_shared<Stream>(shared_from_this(), 0, 0);
    default_stream_->handle = host::streams().add(default_stream_);
  }
  return default_stream_;
}

bool Context::is_default(const std::shared_ptr<Stream>& stream) {
  const std::lock_guard<std::mutex> lock(mutex);
  return default_stream_ == stream;
}

std::vector<std::shared_ptr<Stream>> Context::streams_of() const {
  std::vector<std::shared_ptr<Stream>> mine;
  for (auto& stream : host::streams().all()) {
    if (stream->context.lock().get() == this) mine.push_back(std::move(stream));
  }
  return mine;
}

void Context::check_may_wait() const {
  for (const auto& stream : streams_of()) stream->check_may_wait();
}

void Context::close() {
  for (const auto& stream : streams_of()) {
    if (host::streams().take(stream->handle)) stream->close(true);
  }
  const std::lock_guard<std::mutex> lock(mutex);
  default_stream_ = nullptr;
}

}  // namespace groupnorm::host

using namespace groupnorm::host;

aclError aclrtSetDevice(int32_t deviceId) {
  return entry(__func__, [&] {
    check_device(deviceId);
    warn_unless_initialised("aclrtSetDevice");
    Devices& devices = Devices::get();
    const std::lock_guard<std::mutex> lock(devices.mutex);
    Device& device = devices.all[static_cast<size_t>(deviceId)];
    if (device.primary && device.primary->born != generation()) device = {};  // the parent's, of a process that forked
    if (!device.primary) device.primary = make_context(deviceId);
    ++device.uses;
    thread_context() = device.primary->handle;
  });
}

aclError aclrtResetDevice(int32_t deviceId) {
  return entry(__func__, [&] { reset_device(deviceId, false); });
}

aclError aclrtResetDeviceForce(int32_t deviceId) {
  return entry(__func__, [&] { reset_device(deviceId, true); });
}

aclError aclrtGetDevice(int32_t* deviceId) {
  return entry(__func__, [&] {
    require(deviceId, "deviceId");
    *deviceId = current_context()->device;
  });
}

aclError aclrtGetDeviceCount(uint32_t* count) {
  return entry(__func__, [&] {
    require(count, "count");
    *count = static_cast<uint32_t>(device_count());
  });
}

aclError aclrtSynchronizeDevice(void) { return aclrtSynchronizeDeviceWithTimeout(-1); }

aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout) {
  return entry(timeout == -1 ? "aclrtSynchronizeDevice" : __func__, [&] {
    const Deadline deadline(timeout);
    const int device = current_context()->device;
    Fault first;
    for (const auto& stream : streams().all()) {
      const std::shared_ptr<Context> context = stream->context.lock();
      if (!context || context->device != device) continue;
      try {
        if (!stream->synchronize(deadline)) {
          throw Fault{ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, text("the device was not done after ", timeout, " ms")};
        }
      } catch (const Fault& fault) {
        if (first.code == ACL_SUCCESS) first = fault;
      }
    }
    if (first.code != ACL_SUCCESS) throw first;
  });
}

aclError aclrtGetRunMode(aclrtRunMode* runMode) {
  return entry(__func__, [&] {
    require(runMode, "runMode");
    *runMode = ACL_HOST;
  });
}

const char* aclrtGetSocName(void) {
  return entry_handle(__func__, [&]() -> const char* {
    current_context();
    return "Ascend910B1";
  });
}

aclError aclrtGetDeviceInfo(uint32_t deviceId, aclrtDevAttr attr, int64_t* value) {
  return entry(__func__, [&] {
    require(value, "value");
    check_device(deviceId);
    switch (attr) {
      case ACL_DEV_ATTR_AICORE_CORE_NUM:
      case ACL_DEV_ATTR_CUBE_CORE_NUM:
        *value = kCores;
        return;
      case ACL_DEV_ATTR_VECTOR_CORE_NUM:
        *value = kVectorCores;
        return;
      case ACL_DEV_ATTR_UBUF_PER_VECTOR_CORE:
        *value = kUnifiedBuffer;
        return;
      case ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE:
        *value = static_cast<int64_t>(device_memory());
        return;
      case ACL_DEV_ATTR_IS_VIRTUAL:
        *value = 0;
        return;
      default:
        throw Fault{ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
                    text("attr is ", static_cast<int>(attr),
                         ", which a host has no answer for; accepted: the numbers of "
                         "cores, the unified buffer, the global memory and whether the device is virtual")};
    }
  });
}

aclError aclrtGetDeviceCapability(int32_t deviceId, aclrtDevFeatureType devFeatureType, int32_t* value) {
  return entry(__func__, [&] {
    require(value, "value");
    check_device(deviceId);
    if (devFeatureType != ACL_FEATURE_TSCPU_TASK_UPDATE_SUPPORT_AIC_AIV &&
        devFeatureType != ACL_FEATURE_SYSTEM_MEMQ_EVENT_CROSS_DEV) {
      throw Fault{ACL_ERROR_RT_PARAM_INVALID, text("devFeatureType is ", static_cast<int>(devFeatureType),
                                                   "; accepted: a value of aclrtDevFeatureType")};
    }
    *value = ACL_DEV_FEATURE_NOT_SUPPORT;
  });
}

aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode mode) {
  return entry(__func__, [&] {
    const int device = current_context()->device;
    if (mode == ACL_RT_OVERFLOW_MODE_SATURATION) {
      throw Fault{ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
                  "mode is ACL_RT_OVERFLOW_MODE_SATURATION; accepted on a host: ACL_RT_OVERFLOW_MODE_INFNAN, since "
                  "overflows give Inf"};
    }
    if (mode != ACL_RT_OVERFLOW_MODE_INFNAN) {
      throw Fault{ACL_ERROR_RT_PARAM_INVALID,
                  text("mode is ", static_cast<int>(mode), "; accepted: ACL_RT_OVERFLOW_MODE_INFNAN")};
    }
    Devices& devices = Devices::get();
    const std::lock_guard<std::mutex> lock(devices.mutex);
    devices.all[static_cast<size_t>(device)].overflow = mode;
  });
}

aclError aclrtGetDeviceSatMode(aclrtFloatOverflowMode* mode) {
  return entry(__func__, [&] {
    require(mode, "mode");
    const int device = current_context()->device;
    Devices& devices = Devices::get();
    const std::lock_guard<std::mutex> lock(devices.mutex);
    *mode = devices.all[static_cast<size_t>(device)].overflow;
  });
}

aclError aclrtSetSysParamOpt(aclSysParamOpt opt, int64_t value) {
  return entry(__func__, [&] {
    const size_t index = param_index(opt);
    check_param(opt, value);
    Devices& devices = Devices::get();
    const std::lock_guard<std::mutex> lock(devices.mutex);
    devices.params[index] = value;
  });
}

aclError aclrtGetSysParamOpt(aclSysParamOpt opt, int64_t* value) {
  return entry(__func__, [&] {
    require(value, "value");
    const size_t index = param_index(opt);
    Devices& devices = Devices::get();
    const std::lock_guard<std::mutex> lock(devices.mutex);
    *value = param_value(devices.params[index]);
  });
}

aclError aclrtCreateContext(aclrtContext* context, int32_t deviceId) {
  return entry(__func__, [&] {
    require(context, "context");
    check_device(deviceId);
    warn_unless_initialised("aclrtCreateContext");
    const std::shared_ptr<Context> made = make_context(deviceId);
    thread_context() = made->handle;
    *context = made->handle;
  });
}

aclError aclrtDestroyContext(aclrtContext context) {
  return entry(__func__, [&] {
    require(context, "context");
    const std::shared_ptr<Context> found = find_or_throw(contexts(), "context", context, ACL_ERROR_RT_PARAM_INVALID);
    {
      Devices& devices = Devices::get();
      const std::lock_guard<std::mutex> lock(devices.mutex);
      if (devices.all[static_cast<size_t>(found->device)].primary == found) {
        throw Fault{ACL_ERROR_RT_PARAM_INVALID,
                    "context is the default context of its device, which aclrtResetDevice destroys; accepted: one from "
                    "aclrtCreateContext"};
      }
    }
    found->check_may_wait();
    if (contexts().take(context)) found->close();
  });
}

aclError aclrtSetCurrentContext(aclrtContext context) {
  return entry(__func__, [&] {
    require(context, "context");
    find_or_throw(contexts(), "context", context, ACL_ERROR_RT_PARAM_INVALID);
    thread_context() = context;
  });
}

aclError aclrtGetCurrentContext(aclrtContext* context) {
  return entry(__func__, [&] {
    require(context, "context");
    *context = current_context()->handle;
  });
}

aclError aclrtCtxGetCurrentDefaultStream(aclrtStream* stream) {
  return entry(__func__, [&] {
    require(stream, "stream");
    *stream = current_context()->default_stream()->handle;
  });
}

aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value) {
  return entry(__func__, [&] {
    const size_t index = param_index(opt);
    check_param(opt, value);
    current_context()->params[index] = value;
  });
}

aclError aclrtCtxGetSysParamOpt(aclSysParamOpt opt, int64_t* value) {
  return entry(__func__, [&] {
    require(value, "value");
    const size_t index = param_index(opt);
    *value = param_value(current_context()->params[index]);
  });
}
