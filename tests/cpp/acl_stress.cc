// Many calls of two operators from many threads, each result to the bit that of one thread alone; then many calls of
// one thread in memory that stays the same. Says by its exit code whether all held: 0, or 1 with a sentence.
//
//   acl_stress [calls per thread] [calls for the memory]
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "acl/acl.h"
#include "aclnn_group_normalization_grad.h"
#include "aclnnop/aclnn_group_norm_backward.h"

namespace {

constexpr int kThreads = 8;
constexpr int kCases = 12;
// Growth of the resident memory over the counted calls: what the C library's heaps take in odd pages. One leak of 64
// bytes a call would be 625 KiB over 10,000 calls.
constexpr long kSlackBytes = 256 * 1024;
// Sanitizers keep freed blocks aside and shadow each address that was ever used, and device memory takes new addresses
// before it takes old ones again: there the growth is shown and not judged.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::fprintf(stderr, "acl_stress: ");
  std::vfprintf(stderr, format, arguments);
  std::fprintf(stderr, "\n");
  va_end(arguments);
  std::_Exit(1);
}

#define OK_OR_FAIL(call)                                                                   \
  do {                                                                                     \
    const int code = (call);                                                               \
    const char* sentence = code == 0 ? nullptr : aclGetRecentErrMsg();                     \
    if (code != 0) fail("%s: %d: %s", #call, code, sentence ? sentence : "(no sentence)"); \
  } while (false)

// How a call reaches its data and waits for its results; all have to give the same.
enum Way { kSynchronous, kAsynchronous, kTwoStreams, kCallback, kWays };

// Operands of both operators, in float32: x, dy, gamma, mean, rstd, then dx, dgamma, dbeta.
struct Case {
  bool printed;  // aclnnGroupNormalizationGrad; else aclnnGroupNormBackward
  int64_t n, channels, length, groups;
  std::vector<std::vector<float>> inputs;
  std::vector<size_t> output_sizes;
  std::vector<std::vector<float>> expected;
};

Case make_case(int index) {
  std::minstd_rand random(static_cast<unsigned>(index) + 1);
  const auto below = [&](int64_t count) { return static_cast<int64_t>(random() % static_cast<unsigned>(count)); };
  Case one;
  one.printed = index % 2 == 0;
  one.n = 1 + below(3);
  one.groups = 1 + below(4);
  one.channels = one.printed ? one.groups : one.groups * (1 + below(4));
  one.length = index == kCases - 1 ? 5000 : 1 + below(200);  // one that the core shares out over threads
  const auto stats = static_cast<size_t>(one.n * one.groups);
  const auto count = static_cast<size_t>(one.n * one.channels * one.length);
  const auto channels = static_cast<size_t>(one.channels);
  const auto fill = [&](size_t size, float least) {
    std::vector<float> values(size);
    for (float& value : values) value = least + static_cast<float>(below(4096)) / 2048;
    return values;
  };
  one.inputs = {fill(count, -1), fill(count, -1), fill(one.printed ? count : channels, -1), fill(stats, -1),
                fill(stats, 0.5f)};
  one.output_sizes = one.printed ? std::vector<size_t>{count} : std::vector<size_t>{count, channels, channels};
  return one;
}

struct Device {
  explicit Device(size_t bytes) : size(bytes) { OK_OR_FAIL(aclrtMalloc(&data, size, ACL_MEM_MALLOC_HUGE_FIRST)); }
  ~Device() { OK_OR_FAIL(aclrtFree(data)); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  void* data = nullptr;
  const size_t size;
};

aclTensor* make_tensor(const std::vector<int64_t>& dims, void* data) {
  aclTensor* tensor =
      aclCreateTensor(dims.data(), dims.size(), ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, dims.data(), dims.size(), data);
  if (!tensor) fail("aclCreateTensor: %s", aclGetRecentErrMsg());
  return tensor;
}

// What a thread has: its streams, an event, callbacks that it runs itself.
struct Worker {
  Worker() {
    // One stream goes while another thread may be the first to ask for the default one of their context.
    OK_OR_FAIL(aclrtCreateStream(&stream));
    OK_OR_FAIL(aclrtDestroyStream(stream));
    OK_OR_FAIL(aclrtSynchronizeStream(nullptr));
    OK_OR_FAIL(aclrtCreateStream(&stream));
    OK_OR_FAIL(aclrtCreateStream(&copies));
    OK_OR_FAIL(aclrtCreateEvent(&event));
    OK_OR_FAIL(aclrtSubscribeReport(static_cast<uint64_t>(pthread_self()), stream));
  }
  ~Worker() {
    OK_OR_FAIL(aclrtUnSubscribeReport(static_cast<uint64_t>(pthread_self()), stream));
    OK_OR_FAIL(aclrtDestroyEvent(event));
    OK_OR_FAIL(aclrtDestroyStream(copies));
    OK_OR_FAIL(aclrtDestroyStream(stream));
  }

  aclrtStream stream;
  aclrtStream copies;
  aclrtEvent event;
};

// Phase 1 for the case's tensors: x, dy, gamma, mean, rstd, outputs.
aclOpExecutor* first_phase(const Case& one, const std::vector<aclTensor*>& t, const aclBoolArray* mask,
                           uint64_t* workspace_size) {
  aclOpExecutor* executor = nullptr;
  if (one.printed) {
    OK_OR_FAIL(
        aclnnGroupNormalizationGradGetWorkspaceSize(t[0], t[1], t[2], t[3], t[4], t[5], workspace_size, &executor));
  } else {
    OK_OR_FAIL(aclnnGroupNormBackwardGetWorkspaceSize(t[1], t[0], t[3], t[4], t[2], one.n, one.channels, one.length,
                                                      one.groups, mask, t[5], t[6], t[7], workspace_size, &executor));
  }
  return executor;
}

std::vector<std::vector<float>> run(const Case& one, Worker& worker, Way way) {
  const std::vector<int64_t> full{one.n, one.channels, one.length};
  const std::vector<int64_t> stats{one.n, one.groups};
  const std::vector<int64_t> affine = one.printed ? full : std::vector<int64_t>{one.channels};
  const aclrtStream feed = way == kTwoStreams ? worker.copies : worker.stream;
  std::vector<std::unique_ptr<Device>> memory;
  std::vector<aclTensor*> tensors;
  const auto add = [&](const std::vector<int64_t>& dims, size_t count) {
    memory.push_back(std::make_unique<Device>(count * sizeof(float)));
    tensors.push_back(make_tensor(dims, memory.back()->data));
  };
  const std::vector<int64_t>* const dims[] = {&full, &full, &affine, &stats, &stats};
  for (size_t i = 0; i < one.inputs.size(); ++i) {
    add(*dims[i], one.inputs[i].size());
    const size_t bytes = memory.back()->size;
    if (way == kSynchronous) {
      OK_OR_FAIL(aclrtMemcpy(memory.back()->data, bytes, one.inputs[i].data(), bytes, ACL_MEMCPY_HOST_TO_DEVICE));
    } else {
      OK_OR_FAIL(
          aclrtMemcpyAsync(memory.back()->data, bytes, one.inputs[i].data(), bytes, ACL_MEMCPY_HOST_TO_DEVICE, feed));
    }
  }
  for (size_t i = 0; i < one.output_sizes.size(); ++i) {
    add(i == 0 ? full : affine, one.output_sizes[i]);
    OK_OR_FAIL(aclrtMemsetAsync(memory.back()->data, memory.back()->size, 0xff, memory.back()->size, feed));
  }
  if (way == kTwoStreams) {
    OK_OR_FAIL(aclrtRecordEvent(worker.event, worker.copies));
    OK_OR_FAIL(aclrtStreamWaitEvent(worker.stream, worker.event));
  }

  const bool all[] = {true, true, true};
  aclBoolArray* const mask = aclCreateBoolArray(all, 3);
  uint64_t workspace_size = 0;
  aclOpExecutor* const executor = first_phase(one, tensors, mask, &workspace_size);
  std::unique_ptr<Device> workspace;
  if (workspace_size > 0) workspace = std::make_unique<Device>(workspace_size);
  const auto launch = one.printed ? aclnnGroupNormalizationGrad : aclnnGroupNormBackward;
  OK_OR_FAIL(launch(workspace ? workspace->data : nullptr, workspace_size, executor, worker.stream));

  std::vector<std::vector<float>> results;
  for (const size_t count : one.output_sizes) results.emplace_back(count);
  const auto fetch = [&](bool async) {
    for (size_t i = 0; i < results.size(); ++i) {
      const Device& from = *memory[one.inputs.size() + i];
      OK_OR_FAIL(async ? aclrtMemcpyAsync(results[i].data(), from.size, from.data, from.size, ACL_MEMCPY_DEVICE_TO_HOST,
                                          worker.stream)
                       : aclrtMemcpy(results[i].data(), from.size, from.data, from.size, ACL_MEMCPY_DEVICE_TO_HOST));
    }
  };
  if (way != kSynchronous) fetch(true);
  if (way == kTwoStreams) {  // the event's second time
    OK_OR_FAIL(aclrtRecordEvent(worker.event, worker.stream));
    OK_OR_FAIL(aclrtSynchronizeEvent(worker.event));
  }
  if (way == kCallback) {
    int called = 0;
    OK_OR_FAIL(aclrtLaunchCallback([](void* count) { ++*static_cast<int*>(count); }, &called, ACL_CALLBACK_BLOCK,
                                   worker.stream));
    OK_OR_FAIL(aclrtProcessReport(-1));
    if (called != 1) fail("a callback ran %d times", called);
  }
  OK_OR_FAIL(aclrtSynchronizeStream(worker.stream));
  OK_OR_FAIL(aclrtSynchronizeStream(worker.copies));
  if (way == kSynchronous) fetch(false);
  for (const aclTensor* tensor : tensors) OK_OR_FAIL(aclDestroyTensor(tensor));
  OK_OR_FAIL(aclDestroyBoolArray(mask));
  return results;
}

bool same_bits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) return false;
  }
  return true;
}

