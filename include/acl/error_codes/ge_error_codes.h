/* Return codes of the graph engine. There is no graph engine on a host: the header exists because acl_base.h names it.
 */
#ifndef ACL_ERROR_CODES_GE_ERROR_CODES_H_
#define ACL_ERROR_CODES_GE_ERROR_CODES_H_

#include <stdint.h>

static const uint32_t ACL_ERROR_GE_PARAM_INVALID = 145000U;
static const uint32_t ACL_ERROR_GE_EXEC_NOT_INIT = 145001U;
static const uint32_t ACL_ERROR_GE_EXEC_MODEL_PATH_INVALID = 145002U;
static const uint32_t ACL_ERROR_GE_EXEC_MODEL_ID_INVALID = 145003U;

#endif
