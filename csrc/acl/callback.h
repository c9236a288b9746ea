// Callbacks: functions that a stream hands to a thread that was subscribed to it.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "acl/acl_rt.h"

namespace groupnorm::host {

class Stream;

struct Report {
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
  std::deque<std::shared_ptr<Report>> queue;
  int streams = 0;
};

// Of a stream that has ended, whoever was subscribed to it.
void unsubscribe(Stream& stream);

}  // namespace groupnorm::host
