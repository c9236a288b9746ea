#include "run.h"

#include <nanobind/nanobind.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#include "../core/dispatch.h"

namespace nb = nanobind;

namespace groupnorm {
namespace {

std::string unsupported_isa_message() {
  int count;
  const Isa* list = isa_list(&count);
  std::string accepted;
  for (int i = 0; i < count; ++i) {
    if (list[i].table && list[i].supported) accepted += (accepted.empty() ? "" : ", ") + std::string(list[i].name);
  }
  const char* asked = std::getenv("GROUPNORM_ISA");
  return "GROUPNORM_ISA: '" + std::string(asked ? asked : "") + "'; accepted: " + accepted +
         " (the SIMD levels of this build that this CPU has)";
}

void throw_status(Status status) {
  switch (status) {
    case Status::kOk:
      return;
    case Status::kUnsupportedIsa:
      throw std::runtime_error(unsupported_isa_message());
    case Status::kInvalidProblem:
      throw std::invalid_argument("sizes or options of the problem are out of range");
    case Status::kNullPointer:
      throw std::invalid_argument("a required operand is a null pointer");
    case Status::kWorkspaceTooSmall:
      throw std::runtime_error("the workspace is too small");
  }
}

}  // namespace

void run_unlocked(const Problem& problem, const Inputs& inputs, const Outputs& outputs, int threads) {
  constexpr size_t kOnStack = 16 * 1024;
  alignas(64) char on_stack[kOnStack];
  const size_t size = workspace_bytes(problem, outputs, threads);
  std::unique_ptr<void, decltype(&std::free)> heap(size > kOnStack ? std::malloc(size) : nullptr, &std::free);
  if (size > kOnStack && !heap) throw std::bad_alloc();
  throw_status(run(problem, inputs, outputs, heap ? heap.get() : on_stack, heap ? size : kOnStack, threads));
}

void run_released(const Problem& problem, const Inputs& inputs, const Outputs& outputs, int threads) {
  nb::gil_scoped_release release;
  run_unlocked(problem, inputs, outputs, threads);
}

}  // namespace groupnorm
