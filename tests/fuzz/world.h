// What an execution knows: the handles and memory that it made, and how it draws arguments from them and from values
// that are nothing of the kind. Handles and device pointers may be anything. Host memory that the interface itself
// reads or writes is valid or null, as of any C function.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "acl/acl.h"
#include "aclnn/acl_meta.h"
#include "input.h"

namespace groupnorm::fuzz {

// A broken promise: says it and ends the program, for the fuzzer to find.
[[noreturn]] void broken(const char* function, const char* condition);
[[noreturn]] void broken(const char* function, const char* condition, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

#define FUZZ_CHECK(condition, ...)                                    \
  do {                                                                \
    if (!(condition)) {                                               \
      ::groupnorm::fuzz::broken(__func__, #condition, ##__VA_ARGS__); \
    }                                                                 \
  } while (false)

enum Kind {
  kContext,
  kStream,
  kEvent,
  kBuffer,
  kTensor,
  kScalar,
  kInts,
  kFloats,
  kBools,
  kTensors,
  kScalars,
  kExecutor,
  kKinds,
};

// Device memory up to this size has a watch on the bytes between its end and its page's.
inline constexpr size_t kWatched = 64 * 1024;
// No allocation between this and what no machine has.
inline constexpr size_t kLargest = 1 << 20;

struct Block {
  char* data;
  size_t size;
};

// Memory for one side of a copy. `room` is what the copy may touch of it; SIZE_MAX where it is the library that has to
// say no.
struct Side {
  void* data;
  size_t room;
};

class World {
 public:
  explicit World(Input& in);
  ~World();

  // The status of a call: after a failure there has to be a sentence, and nothing may fail inside.
  int status(int code);

  void add(Kind kind, const void* handle);
  // It was destroyed, or should have been.
  void drop(Kind kind, const void* handle);
  // Mostly a live handle of this kind.
  void* handle(Kind kind);
  void* wrong_handle(Kind kind);
  template <class T>
  T* get(Kind kind) {
    return static_cast<T*>(handle(kind));
  }

  void* allocate(size_t size);
  void track_device(void* data, size_t size);
  void free_device(void* data);
  void track_host(void* data, size_t size);
  void free_host(void* data);

  // Any value.
  void* device_pointer();
  void* random_pointer();
  // No memory is mapped there, on any machine.
  void* wild_pointer();
  void* maybe_null(void* pointer) { return in.chance(8) ? nullptr : pointer; }
  // A value for an address that the library may take for the host's: nothing that is mapped by chance.
  Side device_side();
  Side host_side();

  int32_t timeout();  // a short wait
  void require_device();
  // Lets go of callbacks that block their stream, so that waiting for ever ends.
  void settle();
  // Waits for all streams of all contexts.
  void quiesce();
  void for_each_context(void (*call)(World& world));

  Input& in;
  bool strict = false;
  const char* said = "";  // of the last failure
  bool blocked = false;   // a blocking callback may be pending
  std::vector<void*> live[kKinds];
  std::vector<void*> dead[kKinds];
  std::vector<Block> device;
  std::vector<void*> freed;
  std::vector<Block> host;  // from aclrtMallocHost
  char* scratch;            // host memory of the program's own, whose borders the sanitizer watches
  static constexpr size_t kScratch = 8192;

 private:
  void check_slack(const Block& block);
  void finish();
};

struct Call {
  const char* name;
  void (*call)(World& world, Input& in);
};
struct Calls {
  const Call* begin;
  size_t count;
};

Calls runtime_calls();
Calls memory_calls();
Calls stream_calls();
Calls event_calls();
Calls meta_calls();
Calls executor_calls();

// One phase with arguments of all kinds.
void any_phase1(World& world, Input& in);
void any_phase2(World& world, Input& in);
// A whole operator, right or with something wrong; checks what it wrote.
void run_operator(World& world, Input& in);

}  // namespace groupnorm::fuzz
