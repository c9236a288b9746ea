// What cannot exist on a host: models, graph capture, kernels of a device, dumps, profiling.
#include "acl/acl_mdl.h"
#include "acl/acl_op.h"
#include "acl/acl_prof.h"
#include "host.h"

namespace groupnorm::host {
namespace {

aclError unsupported(const char* function) {
  return entry(function,
               [] { throw Fault{ACL_ERROR_FEATURE_UNSUPPORTED, "not available on a host: it needs a device"}; });
}

}  // namespace
}  // namespace groupnorm::host

using groupnorm::host::unsupported;

aclError aclmdlLoadFromFile(const char*, uint32_t*) { return unsupported(__func__); }
aclError aclmdlUnload(uint32_t) { return unsupported(__func__); }
aclError aclmdlExecute(uint32_t, const aclmdlDataset*, aclmdlDataset*) { return unsupported(__func__); }
aclError aclmdlExecuteAsync(uint32_t, const aclmdlDataset*, aclmdlDataset*, aclrtStream) {
  return unsupported(__func__);
}
aclError aclmdlInitDump(void) { return unsupported(__func__); }
aclError aclmdlSetDump(const char*) { return unsupported(__func__); }
aclError aclmdlFinalizeDump(void) { return unsupported(__func__); }
aclError aclmdlRICaptureBegin(aclrtStream, aclmdlRICaptureMode) { return unsupported(__func__); }
aclError aclmdlRICaptureEnd(aclrtStream, aclmdlRI*) { return unsupported(__func__); }
aclError aclmdlRIExecuteAsync(aclmdlRI, aclrtStream) { return unsupported(__func__); }
aclError aclmdlRIDestroy(aclmdlRI) { return unsupported(__func__); }
aclError aclrtBinaryLoad(const aclrtBinary, aclrtBinHandle*) { return unsupported(__func__); }
aclError aclrtLaunchKernel(aclrtFuncHandle, uint32_t, const void*, size_t, aclrtStream) {
  return unsupported(__func__);
}
aclError aclopSetModelDir(const char*) { return unsupported(__func__); }
aclError aclprofInit(const char*, size_t) { return unsupported(__func__); }
aclError aclprofFinalize(void) { return unsupported(__func__); }
aclError aclprofStart(const aclprofConfig*) { return unsupported(__func__); }
aclError aclprofStop(const aclprofConfig*) { return unsupported(__func__); }
