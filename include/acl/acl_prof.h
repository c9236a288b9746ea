/* Profiling. A host has none: each function returns ACL_ERROR_FEATURE_UNSUPPORTED. */
#ifndef ACL_ACL_PROF_H_
#define ACL_ACL_PROF_H_

#include "acl_base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct aclprofConfig aclprofConfig;

ACL_FUNC_VISIBILITY aclError aclprofInit(const char* profilerResultPath, size_t length);
ACL_FUNC_VISIBILITY aclError aclprofFinalize(void);
ACL_FUNC_VISIBILITY aclError aclprofStart(const aclprofConfig* profilerConfig);
ACL_FUNC_VISIBILITY aclError aclprofStop(const aclprofConfig* profilerConfig);

#ifdef __cplusplus
}
#endif

#endif
