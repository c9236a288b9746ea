// The private side of the host runtime, for libnnopbase and the operator libraries: one symbol beside the
// public ones, groupnorm_host, which also tells these libraries from those of a device.
//
// Inside, a mistake is a Fault thrown where it is found; entry() turns it into the code that the C function returns
// and the sentence that aclGetRecentErrMsg gives.
#pragma once

#include <cxxabi.h>

#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "acl/acl_rt.h"

namespace groupnorm::host {

struct Fault {
  int code = ACL_SUCCESS;
  std::string message;
};

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  out << std::boolalpha;
  (out << ... << parts);
  return out.str();
}

// A range of device memory that queued work reads or writes.
struct Extent {
  std::string name;
  const void* data;
  size_t bytes;
  bool written;
};

inline constexpr int kHostVersion = 1;

// One task of a stream. What never gets to run is destroyed, and has to release in its destructor whoever waits for it.
class Work {
 public:
  virtual ~Work() = default;
  // May throw a Fault. Work that waits gives up when `cancelled`.
  virtual void run(const std::atomic<bool>& cancelled) = 0;
};

// The order in which locks are taken, and kept over a fork (fork.h).
enum class LockRank { kProcess, kDevices, kReports, kHandles, kMemory };

// Beyond it the libraries call no exported function of each other, so that they cannot be given another library's.
struct Host {
  int version;  // of this table: libraries of two releases do not mix
  // Keeps a fault as the thread's recent error and returns its code.
  int (*report)(const char* function, const Fault& fault);
  // A warning on stderr.
  void (*warn)(const char* function, const std::string& message);
  // Throws unless all of the extent is in one live allocation of device memory.
  void (*check_extent)(const Extent& extent, int code);
  // Puts work on a stream of the thread's context and keeps its extents alive until it has run. Throws.
  void (*enqueue)(aclrtStream stream, const std::vector<Extent>& extents, std::unique_ptr<Work> work);
  size_t (*data_type_size)(aclDataType dtype);
  void (*keep_lock)(LockRank rank, void* lock, void (*take)(void*), void (*release)(void*));
  // What libnnopbase offers to the operator libraries (nnopbase/meta.h); null until it is loaded.
  const void* meta;
};

}  // namespace groupnorm::host

extern "C" __attribute__((visibility("default"))) groupnorm::host::Host* groupnorm_host();

namespace groupnorm::host {

// The body of an exported function: returns 0, or reports what was thrown and returns its code. Only the unwinding of a
// thread that is cancelled passes; the C++ library hands that to a handler as a reference to nothing, which a sanitizer
// would report here.
template <class Body>
__attribute__((no_sanitize("undefined"))) int entry(const char* function, Body&& body) {
  try {
    try {
      body();
      return ACL_SUCCESS;
    } catch (const Fault& fault) {
      return groupnorm_host()->report(function, fault);
    } catch (const std::bad_alloc&) {
      return groupnorm_host()->report(function, {ACL_ERROR_BAD_ALLOC, "the host is out of memory"});
    } catch (const std::exception& error) {
      return groupnorm_host()->report(function, {ACL_ERROR_INTERNAL_ERROR, error.what()});
    }
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {  // not even the report found memory
    return ACL_ERROR_BAD_ALLOC;
  }
}

// The same for functions that return a handle: null for an error.
template <class Body>
auto entry_handle(const char* function, Body&& body) -> decltype(body()) {
  decltype(body()) handle = nullptr;
  entry(function, [&] { handle = body(); });
  return handle;
}

inline void require(const void* pointer, const char* name, int code = ACL_ERROR_INVALID_PARAM) {
  if (!pointer) throw Fault{code, text(name, " is null; accepted: a pointer")};
}

}  // namespace groupnorm::host
