// The fuzz target: the bytes of an input are a sequence of calls over the whole interface (libascendcl, libnnopbase
// and the operator libraries), with arguments that are right, wrong, dead, foreign or random. Most are whole runs of an
// operator whose results are known. After each input everything is undone, and nothing may be left.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "world.h"

namespace groupnorm::fuzz {
namespace {

constexpr int kMostCalls = 64;

void any_call(World& world, Input& in) {
  Calls groups[] = {runtime_calls(), memory_calls(), stream_calls(), event_calls(), meta_calls(), executor_calls()};
  const Calls& calls = groups[in.slot(sizeof groups / sizeof *groups, 8)];
  calls.begin[in.slot(calls.count, 64)].call(world, in);
}

// The library warns so many times and then no more: let that be over before anything is measured or reported.
void use_up_warnings() {
  const int kept = dup(STDERR_FILENO);
  const int nowhere = open("/dev/null", O_WRONLY);
  dup2(nowhere, STDERR_FILENO);
  const uint8_t nothing[] = {0};
  Input in(nothing, 1);
  World world(in);
  aclrtEvent event;
  if (aclrtCreateEvent(&event) == 0) world.add(kEvent, event);
  for (int i = 0; i < 100; ++i) aclrtStreamWaitEvent(nullptr, event);
  dup2(kept, STDERR_FILENO);
  close(kept);
  close(nowhere);
}

}  // namespace
}  // namespace groupnorm::fuzz

// Short stacks and a small quarantine: faster, and enough here, where little is allocated at a time.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1:malloc_context_size=8:quarantine_size_mb=64";
}

extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  setenv("GROUPNORM_NUM_THREADS", "1", 1);  // of the core; the streams have theirs
  groupnorm::fuzz::use_up_warnings();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace groupnorm::fuzz;
  Input in(data, size);
  World world(in);
  for (int calls = 0; calls < kMostCalls && !in.done(); ++calls) {
    if (in.byte() < 80) {
      run_operator(world, in);
    } else {
      any_call(world, in);
    }
  }
  return 0;
}