void check(const Case& one, int index, int number, Worker& worker) {
  const auto way = static_cast<Way>(number % kWays);
  if (!same_bits(run(one, worker, way), one.expected)) {
    fail("case %d, way %d, call %d: other bits than alone", index, static_cast<int>(way), number);
  }
}

long resident_bytes() {
  long pages = 0;
  long resident = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (!file || std::fscanf(file, "%ld %ld", &pages, &resident) != 2) fail("/proc/self/statm cannot be read");
  std::fclose(file);
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace

int main(int argc, char** argv) {
  const int calls = argc > 1 ? std::atoi(argv[1]) : 1000;
  const int counted = argc > 2 ? std::atoi(argv[2]) : 10000;
  OK_OR_FAIL(aclInit(nullptr));
  OK_OR_FAIL(aclrtSetDevice(0));
  aclrtContext shared;
  OK_OR_FAIL(aclrtGetCurrentContext(&shared));

  std::vector<Case> cases;
  {
    OK_OR_FAIL(aclrtCreateContext(&shared, 0));  // not the one that the threads share
    Worker worker;
    for (int i = 0; i < kCases; ++i) {
      cases.push_back(make_case(i));
      cases[static_cast<size_t>(i)].expected = run(cases.back(), worker, kSynchronous);
    }
  }

  // Half of the threads share one context, the others set the device for themselves or have a context of their own.
  std::vector<std::thread> threads;
  for (int id = 0; id < kThreads; ++id) {
    threads.emplace_back([&, id] {
      aclrtContext own = nullptr;
      if (id % 4 < 2) {
        OK_OR_FAIL(aclrtSetCurrentContext(shared));
      } else if (id % 4 == 2) {
        OK_OR_FAIL(aclrtSetDevice(0));
      } else {
        OK_OR_FAIL(aclrtCreateContext(&own, 0));
      }
      {
        Worker worker;
        for (int number = 0; number < calls; ++number) {
          const int index = (number + id) % kCases;
          check(cases[static_cast<size_t>(index)], index, number / kCases + id, worker);
        }
      }
      if (own) OK_OR_FAIL(aclrtDestroyContext(own));
      if (id % 4 == 2) OK_OR_FAIL(aclrtResetDevice(0));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%d threads x %d calls: the bits of one thread\n", kThreads, calls);

  {
    Worker worker;
    const auto step = [&](int number) {
      const int index = number % kCases;
      check(cases[static_cast<size_t>(index)], index, number / kCases, worker);
    };
    for (int number = 0; number < counted / 10 + kCases * kWays; ++number) step(number);
    const long before = resident_bytes();
    for (int number = 0; number < counted; ++number) step(number);
    const long grown = resident_bytes() - before;
    std::printf("%d calls: resident memory %ld KiB, grown by %ld KiB\n", counted, before / 1024, grown / 1024);
    if (!kSanitized && grown > kSlackBytes) fail("the resident memory grew by %ld bytes", grown);
  }
  OK_OR_FAIL(aclrtResetDevice(0));
  OK_OR_FAIL(aclFinalize());
  return 0;
}
