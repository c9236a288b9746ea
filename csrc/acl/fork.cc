#include "fork.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

namespace groupnorm::host {
namespace {

struct Lock {
  LockRank rank;
  void* lock;
  void (*take)(void*);
  void (*release)(void*);
};

struct Locks {
  std::mutex mutex;
  std::vector<Lock> all;  // by rank
  std::atomic<int> generation{0};

  Locks() {
    pthread_atfork(
        [] {
          get().mutex.lock();
          for (const Lock& lock : get().all) lock.take(lock.lock);
        },
        [] { get().release(); },
        [] {
          get().release();
          ++get().generation;
        });
  }
  static Locks& get() {
    static Locks* const locks = new Locks;
    return *locks;
  }
  void release() {
    for (auto lock = all.rbegin(); lock != all.rend(); ++lock) lock->release(lock->lock);
    mutex.unlock();
  }
};

[[maybe_unused]] const auto& g_locks = Locks::get();

}  // namespace

void keep_lock(LockRank rank, void* lock, void (*take)(void*), void (*release)(void*)) {
  Locks& locks = Locks::get();
  const std::lock_guard<std::mutex> guard(locks.mutex);
  const auto after = std::upper_bound(locks.all.begin(), locks.all.end(), rank,
                                      [](LockRank wanted, const Lock& other) { return wanted < other.rank; });
  locks.all.insert(after, {rank, lock, take, release});
}

int generation() { return Locks::get().generation; }

}  // namespace groupnorm::host
