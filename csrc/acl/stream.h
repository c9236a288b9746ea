// A stream: a queue of work and the thread that takes it in order.
#pragma once

#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "handles.h"
#include "memory.h"

namespace groupnorm::host {

struct Context;
struct Reports;

// Milliseconds from now; none for -1. Throws for less.
class Deadline {
 public:
  explicit Deadline(int32_t timeout_ms);
  template <class Ready>
  bool wait(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Ready&& ready) const {
    if (!limited_) return changed.wait(lock, ready), true;
    return changed.wait_until(lock, at_, ready);
  }

  bool limited() const { return limited_; }

 private:
  bool limited_;
  std::chrono::steady_clock::time_point at_;
};

class Stream {
 public:
  Stream(const std::shared_ptr<Context>& context, uint32_t priority, uint32_t flags);
  ~Stream();

  void push(std::unique_ptr<Work> work, std::vector<Pin> pins = {});
  // Waits for all that is queued now. False when the time ran out; throws the first fault since the last call.
  bool synchronize(const Deadline& deadline);
  bool idle();
  // Drops what has not begun and interrupts what waits.
  void abort();
  // Ends the worker, after what is queued or without it. Throws nothing.
  void close(bool drain);
  // Throws in a callback that this stream waits for: waiting for the stream would never end.
  void check_may_wait() const;

  const std::weak_ptr<Context> context;
  const uint32_t priority;
  const uint32_t flags;
  std::atomic<bool> stop_on_failure{false};
  std::mutex reports_mutex;
  std::shared_ptr<Reports> reports;  // who runs its callbacks
  void* handle = nullptr;

 private:
  struct Task {
    std::unique_ptr<Work> work;
    std::vector<Pin> pins;
  };
  void check_process() const;
  void start_worker();
  void loop();
  void drop_and_wait();
  // Runs the first task, without the lock.
  void run_next(std::unique_lock<std::mutex>& lock);

  const int born_ = generation();
  std::mutex mutex_;
  std::condition_variable queued_;
  std::condition_variable finished_;
  std::list<Task> tasks_;  // not a deque: an empty one holds no memory
  uint64_t pushed_ = 0;
  uint64_t done_ = 0;
  bool running_ = false;  // a task, by the worker or by a thread that synchronises
  bool closing_ = false;
  Fault fault_;  // the first since the last synchronise
  uint64_t started_ = 0;
  std::atomic<bool> cancelled_{false};  // the task that runs
  std::thread worker_;
};

Handles<Stream>& streams();

// The stream of a handle, the default one for null, of the thread's context. Throws.
std::shared_ptr<Stream> stream_of(aclrtStream handle);

// Work from a callable.
template <class Body>
std::unique_ptr<Work> make_work(Body body) {
  class Callable : public Work {
   public:
    explicit Callable(Body&& body) : body_(std::move(body)) {}
    void run(const std::atomic<bool>& cancelled) override { body_(cancelled); }

   private:
    Body body_;
  };
  return std::make_unique<Callable>(std::move(body));
}

}  // namespace groupnorm::host
