// aclnnGroupNormalizationGrad: the backward of Group Normalization as CANN prints it.
//
//   xhat = (x - mean) * rstd     s1 = sum(dy * gamma)     s2 = sum(dy * gamma * xhat)     (sums over one group)
//   dx   = rstd / M * gamma * (M * dy - s1 - xhat * s2)
//
// This is not the gradient of Group Normalization unless gamma is 1: gamma counts a second time in s1 and s2.
// aclnnGroupNormBackward (aclnnop/aclnn_group_norm_backward.h) is the true one.
//
// x, dy, gamma, dx: one shape of 3 to 8 dimensions, [N, G, *]; gamma is already broadcast. mean, rstd: [N, G].
// One dtype for all: ACL_FLOAT, ACL_FLOAT16 or ACL_BF16. Contiguous. Format ACL_FORMAT_ND; NCL, NCHW,
// NHWC and NCDHW count as ND, as on a device.
// 161001: a null pointer. 161002: anything else that is wrong; then nothing was written.
#ifndef ACLNN_GROUP_NORMALIZATION_GRAD_H_
#define ACLNN_GROUP_NORMALIZATION_GRAD_H_

#include "aclnn/acl_meta.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormalizationGradGetWorkspaceSize(
    const aclTensor* x, const aclTensor* dy, const aclTensor* gamma, const aclTensor* mean, const aclTensor* rstd,
    const aclTensor* dxOut, uint64_t* workspaceSize, aclOpExecutor** executor);
ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormalizationGrad(void* workspace, uint64_t workspaceSize,
                                                            aclOpExecutor* executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
