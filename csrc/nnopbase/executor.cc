// Executors: an operation on its way from phase 1 to phase 2. One serves once, unless it was made repeatable; its
// handle is gone then, and is never given out again.
#include <cstdlib>
#include <mutex>

#include "aclnn/aclnn_base.h"
#include "tensor.h"

namespace groupnorm::host {
namespace {

constexpr uintptr_t kWorkspaceAlignment = 8;  // of the widest numbers that are kept there

struct Executor {
  std::shared_ptr<const Operation> operation;
  std::mutex mutex;
  std::vector<void*> addresses;  // of the operands' data
  bool repeatable = false;
  bool launching = false;
};

Handles<Executor>& executors() { return handles_of<Executor>(Kind::kExecutor); }
[[maybe_unused]] const auto& g_executors = executors();

// Null: 561103, as from a function that changes an executor.
std::shared_ptr<Executor> changeable(aclOpExecutor* executor) {
  require(executor, "executor", kInnerNullptr);
  return find_or_throw(executors(), "executor", executor, kParamInvalid);
}

std::string range(const Extent& extent) {
  const char* begin = static_cast<const char*>(extent.data);
  return text(hex(begin), " to ", hex(begin + extent.bytes));
}

bool overlap(const Extent& a, const Extent& b) {
  if (!a.data || !b.data) return false;
  const char* a_begin = static_cast<const char*>(a.data);
  const char* b_begin = static_cast<const char*>(b.data);
  return a.bytes > 0 && b.bytes > 0 && a_begin < b_begin + b.bytes && b_begin < a_begin + a.bytes;
}

// What one step along `axis` covers: bytes from the first to past the last that the other axes reach.
uint64_t block_of(const Tensor& tensor, size_t axis, uint64_t item) {
  uint64_t bytes = item;
  for (size_t i = 0; i < tensor.view.size(); ++i) {
    if (i != axis) bytes += static_cast<uint64_t>((tensor.view[i] - 1) * std::abs(tensor.strides[i])) * item;
  }
  return bytes;
}

// Whether two views take turns, as the halves of a buffer that was concatenated along its channels do: both step by the
// same stride, and within one step their blocks do not meet. Both are in live memory, so no product overflows.
bool take_turns(const Tensor& a, const Extent& a_at, const Tensor& b, const Extent& b_at, uint64_t item) {
  for (size_t i = 0; i < a.view.size(); ++i) {
    for (size_t j = 0; j < b.view.size(); ++j) {
      if (a.view[i] <= 1 || b.view[j] <= 1 || a.strides[i] <= 0 || a.strides[i] != b.strides[j]) continue;
      const uint64_t step = static_cast<uint64_t>(a.strides[i]) * item;
      const uint64_t a_block = block_of(a, i, item);
      const uint64_t b_block = block_of(b, j, item);
      if (a_block > step || b_block > step) continue;
      // Going round the circle of one step: from a's block to b's, and from b's to a's.
      const uintptr_t a_begin = reinterpret_cast<uintptr_t>(a_at.data);
      const uintptr_t b_begin = reinterpret_cast<uintptr_t>(b_at.data);
      const uint64_t forward =
          b_begin >= a_begin ? (b_begin - a_begin) % step : (step - (a_begin - b_begin) % step) % step;
      if (forward >= a_block && (step - forward) % step >= b_block) return true;
    }
  }
  return false;
}

// An output may stand in for an input that goes in step with it; any other common memory would be read after it is
// written.
bool in_place(const Operation& operation, size_t input, size_t output, const std::vector<Extent>& extents) {
  const Operand& from = operation.operands[input];
  const Operand& to = operation.operands[output];
  const Tensor& a = *from.tensor;
  const Tensor& b = *to.tensor;
  return !from.output && from.in_step && to.in_step && a.view == b.view && a.strides == b.strides &&
         a.dtype == b.dtype && extents[input].data == extents[output].data;
}

void check_alignment(const Extent& extent, uintptr_t alignment) {
  if (reinterpret_cast<uintptr_t>(extent.data) % alignment != 0) {
    throw Fault{kParamInvalid,
                text(extent.name, " begins at ", hex(extent.data), "; accepted: a multiple of ", alignment, " bytes")};
  }
}

// All of each extent is live device memory, aligned to its elements, and of the memory of two only what in_place()
// allows is common. An address that is null may still be set.
void check_memory(const Operation& operation, const std::vector<Extent>& extents, const Extent& workspace) {
  for (size_t i = 0; i < extents.size(); ++i) {
    if (extents[i].bytes == 0 || !extents[i].data) continue;
    groupnorm_host()->check_extent(extents[i], kParamInvalid);
    check_alignment(extents[i], groupnorm_host()->data_type_size(operation.operands[i].tensor->dtype));
    if (overlap(extents[i], workspace)) {
      throw Fault{kParamInvalid, text("workspace, ", range(workspace), ", shares memory with ", extents[i].name, ", ",
                                      range(extents[i]))};
    }
    for (size_t j = 0; j < i; ++j) {
      if (!extents[i].written || !overlap(extents[i], extents[j]) || in_place(operation, j, i, extents)) continue;
      const Tensor& a = *operation.operands[i].tensor;
      const Tensor& b = *operation.operands[j].tensor;
      const size_t item = groupnorm_host()->data_type_size(a.dtype);
      if (a.dtype == b.dtype && take_turns(a, extents[i], b, extents[j], item)) continue;
      throw Fault{kParamInvalid,
                  text(extents[i].name, ", ", range(extents[i]), ", shares memory with ", extents[j].name, ", ",
                       range(extents[j]), "; accepted: memory of its own, or an input's as a whole")};
    }
  }
}

aclOpExecutor* make_executor(std::shared_ptr<const Operation> operation) {
  auto executor = std::make_shared<Executor>();
  for (const Operand& operand : operation->operands) executor->addresses.push_back(operand.tensor->data);
  check_memory(*operation, operation->extents(executor->addresses), {});
  executor->operation = std::move(operation);
  return static_cast<aclOpExecutor*>(executors().add(std::move(executor)));
}

// One launch of an executor. Of two threads with one executor one gets it; when its launch fails it can be had again.
class Turn {
 public:
  Turn(Executor& executor, aclOpExecutor* handle) : executor_(executor) {
    const std::lock_guard<std::mutex> lock(executor.mutex);
    repeatable_ = executor.repeatable;
    if (!repeatable_ && (executor.launching || !executors().find(handle))) {
      throw Fault{kParamInvalid, text("executor is ", hex(handle),
                                      ", an aclOpExecutor that was already used or destroyed; accepted: one from "
                                      "phase 1, once, or again after aclSetAclOpExecutorRepeatable")};
    }
    executor.launching = true;
  }
  ~Turn() {
    const std::lock_guard<std::mutex> lock(executor_.mutex);
    executor_.launching = false;
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  bool repeatable() const { return repeatable_; }

 private:
  Executor& executor_;
  bool repeatable_;
};

aclnnStatus launch(const char* function, void* workspace, uint64_t workspace_bytes, aclOpExecutor* handle,
                   aclrtStream stream) {
  return entry(function, [&] {
    require(handle, "executor", kParamNullptr);
    const std::shared_ptr<Executor> executor = find_or_throw(executors(), "executor", handle, kParamInvalid);
    const Operation& operation = *executor->operation;
    if (operation.name != function) {
      throw Fault{kParamInvalid, text("executor was made by ", operation.name,
                                      "GetWorkspaceSize; accepted: one made by ", function, "GetWorkspaceSize")};
    }
    const Extent scratch{"workspace", workspace, operation.workspace_bytes, true};
    if (scratch.bytes > 0) {
      if (!workspace) {
        throw Fault{kParamNullptr, text("workspace is null; accepted: ", scratch.bytes,
                                        " bytes of device memory, what phase 1 said, or more")};
      }
      if (workspace_bytes < scratch.bytes) {
        throw Fault{kParamInvalid, text("workspaceSize is ", workspace_bytes, "; accepted: ", scratch.bytes,
                                        ", what phase 1 said, or more")};
      }
      check_alignment(scratch, kWorkspaceAlignment);
      groupnorm_host()->check_extent({"workspace", workspace, workspace_bytes, true}, kParamInvalid);
    }
    std::vector<void*> addresses;
    {
      const std::lock_guard<std::mutex> lock(executor->mutex);
      addresses = executor->addresses;
    }
    std::vector<Extent> extents = operation.extents(addresses);
    for (const Extent& extent : extents) {
      if (extent.bytes > 0) require(extent.data, text("the address of ", extent.name).c_str(), kParamNullptr);
    }
    check_memory(operation, extents, scratch);
    std::vector<Extent> used;
    for (const Extent& extent : extents) {
      if (extent.bytes > 0) used.push_back(extent);
    }
    if (scratch.bytes > 0) used.push_back(scratch);
    std::unique_ptr<Work> work = operation.work(addresses, workspace);
    const Turn turn(*executor, handle);
    try {
      groupnorm_host()->enqueue(stream, used, std::move(work));
    } catch (const Fault& fault) {
      throw Fault{kRuntimeError, text(fault.message, " [", fault.code, "]")};
    }
    if (!turn.repeatable()) executors().take(handle);
  });
}

enum class Operands { kInputs, kOutputs, kAll };

// Position in the operation of the index-th input, output or operand.
size_t position(const Operation& operation, Operands which, const char* name, size_t index) {
  size_t inputs = 0;
  while (inputs < operation.operands.size() && !operation.operands[inputs].output) ++inputs;
  const size_t begin = which == Operands::kOutputs ? inputs : 0;
  const size_t end = which == Operands::kInputs ? inputs : operation.operands.size();
  if (index >= end - begin) {
    throw Fault{kParamInvalid, text(name, " is ", index, "; accepted: below ", end - begin, ", what ", operation.name,
                                    " has of them")};
  }
  return begin + index;
}

aclnnStatus set_operand(const char* function, Operands which, aclOpExecutor* handle, size_t index, aclTensor* tensor,
                        void* addr) {
  return entry(function, [&] {
    const std::shared_ptr<Executor> executor = changeable(handle);
    require(tensor, "tensor", kParamNullptr);
    require(addr, "addr", kParamNullptr);
    tensor_of("tensor", tensor);
    const size_t at = position(*executor->operation, which, "index", index);
    set_address("tensor", tensor, addr);
    const std::lock_guard<std::mutex> lock(executor->mutex);
    executor->addresses[at] = addr;
  });
}

// No operator here takes a list, so after the checks there is nothing that the index could mean.
aclnnStatus set_list(const char* function, Operands which, aclOpExecutor* handle, size_t ir_index,
                     size_t relative_index, aclTensorList* tensors, void* addr) {
  return entry(function, [&] {
    const std::shared_ptr<Executor> executor = changeable(handle);
    require(tensors, "tensors", kParamNullptr);
    require(addr, "addr", kParamNullptr);
    const size_t at = position(*executor->operation, which, "irIndex", ir_index);
    list_element("tensors", tensors, relative_index);
    throw Fault{kParamInvalid, text("irIndex is ", ir_index, ", ", executor->operation->operands[at].name, " of ",
                                    executor->operation->name, ", which is a tensor; accepted: a list of tensors")};
  });
}

// Runs when the library is loaded, before any operator library that needs it.
const bool attached = [] {
  static constexpr Meta meta{tensor_of, bools_of, make_executor, launch};
  Host* const host = groupnorm_host();
  if (host->version != kHostVersion || host->meta) return false;  // another release, or a second prefix
  host->meta = &meta;
  return true;
}();

}  // namespace
}  // namespace groupnorm::host

using namespace groupnorm::host;

aclnnStatus aclnnInit(const char*) { return attached ? OK : kInnerNullptr; }
aclnnStatus aclnnFinalize() { return OK; }

aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor* executor) {
  return entry(__func__, [&] {
    const std::shared_ptr<Executor> found = changeable(executor);
    const std::lock_guard<std::mutex> lock(found->mutex);
    found->repeatable = true;
  });
}

aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  return entry(__func__, [&] {
    changeable(executor);
    if (!executors().take(executor)) throw Fault{kParamInvalid, executors().refusal("executor", executor)};
  });
}

aclnnStatus aclSetInputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor, void* addr) {
  return set_operand(__func__, Operands::kInputs, executor, index, tensor, addr);
}

aclnnStatus aclSetOutputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor, void* addr) {
  return set_operand(__func__, Operands::kOutputs, executor, index, tensor, addr);
}

aclnnStatus aclSetTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor, void* addr) {
  return set_operand(__func__, Operands::kAll, executor, index, tensor, addr);
}

aclnnStatus aclSetDynamicInputTensorAddr(aclOpExecutor* executor, size_t irIndex, const size_t relativeIndex,
                                         aclTensorList* tensors, void* addr) {
  return set_list(__func__, Operands::kInputs, executor, irIndex, relativeIndex, tensors, addr);
}

aclnnStatus aclSetDynamicOutputTensorAddr(aclOpExecutor* executor, size_t irIndex, const size_t relativeIndex,
                                          aclTensorList* tensors, void* addr) {
  return set_list(__func__, Operands::kOutputs, executor, irIndex, relativeIndex, tensors, addr);
}

aclnnStatus aclSetDynamicTensorAddr(aclOpExecutor* executor, size_t irIndex, const size_t relativeIndex,
                                    aclTensorList* tensors, void* addr) {
  return set_list(__func__, Operands::kAll, executor, irIndex, relativeIndex, tensors, addr);
}

