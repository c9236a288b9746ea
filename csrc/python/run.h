// A call of the core from Python.
#pragma once

#include "../core/group_norm.h"

namespace groupnorm {

// Makes the workspace and runs without the GIL, which the caller holds. Throws what a status means to Python.
void run_released(const Problem& problem, const Inputs& inputs, const Outputs& outputs, int threads);

}  // namespace groupnorm
