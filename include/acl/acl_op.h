/* Single operators by name, the interface before aclnn. A host has none: it returns ACL_ERROR_FEATURE_UNSUPPORTED. */
#ifndef ACL_ACL_OP_H_
#define ACL_ACL_OP_H_

#include "acl_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclError aclopSetModelDir(const char* modelDir);

#ifdef __cplusplus
}
#endif

#endif
