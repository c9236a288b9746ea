// The gradient of Group Normalization on a device, three times over: by the true operator, by the formula that CANN
// prints, and by differences of the forward. Shows the two-phase calls, a stream, events, and why the printed formula
// should not train a network.
//
// The program knows nothing of groupnorm: it runs on an Ascend NPU as it runs here.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "acl/acl.h"
#include "aclnn_group_normalization_grad.h"
#include "aclnnop/aclnn_group_norm.h"
#include "aclnnop/aclnn_group_norm_backward.h"

namespace {

void check(int status, const char* what) {
  if (status == ACL_SUCCESS) return;
  const char* message = aclGetRecentErrMsg();
  std::fprintf(stderr, "%s returned %d: %s\n", what, status, message ? message : "(no message)");
  std::exit(1);
}

#define CHECK(call) check((call), #call)

using Shape = std::vector<int64_t>;

int64_t count(const Shape& shape) {
  int64_t elements = 1;
  for (int64_t dim : shape) elements *= dim;
  return elements;
}

// A float32 tensor on the device.
class Tensor {
 public:
  explicit Tensor(const Shape& shape, const std::vector<float>& values = {}) : bytes_(count(shape) * sizeof(float)) {
    CHECK(aclrtMalloc(&data_, bytes_, ACL_MEM_MALLOC_HUGE_FIRST));
    if (!values.empty()) CHECK(aclrtMemcpy(data_, bytes_, values.data(), bytes_, ACL_MEMCPY_HOST_TO_DEVICE));
    tensor_ = aclCreateTensor(shape.data(), shape.size(), ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, shape.data(),
                              shape.size(), data_);
  }
  ~Tensor() {
    aclDestroyTensor(tensor_);
    aclrtFree(data_);
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  aclTensor* get() const { return tensor_; }
  std::vector<float> values() const {
    std::vector<float> host(bytes_ / sizeof(float));
    CHECK(aclrtMemcpy(host.data(), bytes_, data_, bytes_, ACL_MEMCPY_DEVICE_TO_HOST));
    return host;
  }

 private:
  size_t bytes_;
  void* data_ = nullptr;
  aclTensor* tensor_ = nullptr;
};

// Phase 2 of an operator whose phase 1 gave `bytes` and `executor`, waited for.
typedef aclnnStatus (*Phase2)(void*, uint64_t, aclOpExecutor*, aclrtStream);
void run(Phase2 operation, const char* name, uint64_t bytes, aclOpExecutor* executor, aclrtStream stream) {
  void* workspace = nullptr;
  if (bytes > 0) CHECK(aclrtMalloc(&workspace, bytes, ACL_MEM_MALLOC_HUGE_FIRST));
  aclrtEvent start = nullptr;
  aclrtEvent end = nullptr;
  CHECK(aclrtCreateEvent(&start));
  CHECK(aclrtCreateEvent(&end));
  CHECK(aclrtRecordEvent(start, stream));
  check(operation(workspace, bytes, executor, stream), name);
  CHECK(aclrtRecordEvent(end, stream));
  CHECK(aclrtSynchronizeStream(stream));
  float ms = 0;
  CHECK(aclrtEventElapsedTime(&ms, start, end));
  std::printf("%-28s %9.3f ms, workspace of %llu bytes\n", name, ms, static_cast<unsigned long long>(bytes));
  CHECK(aclrtDestroyEvent(start));
  CHECK(aclrtDestroyEvent(end));
  if (workspace) CHECK(aclrtFree(workspace));
}

const int64_t kN = 2, kC = 8, kHxW = 64, kGroups = 4;
const double kEps = 1e-5;

// sum(dy * group_norm(x)), in double on the host.
double loss(const std::vector<double>& x, const std::vector<float>& dy, const std::vector<float>& gamma) {
  const int64_t size = kC / kGroups * kHxW;
  double total = 0;
  for (int64_t group = 0; group < kN * kGroups; ++group) {
    double mean = 0;
    double square = 0;
    for (int64_t i = 0; i < size; ++i) mean += x[group * size + i] / size;
    for (int64_t i = 0; i < size; ++i) square += std::pow(x[group * size + i] - mean, 2) / size;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t channel = (group * size + i) / kHxW % kC;
      total += dy[group * size + i] * gamma[channel] * (x[group * size + i] - mean) / std::sqrt(square + kEps);
    }
  }
  return total;
}

double largest_difference(const std::vector<float>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::fmax(largest, std::fabs(a[i] - b[i]));
  return largest;
}

}  // namespace

