/* Everything of ACL: the runtime, and what stands for operators, models and profiling. */
#ifndef ACL_ACL_H_
#define ACL_ACL_H_

#include "acl_mdl.h"
#include "acl_op.h"
#include "acl_rt.h"

#endif
