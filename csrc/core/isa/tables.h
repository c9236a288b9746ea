// The one symbol that each SIMD level exports. Which of them exist is the build's affair
// (GROUPNORM_HAVE_*), which of them this CPU runs is asked in dispatch.cc.
#pragma once

#include "../kernels.h"

namespace groupnorm {

extern const KernelTable kScalarTable;
extern const KernelTable kAvx2Table;
extern const KernelTable kAvx512Table;
extern const KernelTable kNeonTable;

}  // namespace groupnorm
