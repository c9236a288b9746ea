// The error table of aclnnGroupNormalizationGrad's document, and what its contract adds, as a C++11 program sees it:
// compiled against the host prefix like any program for a device. Prints what differs; the exit code counts it.
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "acl/acl.h"
#include "aclnn_group_normalization_grad.h"

namespace {

typedef std::vector<int64_t> Shape;

int failures = 0;

void expect(const std::string& what, int got, int wanted, const char* in_message = "") {
  const char* message = aclGetRecentErrMsg();
  const bool named = std::strlen(in_message) == 0 || (message && std::strstr(message, in_message));
  if (got == wanted && named) return;
  ++failures;
  std::printf("%s: got %d, wanted %d, message %s\n", what.c_str(), got, wanted, message ? message : "(none)");
}

int64_t bytes(const Shape& shape, aclDataType dtype) {
  int64_t elements = 1;
  for (size_t i = 0; i < shape.size(); ++i) elements *= shape[i];
  return elements * static_cast<int64_t>(aclDataTypeSize(dtype));
}

// One argument, filled with a pattern so that a write shows.
struct Argument {
  Shape shape;
  aclDataType dtype;
  aclFormat format;
  Shape strides;  // empty: contiguous
  bool null;
  bool host;  // memory of the host in place of the device's

  aclTensor* tensor = nullptr;
  void* data = nullptr;
  std::vector<char> host_memory;

  Argument(const Shape& shape, aclDataType dtype = ACL_FLOAT)
      : shape(shape), dtype(dtype), format(ACL_FORMAT_ND), null(false), host(false) {}

  void make() {
    const size_t size = static_cast<size_t>(bytes(shape, dtype)) + 64;
    if (host) {
      host_memory.assign(size, 0x11);
      data = host_memory.data();
    } else {
      aclrtMalloc(&data, size, ACL_MEM_MALLOC_HUGE_FIRST);
      aclrtMemset(data, size, 0x11, size);
    }
    if (!null) {
      tensor = aclCreateTensor(shape.data(), shape.size(), dtype, strides.empty() ? nullptr : strides.data(), 0, format,
                               shape.data(), shape.size(), data);
    }
  }
  void free() {
    aclDestroyTensor(tensor);
    if (!host) aclrtFree(data);
  }
};

struct Case {
  Argument x, dy, gamma, mean, rstd, dx;
  bool workspace_null, executor_null;

