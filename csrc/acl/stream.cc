#include "stream.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>

#include "callback.h"
#include "context.h"
#include "error.h"

namespace groupnorm::host {
namespace {

constexpr uint32_t kStreamFlags = ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC | ACL_STREAM_PERSISTENT |
                                  ACL_STREAM_HUGE | ACL_STREAM_CPU_SCHEDULE | ACL_STREAM_DEVICE_USE_ONLY;
constexpr uint32_t kPriorities = 8;  // 0 is the highest; all streams of a host run alike

void create(aclrtStream* stream, uint32_t priority, uint32_t flag) {
  require(stream, "stream");
  if (priority >= kPriorities) {
    throw Fault{ACL_ERROR_RT_PARAM_INVALID, text("priority is ", priority, "; accepted: 0 to ", kPriorities - 1)};
  }
  if ((flag & ~kStreamFlags) != 0) {
    throw Fault{ACL_ERROR_RT_PARAM_INVALID,
                text("flag is 0x", std::hex, flag, "; accepted: a sum of ACL_STREAM_* flags, up to 0x", kStreamFlags)};
  }
  auto made = std::make_shared<Stream>(current_context(), priority, flag);
  made->handle = streams().add(made);
  *stream = made->handle;
}

void destroy(aclrtStream stream, bool drain) {
  require(stream, "stream");
  const std::shared_ptr<Stream> found = stream_of(stream);
  if (const auto context = found->context.lock(); context && context->is_default(found)) {
    throw Fault{ACL_ERROR_RT_PARAM_INVALID, "stream is the default stream of its context, which goes with it"};
  }
  found->check_may_wait();
  if (streams().take(stream)) found->close(drain);
}

}  // namespace

Deadline::Deadline(int32_t timeout_ms) : limited_(timeout_ms != -1) {
  if (timeout_ms < -1) {
    throw Fault{ACL_ERROR_RT_PARAM_INVALID,
                text("timeout is ", timeout_ms, "; accepted: milliseconds, or -1 to wait for ever")};
  }
  at_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(limited_ ? timeout_ms : 0);
}

Stream::Stream(const std::shared_ptr<Context>& context, uint32_t priority, uint32_t flags)
    : context(context), priority(priority), flags(flags) {}

Stream::~Stream() { close(false); }

void Stream::check_process() const {
  if (born_ != generation()) {
    throw Fault{ACL_ERROR_RT_STREAM_CONTEXT, "stream was made before the process was forked; accepted: one made here"};
  }
}

void Stream::check_may_wait() const {
  if (waiting_for_callback() == this) {
    throw Fault{ACL_ERROR_RT_STREAM_CONTEXT,
                "called by a callback that the stream waits for, which would wait for itself"};
  }
}

void Stream::start_worker() {
  // Signals are for the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    worker_ = std::thread(&Stream::loop, this);
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Fault{ACL_ERROR_RT_NO_STREAM_RESOURCE,
                text("the host could not start a thread for the stream: ", error.what())};
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Stream::push(std::unique_ptr<Work> work, std::vector<Pin> pins) {
  check_process();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closing_) throw Fault{ACL_ERROR_RT_STREAM_CONTEXT, "stream is being destroyed"};
  if (!worker_.joinable()) start_worker();
  tasks_.push_back({std::move(work), std::move(pins)});
  ++pushed_;
  queued_.notify_one();
}

bool Stream::synchronize(const Deadline& deadline) {
  check_process();
  check_may_wait();
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t target = pushed_;
  // Whoever waits without a limit may as well do the work: that saves waking the worker and being woken by it.
  while (!deadline.limited() && done_ < target) {
    if (!running_ && !tasks_.empty()) {
      run_next(lock);
    } else {
      finished_.wait(lock, [&] { return done_ >= target || (!running_ && !tasks_.empty()); });
    }
  }
  if (!deadline.wait(finished_, lock, [&] { return done_ >= target; })) return false;
  const Fault fault = std::exchange(fault_, Fault{});
  if (fault.code != ACL_SUCCESS) throw fault;
  return true;
}

bool Stream::idle() {
  check_process();
  const std::lock_guard<std::mutex> lock(mutex_);
  return done_ == pushed_;
}

void Stream::abort() {
  check_process();
  check_may_wait();
  drop_and_wait();
}

void Stream::drop_and_wait() {
  std::list<Task> dropped;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    dropped.swap(tasks_);
    if (running_) cancelled_ = true;
  }
  drop_callbacks(*this);
  const size_t count = dropped.size();
  dropped.clear();  // outside the lock: it may wake others
  std::unique_lock<std::mutex> lock(mutex_);
  done_ += count;
  finished_.notify_all();
  if (!running_) return;
  const uint64_t task = started_;
  finished_.wait(lock, [&] { return !running_ || started_ != task; });
}

