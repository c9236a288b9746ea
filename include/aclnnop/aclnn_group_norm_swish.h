// aclnnGroupNormSwish: the forward with swish on its result, yOut = g / (1 + exp(-swishScale * g)), when activateSwish.
//
// x, yOut: [N, C, *], 2 to 8 dimensions, not empty. gamma, beta: [C], of x's dtype or ACL_FLOAT. meanOut, rstdOut:
// [N, numGroups], of gamma's dtype. dataFormatOptional: null or "NCHW".
#ifndef ACLNN_GROUP_NORM_SWISH_H_
#define ACLNN_GROUP_NORM_SWISH_H_

#include "aclnn/acl_meta.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormSwishGetWorkspaceSize(
    const aclTensor* x, const aclTensor* gamma, const aclTensor* beta, int64_t numGroups, char* dataFormatOptional,
    double eps, bool activateSwish, double swishScale, const aclTensor* yOut, const aclTensor* meanOut,
    const aclTensor* rstdOut, uint64_t* workspaceSize, aclOpExecutor** executor);
ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupNormSwish(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                    aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
