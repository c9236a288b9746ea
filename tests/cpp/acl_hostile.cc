// Programs that are not kind to the host libraries, one a case. Each has to print "ok" and end by itself.
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "acl/acl.h"
#include "aclnn_group_normalization_grad.h"

namespace {

void expect(int got, int wanted, const char* what) {
  if (got == wanted) return;
  const char* message = aclGetRecentErrMsg();
  std::printf("%s: got %d, wanted %d, %s\n", what, got, wanted, message ? message : "no message");
  std::exit(1);
}

#define EXPECT(call, wanted) expect((call), (wanted), #call)

void begin() {
  EXPECT(aclInit(nullptr), 0);
  EXPECT(aclrtSetDevice(0), 0);
}

aclrtStream subscribed_stream() {
  aclrtStream stream = nullptr;
  EXPECT(aclrtCreateStream(&stream), 0);
  EXPECT(aclrtSubscribeReport(static_cast<uint64_t>(pthread_self()), stream), 0);
  return stream;
}

// Calls from a destructor that runs after main, when the thread_local objects of this thread are gone.
struct AfterMain {
  bool armed = false;
  ~AfterMain() {
    if (!armed) return;
    for (int i = 0; i < 5; ++i) {
      EXPECT(aclrtFree(reinterpret_cast<void*>(uintptr_t{4096} * i + 1)), 107000);
      if (!std::strstr(aclGetRecentErrMsg(), "aclrtFree")) _exit(2);
    }
    EXPECT(aclrtResetDevice(0), 0);
    void* memory = nullptr;
    EXPECT(aclrtMalloc(&memory, 8, ACL_MEM_MALLOC_HUGE_FIRST), 107002);
  }
} after_main;

void destructors() {
  begin();
  aclrtFree(nullptr);
  aclGetRecentErrMsg();
  after_main.armed = true;
  pthread_key_t key;
  pthread_key_create(&key, [](void*) {
    for (int i = 0; i < 3; ++i) EXPECT(aclrtFree(nullptr), 100000);
    EXPECT(aclrtSetDevice(0), 0);
    EXPECT(aclrtResetDevice(0), 0);
  });
  std::thread([key] {
    aclrtFree(nullptr);
    pthread_setspecific(key, &after_main);
  }).join();
}

// A callback that throws: the exception is the program's, and the stream goes on.
void throwing() {
  begin();
  const aclrtStream stream = subscribed_stream();
  EXPECT(aclrtLaunchCallback([](void*) { throw std::runtime_error("mine"); }, nullptr, ACL_CALLBACK_BLOCK, stream), 0);
  bool caught = false;
  try {
    aclrtProcessReport(5000);
  } catch (const std::runtime_error&) {
    caught = true;
  }
  expect(caught, true, "the exception came through");
  EXPECT(aclrtSynchronizeStreamWithTimeout(stream, 5000), 0);
  EXPECT(aclrtDestroyStream(stream), 0);
}

// A callback that waits for the stream which waits for it.
void waiting() {
  begin();
  static aclrtStream stream;
  stream = subscribed_stream();
  const aclrtCallback callback = [](void*) {
    EXPECT(aclrtSynchronizeStream(stream), 107003);
    EXPECT(aclrtSynchronizeDevice(), 107003);
    EXPECT(aclrtDestroyStream(stream), 107003);
    EXPECT(aclrtResetDevice(0), 107003);
  };
  EXPECT(aclrtLaunchCallback(callback, nullptr, ACL_CALLBACK_BLOCK, stream), 0);
  EXPECT(aclrtProcessReport(5000), 0);
  EXPECT(aclrtSynchronizeStream(stream), 0);
}

// No thread can be started: an error, and nothing is queued.
void no_thread() {
  begin();
  void* memory = nullptr;
  EXPECT(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST), 0);
  EXPECT(aclrtMemset(memory, 64, 3, 64), 0);
  std::FILE* statm = std::fopen("/proc/self/statm", "r");
  long pages = 0;
  expect(std::fscanf(statm, "%ld", &pages), 1, "statm");
  std::fclose(statm);
  rlimit before;
  getrlimit(RLIMIT_AS, &before);
  rlimit limit = before;
  limit.rlim_cur = static_cast<rlim_t>(pages) * 4096 + (4 << 20);
  setrlimit(RLIMIT_AS, &limit);
  const int status = aclrtMemsetAsync(memory, 64, 1, 64, nullptr);
  setrlimit(RLIMIT_AS, &before);
  if (status != 0) {  // where stacks are small or cached, a thread may have been had
    expect(status, 207008, "memset without a thread");
    EXPECT(aclrtSynchronizeStream(nullptr), 0);
    char back[64];
    EXPECT(aclrtMemcpy(back, 64, memory, 64, ACL_MEMCPY_DEVICE_TO_HOST), 0);
    expect(back[5], 3, "memory after a refused memset");
    EXPECT(aclrtMemsetAsync(memory, 64, 1, 64, nullptr), 0);
  }
  EXPECT(aclrtSynchronizeStream(nullptr), 0);
  EXPECT(aclrtFree(memory), 0);
}

