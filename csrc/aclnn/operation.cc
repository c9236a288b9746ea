#include "operation.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "core/dispatch.h"
#include "core/parallel.h"

namespace groupnorm::host {
namespace {

constexpr uint64_t kAlignment = 64;

// An address before it is known to be one: any number.
void* step(void* from, int64_t bytes) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(from) + static_cast<uintptr_t>(bytes));
}

// A view in memory: strides in bytes.
struct View {
  std::vector<int64_t> dims;
  std::vector<int64_t> strides;
};

template <class Item>
void copy_row(char* to, int64_t to_stride, const char* from, int64_t from_stride, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride, sizeof(Item));  // of a size the compiler knows: one move
  }
}

void copy_view(char* to, const View& target, const char* from, const View& source, size_t axis, int64_t item) {
  if (axis == target.dims.size()) {  // a view without dimensions is one element
    std::memcpy(to, from, static_cast<size_t>(item));
    return;
  }
  const int64_t count = target.dims[axis];
  const int64_t to_stride = target.strides[axis];
  const int64_t from_stride = source.strides[axis];
  if (axis + 1 < target.dims.size()) {
    for (int64_t i = 0; i < count; ++i) {
      copy_view(to + i * to_stride, target, from + i * from_stride, source, axis + 1, item);
    }
  } else if (count > 1 && to_stride == item && from_stride == item) {
    std::memcpy(to, from, static_cast<size_t>(count * item));
  } else if (item == 2) {
    copy_row<uint16_t>(to, to_stride, from, from_stride, count);
  } else {
    copy_row<uint32_t>(to, to_stride, from, from_stride, count);
  }
}

// Elements from the begin of the data to the first and past the last that a view reaches.
struct Reach {
  int64_t begin;
  int64_t end;
};

Reach reach_of(const Argument& argument) {
  const Tensor& tensor = *argument.tensor;
  if (elements(argument) == 0) return {0, 0};
  __int128 begin = tensor.offset;
  __int128 end = tensor.offset;
  for (size_t i = 0; i < tensor.view.size(); ++i) {
    const __int128 span = static_cast<__int128>(tensor.strides[i]) * (tensor.view[i] - 1);
    (span < 0 ? begin : end) += span;
  }
  if (begin < 0 || end >= INT64_MAX / 8) {
    throw Fault{kParamInvalid,
                text(argument.name, " has shape ", shape_text(tensor.view), ", strides ", shape_text(tensor.strides),
                     " and offset ", tensor.offset, "; accepted: a view that stays in its storage")};
  }
  return {static_cast<int64_t>(begin), static_cast<int64_t>(end) + 1};
}

// Each element of an output has a place of its own: strides, from the smallest, step over all that lies below.
void check_distinct(const Argument& argument) {
  const Tensor& tensor = *argument.tensor;
  std::vector<size_t> order(tensor.view.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto size = [&](size_t i) {
    return tensor.strides[i] < 0 ? -static_cast<__int128>(tensor.strides[i]) : static_cast<__int128>(tensor.strides[i]);
  };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return size(a) < size(b); });
  __int128 below = 0;
  for (const size_t i : order) {
    if (tensor.view[i] <= 1) continue;
    if (size(i) <= below) {
      throw Fault{kParamInvalid,
                  text(argument.name, " has shape ", shape_text(tensor.view), " and strides ",
                       shape_text(tensor.strides), "; accepted: an output whose elements do not share memory")};
    }
    below += size(i) * (tensor.view[i] - 1);
  }
}

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& dims) {
  std::vector<int64_t> strides(dims.size());
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= dims[i];
  }
  return strides;
}

// [N, C, *] with the channels of a position side by side.
std::vector<int64_t> channels_last_strides(const std::vector<int64_t>& dims) {
  std::vector<int64_t> strides(dims.size());
  int64_t stride = dims[1];
  for (size_t i = dims.size(); i-- > 2;) {
    strides[i] = stride;
    stride *= dims[i];
  }
  strides[1] = 1;
  strides[0] = stride;
  return strides;
}

