// What libnnopbase offers to the operator libraries: tensors as they are when phase 1 looks at them, and executors,
// which take what phase 1 found to phase 2. Nothing here knows an operator.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "acl/host.h"
#include "aclnn/acl_meta.h"

namespace groupnorm::host {

inline constexpr int kParamNullptr = 161001;
inline constexpr int kParamInvalid = 161002;
inline constexpr int kRuntimeError = 361001;
inline constexpr int kInner = 561000;
inline constexpr int kInnerNullptr = 561103;

struct Tensor {
  std::vector<int64_t> view;
  std::vector<int64_t> strides;  // of the view, in elements
  std::vector<int64_t> storage;
  int64_t offset;  // of the view's first element
  aclDataType dtype;
  aclFormat format;
  void* data;  // of the storage
};

// A tensor that an operator reads or writes.
struct Operand {
  std::string name;
  std::shared_ptr<const Tensor> tensor;
  bool output;
  // Of the size of the problem, and read or written element by element: such an output may be such an input's memory.
  bool in_step;
};

// An operator with its arguments checked: what phase 1 leaves for phase 2.
class Operation {
 public:
  virtual ~Operation() = default;

  // The operands' memory, when the data of each operand begins where `addresses` says. One extent an operand.
  virtual std::vector<Extent> extents(const std::vector<void*>& addresses) const = 0;
  virtual std::unique_ptr<Work> work(const std::vector<void*>& addresses, void* workspace) const = 0;

  std::string name;               // of phase 2
  std::vector<Operand> operands;  // inputs, then outputs; those that were null left out
  uint64_t workspace_bytes = 0;
};

struct Meta {
  // The tensor or the values of a handle that is not null. They throw 161002 for any other value.
  std::shared_ptr<const Tensor> (*tensor)(const char* name, const aclTensor* handle);
  std::vector<bool> (*bools)(const char* name, const aclBoolArray* handle);
  aclOpExecutor* (*make_executor)(std::shared_ptr<const Operation> operation);
  aclnnStatus (*launch)(const char* function, void* workspace, uint64_t workspace_bytes, aclOpExecutor* executor,
                        aclrtStream stream);
};

inline const Meta& meta() {
  if (!groupnorm_host()->meta) {
    throw Fault{kInnerNullptr,
                "libnnopbase.so is not loaded, or not the one beside this library; accepted: one host "
                "prefix a process"};
  }
  return *static_cast<const Meta*>(groupnorm_host()->meta);
}

}  // namespace groupnorm::host
