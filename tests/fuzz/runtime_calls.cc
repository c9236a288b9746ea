// The process, devices, contexts, types and buffers, and what a host does not have.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "acl/acl_prof.h"
#include "world.h"

namespace groupnorm::fuzz {
namespace {

int32_t device_id(Input& in) {
  static constexpr int32_t kIds[] = {0, 0, 0, 0, 0, 1, 2, 3, 63, 64, -1, INT32_MAX, INT32_MIN};
  return in.pick(kIds);
}

aclSysParamOpt option(Input& in) {
  static constexpr int kOptions[] = {0, 1, 2, 3, 0, 4, -1, INT32_MAX};
  return static_cast<aclSysParamOpt>(in.pick(kOptions));
}

// The context that a device brings with it may be one that is known.
void know_context(World& world) {
  aclrtContext context = nullptr;
  if (world.status(aclrtGetCurrentContext(&context)) != 0) return;
  const auto& known = world.live[kContext];
  if (std::find(known.begin(), known.end(), context) == known.end()) world.add(kContext, context);
}

void set_device(World& world, Input& in) {
  if (world.status(aclrtSetDevice(device_id(in))) == 0) know_context(world);
}

// What ends streams waits for them, so nothing may block them.
void end_device(World& world, aclError (*call)(int32_t), int32_t id) {
  world.settle();
  world.status(call(id));
}

const char* config_path(Input& in) {
  static constexpr const char* kPaths[] = {nullptr, "", "/nowhere/acl.json", "/dev/null", "/", "/proc/self/comm"};
  return in.pick(kPaths);
}

void set_device_call(World& world, Input& in) { set_device(world, in); }

const Call kCalls[] = {
    {"aclInit", [](World& w, Input& in) { w.status(aclInit(config_path(in))); }},
    {"aclFinalize", [](World& w, Input&) { w.status(aclFinalize()); }},
    {"aclFinalizeReference",
     [](World& w, Input& in) {
       uint64_t count;
       w.status(aclFinalizeReference(static_cast<uint64_t*>(w.maybe_null(in.chance(64) ? nullptr : &count))));
     }},
    {"aclGetRecentErrMsg",
     [](World&, Input&) {
       const char* sentence = aclGetRecentErrMsg();
       FUZZ_CHECK(!sentence || std::strlen(sentence) < 4096);
     }},
    {"aclrtGetVersion",
     [](World& w, Input&) {
       int32_t parts[3];
       w.status(aclrtGetVersion(static_cast<int32_t*>(w.maybe_null(&parts[0])),
                                static_cast<int32_t*>(w.maybe_null(&parts[1])),
                                static_cast<int32_t*>(w.maybe_null(&parts[2]))));
     }},
    {"aclsysGetCANNVersion",
     [](World& w, Input& in) {
       aclCANNPackageVersion version;
       const auto name = static_cast<aclCANNPackageName>(static_cast<int>(in.byte()) - 1);
       w.status(aclsysGetCANNVersion(name, static_cast<aclCANNPackageVersion*>(w.maybe_null(&version))));
     }},
    {"aclsysGetVersionStr",
     [](World& w, Input&) {
       char name[] = "runtime";
       char version[ACL_PKG_VERSION_MAX_SIZE];
       w.status(aclsysGetVersionStr(static_cast<char*>(w.maybe_null(name)), static_cast<char*>(w.maybe_null(version))));
     }},
    {"aclsysGetVersionNum",
     [](World& w, Input&) {
       char name[] = "";
       int32_t version;
       w.status(
           aclsysGetVersionNum(static_cast<char*>(w.maybe_null(name)), static_cast<int32_t*>(w.maybe_null(&version))));
     }},
    {"aclrtPeekAtLastError",
     [](World&, Input& in) { aclrtPeekAtLastError(static_cast<aclrtLastErrLevel>(in.chance(32))); }},
    {"aclrtGetLastError", [](World&, Input& in) { aclrtGetLastError(static_cast<aclrtLastErrLevel>(in.chance(32))); }},

    {"aclrtSetDevice", set_device_call},
    {"aclrtResetDevice", [](World& w, Input& in) { end_device(w, aclrtResetDevice, device_id(in)); }},
    {"aclrtResetDeviceForce", [](World& w, Input& in) { end_device(w, aclrtResetDeviceForce, device_id(in)); }},
    {"aclrtGetDevice",
     [](World& w, Input&) {
       int32_t id;
       w.status(aclrtGetDevice(static_cast<int32_t*>(w.maybe_null(&id))));
     }},
    {"aclrtGetDeviceCount",
     [](World& w, Input&) {
       uint32_t count;
       w.status(aclrtGetDeviceCount(static_cast<uint32_t*>(w.maybe_null(&count))));
     }},
    {"aclrtSynchronizeDevice",
     [](World& w, Input&) {
       w.settle();
       w.status(aclrtSynchronizeDevice());
     }},
    {"aclrtSynchronizeDeviceWithTimeout",
     [](World& w, Input&) { w.status(aclrtSynchronizeDeviceWithTimeout(w.timeout())); }},
    {"aclrtGetRunMode",
     [](World& w, Input&) {
       aclrtRunMode mode;
       w.status(aclrtGetRunMode(static_cast<aclrtRunMode*>(w.maybe_null(&mode))));
     }},
    {"aclrtGetSocName",
     [](World&, Input&) {
       const char* name = aclrtGetSocName();
       FUZZ_CHECK(!name || std::strcmp(name, "Ascend910B1") == 0);
     }},
    {"aclrtGetDeviceInfo",
     [](World& w, Input& in) {
       static constexpr int kAttributes[] = {101, 1, 102, 201, 202, 203, 204, 301, 302, 401, 402, 501, 601, 0, -1};
       int64_t value;
       const auto attribute = static_cast<aclrtDevAttr>(in.pick(kAttributes));
       const auto id = static_cast<uint32_t>(device_id(in));
       w.status(aclrtGetDeviceInfo(id, attribute, static_cast<int64_t*>(w.maybe_null(&value))));
     }},
    {"aclrtGetDeviceCapability",
     [](World& w, Input& in) {
       static constexpr int kFeatures[] = {1, 21, 0, -1, 22};
       int32_t value;
       const auto feature = static_cast<aclrtDevFeatureType>(in.pick(kFeatures));
       w.status(aclrtGetDeviceCapability(device_id(in), feature, static_cast<int32_t*>(w.maybe_null(&value))));
     }},
    {"aclrtSetDeviceSatMode",
     [](World& w, Input& in) {
       w.status(aclrtSetDeviceSatMode(static_cast<aclrtFloatOverflowMode>(static_cast<int>(in.below(5)) - 1)));
     }},
    {"aclrtGetDeviceSatMode",
     [](World& w, Input&) {
       aclrtFloatOverflowMode mode;
       w.status(aclrtGetDeviceSatMode(static_cast<aclrtFloatOverflowMode*>(w.maybe_null(&mode))));
     }},
    {"aclrtSetSysParamOpt", [](World& w, Input& in) { w.status(aclrtSetSysParamOpt(option(in), in.edge())); }},
    {"aclrtGetSysParamOpt",
     [](World& w, Input& in) {
       int64_t value;
       w.status(aclrtGetSysParamOpt(option(in), static_cast<int64_t*>(w.maybe_null(&value))));
     }},
    {"aclrtCtxSetSysParamOpt", [](World& w, Input& in) { w.status(aclrtCtxSetSysParamOpt(option(in), in.edge())); }},
    {"aclrtCtxGetSysParamOpt",
     [](World& w, Input& in) {
       int64_t value;
       w.status(aclrtCtxGetSysParamOpt(option(in), static_cast<int64_t*>(w.maybe_null(&value))));
     }},

    {"aclrtCreateContext",
     [](World& w, Input& in) {
       aclrtContext context;
       aclrtContext* to = static_cast<aclrtContext*>(w.maybe_null(&context));
       if (w.status(aclrtCreateContext(to, device_id(in))) == 0) w.add(kContext, context);
     }},
    {"aclrtDestroyContext",
     [](World& w, Input&) {
       w.settle();
       aclrtContext context = w.handle(kContext);
       if (w.status(aclrtDestroyContext(context)) == 0) w.drop(kContext, context);
     }},
    {"aclrtSetCurrentContext", [](World& w, Input&) { w.status(aclrtSetCurrentContext(w.handle(kContext))); }},
    {"aclrtGetCurrentContext",
     [](World& w, Input&) {
       aclrtContext context;
       w.status(aclrtGetCurrentContext(static_cast<aclrtContext*>(w.maybe_null(&context))));
     }},
    {"aclrtCtxGetCurrentDefaultStream",
     [](World& w, Input&) {
       aclrtStream stream;
       if (w.status(aclrtCtxGetCurrentDefaultStream(static_cast<aclrtStream*>(w.maybe_null(&stream)))) != 0) return;
       const auto& known = w.live[kStream];
       if (std::find(known.begin(), known.end(), stream) == known.end()) w.add(kStream, stream);
     }},

    {"aclDataTypeSize",
     [](World&, Input& in) {
       FUZZ_CHECK(aclDataTypeSize(static_cast<aclDataType>(static_cast<int>(in.edge()))) <= 16);
     }},
    {"aclFloat16ToFloat",
     [](World&, Input& in) {
       const auto half = static_cast<aclFloat16>(in.word());
       const float value = aclFloat16ToFloat(half);
       if (std::isfinite(value)) FUZZ_CHECK(aclFloatToFloat16(value) == half, "0x%04x", half);
     }},
    {"aclFloatToFloat16",
     [](World&, Input& in) {
       const auto bits = static_cast<uint32_t>(in.word());
       float value;
       std::memcpy(&value, &bits, sizeof value);
       const float back = aclFloat16ToFloat(aclFloatToFloat16(value));
       FUZZ_CHECK(std::isfinite(back), "0x%08x", bits);
       if (std::fabs(value) < 65520) FUZZ_CHECK(std::fabs(value - back) <= std::fabs(value) / 2048 + 0x1p-25f);
     }},
    {"aclCreateDataBuffer",
     [](World& w, Input& in) { w.add(kBuffer, aclCreateDataBuffer(w.random_pointer(), in.size())); }},
    {"aclDestroyDataBuffer",
     [](World& w, Input&) {
       auto* buffer = w.get<aclDataBuffer>(kBuffer);
       if (w.status(aclDestroyDataBuffer(buffer)) == 0) w.drop(kBuffer, buffer);
     }},
    {"aclGetDataBufferAddr", [](World& w, Input&) { aclGetDataBufferAddr(w.get<aclDataBuffer>(kBuffer)); }},
    {"aclGetDataBufferSizeV2", [](World& w, Input&) { aclGetDataBufferSizeV2(w.get<aclDataBuffer>(kBuffer)); }},

    {"aclmdl* aclop* aclprof* aclrtBinaryLoad aclrtLaunchKernel",
     [](World& w, Input& in) {
       const auto refused = [&w](int code) { FUZZ_CHECK(w.status(code) == ACL_ERROR_FEATURE_UNSUPPORTED); };
       uint32_t id = 0;
       void* out = nullptr;
       void* any = w.random_pointer();
       aclrtStream stream = w.handle(kStream);
       const size_t size = in.size();
       const auto* set = static_cast<const aclmdlDataset*>(any);
       const auto* config = static_cast<const aclprofConfig*>(any);
       refused(aclmdlLoadFromFile(config_path(in), &id));
       refused(aclmdlUnload(id));
       refused(aclmdlExecute(id, set, static_cast<aclmdlDataset*>(any)));
       refused(aclmdlExecuteAsync(id, set, static_cast<aclmdlDataset*>(any), stream));
       refused(aclmdlInitDump());
       refused(aclmdlSetDump(config_path(in)));
       refused(aclmdlFinalizeDump());
       refused(aclmdlRICaptureBegin(stream, ACL_MODEL_RI_CAPTURE_MODE_GLOBAL));
       refused(aclmdlRICaptureEnd(stream, &out));
       refused(aclmdlRIExecuteAsync(any, stream));
       refused(aclmdlRIDestroy(any));
       refused(aclrtBinaryLoad(any, &out));
       refused(aclrtLaunchKernel(any, 1, any, size, stream));
       refused(aclopSetModelDir(config_path(in)));
       refused(aclprofInit(config_path(in), size));
       refused(aclprofFinalize());
       refused(aclprofStart(config));
       refused(aclprofStop(config));
     }},
};

}  // namespace

Calls runtime_calls() { return {kCalls, sizeof kCalls / sizeof *kCalls}; }

}  // namespace groupnorm::fuzz
