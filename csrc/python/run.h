// A call of the core from Python.
#pragma once

#include "../core/group_norm.h"

namespace groupnorm {

// Makes the workspace and runs; throws what a status means to Python. Needs no GIL.
void run_unlocked(const Problem& problem, const Inputs& inputs, const Outputs& outputs, int threads);

// The same without the GIL, which the caller holds.
void run_released(const Problem& problem, const Inputs& inputs, const Outputs& outputs, int threads);

// What other modules of this build reach the core through, so that all have its threads and its SIMD level: a capsule
// of run_unlocked, `_core.RUN`.
using Run = void(const Problem&, const Inputs&, const Outputs&, int threads);
constexpr char kRunCapsule[] = "groupnorm.run";

}  // namespace groupnorm
