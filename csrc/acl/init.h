// aclInit and aclFinalize: the process.
#pragma once

namespace groupnorm::host {

// A device is used before aclInit: a warning, or when strict a Fault.
void warn_unless_initialised(const char* function);

}  // namespace groupnorm::host