// Forks while other threads hold the locks; the child starts afresh.
// The allocator of AddressSanitizer, at least GCC 12's, may itself be locked in a child of a process whose threads are
// at work: then there are none.
#if defined(__SANITIZE_ADDRESS__)
constexpr int kBusyThreads = 0;
#else
constexpr int kBusyThreads = 2;
#endif

void forks() {
  begin();
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < kBusyThreads; ++i) {
    threads.emplace_back([&] {
      aclrtSetDevice(0);
      while (!stop) {
        void* memory = nullptr;
        aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST);
        aclrtFree(memory);
        aclrtStream stream = nullptr;
        aclrtCreateStream(&stream);
        aclrtDestroyStream(stream);
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      void* memory = nullptr;
      const bool refused = aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST) == 107002;
      const bool works = aclrtSetDevice(0) == 0 && aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST) == 0 &&
                         aclrtMemsetAsync(memory, 64, 1, 64, nullptr) == 0 && aclrtSynchronizeStream(nullptr) == 0 &&
                         aclrtFree(memory) == 0 && aclrtResetDevice(0) == 0;
      _exit(refused && works ? 0 : 3);
    }
    int status = 0;
    waitpid(child, &status, 0);
    expect(status, 0, "a child");
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

// A signal that the program waits for must not go to a worker.
void signals() {
  begin();
  void* memory = nullptr;
  EXPECT(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST), 0);
  EXPECT(aclrtMemsetAsync(memory, 64, 1, 64, nullptr), 0);
  EXPECT(aclrtSynchronizeStream(nullptr), 0);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  kill(getpid(), SIGUSR1);
  usleep(20000);
  int got = 0;
  sigwait(&set, &got);
  expect(got, SIGUSR1, "the signal");
  EXPECT(aclrtFree(memory), 0);
}

// Callbacks of a stream that was aborted do not run any more.
void aborted() {
  begin();
  const aclrtStream stream = subscribed_stream();
  for (int i = 0; i < 2; ++i) {
    EXPECT(aclrtLaunchCallback([](void*) { _exit(4); }, nullptr, ACL_CALLBACK_BLOCK, stream), 0);
  }
  usleep(20000);
  EXPECT(aclrtStreamAbort(stream), 0);
  EXPECT(aclrtProcessReport(20), 507012);
  EXPECT(aclrtSynchronizeStream(stream), 0);
  EXPECT(aclrtDestroyStream(stream), 0);
  EXPECT(aclrtProcessReport(20), 107012);
}

// The library is closed while a worker is at its work.
void unload() {
  begin();
  std::thread([] {
    aclrtSetDevice(0);
    void* memory = nullptr;
    aclrtMalloc(&memory, 1 << 20, ACL_MEM_MALLOC_HUGE_FIRST);
    for (int i = 0; i < 100; ++i) aclrtMemsetAsync(memory, 1 << 20, i, 1 << 20, nullptr);
  }).join();
  Dl_info info;
  dladdr(reinterpret_cast<void*>(&aclInit), &info);
  void* handle = dlopen(info.dli_fname, RTLD_NOW);
  dlclose(handle);
  dlclose(handle);
  usleep(20000);
}

// A thread that is cancelled while it waits.
void cancelled() {
  begin();
  static aclrtStream stream;
  stream = subscribed_stream();
  EXPECT(aclrtLaunchCallback([](void*) {}, nullptr, ACL_CALLBACK_BLOCK, stream), 0);
  aclrtContext context = nullptr;
  EXPECT(aclrtGetCurrentContext(&context), 0);
  pthread_t thread;
  pthread_create(
      &thread, nullptr,
      [](void* current) -> void* {
        aclrtSetCurrentContext(current);
        aclrtSynchronizeStream(stream);
        return nullptr;
      },
      context);
  usleep(20000);
  pthread_cancel(thread);
  EXPECT(aclrtProcessReport(5000), 0);
  pthread_join(thread, nullptr);
  EXPECT(aclrtSynchronizeStream(stream), 0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "destructors") destructors();
  if (name == "throwing") throwing();
  if (name == "waiting") waiting();
  if (name == "no thread") no_thread();
  if (name == "fork") forks();
  if (name == "signals") signals();
  if (name == "aborted") aborted();
  if (name == "unload") unload();
  if (name == "cancelled") cancelled();
  std::puts("ok");
  std::fflush(stdout);
}
