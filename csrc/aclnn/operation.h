// From checked arguments to the core: which memory is what, what has to be copied, what that takes of workspace.
#pragma once

#include "check.h"
#include "core/group_norm.h"

namespace groupnorm::host {

// What an operand is to the core.
enum class Role { kX, kDy, kGamma, kBeta, kMean, kRstd, kDx, kDgamma, kDbeta, kY, kMeanOut, kRstdOut };
inline constexpr int kRoles = 12;

struct Given {
  Role role;
  Argument argument;
};

// Tells the core's problem for the arguments that were given, in the order of the phase 1: inputs, then outputs. Those
// that are none are left out. problem.layout is decided here, from x.
std::shared_ptr<const Operation> make_operation(const char* name, const Problem& problem,
                                                const std::vector<Given>& given);

// Phase 1: `body` checks the arguments and returns the operation.
template <class Body>
aclnnStatus phase1(const char* function, uint64_t* workspace_bytes, aclOpExecutor** executor, Body&& body) {
  return entry(function, [&] {
    const std::shared_ptr<const Operation> operation = body();
    require(workspace_bytes, "workspaceSize", kParamNullptr);
    require(executor, "executor", kParamNullptr);
    const uint64_t bytes = operation->workspace_bytes;
    *executor = meta().make_executor(operation);
    *workspace_bytes = bytes;
  });
}

// Phase 2 is the same for all.
inline aclnnStatus phase2(const char* function, void* workspace, uint64_t workspace_bytes, aclOpExecutor* executor,
                          aclrtStream stream) {
  aclnnStatus status = OK;
  const aclnnStatus missing =
      entry(function, [&] { status = meta().launch(function, workspace, workspace_bytes, executor, stream); });
  return missing == OK ? status : missing;
}

}  // namespace groupnorm::host
