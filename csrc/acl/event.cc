#include "event.h"

#include <chrono>
#include <condition_variable>

#include "context.h"
#include "error.h"

namespace groupnorm::host {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll{5};  // how often work that waits looks whether it was cancelled
constexpr uint32_t kEventFlags = ACL_EVENT_SYNC | ACL_EVENT_CAPTURE_STREAM_PROGRESS | ACL_EVENT_TIME_LINE;

// One aclrtRecordEvent: done when its stream got there, or was dropped on the way.
struct Record {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  bool reached = false;
  const int born = generation();
  Clock::time_point at;

  void finish(bool by_stream) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (done) return;
    done = true;
    reached = by_stream;
    at = Clock::now();
    changed.notify_all();
  }
};

struct Event {
  explicit Event(uint32_t flags) : flags(flags) {}

  // What was recorded in a parent is never reached here, so it counts as nothing.
  std::shared_ptr<Record> latest() {
    const std::lock_guard<std::mutex> lock(mutex);
    return record && record->born == generation() ? record : nullptr;
  }

  const uint32_t flags;
  std::atomic<int> waits{0};  // of streams, not over yet
  std::mutex mutex;
  std::shared_ptr<Record> record;  // null: never recorded, or reset
};

Handles<Event>& events() { return handles_of<Event>(Kind::kEvent); }
[[maybe_unused]] const auto& g_events = events();

std::shared_ptr<Event> event_of(const char* name, aclrtEvent handle) {
  require(handle, name);
  return find_or_throw(events(), name, handle, ACL_ERROR_RT_PARAM_INVALID);
}

class RecordWork : public Work {
 public:
  explicit RecordWork(std::shared_ptr<Record> record) : record_(std::move(record)) {}
  ~RecordWork() override { record_->finish(false); }
  void run(const std::atomic<bool>&) override { record_->finish(true); }

 private:
  const std::shared_ptr<Record> record_;
};

class WaitWork : public Work {
 public:
  WaitWork(std::shared_ptr<Event> event, std::shared_ptr<Record> record)
      : event_(std::move(event)), record_(std::move(record)) {
    ++event_->waits;
  }
  ~WaitWork() override { --event_->waits; }
  void run(const std::atomic<bool>& cancelled) override {
    std::unique_lock<std::mutex> lock(record_->mutex);
    while (!record_->done && !cancelled) record_->changed.wait_for(lock, kPoll);
  }

 private:
  const std::shared_ptr<Event> event_;
  const std::shared_ptr<Record> record_;
};

class ResetWork : public Work {
 public:
  ResetWork(std::shared_ptr<Event> event, std::shared_ptr<Record> record)
      : event_(std::move(event)), record_(std::move(record)) {}
  void run(const std::atomic<bool>&) override {
    const std::lock_guard<std::mutex> lock(event_->mutex);
    if (event_->record == record_) event_->record = nullptr;
  }

 private:
  const std::shared_ptr<Event> event_;
  const std::shared_ptr<Record> record_;
};

void create(aclrtEvent* event, uint32_t flag) {
  require(event, "event");
  if (flag == 0 || (flag & ~kEventFlags) != 0) {
    throw Fault{ACL_ERROR_RT_PARAM_INVALID,
                text("flag is 0x", std::hex, flag,
                     "; accepted: a sum of ACL_EVENT_SYNC, ACL_EVENT_CAPTURE_STREAM_PROGRESS and ACL_EVENT_TIME_LINE")};
  }
  current_context();
  *event = events().add(std::make_shared<Event>(flag));
}

bool completed(const std::shared_ptr<Event>& event) {
  const std::shared_ptr<Record> record = event->latest();
  if (!record) return false;
  const std::lock_guard<std::mutex> lock(record->mutex);
  return record->done;
}

bool synchronize(aclrtEvent event, const Deadline& deadline) {
  const std::shared_ptr<Record> record = event_of("event", event)->latest();
  if (!record) return true;  // it captured nothing
  std::unique_lock<std::mutex> lock(record->mutex);
  return deadline.wait(record->changed, lock, [&] { return record->done; });
}