aclnnStatus AclSetInputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor, void* addr) {
  return aclSetInputTensorAddr(executor, index, tensor, addr);
}

aclnnStatus AclSetOutputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor, void* addr) {
  return aclSetOutputTensorAddr(executor, index, tensor, addr);
}

aclnnStatus AclSetTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor, void* addr) {
  return aclSetTensorAddr(executor, index, tensor, addr);
}

aclnnStatus AclSetDynamicInputTensorAddr(aclOpExecutor* executor, size_t irIndex, const size_t relativeIndex,
                                         aclTensorList* tensors, void* addr) {
  return aclSetDynamicInputTensorAddr(executor, irIndex, relativeIndex, tensors, addr);
}

aclnnStatus AclSetDynamicOutputTensorAddr(aclOpExecutor* executor, size_t irIndex, const size_t relativeIndex,
                                          aclTensorList* tensors, void* addr) {
  return aclSetDynamicOutputTensorAddr(executor, irIndex, relativeIndex, tensors, addr);
}

aclnnStatus AclSetDynamicTensorAddr(aclOpExecutor* executor, size_t irIndex, const size_t relativeIndex,
                                    aclTensorList* tensors, void* addr) {
  return aclSetDynamicTensorAddr(executor, irIndex, relativeIndex, tensors, addr);
}

aclnnStatus aclDumpOpTensors(const char*, const char*, aclTensor**, size_t, size_t, aclrtStream) {
  return entry(__func__,
               [] { throw Fault{ACL_ERROR_FEATURE_UNSUPPORTED, "not available on a host: it needs a device"}; });
}