  Case()
      : x(Shape{2, 4, 8}),
        dy(Shape{2, 4, 8}),
        gamma(Shape{2, 4, 8}),
        mean(Shape{2, 4}),
        rstd(Shape{2, 4}),
        dx(Shape{2, 4, 8}),
        workspace_null(false),
        executor_null(false) {}
};

void run(const std::string& name, int wanted, const char* in_message, const std::function<void(Case&)>& change) {
  Case c;
  change(c);
  Argument* const all[] = {&c.x, &c.dy, &c.gamma, &c.mean, &c.rstd, &c.dx};
  for (Argument* argument : all) argument->make();
  uint64_t size = 12345;
  aclOpExecutor* executor = nullptr;
  const int status = aclnnGroupNormalizationGradGetWorkspaceSize(
      c.x.tensor, c.dy.tensor, c.gamma.tensor, c.mean.tensor, c.rstd.tensor, c.dx.tensor,
      c.workspace_null ? nullptr : &size, c.executor_null ? nullptr : &executor);
  expect(name, status, wanted, in_message);
  if (status != 0 && (size != 12345 || executor != nullptr)) {
    ++failures;
    std::printf("%s: results of phase 1 changed although it failed\n", name.c_str());
  }
  if (status != 0 && !c.dx.host) {
    std::vector<unsigned char> left(static_cast<size_t>(bytes(c.dx.shape, c.dx.dtype)));
    if (!left.empty()) aclrtMemcpy(left.data(), left.size(), c.dx.data, left.size(), ACL_MEMCPY_DEVICE_TO_HOST);
    for (unsigned char byte : left) {
      if (byte == 0x11) continue;
      ++failures;
      std::printf("%s: dx was written although phase 1 failed\n", name.c_str());
      break;
    }
  }
  if (status == 0) expect(name + ", destroyed", aclDestroyAclOpExecutor(executor), 0);
  for (Argument* argument : all) argument->free();
}

const int kNull = 161001;
const int kInvalid = 161002;

void error_table() {
  run("valid", 0, "", [](Case&) {});
  // A required pointer is null.
  run("x null", kNull, "x is null", [](Case& c) { c.x.null = true; });
  run("dy null", kNull, "dy is null", [](Case& c) { c.dy.null = true; });
  run("gamma null", kNull, "gamma is null", [](Case& c) { c.gamma.null = true; });
  run("mean null", kNull, "mean is null", [](Case& c) { c.mean.null = true; });
  run("rstd null", kNull, "rstd is null", [](Case& c) { c.rstd.null = true; });
  run("dx null", kNull, "dx is null", [](Case& c) { c.dx.null = true; });
  run("workspaceSize null", kNull, "workspaceSize is null", [](Case& c) { c.workspace_null = true; });
  run("executor null", kNull, "executor is null", [](Case& c) { c.executor_null = true; });
  // A dtype outside the three, or not that of x.
  for (aclDataType dtype : {ACL_DOUBLE, ACL_INT32, ACL_INT8, ACL_BOOL, ACL_DT_UNDEFINED}) {
    run("dtype of all", kInvalid, "x has dtype", [dtype](Case& c) {
      for (Argument* a : {&c.x, &c.dy, &c.gamma, &c.mean, &c.rstd, &c.dx}) a->dtype = dtype;
    });
  }
  run("dtype of dy", kInvalid, "dy has dtype ACL_FLOAT16", [](Case& c) { c.dy.dtype = ACL_FLOAT16; });
  run("dtype of gamma", kInvalid, "gamma has dtype", [](Case& c) { c.gamma.dtype = ACL_BF16; });
  run("dtype of mean", kInvalid, "mean has dtype", [](Case& c) { c.mean.dtype = ACL_FLOAT16; });
  run("dtype of rstd", kInvalid, "rstd has dtype", [](Case& c) { c.rstd.dtype = ACL_DOUBLE; });
  run("dtype of dx", kInvalid, "dx has dtype", [](Case& c) { c.dx.dtype = ACL_FLOAT16; });
  run("statistics in float", kInvalid, "mean has dtype", [](Case& c) {
    for (Argument* a : {&c.x, &c.dy, &c.gamma, &c.dx}) a->dtype = ACL_FLOAT16;
  });
  // Ranks.
  const Shape nine(9, 2);
  run("rank 9", kInvalid, "9 dimensions; accepted: 3 to 8", [&nine](Case& c) {
    for (Argument* a : {&c.x, &c.dy, &c.gamma, &c.dx}) a->shape = nine;
    c.mean.shape = c.rstd.shape = Shape{2, 2};
  });
  run("rank 2", kInvalid, "2 dimensions; accepted: 3 to 8", [](Case& c) {
    for (Argument* a : {&c.x, &c.dy, &c.gamma, &c.dx}) a->shape = Shape{2, 4};
  });
  run("rank 0", kInvalid, "0 dimensions", [](Case& c) { c.x.shape = Shape(); });
  run("rank of dy", kInvalid, "dy has shape [2, 32]", [](Case& c) { c.dy.shape = Shape{2, 32}; });
  run("rank of gamma", kInvalid, "gamma has shape [4]", [](Case& c) { c.gamma.shape = Shape{4}; });
  run("rank of mean", kInvalid, "mean has shape [8]", [](Case& c) { c.mean.shape = Shape{8}; });
  // Shapes.
  run("shape of dy", kInvalid, "dy has shape [2, 4, 7]", [](Case& c) { c.dy.shape = Shape{2, 4, 7}; });
  run("shape of gamma", kInvalid, "gamma has shape [2, 4, 1]", [](Case& c) { c.gamma.shape = Shape{2, 4, 1}; });
  run("shape of dx", kInvalid, "dx has shape [2, 8, 4]", [](Case& c) { c.dx.shape = Shape{2, 8, 4}; });
  run("shape of mean", kInvalid, "mean has shape [4, 2]", [](Case& c) { c.mean.shape = Shape{4, 2}; });
  run("shape of rstd", kInvalid, "rstd has shape [2, 4, 1]", [](Case& c) { c.rstd.shape = Shape{2, 4, 1}; });
  // Views and formats.
  run("strided x", kInvalid, "accepted: a contiguous tensor", [](Case& c) { c.x.strides = Shape{32, 1, 4}; });
  run("expanded gamma", kInvalid, "gamma has shape", [](Case& c) { c.gamma.strides = Shape{0, 1, 0}; });
  run("strided dx", kInvalid, "dx has shape", [](Case& c) { c.dx.strides = Shape{32, 1, 4}; });
  run("format of x", kInvalid, "x has format", [](Case& c) { c.x.format = ACL_FORMAT_FRACTAL_NZ; });
  run("format of dx", kInvalid, "dx has format", [](Case& c) { c.dx.format = ACL_FORMAT_NDHWC; });
  // No elements is fine, and writes nothing.
  run("empty", 0, "", [](Case& c) {
    for (Argument* a : {&c.x, &c.dy, &c.gamma, &c.dx}) a->shape = Shape{2, 4, 0};
  });
}

void phase2() {
  Case c;
  Argument* const all[] = {&c.x, &c.dy, &c.gamma, &c.mean, &c.rstd, &c.dx};
  for (Argument* argument : all) argument->make();
  aclrtStream stream = nullptr;
  aclrtCreateStream(&stream);
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  const auto phase1 = [&] {
    return aclnnGroupNormalizationGradGetWorkspaceSize(c.x.tensor, c.dy.tensor, c.gamma.tensor, c.mean.tensor,
                                                       c.rstd.tensor, c.dx.tensor, &size, &executor);
  };
  expect("phase 1", phase1(), 0);
  void* workspace = nullptr;
  aclrtMalloc(&workspace, size, ACL_MEM_MALLOC_HUGE_FIRST);
  std::vector<char> host(size);
  expect("executor null", aclnnGroupNormalizationGrad(workspace, size, nullptr, stream), kNull, "executor is null");
  expect("workspace null", aclnnGroupNormalizationGrad(nullptr, size, executor, stream), kNull, "workspace is null");
  expect("too small", aclnnGroupNormalizationGrad(workspace, size - 1, executor, stream), kInvalid, "workspaceSize is");
  expect("larger than it is", aclnnGroupNormalizationGrad(workspace, size + 1, executor, stream), kInvalid,
         "more than");
  expect("on the host", aclnnGroupNormalizationGrad(host.data(), size, executor, stream), kInvalid,
         "not device memory");
  expect("no executor", aclnnGroupNormalizationGrad(workspace, size, reinterpret_cast<aclOpExecutor*>(&host), stream),
         kInvalid, "not an aclOpExecutor");
  expect("a tensor", aclnnGroupNormalizationGrad(workspace, size, reinterpret_cast<aclOpExecutor*>(c.x.tensor), stream),
         kInvalid, "is an aclTensor");
  // None of that cost the executor its use.
  expect("in the end", aclnnGroupNormalizationGrad(workspace, size, executor, stream), 0);
  expect("again", aclnnGroupNormalizationGrad(workspace, size, executor, stream), kInvalid, "already used");
  expect("synchronise", aclrtSynchronizeStream(stream), 0);

  expect("phase 1 once more", phase1(), 0);
  expect("destroy", aclDestroyAclOpExecutor(executor), 0);
  expect("destroyed", aclnnGroupNormalizationGrad(workspace, size, executor, stream), kInvalid, "destroyed");
  expect("destroy twice", aclDestroyAclOpExecutor(executor), kInvalid, "destroyed");
  expect("destroy null", aclDestroyAclOpExecutor(nullptr), 561103);
  expect("repeatable null", aclSetAclOpExecutorRepeatable(nullptr), 561103);

  expect("phase 1 a last time", phase1(), 0);
  aclrtFree(c.dx.data);
  expect("freed between the phases", aclnnGroupNormalizationGrad(workspace, size, executor, stream), kInvalid, "freed");
  expect("destroyed unused", aclDestroyAclOpExecutor(executor), 0);
  aclrtMalloc(&c.dx.data, 64, ACL_MEM_MALLOC_HUGE_FIRST);
  aclrtFree(workspace);
  for (Argument* argument : all) argument->free();
  aclrtDestroyStream(stream);
}

void host_memory() {
  Case c;
  c.x.host = true;
  Argument* const all[] = {&c.x, &c.dy, &c.gamma, &c.mean, &c.rstd, &c.dx};
  for (Argument* argument : all) argument->make();
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  int status = aclnnGroupNormalizationGradGetWorkspaceSize(c.x.tensor, c.dy.tensor, c.gamma.tensor, c.mean.tensor,
                                                           c.rstd.tensor, c.dx.tensor, &size, &executor);
  expect("host memory given as the device's, phase 1", status, kInvalid, "x is 0x");
  for (Argument* argument : all) argument->free();
}

}  // namespace

int main() {
  expect("init", aclInit(nullptr), 0);
  expect("device", aclrtSetDevice(0), 0);
  error_table();
  phase2();
  host_memory();
  expect("reset", aclrtResetDevice(0), 0);
  expect("finalize", aclFinalize(), 0);
  if (failures == 0) std::puts("all as they should be");
  return failures;
}
