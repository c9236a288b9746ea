// The operators as the fuzzer sees them: their arguments, both phases, and what they have to compute.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "world.h"

namespace groupnorm::fuzz {

inline constexpr size_t kMaxTensors = 9;

// All that a phase 1 takes; each operator reads its own.
struct Arguments {
  std::array<aclTensor*, kMaxTensors> tensor{};  // in the order of the parameters
  int64_t n = 0, channels = 0, length = 0, groups = 1;
  double eps = 1e-5;
  bool activate = false;  // swish
  double swish_scale = 1;
  std::array<bool, 2> required{true, true};  // the gradients of gamma and beta
  char* format = nullptr;
  aclBoolArray* mask = nullptr;
};

// Memory of the device with what is in it before the operator runs.
struct Memory {
  char* data = nullptr;
  std::vector<uint8_t> before;
};

struct Operand {
  const char* name = "";
  bool output = false;
  bool strided = true;  // the operator takes views
  bool given = true;
  aclDataType type = ACL_FLOAT;
  std::vector<int64_t> dims;
  std::vector<int64_t> strides;
  int64_t offset = 0;
  size_t memory = 0;
  size_t at = 0;               // bytes into the memory, where the tensor's data begins
  bool in_step = false;        // such an output may be in the memory of such an input
  bool written = true;         // an output: it is asked for
  std::vector<double> expect;  // and what it gets, element by element
  std::vector<double> bound;

  int64_t count() const;
};

struct Case {
  explicit Case(World& world) : world(world) {}

  Operand& add(const char* name, bool output, std::vector<int64_t> dims, aclDataType type, bool strided = true);
  // The elements of an input, in the order of its dimensions.
  std::vector<double> load(size_t operand) const;
  void want(size_t operand, std::vector<double> values, std::vector<double> scales);

  World& world;
  Arguments arguments;
  std::vector<Operand> operands;
  std::vector<Memory> memory;
  aclDataType type = ACL_FLOAT;
  std::vector<int64_t> shape;  // [N, C, *]
  std::array<bool, 3> mask{};
  bool clash = false;  // an output is in memory of something that is read after it
};

struct Operator {
  const char* name;
  size_t tensors;
  // Chooses dtypes and attributes for case.shape and adds the operands.
  void (*build)(Case& one, Input& in);
  void (*expect)(Case& one);
  aclnnStatus (*phase1)(const Arguments& a, uint64_t* workspace_size, aclOpExecutor** executor);
  aclnnStatus (*phase2)(void* workspace, uint64_t workspace_size, aclOpExecutor* executor, aclrtStream stream);
};

extern const Operator kOperators[];
extern const size_t kOperatorCount;

size_t item_size(aclDataType type);
double decode(aclDataType type, const uint8_t* from);
void encode(aclDataType type, double value, uint8_t* to);
// Calls visit(bytes from the memory's begin) for each element of the operand's view, in the order of its dimensions.
template <class Visit>
void for_each_element(const Operand& operand, Visit&& visit) {
  std::vector<int64_t> index(operand.dims.size());
  for (int64_t left = operand.count(); left > 0; --left) {
    int64_t element = operand.offset;
    for (size_t i = 0; i < index.size(); ++i) element += index[i] * operand.strides[i];
    visit(operand.at + static_cast<size_t>(element) * item_size(operand.type));
    for (size_t i = index.size(); i-- > 0;) {
      if (++index[i] < operand.dims[i]) break;
      index[i] = 0;
    }
  }
}

// The true gradient, the printed one and the forward, in double precision.
void expect_backward(Case& one);
void expect_swish_grad(Case& one);
void expect_printed(Case& one);
void expect_forward(Case& one);

}  // namespace groupnorm::fuzz
