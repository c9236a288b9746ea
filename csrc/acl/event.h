#pragma once

#include <cstddef>

namespace groupnorm::host {

// Events that are not destroyed.
size_t event_count();

}  // namespace groupnorm::host
