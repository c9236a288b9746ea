// aclnnGroupNorm: the forward.
//
//   out = (self - meanOut) * rstdOut * gamma + beta     rstdOut = 1 / sqrt(var + eps)     (over one group)
//
// self, out: 2 to 8 dimensions, [N, C, *] with HxW = the product of *. gamma, beta: [C] or null. meanOut, rstdOut:
// [N, group]. One dtype for all: ACL_FLOAT, ACL_FLOAT16 or ACL_BF16. eps > 0. Views may be strided.
#ifndef ACLNN_GROUP_NORM_H_
#define ACLNN_GROUP_NORM_H_

#include "aclnn/acl_meta.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormGetWorkspaceSize(const aclTensor* self, const aclTensor* gamma,
                                                               const aclTensor* beta, int64_t N, int64_t C, int64_t HxW,
                                                               int64_t group, double eps, aclTensor* out,
                                                               aclTensor* meanOut, aclTensor* rstdOut,
                                                               uint64_t* workspaceSize, aclOpExecutor** executor);
ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNorm(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                               aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
