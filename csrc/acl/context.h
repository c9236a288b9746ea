// Devices and their contexts. A thread has one current context or none; streams belong to a context.
#pragma once

#include <array>
#include <memory>
#include <mutex>

#include "fork.h"
#include "handles.h"
#include "stream.h"

namespace groupnorm::host {

inline constexpr int kSysParams = 4;

struct Context : std::enable_shared_from_this<Context> {
  explicit Context(int device) : device(device) {}

  // Made when first asked for.
  std::shared_ptr<Stream> default_stream();
  bool is_default(const std::shared_ptr<Stream>& stream);
  // All of its streams, the default one too.
  std::vector<std::shared_ptr<Stream>> streams_of() const;
  // Waits for its streams and ends them.
  void close();
  // Throws in a callback that one of its streams waits for.
  void check_may_wait() const;

  const int device;
  const int born = generation();
  void* handle = nullptr;
  std::mutex mutex;
  std::shared_ptr<Stream> default_stream_;
  std::array<std::atomic<int64_t>, kSysParams> params{};
};

// The thread's context. Throws 107002 when it has none.
std::shared_ptr<Context> current_context();

// GROUPNORM_ACL_DEVICES, 1 when it is not set. Throws when it is not a number from 1 to 64.
int device_count();

}  // namespace groupnorm::host
