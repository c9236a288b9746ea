// aclnnGroupNorm, operator C: the forward.
#include "aclnnop/aclnn_group_norm.h"

#include "forward.h"

using namespace groupnorm;
using namespace groupnorm::host;

aclnnStatus aclnnGroupNormGetWorkspaceSize(const aclTensor* self, const aclTensor* gamma, const aclTensor* beta,
                                           int64_t N, int64_t C, int64_t HxW, int64_t group, double eps, aclTensor* out,
                                           aclTensor* meanOut, aclTensor* rstdOut, uint64_t* workspaceSize,
                                           aclOpExecutor** executor) {
  return phase1(__func__, workspaceSize, executor, [&] {
    const Forward forward{input("self", self),
                          optional_input("gamma", gamma),
                          optional_input("beta", beta),
                          output("out", out),
                          output("meanOut", meanOut),
                          output("rstdOut", rstdOut),
                          group,
                          eps};
    dtype_of(forward.x);
    for (const Argument* one : {&forward.gamma, &forward.beta, &forward.y, &forward.mean, &forward.rstd}) {
      check_dtype(*one, forward.x);
    }
    check_forward(forward, "group");
    const std::vector<int64_t>& shape = forward.x.shape();
    int64_t length = 1;
    for (size_t i = 2; i < shape.size(); ++i) length *= shape[i];
    if (N != shape[0] || C != shape[1] || HxW != length) {
      throw Fault{kParamInvalid, text("N, C and HxW are ", N, ", ", C, " and ", HxW, "; accepted: ", shape[0], ", ",
                                      shape[1], " and ", length, ", the sizes of self, ", shape_text(shape))};
    }
    check_format(forward.x, {ACL_FORMAT_ND, ACL_FORMAT_NCHW, ACL_FORMAT_NCDHW, ACL_FORMAT_NCL});
    check_format(forward.y, {forward.x.tensor->format});
    return make_forward("aclnnGroupNorm", forward_problem(forward), forward);
  });
}

aclnnStatus aclnnGroupNorm(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return phase2(__func__, workspace, workspaceSize, executor, stream);
}