bool lies_as(const Tensor& tensor, const std::vector<int64_t>& strides) {
  for (size_t i = 0; i < strides.size(); ++i) {
    if (tensor.view[i] > 1 && tensor.strides[i] != strides[i]) return false;
  }
  return true;
}

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The SIMD levels that run here.
std::string levels() {
  std::string names;
  int count = 0;
  const Isa* const list = isa_list(&count);
  for (int i = 0; i < count; ++i) {
    if (list[i].table && list[i].supported) names += text(names.empty() ? "" : ", ", list[i].name);
  }
  return names;
}

bool full_size(Role role, Operator op) {
  return role == Role::kX || role == Role::kDy || role == Role::kDx || role == Role::kY ||
         (role == Role::kGamma && op == Operator::kGroupNormalizationGrad);
}

class GroupNormOperation : public Operation, public std::enable_shared_from_this<GroupNormOperation> {
 public:
  GroupNormOperation(const char* function, const Problem& given_problem, const std::vector<Given>& given)
      : problem_(given_problem), threads_(default_threads()) {
    if (threads_ == 0) {
      throw Fault{kInner, text("GROUPNORM_NUM_THREADS is '", variable("GROUPNORM_NUM_THREADS"),
                               "'; accepted: a number from 1 to ", kMaxThreads)};
    }
    name = function;
    positions_.fill(-1);
    for (const Given& one : given) {
      if (one.argument) add(one);
    }
    problem_.layout = channels_last() ? Layout::kChannelsLast : Layout::kContiguous;
    // The core only asks which outputs there are.
    const Outputs wanted = outputs([&](Role role) { return part_of(role) ? &problem_ : nullptr; });
    core_bytes_ = round_up(groupnorm::workspace_bytes(problem_, wanted, threads_));
    workspace_bytes = core_bytes_;
    for (Part& part : parts_) {
      const Tensor& tensor = *operands[part.operand].tensor;
      const std::vector<int64_t> wanted = core_strides(part.role, tensor.view);
      part.direct = part.count == 0 || lies_as(tensor, wanted);
      if (part.direct) continue;
      part.core_view = view(tensor.view, wanted, part.item);
      part.user_view = view(tensor.view, tensor.strides, part.item);
      part.copy_at = workspace_bytes;
      workspace_bytes += round_up(static_cast<uint64_t>(part.count * part.item));
    }
  }

  std::vector<Extent> extents(const std::vector<void*>& addresses) const override {
    std::vector<Extent> extents;
    for (const Part& part : parts_) {
      const Operand& operand = operands[part.operand];
      void* const data = addresses[part.operand];
      extents.push_back({operand.name, data ? step(data, part.reach.begin * part.item) : nullptr,
                         static_cast<size_t>((part.reach.end - part.reach.begin) * part.item), operand.output});
    }
    return extents;
  }

  std::unique_ptr<Work> work(const std::vector<void*>& addresses, void* workspace) const override {
    return std::make_unique<Run>(shared_from_this(), addresses, workspace);
  }

 private:
  struct Part {
    Role role;
    size_t operand;
    int64_t item;   // bytes of an element
    int64_t count;  // elements
    Reach reach;
    bool direct = true;  // the core works on the caller's memory
    View user_view;      // else: how it lies there, and in the copy
    View core_view;
    uint64_t copy_at = 0;  // bytes into the workspace
  };

  class Run : public Work {
   public:
    Run(std::shared_ptr<const GroupNormOperation> operation, std::vector<void*> addresses, void* workspace)
        : operation_(std::move(operation)), addresses_(std::move(addresses)), workspace_(workspace) {}
    void run(const std::atomic<bool>&) override { operation_->run(addresses_, static_cast<char*>(workspace_)); }

   private:
    const std::shared_ptr<const GroupNormOperation> operation_;
    const std::vector<void*> addresses_;
    void* const workspace_;
  };

