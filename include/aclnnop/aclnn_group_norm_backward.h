// aclnnGroupNormBackward: the true gradient.
//
//   gradInput    = rstd * (gamma * gradOut - mean_g(gamma * gradOut) - xhat * mean_g(gamma * gradOut * xhat))
//   gradGammaOut = sum over N and HxW of gradOut * xhat      gradBetaOut = sum over N and HxW of gradOut
//
// gradOut, input, gradInput: N * C * HxW elements in up to 8 dimensions. mean, rstd: N * group elements. gamma: C
// elements or null. outputMask: 3 values, which of the outputs are wanted. Views may be strided.
// gradOut, input, gradInput: ACL_FLOAT, ACL_FLOAT16 or ACL_BF16; mean, rstd, gamma and the gradients of gamma and
// beta: the same, or ACL_FLOAT.
#ifndef ACLNN_GROUP_NORM_BACKWARD_H_
#define ACLNN_GROUP_NORM_BACKWARD_H_

#include "aclnn/acl_meta.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormBackwardGetWorkspaceSize(
    const aclTensor* gradOut, const aclTensor* input, const aclTensor* mean, const aclTensor* rstd,
    const aclTensor* gamma, int64_t N, int64_t C, int64_t HxW, int64_t group, const aclBoolArray* outputMask,
    aclTensor* gradInput, aclTensor* gradGammaOut, aclTensor* gradBetaOut, uint64_t* workspaceSize,
    aclOpExecutor** executor);
ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormBackward(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                       aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