int main() {
  CHECK(aclInit(nullptr));
  CHECK(aclrtSetDevice(0));
  std::printf("device 0 is an %s\n", aclrtGetSocName());
  aclrtStream stream = nullptr;
  CHECK(aclrtCreateStream(&stream));
  int outcome = 0;
  {
    const Shape shape = {kN, kC, kHxW};
    std::vector<float> x(count(shape)), dy(x.size()), gamma(kC), wide(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = std::sin(0.7f * i) + 0.01f * (i % 13);
      dy[i] = std::cos(1.3f * i);
    }
    for (int64_t c = 0; c < kC; ++c) gamma[c] = 0.5f + 0.5f * c;
    for (size_t i = 0; i < x.size(); ++i) wide[i] = gamma[i / kHxW % kC];

    Tensor x_dev(shape, x), dy_dev(shape, dy), gamma_dev({kC}, gamma);
    Tensor y({kN, kC, kHxW}), mean({kN, kGroups}), rstd({kN, kGroups});
    uint64_t bytes = 0;
    aclOpExecutor* executor = nullptr;
    CHECK(aclnnGroupNormGetWorkspaceSize(x_dev.get(), gamma_dev.get(), nullptr, kN, kC, kHxW, kGroups, kEps, y.get(),
                                         mean.get(), rstd.get(), &bytes, &executor));
    run(aclnnGroupNorm, "aclnnGroupNorm", bytes, executor, stream);

    const bool wanted[3] = {true, true, true};
    aclBoolArray* mask = aclCreateBoolArray(wanted, 3);
    Tensor dx(shape), dgamma({kC}), dbeta({kC});
    CHECK(aclnnGroupNormBackwardGetWorkspaceSize(dy_dev.get(), x_dev.get(), mean.get(), rstd.get(), gamma_dev.get(), kN,
                                                 kC, kHxW, kGroups, mask, dx.get(), dgamma.get(), dbeta.get(), &bytes,
                                                 &executor));
    run(aclnnGroupNormBackward, "aclnnGroupNormBackward", bytes, executor, stream);
    CHECK(aclDestroyBoolArray(mask));

    // The same data as this operator wants it: grouped, gamma already broadcast.
    const Shape grouped = {kN, kGroups, kC / kGroups, kHxW};
    Tensor x_grouped(grouped, x), dy_grouped(grouped, dy), gamma_wide(grouped, wide), printed(grouped);
    CHECK(aclnnGroupNormalizationGradGetWorkspaceSize(x_grouped.get(), dy_grouped.get(), gamma_wide.get(), mean.get(),
                                                      rstd.get(), printed.get(), &bytes, &executor));
    run(aclnnGroupNormalizationGrad, "aclnnGroupNormalizationGrad", bytes, executor, stream);

    std::vector<double> differences(x.size());
    std::vector<double> point(x.begin(), x.end());
    for (size_t i = 0; i < x.size(); ++i) {
      const double step = 1e-5;
      point[i] = x[i] + step;
      const double above = loss(point, dy, gamma);
      point[i] = x[i] - step;
      differences[i] = (above - loss(point, dy, gamma)) / (2 * step);
      point[i] = x[i];
    }
    const double true_error = largest_difference(dx.values(), differences);
    const double printed_error = largest_difference(printed.values(), differences);
    std::printf("largest distance from the differences of the forward: %.1e true gradient, %.1e printed formula\n",
                true_error, printed_error);
    outcome = true_error < 1e-4 && printed_error > 1000 * true_error ? 0 : 1;
  }
  CHECK(aclrtDestroyStream(stream));
  CHECK(aclrtResetDevice(0));
  CHECK(aclFinalize());
  return outcome;
}
