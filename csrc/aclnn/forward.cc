#include "forward.h"

namespace groupnorm::host {

void check_forward(const Forward& forward, const char* group_name) {
  const Argument& x = forward.x;
  check_rank(x, 2, 8);
  elements(x);
  check_group(group_name, forward.groups, x.shape()[1]);
  check_eps(forward.eps);
  check_shape(forward.y, x.shape(), text("the shape of ", x.name));
  const std::vector<int64_t> channels{x.shape()[1]};
  check_shape(forward.gamma, channels, "the channels");
  check_shape(forward.beta, channels, "the channels");
  const std::vector<int64_t> stats{x.shape()[0], forward.groups};
  check_shape(forward.mean, stats, text("[N, ", group_name, "]"));
  check_shape(forward.rstd, stats, text("[N, ", group_name, "]"));
}

Problem forward_problem(const Forward& forward) {
  const std::vector<int64_t>& shape = forward.x.shape();
  Problem problem{};
  problem.op = Operator::kGroupNorm;
  problem.dtype = dtype_of(forward.x);
  problem.gamma_dtype = forward.gamma ? dtype_of(forward.gamma) : problem.dtype;
  problem.beta_dtype = forward.beta ? dtype_of(forward.beta) : problem.dtype;
  problem.stats_dtype = dtype_of(forward.mean);
  problem.n = shape[0];
  problem.channels = shape[1];
  problem.length = 1;
  for (size_t i = 2; i < shape.size(); ++i) problem.length *= shape[i];
  problem.groups = forward.groups;
  problem.eps = forward.eps;
  return problem;
}

std::shared_ptr<const Operation> make_forward(const char* name, const Problem& problem, const Forward& forward) {
  return make_operation(name, problem,
                        {{Role::kX, forward.x},
                         {Role::kGamma, forward.gamma},
                         {Role::kBeta, forward.beta},
                         {Role::kY, forward.y},
                         {Role::kMeanOut, forward.mean},
                         {Role::kRstdOut, forward.rstd}});
}

}  // namespace groupnorm::host
