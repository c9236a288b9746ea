#include "group_norm.h"

#include "dispatch.h"
#include "fp_env.h"
#include "pipeline.h"

namespace groupnorm {
namespace {

// Sizes that can exist: the bytes of every operand are an int64_t.
bool sizes_valid(const Problem& problem) {
  if (problem.n < 0 || problem.channels < 0 || problem.length < 0) return false;
  // A's groups are its channels, and an x of [N, 0, *] has none.
  const bool no_groups = problem.groups == 0 && problem.op == Operator::kGroupNormalizationGrad;
  if (no_groups ? problem.channels != 0 : problem.groups <= 0 || problem.channels % problem.groups != 0) return false;
  int64_t nc;
  int64_t elements;
  int64_t bytes;
  int64_t groups;
  return !__builtin_mul_overflow(problem.n, problem.channels, &nc) &&
         !__builtin_mul_overflow(nc, problem.length, &elements) && !__builtin_mul_overflow(elements, 8, &bytes) &&
         !__builtin_mul_overflow(nc, 8, &bytes) && !__builtin_mul_overflow(problem.n, problem.groups, &groups);
}

bool activation_valid(const Problem& problem) {
  if (problem.activation == Activation::kNone) return true;
  return problem.activation == Activation::kSwish && problem.op != Operator::kGroupNormalizationGrad &&
         !problem.recenter && std::isfinite(problem.swish_scale);
}

bool parts_valid(const Problem& problem, const Inputs& inputs, const Outputs& outputs) {
  if (problem.total_length < 0) return false;
  if (!inputs.sums && !outputs.sums) return true;
  return problem.op != Operator::kGroupNormalizationGrad && !problem.recenter && !(inputs.sums && outputs.sums);
}

bool empty(const Problem& problem) { return problem.n == 0 || problem.channels == 0 || problem.length == 0; }

bool operands_given(const Problem& problem, const Inputs& in, const Outputs& out) {
  switch (problem.op) {
    case Operator::kGroupNormalizationGrad:
      return in.x && in.dy && in.gamma && in.mean && in.rstd && out.dx;
    case Operator::kGroupNormBackward:
      return (in.sums && !out.dx) || (in.x && in.dy && in.mean && in.rstd);
    case Operator::kGroupNorm:
      return in.x && ((out.sums && !out.y) || (out.y && out.mean && out.rstd));
  }
  return false;
}

// Sums over nothing are 0, also in the statistics: then rstd is 1 / sqrt(eps).
void fill_empty(const Problem& problem, const Outputs& outputs) {
  const auto fill = [](void* to, DType dtype, int64_t count, double value) {
    if (!to) return;
    with_storage(dtype, [&](auto* type) {
      for (int64_t i = 0; i < count; ++i) narrow_sum(value, static_cast<decltype(type)>(to) + i);
    });
  };
  if (outputs.sums) {
    const int64_t each = problem.op == Operator::kGroupNorm ? problem.groups : problem.channels;
    std::fill_n(outputs.sums, 2 * problem.n * each, 0.0);
  }
  if (problem.op == Operator::kGroupNormBackward) {
    fill(outputs.dgamma, problem.gamma_dtype, problem.channels, 0);
    fill(outputs.dbeta, problem.gamma_dtype, problem.channels, 0);
  } else if (problem.op == Operator::kGroupNorm) {
    fill(outputs.mean, problem.stats_dtype, problem.n * problem.groups, 0);
    fill(outputs.rstd, problem.stats_dtype, problem.n * problem.groups, 1 / std::sqrt(problem.eps));
  }
}

}  // namespace

size_t workspace_bytes(const Problem& problem, const Outputs& outputs, int threads) {
  if (!sizes_valid(problem) || empty(problem)) return 0;
  return static_cast<size_t>(make_plan(problem, outputs, std::max(threads, 1)).total_bytes);
}

Status run(const Problem& problem, const Inputs& inputs, const Outputs& outputs, void* workspace, size_t workspace_size,
           int threads) {
  const FpEnvironment environment;
  const KernelTable* table = current_kernels();
  if (!table) return Status::kUnsupportedIsa;
  if (!sizes_valid(problem) || !activation_valid(problem) || !parts_valid(problem, inputs, outputs))
    return Status::kInvalidProblem;
  if (empty(problem)) {
    fill_empty(problem, outputs);
    return Status::kOk;
  }
  if (!operands_given(problem, inputs, outputs)) return Status::kNullPointer;
  const Plan plan = make_plan(problem, outputs, std::max(threads, 1));
  if (!workspace || workspace_size < static_cast<size_t>(plan.total_bytes)) return Status::kWorkspaceTooSmall;
  if (problem.dtype == DType::kFloat64) {
    Pipeline<double>(problem, inputs, outputs, *table, plan, workspace).run();
  } else {
    Pipeline<float>(problem, inputs, outputs, *table, plan, workspace).run();
  }
  return Status::kOk;
}

}  // namespace groupnorm
