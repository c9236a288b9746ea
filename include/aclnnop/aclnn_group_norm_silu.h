// aclnnGroupNormSilu: the forward with SiLU on its result, out = g / (1 + exp(-g)), g the output of aclnnGroupNorm.
//
// self, out: [N, C, *], 2 to 8 dimensions. gamma, beta: [C] or null, of self's dtype or ACL_FLOAT. meanOut, rstdOut:
// [N, group], of self's dtype. out, meanOut and rstdOut contiguous. V2 says by activateSilu whether SiLU is applied.
#ifndef ACLNN_GROUP_NORM_SILU_H_
#define ACLNN_GROUP_NORM_SILU_H_

#include "aclnn/acl_meta.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormSiluGetWorkspaceSize(const aclTensor* self, const aclTensor* gamma,
                                                                   const aclTensor* beta, int64_t group, double eps,
                                                                   aclTensor* out, aclTensor* meanOut,
                                                                   aclTensor* rstdOut, uint64_t* workspaceSize,
                                                                   aclOpExecutor** executor);
ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormSilu(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                   aclrtStream stream);

ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormSiluV2GetWorkspaceSize(const aclTensor* self, const aclTensor* gamma,
                                                                     const aclTensor* beta, int64_t group, double eps,
                                                                     bool activateSilu, aclTensor* out,
                                                                     aclTensor* meanOut, aclTensor* rstdOut,
                                                                     uint64_t* workspaceSize, aclOpExecutor** executor);
ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormSiluV2(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                     aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
