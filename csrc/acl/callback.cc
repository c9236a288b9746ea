#include "callback.h"

#include <pthread.h>

#include <unordered_map>

#include "stream.h"

namespace groupnorm::host {
namespace {

constexpr std::chrono::milliseconds kPoll{5};  // how often work that waits looks whether it was cancelled

struct Threads {
  std::mutex mutex;
  std::unordered_map<uint64_t, std::shared_ptr<Reports>> reports;

  Threads() { keep_over_forks(LockRank::kReports, mutex); }
  static Threads& get() {
    static Threads* const threads = new Threads;
    return *threads;
  }
};

[[maybe_unused]] const auto& g_threads = Threads::get();

class PostReport : public Work {
 public:
  PostReport(std::shared_ptr<Reports> to, std::shared_ptr<Report> report, bool wait)
      : to_(std::move(to)), report_(std::move(report)), wait_(wait) {}

  void run(const std::atomic<bool>& cancelled) override {
    std::unique_lock<std::mutex> lock(to_->mutex);
    if (to_->streams == 0) {
      throw Fault{ACL_ERROR_RT_STREAM_NO_CB_REG, "a callback was due after its thread was unsubscribed"};
    }
    to_->queue.push_back(report_);
    to_->changed.notify_all();
    while (wait_ && !report_->done && !cancelled) to_->changed.wait_for(lock, kPoll);
  }

 private:
  const std::shared_ptr<Reports> to_;
  const std::shared_ptr<Report> report_;
  const bool wait_;
};

thread_local const Stream* t_waiting = nullptr;

// A callback while it runs: however it ends, the stream goes on.
class Running {
 public:
  Running(Reports& reports, Report& report) : reports_(reports), report_(report), before_(t_waiting) {
    if (report.blocks) t_waiting = report.stream;
  }
  ~Running() {
    t_waiting = before_;
    const std::lock_guard<std::mutex> lock(reports_.mutex);
    report_.done = true;
    reports_.changed.notify_all();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  Reports& reports_;
  Report& report_;
  const Stream* const before_;
};

// One stream less that the thread is subscribed to; with the last one its callbacks go.
void leave(const std::shared_ptr<Reports>& reports) {
  Threads& threads = Threads::get();
  const std::lock_guard<std::mutex> lock(threads.mutex);
  const std::lock_guard<std::mutex> reports_lock(reports->mutex);
  if (--reports->streams > 0) return;
  for (const auto& report : reports->queue) report->done = true;
  reports->queue.clear();
  reports->changed.notify_all();
  threads.reports.erase(reports->thread);
}

}  // namespace

void drop_callbacks(Stream& stream) {
  const std::lock_guard<std::mutex> lock(stream.reports_mutex);
  if (!stream.reports) return;
  Reports& reports = *stream.reports;
  const std::lock_guard<std::mutex> reports_lock(reports.mutex);
  reports.queue.remove_if([&](const std::shared_ptr<Report>& report) {
    if (report->stream != &stream) return false;
    report->done = true;
    return true;
  });
  reports.changed.notify_all();
}

const Stream* waiting_for_callback() { return t_waiting; }

void unsubscribe(Stream& stream) {
  const std::lock_guard<std::mutex> lock(stream.reports_mutex);
  if (const auto reports = std::exchange(stream.reports, nullptr)) leave(reports);
}

}  // namespace groupnorm::host

using namespace groupnorm::host;

aclError aclrtSubscribeReport(uint64_t threadId, aclrtStream stream) {
  return entry(__func__, [&] {
    const std::shared_ptr<Stream> on = stream_of(stream);
    const std::lock_guard<std::mutex> stream_lock(on->reports_mutex);
    if (on->reports) {
      throw Fault{ACL_ERROR_RT_STREAM_SUBSCRIBE,
                  text("stream is subscribed to by thread ", on->reports->thread, " already; accepted: one thread")};
    }
    Threads& threads = Threads::get();
    const std::lock_guard<std::mutex> lock(threads.mutex);
    std::shared_ptr<Reports>& reports = threads.reports[threadId];
    if (!reports) reports = std::make_shared<Reports>(threadId);
    const std::lock_guard<std::mutex> reports_lock(reports->mutex);
    ++reports->streams;
    on->reports = reports;
  });
}

aclError aclrtUnSubscribeReport(uint64_t threadId, aclrtStream stream) {
  return entry(__func__, [&] {
    const std::shared_ptr<Stream> on = stream_of(stream);
    const std::lock_guard<std::mutex> stream_lock(on->reports_mutex);
    if (!on->reports || on->reports->thread != threadId) {
      throw Fault{ACL_ERROR_RT_THREAD_SUBSCRIBE, text("thread ", threadId, " is not subscribed to the stream")};
    }
    leave(std::exchange(on->reports, nullptr));
  });
}

aclError aclrtLaunchCallback(aclrtCallback fn, void* userData, aclrtCallbackBlockType blockType, aclrtStream stream) {
  return entry(__func__, [&] {
    require(reinterpret_cast<const void*>(fn), "fn");
    if (blockType != ACL_CALLBACK_NO_BLOCK && blockType != ACL_CALLBACK_BLOCK) {
      throw Fault{ACL_ERROR_INVALID_PARAM, text("blockType is ", static_cast<int>(blockType),
                                                "; accepted: ACL_CALLBACK_NO_BLOCK (0) or ACL_CALLBACK_BLOCK (1)")};
    }
    const std::shared_ptr<Stream> on = stream_of(stream);
    std::shared_ptr<Reports> reports;
    {
      const std::lock_guard<std::mutex> lock(on->reports_mutex);
      reports = on->reports;
    }
    if (!reports) {
      throw Fault{ACL_ERROR_RT_STREAM_NO_CB_REG,
                  "no thread is subscribed to the stream: call aclrtSubscribeReport first"};
    }
    auto report = std::make_shared<Report>();
    report->stream = on.get();
    report->blocks = blockType == ACL_CALLBACK_BLOCK;
    report->function = fn;
    report->user_data = userData;
    on->push(std::make_unique<PostReport>(std::move(reports), std::move(report), blockType == ACL_CALLBACK_BLOCK));
  });
}

aclError aclrtProcessReport(int32_t timeout) {
  std::shared_ptr<Reports> reports;
  std::shared_ptr<Report> report;
  const aclError status = entry(__func__, [&] {
    const Deadline deadline(timeout);
    {
      Threads& threads = Threads::get();
      const std::lock_guard<std::mutex> lock(threads.mutex);
      const auto found = threads.reports.find(static_cast<uint64_t>(pthread_self()));
      if (found == threads.reports.end()) {
        throw Fault{ACL_ERROR_RT_THREAD_SUBSCRIBE,
                    "this thread is not subscribed to any stream: call aclrtSubscribeReport with its pthread_self()"};
      }
      reports = found->second;
    }
    std::unique_lock<std::mutex> lock(reports->mutex);
    if (!deadline.wait(reports->changed, lock, [&] { return !reports->queue.empty() || reports->streams == 0; })) {
      throw Fault{ACL_ERROR_RT_REPORT_TIMEOUT, text("no callback came in ", timeout, " ms")};
    }
    if (reports->queue.empty()) {
      throw Fault{ACL_ERROR_RT_THREAD_SUBSCRIBE, "this thread was unsubscribed while it waited"};
    }
    report = reports->queue.front();
    reports->queue.pop_front();
  });
  if (status != ACL_SUCCESS) return status;
  // The program's own function, whatever it throws is the program's too.
  const Running running(*reports, *report);
  report->function(report->user_data);
  return ACL_SUCCESS;
}
