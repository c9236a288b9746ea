// What the forward operators have in common: aclnnGroupNorm, aclnnGroupNormSilu and aclnnGroupNormSwish.
#pragma once

#include "operation.h"

namespace groupnorm::host {

struct Forward {
  Argument x, gamma, beta, y, mean, rstd;
  int64_t groups;
  double eps;
};

// Shapes: x and y [N, C, *], gamma and beta [C], mean and rstd [N, groups].
void check_forward(const Forward& forward, const char* group_name);

Problem forward_problem(const Forward& forward);

std::shared_ptr<const Operation> make_forward(const char* name, const Problem& problem, const Forward& forward);

}  // namespace groupnorm::host
