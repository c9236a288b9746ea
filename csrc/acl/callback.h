// Callbacks: functions that a stream hands to a thread that was subscribed to it.
#pragma once

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>

#include "acl/acl_rt.h"

namespace groupnorm::host {

class Stream;

struct Report {
  const Stream* stream;
  bool blocks;
  aclrtCallback function;
  void* user_data;
  bool done = false;  // or dropped; guarded by the Reports
};

// The callbacks that wait for one thread.
struct Reports {
  explicit Reports(uint64_t thread) : thread(thread) {}

  const uint64_t thread;
  std::mutex mutex;
  std::condition_variable changed;
  std::list<std::shared_ptr<Report>> queue;
  int streams = 0;
};

// Of a stream that has ended, whoever was subscribed to it.
void unsubscribe(Stream& stream);
// The callbacks of a stream that nobody has begun.
void drop_callbacks(Stream& stream);
// The stream that waits for the callback which this thread runs; null for none.
const Stream* waiting_for_callback();

}  // namespace groupnorm::host
