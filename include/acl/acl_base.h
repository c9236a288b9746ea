/* Types and values that every part of ACL shares. */
#ifndef ACL_ACL_BASE_H_
#define ACL_ACL_BASE_H_

#include "acl_base_rt.h"
#include "error_codes/ge_error_codes.h"
#include "error_codes/rt_error_codes.h"

#endif