  static uint64_t round_up(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  static View view(const std::vector<int64_t>& dims, std::vector<int64_t> strides, int64_t item) {
    for (size_t i = 0; i < dims.size(); ++i) strides[i] = dims[i] > 1 ? strides[i] * item : 0;
    return {dims, std::move(strides)};
  }

  void add(const Given& given) {
    const Argument& argument = given.argument;
    Part part{};
    part.role = given.role;
    part.operand = operands.size();
    part.item = element_size(dtype_of(argument));
    part.count = elements(argument);
    part.reach = reach_of(argument);
    if (argument.output && part.count > 0) check_distinct(argument);
    positions_[static_cast<size_t>(given.role)] = static_cast<int>(parts_.size());
    operands.push_back({argument.name, argument.tensor, argument.output, full_size(given.role, problem_.op)});
    parts_.push_back(std::move(part));
  }

  const Part* part_of(Role role) const {
    const int position = positions_[static_cast<size_t>(role)];
    return position < 0 ? nullptr : &parts_[static_cast<size_t>(position)];
  }

  bool channels_last() const {
    if (problem_.op == Operator::kGroupNormalizationGrad) return false;
    // One layout for all: an operand that is not written [N, C, *] has no channels to put last.
    for (const Part& part : parts_) {
      const std::vector<int64_t>& dims = operands[part.operand].tensor->view;
      if (!full_size(part.role, problem_.op)) continue;
      if (dims.size() < 2 || dims[0] != problem_.n || dims[1] != problem_.channels) return false;
    }
    const Tensor& x = *operands[part_of(Role::kX)->operand].tensor;
    return x.view.size() > 2 && !is_contiguous(x) && lies_as(x, channels_last_strides(x.view));
  }

  std::vector<int64_t> core_strides(Role role, const std::vector<int64_t>& dims) const {
    const bool last = problem_.layout == Layout::kChannelsLast && full_size(role, problem_.op);
    return last ? channels_last_strides(dims) : contiguous_strides(dims);
  }

  // The memory that the core is given for a role.
  char* memory(Role role, const std::vector<void*>& addresses, char* workspace) const {
    const Part* part = part_of(role);
    if (!part) return nullptr;
    if (!part->direct) return workspace + part->copy_at;
    return user_memory(*part, addresses);
  }

  char* user_memory(const Part& part, const std::vector<void*>& addresses) const {
    char* const data = static_cast<char*>(addresses[part.operand]);
    // Nothing is known of the offset of a view without elements.
    return part.count == 0 ? data : data + operands[part.operand].tensor->offset * part.item;
  }

  template <class Memory>
  static Outputs outputs(Memory&& memory) {
    Outputs out{};
    out.dx = memory(Role::kDx);
    out.dgamma = memory(Role::kDgamma);
    out.dbeta = memory(Role::kDbeta);
    out.y = memory(Role::kY);
    out.mean = memory(Role::kMeanOut);
    out.rstd = memory(Role::kRstdOut);
    return out;
  }

  void run(const std::vector<void*>& addresses, char* workspace) const {
    for (const Part& part : parts_) {
      if (part.direct || operands[part.operand].output) continue;
      copy_view(workspace + part.copy_at, part.core_view, user_memory(part, addresses), part.user_view, 0, part.item);
    }
    Inputs in{};
    in.x = memory(Role::kX, addresses, workspace);
    in.dy = memory(Role::kDy, addresses, workspace);
    in.gamma = memory(Role::kGamma, addresses, workspace);
    in.beta = memory(Role::kBeta, addresses, workspace);
    in.mean = memory(Role::kMean, addresses, workspace);
    in.rstd = memory(Role::kRstd, addresses, workspace);
    const Outputs out = outputs([&](Role role) { return memory(role, addresses, workspace); });
    const Status status = groupnorm::run(problem_, in, out, workspace, core_bytes_, threads_);
    if (status == Status::kUnsupportedIsa) {
      throw Fault{ACL_ERROR_RT_VECTOR_CORE_EXCEPTION,
                  text(name, ": GROUPNORM_ISA is '", variable("GROUPNORM_ISA"), "'; accepted: ", levels())};
    }
    if (status != Status::kOk) {
      throw Fault{ACL_ERROR_RT_VECTOR_CORE_EXCEPTION,
                  text(name, ": the core refused the problem, status ", static_cast<int>(status))};
    }
    for (const Part& part : parts_) {
      if (part.direct || !operands[part.operand].output) continue;
      copy_view(user_memory(part, addresses), part.user_view, workspace + part.copy_at, part.core_view, 0, part.item);
    }
  }

  Problem problem_;
  const int threads_;
  uint64_t core_bytes_ = 0;
  std::vector<Part> parts_;  // one an operand, in their order
  std::array<int, kRoles> positions_;
};

}  // namespace

std::shared_ptr<const Operation> make_operation(const char* name, const Problem& problem,
                                                const std::vector<Given>& given) {
  return std::make_shared<const GroupNormOperation>(name, problem, given);
}

}  // namespace groupnorm::host