Clock::time_point time_of(const char* name, aclrtEvent handle) {
  const std::shared_ptr<Event> event = event_of(name, handle);
  if ((event->flags & ACL_EVENT_TIME_LINE) == 0) {
    throw Fault{ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID,
                text(name, " was made without ACL_EVENT_TIME_LINE and keeps no time")};
  }
  const std::shared_ptr<Record> record = event->latest();
  if (!record) throw Fault{ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, text(name, " was never recorded")};
  const std::lock_guard<std::mutex> lock(record->mutex);
  if (!record->done || !record->reached) {
    throw Fault{ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID,
                text(name, record->done ? " was dropped with its stream" : " is not complete: synchronise it first")};
  }
  return record->at;
}

}  // namespace

size_t event_count() { return events().all().size(); }

}  // namespace groupnorm::host

using namespace groupnorm::host;

aclError aclrtCreateEvent(aclrtEvent* event) {
  return entry(__func__, [&] { create(event, kEventFlags); });
}

aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flag) {
  return entry(__func__, [&] { create(event, flag); });
}

aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t flag) {
  return entry(__func__, [&] { create(event, flag); });
}

aclError aclrtDestroyEvent(aclrtEvent event) {
  return entry(__func__, [&] {
    event_of("event", event);
    events().take(event);
  });
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  return entry(__func__, [&] {
    const std::shared_ptr<Event> target = event_of("event", event);
    const std::shared_ptr<Stream> on = stream_of(stream);
    auto record = std::make_shared<Record>();
    on->push(std::make_unique<RecordWork>(record));
    const std::lock_guard<std::mutex> lock(target->mutex);
    target->record = std::move(record);
  });
}

aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream) {
  return entry(__func__, [&] {
    const std::shared_ptr<Event> target = event_of("event", event);
    stream_of(stream)->push(std::make_unique<ResetWork>(target, target->latest()));
  });
}

aclError aclrtSynchronizeEvent(aclrtEvent event) {
  return entry(__func__, [&] { synchronize(event, Deadline(-1)); });
}

aclError aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t timeout) {
  return entry(__func__, [&] {
    if (!synchronize(event, Deadline(timeout))) {
      throw Fault{ACL_ERROR_RT_EVENT_SYNC_TIMEOUT, text("the event was not complete after ", timeout, " ms")};
    }
  });
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  return entry(__func__, [&] {
    const std::shared_ptr<Stream> on = stream_of(stream);
    const std::shared_ptr<Event> source = event_of("event", event);
    std::shared_ptr<Record> record = source->latest();
    if (!record) {
      warn_or_throw("aclrtStreamWaitEvent", ACL_ERROR_RT_PARAM_INVALID,
                    "event was never recorded, so there is nothing to wait for: call aclrtRecordEvent first");
      return;
    }
    on->push(std::make_unique<WaitWork>(source, std::move(record)));
  });
}

aclError aclrtEventElapsedTime(float* ms, aclrtEvent startEvent, aclrtEvent endEvent) {
  return entry(__func__, [&] {
    require(ms, "ms");
    const Clock::time_point start = time_of("startEvent", startEvent);
    const Clock::time_point end = time_of("endEvent", endEvent);
    if (end < start) {
      throw Fault{ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL, "endEvent was recorded before startEvent"};
    }
    *ms = std::chrono::duration<float, std::milli>(end - start).count();
  });
}

aclError aclrtQueryEvent(aclrtEvent event, aclrtEventStatus* status) {
  return entry(__func__, [&] {
    const std::shared_ptr<Event> source = event_of("event", event);
    require(status, "status");
    *status = completed(source) ? ACL_EVENT_STATUS_COMPLETE : ACL_EVENT_STATUS_NOT_READY;
  });
}

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
  return entry(__func__, [&] {
    const std::shared_ptr<Event> source = event_of("event", event);
    require(status, "status");
    *status = completed(source) ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  });
}

aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus* status) {
  return entry(__func__, [&] {
    const std::shared_ptr<Event> source = event_of("event", event);
    require(status, "status");
    *status = source->waits == 0 ? ACL_EVENT_WAIT_STATUS_COMPLETE : ACL_EVENT_WAIT_STATUS_NOT_READY;
  });
}
