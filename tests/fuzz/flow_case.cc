#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "flow.h"

namespace groupnorm::fuzz {
namespace {

constexpr uint8_t kFill = 0xa5;

void choose_shape(Case& one, Input& in) {
  const uint8_t size = in.byte();
  const int64_t n = size >= 250 ? 0 : 1 + size % 3;
  const int64_t groups = 1 + in.byte() % 4;
  const int64_t channels = groups * (1 + in.byte() % 4);
  one.arguments.groups = groups;
  one.shape = {n, channels};
  const size_t spatial = in.byte() % 4;
  for (size_t i = 0; i < spatial; ++i) {
    const uint8_t dim = in.byte();
    static constexpr int64_t kLong[] = {16, 17, 31, 33, 64, 65, 100};
    one.shape.push_back(dim >= 252 ? 0 : dim >= 236 && i == 0 ? kLong[dim % 7] : dim >= 232 ? 1 : 1 + dim % 4);
  }
  if (in.chance(8)) one.shape.resize(2 + in.below(7), 1);
  if (in.chance(4)) one.shape[1] = 0;
}

std::vector<int64_t> dense_strides(const std::vector<int64_t>& dims, const std::vector<size_t>& order) {
  std::vector<int64_t> strides(dims.size());
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride *= std::max<int64_t>(1, dims[order[i]]);
  }
  return strides;
}

void choose_layout(Operand& operand, Input& in) {
  const size_t rank = operand.dims.size();
  std::vector<size_t> order(rank);
  std::iota(order.begin(), order.end(), size_t{0});
  const size_t choice = operand.strided ? in.byte() % 9 : 0;
  if (choice == 4 && rank > 2) {  // channels last
    order.erase(order.begin() + 1);
    order.push_back(1);
  } else if (choice == 5) {
    std::reverse(order.begin(), order.end());
  }
  operand.strides = dense_strides(operand.dims, order);
  if (choice == 6) {
    for (int64_t& stride : operand.strides) stride *= 2;
  } else if (choice == 7) {
    for (int64_t& stride : operand.strides) stride = -stride;
  } else if (choice == 8 && !operand.output && rank > 0) {  // one row for all
    operand.strides[in.below(rank)] = 0;
  }
}

// Gives an operand memory of its own, exactly as long as its view reaches.
void place(Case& one, Operand& operand, Input& in) {
  int64_t low = 0;
  int64_t high = 0;
  const bool empty = operand.count() == 0;
  for (size_t i = 0; i < operand.dims.size() && !empty; ++i) {
    const int64_t span = operand.strides[i] * (operand.dims[i] - 1);
    (span < 0 ? low : high) += span;
  }
  operand.offset = -low + (in.chance(64) ? in.byte() % 8 : 0);
  const size_t item = item_size(operand.type);
  operand.at = in.chance(64) ? item * (in.byte() % 16) : 0;
  const size_t behind = in.chance(64) ? in.byte() % 64 : 0;
  const size_t elements = static_cast<size_t>(operand.offset + high + (empty ? 0 : 1));
  Memory memory;
  memory.before.assign(std::max<size_t>(1, operand.at + elements * item + behind), kFill);
  operand.memory = one.memory.size();
  one.memory.push_back(std::move(memory));
  if (empty && in.chance(64)) operand.offset = in.edge();
}

double uniform(uint64_t index) {  // SplitMix64, in [-1, 1)
  uint64_t z = (index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return static_cast<double>(z >> 40) / 8388608.0 - 1.0;
}

void fill(Case& one, const Operand& operand, uint64_t seed) {
  std::vector<uint8_t>& bytes = one.memory[operand.memory].before;
  const size_t item = item_size(operand.type);
  const bool rstd = std::strcmp(operand.name, "rstd") == 0;
  for (size_t at = operand.at; at + item <= bytes.size(); at += item) {
    const double value = uniform(seed << 32 | at);
    encode(operand.type, rstd ? 1 + value / 2 : 2 * value, bytes.data() + at);
  }
}

// An output in the memory of an input of the same shape: right where the two go in step, else to be refused.
void choose_alias(Case& one, Input& in) {
  Operand& output = one.operands[in.below(one.operands.size())];
  const Operand& input = one.operands[in.below(one.operands.size())];
  if (!output.output || !output.given || !output.written || input.output || !input.given) return;
  if (output.dims != input.dims || output.type != input.type) return;
  if (!output.strided && output.strides != input.strides) return;
  if (std::find(input.strides.begin(), input.strides.end(), 0) != input.strides.end()) return;
  output.strides = input.strides;
  output.offset = input.offset;
  output.at = input.at;
  output.memory = input.memory;
  one.clash = output.count() > 0 && !(output.in_step && input.in_step);
}

}  // namespace

const Operator& choose_case(Case& one, Input& in) {
  const Operator& op = kOperators[in.slot(kOperatorCount, 16)];
  choose_shape(one, in);
  op.build(one, in);
  const uint64_t seed = in.byte();
  for (size_t i = 0; i < one.operands.size(); ++i) {
    Operand& operand = one.operands[i];
    choose_layout(operand, in);
    place(one, operand, in);
    if (!operand.output) fill(one, operand, seed * kMaxTensors + i);
  }
  if (in.chance(64)) choose_alias(one, in);
  for (Memory& memory : one.memory) {
    memory.data = static_cast<char*>(one.world.allocate(memory.before.size()));
  }
  op.expect(one);
  return op;
}

void upload(Case& one, aclrtStream stream, bool async) {
  for (Memory& memory : one.memory) {
    const size_t size = memory.before.size();
    const int code =
        async ? aclrtMemcpyAsync(memory.data, size, memory.before.data(), size, ACL_MEMCPY_HOST_TO_DEVICE, stream)
              : aclrtMemcpy(memory.data, size, memory.before.data(), size, ACL_MEMCPY_HOST_TO_DEVICE);
    FUZZ_CHECK(one.world.status(code) == 0, "%d", code);
  }
}

void replace_tensor(Case& one, size_t index, aclDataType type, const std::vector<int64_t>& dims,
                    const std::vector<int64_t>& strides, int64_t offset, aclFormat format, void* data) {
  aclTensor*& tensor = one.arguments.tensor[index];
  if (tensor && one.world.status(aclDestroyTensor(tensor)) == 0) one.world.drop(kTensor, tensor);
  const bool contiguous = strides.empty();
  tensor = aclCreateTensor(dims.data(), dims.size(), type, contiguous ? nullptr : strides.data(), offset, format,
                           dims.data(), dims.size(), data);
  FUZZ_CHECK(tensor || dims.empty());
  if (tensor) one.world.add(kTensor, tensor);
}

void create_tensors(Case& one) {
  for (size_t i = 0; i < one.operands.size(); ++i) {
    const Operand& operand = one.operands[i];
    if (!operand.given) continue;
    replace_tensor(one, i, operand.type, operand.dims, operand.strides, operand.offset, ACL_FORMAT_ND,
                   one.memory[operand.memory].data + operand.at);
  }
  one.arguments.mask = aclCreateBoolArray(one.mask.data(), one.mask.size());
  one.world.add(kBools, one.arguments.mask);
}

std::vector<uint8_t> download(const Memory& memory) {
  std::vector<uint8_t> bytes(memory.before.size());
  const int code = aclrtMemcpy(bytes.data(), bytes.size(), memory.data, bytes.size(), ACL_MEMCPY_DEVICE_TO_HOST);
  FUZZ_CHECK(code == 0, "%d", code);
  return bytes;
}

void check_unchanged(const Case& one) {
  for (const Memory& memory : one.memory) {
    if (!memory.data) continue;
    FUZZ_CHECK(download(memory) == memory.before, "memory %zu", static_cast<size_t>(&memory - one.memory.data()));
  }
}

void check_results(const Case& one) {
  std::vector<std::vector<uint8_t>> after;
  for (const Memory& memory : one.memory) after.push_back(download(memory));
  for (const Operand& operand : one.operands) {
    if (!operand.output || !operand.given || !operand.written) continue;
    std::vector<uint8_t>& bytes = after[operand.memory];
    const std::vector<uint8_t>& before = one.memory[operand.memory].before;
    size_t i = 0;
    for_each_element(operand, [&](size_t at) {
      const double got = decode(operand.type, bytes.data() + at);
      FUZZ_CHECK(std::fabs(got - operand.expect[i]) <= operand.bound[i], "%s[%zu] is %g, not %g, within %g",
                 operand.name, i, got, operand.expect[i], operand.bound[i]);
      ++i;
    });
    for_each_element(operand, [&](size_t at) {
      std::copy_n(before.begin() + static_cast<ptrdiff_t>(at), item_size(operand.type),
                  bytes.begin() + static_cast<ptrdiff_t>(at));
    });
  }
  for (size_t i = 0; i < after.size(); ++i) {
    FUZZ_CHECK(after[i] == one.memory[i].before, "memory %zu beside the outputs", i);
  }
}

}  // namespace groupnorm::fuzz
