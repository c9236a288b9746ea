#include "parallel.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#include "fp_env.h"

namespace groupnorm {
namespace {

// ---- how many CPUs ----

// CPUs that a quota of the given file pays for, rounded up; 0 when there is no quota.
int quota_cpus(const char* path) {
  std::FILE* file = std::fopen(path, "r");
  if (!file) return 0;
  char quota[32] = "";
  long long period = 0;
  const int fields = std::fscanf(file, "%31s %lld", quota, &period);
  std::fclose(file);
  long long granted = 0;
  if (fields != 2 || period <= 0 || std::sscanf(quota, "%lld", &granted) != 1 || granted <= 0) return 0;
  return static_cast<int>((granted + period - 1) / period);
}

// cgroup v1 keeps quota and period in two files.
int quota_cpus_v1() {
  long long granted = 0;
  long long period = 0;
  const char* paths[] = {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"};
  long long* values[] = {&granted, &period};
  for (int i = 0; i < 2; ++i) {
    std::FILE* file = std::fopen(paths[i], "r");
    if (!file) return 0;
    const int fields = std::fscanf(file, "%lld", values[i]);
    std::fclose(file);
    if (fields != 1) return 0;
  }
  return granted > 0 && period > 0 ? static_cast<int>((granted + period - 1) / period) : 0;
}

// The smallest quota on the way from the process's own cgroup (v2) up to the root.
int smallest_quota() {
  int smallest = 0;
  const auto take = [&smallest](int cpus) {
    if (cpus > 0 && (smallest == 0 || cpus < smallest)) smallest = cpus;
  };
  char line[512];
  char group[512] = "";
  if (std::FILE* file = std::fopen("/proc/self/cgroup", "r")) {
    while (std::fgets(line, sizeof(line), file)) {
      if (std::strncmp(line, "0::", 3) == 0) {
        line[std::strcspn(line, "\n")] = '\0';
        std::snprintf(group, sizeof(group), "%s", line + 3);
      }
    }
    std::fclose(file);
  }
  for (;;) {
    char path[600];
    std::snprintf(path, sizeof(path), "/sys/fs/cgroup%s/cpu.max", group);
    take(quota_cpus(path));
    char* slash = std::strrchr(group, '/');
    if (!slash) break;
    *slash = '\0';
  }
  take(quota_cpus_v1());
  return smallest;
}

// ---- the pool ----

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Moves the calling thread off a CPU, if it is on that one and may use another. A thread that wakes is often put where
// the one that woke it runs, and stays there for milliseconds, while the other CPUs are idle.
void leave_cpu(int cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE || sched_getcpu() != cpu) return;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || !CPU_ISSET(cpu, &allowed) || CPU_COUNT(&allowed) < 2)
    return;
  cpu_set_t others = allowed;
  CPU_CLR(cpu, &others);
  if (sched_setaffinity(0, sizeof(others), &others) == 0) sched_setaffinity(0, sizeof(allowed), &allowed);
}

// The tasks of a call. Each worker has a share that is the same in every call of the same shape, so that what the last
// call left in the caches of its CPU is its own; with that done it goes on with the shares of others.
class Job {
 public:
  Job(int64_t count, int threads, void (*task)(void*, int64_t, int), void* context)
      : task_(task), context_(context), shares_(threads < kShares ? threads : kShares) {
    for (int i = 0; i < shares_; ++i) {
      share_[i].next.store(begin(i, count), std::memory_order_relaxed);
      share_[i].end = begin(i + 1, count);
    }
  }

  void work(int worker) {
    const FpEnvironment environment;
    for (int i = 0; i < shares_; ++i) {
      Share& share = share_[(worker + i) % shares_];
      for (;;) {
        const int64_t index = share.next.fetch_add(1, std::memory_order_relaxed);
        if (index >= share.end) break;
        task_(context_, index, worker);
      }
    }
  }

 private:
  static constexpr int kShares = 64;
  struct alignas(64) Share {
    std::atomic<int64_t> next;
    int64_t end;
  };

  int64_t begin(int share, int64_t count) const {
    return count / shares_ * share + std::min<int64_t>(share, count % shares_);
  }

