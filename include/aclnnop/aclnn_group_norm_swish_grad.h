// aclnnGroupNormSwishGrad: the gradient of aclnnGroupNormSwish.
//
//   g = gamma * xhat + beta     dy' = dy * swish'(g)     then the gradient of Group Normalization on dy'
//
// dy, x, dxOut: [N, C, *], 2 to 8 dimensions, not empty. mean, rstd: [N, numGroups]. gamma, beta, dgammaOut,
// dbetaOut: [C]. One dtype for all. dgammaOut and dbetaOut are not null, and not written where they are not required.
// dataFormatOptional: null or "NCHW". C / numGroups at most 4000.
#ifndef ACLNN_GROUP_NORM_SWISH_GRAD_H_
#define ACLNN_GROUP_NORM_SWISH_GRAD_H_

#include "aclnn/acl_meta.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormSwishGradGetWorkspaceSize(
    const aclTensor* dy, const aclTensor* mean, const aclTensor* rstd, const aclTensor* x, const aclTensor* gamma,
    const aclTensor* beta, int64_t numGroups, char* dataFormatOptional, double swishScale, bool dgammaIsRequire,
    bool dbetaIsRequire, const aclTensor* dxOut, const aclTensor* dgammaOut, const aclTensor* dbetaOut,
    uint64_t* workspaceSize, aclOpExecutor** executor);
ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormSwishGrad(void* workspace, uint64_t workspaceSize,
                                                        aclOpExecutor* executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
