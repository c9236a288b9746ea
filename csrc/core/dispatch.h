// Which SIMD level runs: one ordered list, best first, plain last.
#pragma once

#include "kernels.h"

namespace groupnorm {

struct Isa {
  const char* name;
  const KernelTable* table;  // null: not compiled into this build
  bool supported;            // by this CPU and operating system
};

// All levels that exist, best first; *count is their number.
const Isa* isa_list(int* count);

// The level in use: forced by select_isa, else by GROUPNORM_ISA, else the best one there is. Null when
// GROUPNORM_ISA asks for one that cannot run.
const KernelTable* current_kernels();

// Forces a level by name; null returns to GROUPNORM_ISA or the best. False, and no change, when the
// level cannot run.
bool select_isa(const char* name);

}  // namespace groupnorm