  void (*const task_)(void*, int64_t, int);
  void* const context_;
  const int shares_;
  Share share_[kShares];
};

// One job at a time. A worker joins a job while it is open; the caller closes it when no task is
// left and waits for those that joined, so a worker that wakes late costs nothing.
class Pool {
 public:
  // False when another caller has the pool.
  bool try_run(Job& job, int threads) {
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) return false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      while (workers_ < threads - 1 && start_worker()) ++workers_;
      current_ = &job;
      open_places_ = threads - 1;
      next_worker_ = 1;
      caller_cpu_.store(sched_getcpu(), std::memory_order_relaxed);
      ++jobs_;
      announced_.store(jobs_, std::memory_order_release);
    }
    wake_.notify_all();
    job.work(0);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      open_places_ = 0;
    }
    for (int spin = 0; spin < kSpins && active_.load(std::memory_order_acquire) > 0; ++spin) pause_cpu();
    std::unique_lock<std::mutex> lock(mutex_);
    idle_.wait(lock, [this] { return active_.load(std::memory_order_relaxed) == 0; });
    return true;
  }

 private:
  // How long to look for work, or for its end, before sleeping: waking up takes longer than a small job.
  static constexpr int kSpins = 5000;

  void serve() {
    uint64_t seen = 0;
    for (;;) {
      for (int spin = 0; spin < kSpins && announced_.load(std::memory_order_acquire) == seen; ++spin) pause_cpu();
      int worker;
      Job* job;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [this, seen] { return jobs_ != seen; });
        seen = jobs_;
        if (open_places_ == 0) continue;
        --open_places_;
        worker = next_worker_++;
        job = current_;
        active_.fetch_add(1, std::memory_order_relaxed);
      }
      leave_cpu(caller_cpu_.load(std::memory_order_relaxed));
      job->work(worker);
      std::lock_guard<std::mutex> lock(mutex_);
      active_.fetch_sub(1, std::memory_order_release);
      idle_.notify_one();
    }
  }

  // Signals belong to the program's own threads. Called with mutex_ held.
  bool start_worker() {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    const int failed = pthread_create(
        &thread, nullptr,
        [](void* pool) -> void* {
          static_cast<Pool*>(pool)->serve();
          return nullptr;
        },
        this);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (failed == 0) pthread_detach(thread);
    return failed == 0;
  }

  std::mutex turn_;   // held by the caller whose job runs
  std::mutex mutex_;  // guards what follows, except the atomics
  std::condition_variable wake_;
  std::condition_variable idle_;
  int workers_ = 0;
  int open_places_ = 0;
  int next_worker_ = 1;
  uint64_t jobs_ = 0;
  Job* current_ = nullptr;  // on the stack of the caller, who waits for those that joined
  std::atomic<int> active_{0};
  std::atomic<uint64_t> announced_{0};
  std::atomic<int> caller_cpu_{-1};
};

// Never destroyed: its workers live as long as the process. A forked child has none of them, so it
// forgets the pool, whatever state that was in, and makes its own at its first call.
std::atomic<Pool*> g_pool{nullptr};
Team g_team{nullptr, nullptr};
std::atomic<bool> g_has_team{false};
const int g_forgotten_by_children = pthread_atfork(nullptr, nullptr, [] {
  g_pool.store(nullptr);
  g_has_team.store(false);
});

Pool* pool() {
  Pool* current = g_pool.load(std::memory_order_acquire);
  if (current) return current;
  if (g_forgotten_by_children != 0) return nullptr;
  Pool* made = new (std::nothrow) Pool;
  if (made && !g_pool.compare_exchange_strong(current, made, std::memory_order_acq_rel)) {
    delete made;
    return current;
  }
  return made;
}

}  // namespace

int available_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cpus = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  const int quota = smallest_quota();
  if (quota > 0 && quota < cpus) cpus = quota;
  return cpus < 1 ? 1 : cpus > kMaxThreads ? kMaxThreads : cpus;
}

static const int g_cpus = available_cpus();

int default_threads() {
  const char* text = std::getenv("GROUPNORM_NUM_THREADS");
  if (!text || !*text) return g_cpus;
  char* end = nullptr;
  const long threads = std::strtol(text, &end, 10);
  return *end == '\0' && threads >= 1 && threads <= kMaxThreads ? static_cast<int>(threads) : 0;
}

void use_team(const Team& team) {
  g_has_team.store(false);
  g_team = team;
  g_has_team.store(team.parallel && team.thread_number);
}

void parallel_for(int64_t count, int threads, void (*task)(void*, int64_t, int), void* context) {
  if (threads > count) threads = static_cast<int>(count);
  if (threads > kMaxThreads) threads = kMaxThreads;
  if (threads > 1) {
    Job job(count, threads, task, context);
    if (g_has_team.load(std::memory_order_acquire)) {
      const auto body = [](void* data) { static_cast<Job*>(data)->work(g_team.thread_number()); };
      g_team.parallel(body, &job, static_cast<unsigned>(threads), 0);
      return;
    }
    Pool* workers = pool();
    if (workers && workers->try_run(job, threads)) return;
  }
  const FpEnvironment environment;
  for (int64_t index = 0; index < count; ++index) task(context, index, 0);
}

}  // namespace groupnorm
