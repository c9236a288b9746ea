// The only place that knows threads. Results never depend on it: who computes a task decides nothing
// about its bits, so a busy pool may run a call on fewer threads than it asked for.
#pragma once

#include <cstdint>
#include <type_traits>

namespace groupnorm {

inline constexpr int kMaxThreads = 1024;

// CPUs this process may use: its affinity mask, cut to its cgroup's quota. At least 1.
int available_cpus();

// GROUPNORM_NUM_THREADS where it is set, else available_cpus() as first seen. 0 when the variable is
// not a number from 1 to kMaxThreads.
int default_threads();

// Calls task(context, index, worker) once for each index in [0, count), on at most `threads` threads
// (the caller is worker 0, workers are numbered below `threads`), and returns when all have run.
// Callable from any thread and from a forked child; while another caller has the pool, the caller
// runs its tasks alone.
void parallel_for(int64_t count, int threads, void (*task)(void* context, int64_t index, int worker), void* context);

// Threads that the program has anyway, of an OpenMP runtime: its GOMP_parallel calls body(data) on up to `threads` of
// them, the caller being one, and returns when all have; its omp_get_thread_num numbers them. Threads of another pool
// that wait in a loop for work would keep ours from the CPUs. Nulls: our own again, as in a forked child.
struct Team {
  void (*parallel)(void (*body)(void* data), void* data, unsigned threads, unsigned flags);
  int (*thread_number)();
};
void use_team(const Team& team);

template <class Fn>
void parallel_for(int64_t count, int threads, Fn&& fn) {
  using Body = std::remove_reference_t<Fn>;
  parallel_for(
      count, threads, [](void* context, int64_t index, int worker) { (*static_cast<Body*>(context))(index, worker); },
      const_cast<void*>(static_cast<const void*>(&fn)));
}

}  // namespace groupnorm
