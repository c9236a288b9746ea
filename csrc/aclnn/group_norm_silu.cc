// aclnnGroupNormSilu and aclnnGroupNormSiluV2: the forward with SiLU on its result.
#include "aclnnop/aclnn_group_norm_silu.h"

#include "forward.h"

using namespace groupnorm;
using namespace groupnorm::host;

namespace {

std::shared_ptr<const Operation> silu(const char* name, const aclTensor* self, const aclTensor* gamma,
                                      const aclTensor* beta, int64_t group, double eps, bool activate, aclTensor* out,
                                      aclTensor* mean, aclTensor* rstd) {
  const Forward forward{input("self", self),
                        optional_input("gamma", gamma),
                        optional_input("beta", beta),
                        output("out", out),
                        output("meanOut", mean),
                        output("rstdOut", rstd),
                        group,
                        eps};
  dtype_of(forward.x);
  check_dtype_or_float(forward.gamma, forward.x);
  check_dtype_or_float(forward.beta, forward.x);
  if (forward.gamma) check_dtype(forward.beta, forward.gamma);
  for (const Argument* one : {&forward.y, &forward.mean, &forward.rstd}) check_dtype(*one, forward.x);
  check_rank(forward.x, 2, 8);
  check_at_least("N, the first dimension of self,", forward.x.shape()[0], 1);
  check_at_least("C, the second dimension of self,", forward.x.shape()[1], 1);
  check_forward(forward, "group");
  for (const Argument* one : {&forward.y, &forward.mean, &forward.rstd}) check_contiguous(*one);
  Problem problem = forward_problem(forward);
  if (activate) {
    problem.activation = Activation::kSwish;
    problem.swish_scale = 1;
  }
  return make_forward(name, problem, forward);
}

}  // namespace

aclnnStatus aclnnGroupNormSiluGetWorkspaceSize(const aclTensor* self, const aclTensor* gamma, const aclTensor* beta,
                                               int64_t group, double eps, aclTensor* out, aclTensor* meanOut,
                                               aclTensor* rstdOut, uint64_t* workspaceSize, aclOpExecutor** executor) {
  return phase1(__func__, workspaceSize, executor,
                [&] { return silu("aclnnGroupNormSilu", self, gamma, beta, group, eps, true, out, meanOut, rstdOut); });
}

aclnnStatus aclnnGroupNormSilu(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return phase2(__func__, workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnGroupNormSiluV2GetWorkspaceSize(const aclTensor* self, const aclTensor* gamma, const aclTensor* beta,
                                                 int64_t group, double eps, bool activateSilu, aclTensor* out,
                                                 aclTensor* meanOut, aclTensor* rstdOut, uint64_t* workspaceSize,
                                                 aclOpExecutor** executor) {
  return phase1(__func__, workspaceSize, executor, [&] {
    return silu("aclnnGroupNormSiluV2", self, gamma, beta, group, eps, activateSilu, out, meanOut, rstdOut);
  });
}

aclnnStatus aclnnGroupNormSiluV2(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return phase2(__func__, workspace, workspaceSize, executor, stream);
}
