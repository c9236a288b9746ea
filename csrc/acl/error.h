// The sentence after an error, per thread, and the switches of the environment.
#pragma once

#include "host.h"

namespace groupnorm::host {

int report(const char* function, const Fault& fault);
void warn(const char* function, const std::string& message);

// GROUPNORM_ACL_STRICT: what is else a warning is an error.
bool strict();

// A warning, or when strict a Fault.
void warn_or_throw(const char* function, int strict_code, const std::string& message);

}  // namespace groupnorm::host
