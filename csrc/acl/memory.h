// Device memory: host memory with books of its own. It comes from one reserved range of addresses, so any pointer can
// be told to be device memory that lives, device memory that was freed, or neither; freed addresses are given
// out again only after all others.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "host.h"

namespace groupnorm::host {

struct Allocation {
  Allocation(char* base, size_t size, size_t mapped, int device);
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  char* const base;
  const size_t size;    // as asked for
  const size_t mapped;  // whole pages
  const int device;
  std::atomic<int> readers{0};  // queued work
  std::atomic<int> writers{0};
};

// Queued work's hold on an allocation.
class Pin {
 public:
  Pin(std::shared_ptr<Allocation> allocation, bool writes);
  ~Pin();
  Pin(Pin&& other) noexcept = default;
  Pin& operator=(Pin&&) = delete;

 private:
  std::shared_ptr<Allocation> allocation_;
  bool writes_;
};

enum class Where { kLive, kFreed, kElsewhere };

struct Place {
  Where where;
  std::shared_ptr<Allocation> allocation;  // kLive only
};

Place place_of(const void* pointer);

// Throws `code` unless all of the extent is in one live allocation, which it returns.
std::shared_ptr<Allocation> check_extent(const Extent& extent, int code);

// The block from aclrtMallocHost that `pointer` is in, and the bytes from there to its end; null when it is in none.
std::shared_ptr<void> host_room(const void* pointer, size_t* bytes);

// How many blocks from aclrtMallocHost there are.
size_t host_blocks();

// Whether the host has memory there, to read or also to write. Slow: for pointers that nothing vouches for.
bool host_has(const void* pointer, size_t bytes, bool written);

// Bytes of device memory that there are.
size_t device_memory();

// What is allocated, as a sentence; empty when nothing is.
std::string describe_leaks();

}  // namespace groupnorm::host
