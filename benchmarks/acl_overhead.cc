// What the C interface costs: an operator through both phases, its stream and a synchronise, beside the same call of
// the core in the same run, on the same memory. Prints one JSON object a case; the ratio and the difference are of
// medians.
//
// usage: acl_overhead [seconds a case]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "acl/acl.h"
#include "aclnn_group_normalization_grad.h"
#include "aclnnop/aclnn_group_norm_backward.h"
#include "core/group_norm.h"
#include "core/parallel.h"

namespace {

using Clock = std::chrono::steady_clock;
using namespace groupnorm;

void check(int status, const char* what) {
  if (status == 0) return;
  const char* message = aclGetRecentErrMsg();
  std::fprintf(stderr, "%s: %d %s\n", what, status, message ? message : "");
  std::exit(1);
}

struct Case {
  const char* name;
  int64_t n, channels, length, groups;
};

// float32 data on the device; the core is given the same memory.
struct Data {
  aclTensor* tensor;
  float* data;
};

Data make(const std::vector<int64_t>& shape, float scale) {
  int64_t count = 1;
  for (int64_t dim : shape) count *= dim;
  void* memory = nullptr;
  check(aclrtMalloc(&memory, static_cast<size_t>(count) * sizeof(float), ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc");
  float* data = static_cast<float*>(memory);
  for (int64_t i = 0; i < count; ++i) data[i] = scale * static_cast<float>((i * 7919) % 1021 - 510) / 510;
  aclTensor* tensor = aclCreateTensor(shape.data(), shape.size(), ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, shape.data(),
                                      shape.size(), memory);
  return {tensor, data};
}

double microseconds(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void run(const Case& c, double seconds, aclrtStream stream) {
  const Data x = make({c.n, c.channels, c.length}, 1), dy = make({c.n, c.channels, c.length}, 1);
  const Data dx = make({c.n, c.channels, c.length}, 0), gamma = make({c.channels}, 1);
  const Data dgamma = make({c.channels}, 0), dbeta = make({c.channels}, 0);
  const Data mean = make({c.n, c.groups}, 0.1f), rstd = make({c.n, c.groups}, 1);
  const bool wanted[3] = {true, true, true};
  aclBoolArray* mask = aclCreateBoolArray(wanted, 3);

  Problem problem{};
  problem.op = Operator::kGroupNormBackward;
  problem.dtype = problem.gamma_dtype = problem.beta_dtype = problem.stats_dtype = DType::kFloat32;
  problem.n = c.n;
  problem.channels = c.channels;
  problem.length = c.length;
  problem.groups = c.groups;
  Inputs in{};
  in.x = x.data, in.dy = dy.data, in.gamma = gamma.data, in.mean = mean.data, in.rstd = rstd.data;
  Outputs out{};
  out.dx = dx.data, out.dgamma = dgamma.data, out.dbeta = dbeta.data;
  const int threads = default_threads();
  std::vector<char> scratch(workspace_bytes(problem, out, threads));

  void* workspace = nullptr;
  uint64_t workspace_size = 0;
  std::vector<double> through, core;
  const Clock::time_point begin = Clock::now();
  while (microseconds(begin) < seconds * 1e6 || core.size() < 11) {
    Clock::time_point start = Clock::now();
    if (groupnorm::run(problem, in, out, scratch.data(), scratch.size(), threads) != Status::kOk) std::exit(1);
    core.push_back(microseconds(start));

    start = Clock::now();
    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    check(aclnnGroupNormBackwardGetWorkspaceSize(dy.tensor, x.tensor, mean.tensor, rstd.tensor, gamma.tensor, c.n,
                                                 c.channels, c.length, c.groups, mask, dx.tensor, dgamma.tensor,
                                                 dbeta.tensor, &size, &executor),
          "phase 1");
    if (size > workspace_size) {  // kept from call to call, as programs do
      check(aclrtMalloc(&workspace, size, ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc");
      workspace_size = size;
    }
    check(aclnnGroupNormBackward(workspace, size, executor, stream), "phase 2");
    check(aclrtSynchronizeStream(stream), "synchronise");
    through.push_back(microseconds(start));
  }
  const double a = median(through), b = median(core);
  std::printf(
      "{\"case\": \"%s\", \"calls\": %zu, \"through_us\": %.2f, \"core_us\": %.2f, \"over_110_percent_us\": %.2f}\n",
      c.name, core.size(), a, b, a - 1.1 * b);
  std::fflush(stdout);
  check(aclDestroyBoolArray(mask), "aclDestroyBoolArray");
  for (const Data& data : {x, dy, dx, gamma, dgamma, dbeta, mean, rstd}) {
    check(aclDestroyTensor(data.tensor), "aclDestroyTensor");
    check(aclrtFree(data.data), "aclrtFree");
  }
  check(aclrtFree(workspace), "aclrtFree");
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 2;
  check(aclInit(nullptr), "aclInit");
  check(aclrtSetDevice(0), "aclrtSetDevice");
  aclrtStream stream = nullptr;
  check(aclrtCreateStream(&stream), "aclrtCreateStream");
  for (const Case& c : {Case{"1x4x4", 1, 4, 4, 2}, Case{"2x32x64", 2, 32, 64, 8}, Case{"8x320x1024", 8, 320, 1024, 32},
                        Case{"8x320x4096", 8, 320, 4096, 32}, Case{"8x640x4096", 8, 640, 4096, 32}}) {
    run(c, seconds, stream);
  }
  check(aclrtDestroyStream(stream), "aclrtDestroyStream");
  check(aclrtResetDevice(0), "aclrtResetDevice");
  check(aclFinalize(), "aclFinalize");
}