void Stream::close(bool drain) {
  if (born_ != generation()) {  // the worker stayed behind in the parent
    if (worker_.joinable()) worker_.detach();
    return;
  }
  if (!drain) drop_and_wait();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    queued_.notify_all();
  }
  if (worker_.joinable()) {
    if (worker_.get_id() == std::this_thread::get_id()) {
      worker_.detach();
    } else {
      worker_.join();
    }
  }
  unsubscribe(*this);
}

void Stream::loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    queued_.wait(lock, [&] { return !running_ && (closing_ || !tasks_.empty()); });
    if (tasks_.empty()) return;
    run_next(lock);
  }
}

void Stream::run_next(std::unique_lock<std::mutex>& lock) {
  // The end of a task, however it comes: a thread that synchronises may be cancelled in the middle of one.
  struct End {
    Stream& stream;
    std::unique_lock<std::mutex>& lock;
    Task task;
    Fault fault;
    ~End() {
      task = {};  // whoever waits for this task finds its memory released
      lock.lock();
      stream.running_ = false;
      if (stream.fault_.code == ACL_SUCCESS) stream.fault_ = std::move(fault);
      ++stream.done_;
      stream.finished_.notify_all();
      if (stream.closing_ || !stream.tasks_.empty()) stream.queued_.notify_one();
    }
  };
  running_ = true;
  cancelled_ = false;
  ++started_;
  const bool skip = stop_on_failure && fault_.code != ACL_SUCCESS;
  Task task = std::move(tasks_.front());
  tasks_.pop_front();
  lock.unlock();
  End end{*this, lock, std::move(task), {}};
  if (skip) return;
  try {
    end.task.work->run(cancelled_);
  } catch (const Fault& thrown) {
    end.fault = thrown;
  } catch (const std::exception& error) {
    end.fault = {ACL_ERROR_RT_INTERNAL_ERROR, error.what()};
  }
}

Handles<Stream>& streams() { return handles_of<Stream>(Kind::kStream); }
[[maybe_unused]] const auto& g_streams = streams();

std::shared_ptr<Stream> stream_of(aclrtStream handle) {
  const std::shared_ptr<Context> context = current_context();
  if (!handle) return context->default_stream();
  std::shared_ptr<Stream> stream = find_or_throw(streams(), "stream", handle, ACL_ERROR_RT_STREAM_CONTEXT);
  if (stream->context.lock() != context) {
    throw Fault{ACL_ERROR_RT_STREAM_CONTEXT,
                "stream belongs to another context than the thread's current one; accepted: one of this context"};
  }
  return stream;
}

}  // namespace groupnorm::host

using namespace groupnorm::host;

aclError aclrtCreateStream(aclrtStream* stream) {
  return entry(__func__, [&] { create(stream, 0, 0); });
}

aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t priority, uint32_t flag) {
  return entry(__func__, [&] { create(stream, priority, flag); });
}

aclError aclrtDestroyStream(aclrtStream stream) {
  return entry(__func__, [&] { destroy(stream, true); });
}

aclError aclrtDestroyStreamForce(aclrtStream stream) {
  return entry(__func__, [&] { destroy(stream, false); });
}

aclError aclrtSynchronizeStream(aclrtStream stream) {
  return entry(__func__, [&] { stream_of(stream)->synchronize(Deadline(-1)); });
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout) {
  return entry(__func__, [&] {
    const Deadline deadline(timeout);
    if (!stream_of(stream)->synchronize(deadline)) {
      throw Fault{ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, text("the stream was not done after ", timeout, " ms")};
    }
  });
}

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) {
  return entry(__func__, [&] {
    require(status, "status");
    *status = stream_of(stream)->idle() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
  });
}

aclError aclrtStreamAbort(aclrtStream stream) {
  return entry(__func__, [&] {
    require(stream, "stream");
    stream_of(stream)->abort();
  });
}

aclError aclrtSetStreamFailureMode(aclrtStream stream, uint64_t mode) {
  return entry(__func__, [&] {
    if (mode != ACL_CONTINUE_ON_FAILURE && mode != ACL_STOP_ON_FAILURE) {
      throw Fault{ACL_ERROR_RT_PARAM_INVALID,
                  text("mode is ", mode, "; accepted: ACL_CONTINUE_ON_FAILURE (0) or ACL_STOP_ON_FAILURE (1)")};
    }
    stream_of(stream)->stop_on_failure = mode == ACL_STOP_ON_FAILURE;
  });
}
