#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>

#include "context.h"
#include "error.h"

namespace groupnorm::host {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kReserve = size_t{64} << 30;  // sanitizers keep most addresses for themselves
#else
constexpr size_t kReserve = size_t{1} << 40;
#endif
constexpr size_t kSmallestReserve = size_t{1} << 28;
constexpr size_t kHoleSize = size_t{64} << 10;
constexpr size_t kHugePage = size_t{2} << 20;

size_t page_size() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }
size_t physical_memory() { return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page_size(); }
size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

class Arena {
 public:
  static Arena& get() {
    static Arena* const arena = new Arena;
    return *arena;
  }

  std::shared_ptr<Allocation> allocate(size_t size, int device) {
    const size_t mapped = round_up(size, page_size());
    char* const base = take(size, mapped);
    if (mprotect(base, mapped, PROT_READ | PROT_WRITE) != 0) {
      give_back(base, mapped);
      throw Fault{ACL_ERROR_RT_MEMORY_ALLOCATION, text("size is ", size, "; the host could not map as much")};
    }
    if (mapped >= kHugePage) madvise(base, mapped, MADV_HUGEPAGE);
    std::shared_ptr<Allocation> allocation;  // destroyed, if it comes to that, without the lock
    try {
      allocation = std::make_shared<Allocation>(base, size, mapped, device);
    } catch (...) {
      give_back(base, mapped);
      throw;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    live_.emplace(base, allocation);
    allocated_ += size;
    return allocation;
  }

  // Ends the life of an allocation; its pages go when nothing queued holds them any more.
  void forget(const std::shared_ptr<Allocation>& allocation) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (live_.erase(allocation->base) != 0) allocated_ -= allocation->size;
  }

  // Small blocks stay mapped, without pages: a hole for each would use up the maps that a process may have.
  void give_back(char* base, size_t mapped) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (mapped < kHoleSize) {
      madvise(base, mapped, MADV_DONTNEED);
    } else {
      mmap(base, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    }
    taken_.erase(base);
  }

  Place place_of(const void* pointer) const {
    char* const at = static_cast<char*>(const_cast<void*>(pointer));
    if (at < begin_ || at >= end_) return {Where::kElsewhere, nullptr};
    const std::lock_guard<std::mutex> lock(mutex_);
    auto next = live_.upper_bound(at);
    if (next == live_.begin()) return {Where::kFreed, nullptr};
    const std::shared_ptr<Allocation>& below = std::prev(next)->second;
    if (at >= below->base + below->size) return {Where::kFreed, nullptr};
    return {Where::kLive, below};
  }

  std::vector<std::shared_ptr<Allocation>> live() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::shared_ptr<Allocation>> all;
    for (const auto& entry : live_) all.push_back(entry.second);
    return all;
  }

  size_t allocated() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return allocated_;
  }

  static size_t total() { return physical_memory(); }

 private:
  Arena() {
    keep_over_forks(LockRank::kMemory, mutex_);
    for (size_t reserve = kReserve; reserve >= kSmallestReserve; reserve /= 2) {
      void* const range = mmap(nullptr, reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (range == MAP_FAILED) continue;
      begin_ = next_ = static_cast<char*>(range);
      end_ = begin_ + reserve;
      break;
    }
  }

  static char* aligned(char* at, size_t alignment) {
    return reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(at), alignment));
  }

  bool fits(const char* at, size_t mapped, const char* end) const {
    return at <= end && mapped <= static_cast<size_t>(end - at);
  }

  // Addresses for an allocation.
  char* take(size_t size, size_t mapped) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t free = total() - std::min(total(), allocated_);
    if (size > free) {
      throw Fault{ACL_ERROR_RT_MEMORY_ALLOCATION,
                  text("size is ", size, "; accepted: up to ", free, " bytes, what is free of the device's ", total())};
    }
    char* const base = place(mapped, mapped < kHugePage ? page_size() : kHugePage);
    if (!base) {
      throw Fault{ACL_ERROR_RT_MEMORY_ALLOCATION, text("size is ", size, "; the host has no addresses for it")};
    }
    taken_.emplace(base, mapped);
    next_ = base + mapped;
    return base;
  }

  // Behind the last allocation; when the range is used up, the first gap.
  char* place(size_t mapped, size_t alignment) const {
    char* at = aligned(next_, alignment);
    if (next_ && fits(at, mapped, end_) && taken_.lower_bound(next_) == taken_.end()) return at;
    at = aligned(begin_, alignment);
    for (const auto& [base, size] : taken_) {
      if (fits(at, mapped, base)) return at;
      at = std::max(at, aligned(base + size, alignment));
    }
    return fits(at, mapped, end_) ? at : nullptr;
  }

  mutable std::mutex mutex_;  // a shared one knows its writer by a number that a fork changes
  char* begin_ = nullptr;
  char* end_ = nullptr;
  char* next_ = nullptr;
  size_t allocated_ = 0;
  std::map<char*, size_t> taken_;  // pages in use, also those that are freed but held
  std::map<char*, std::shared_ptr<Allocation>> live_;
};

[[maybe_unused]] const auto& g_arena = Arena::get();

void* allocate_device(void** devPtr, size_t size, int policy) {
  const std::shared_ptr<Context> context = current_context();
  require(devPtr, "devPtr");
  if (size == 0) throw Fault{ACL_ERROR_INVALID_PARAM, "size is 0; accepted: 1 or more"};
  const int pages = policy & 0xff;
  const int flags = policy & ~0xff & ~ACL_MEM_TYPE_LOW_BAND_WIDTH & ~ACL_MEM_TYPE_HIGH_BAND_WIDTH &
                    ~ACL_MEM_ACCESS_USER_SPACE_READONLY;
  if (pages > ACL_MEM_MALLOC_HUGE1G_ONLY_P2P || flags != 0) {
    throw Fault{ACL_ERROR_INVALID_PARAM, text("policy is ", policy, "; accepted: a value of aclrtMemMallocPolicy")};
  }
  return Arena::get().allocate(size, context->device)->base;
}

aclError malloc_device(const char* function, void** devPtr, size_t size, int policy) {
  return entry(function, [&] { *devPtr = allocate_device(devPtr, size, policy); });
}

}  // namespace

Allocation::Allocation(char* base, size_t size, size_t mapped, int device)
    : base(base), size(size), mapped(mapped), device(device) {}
Allocation::~Allocation() { Arena::get().give_back(base, mapped); }

Pin::Pin(std::shared_ptr<Allocation> allocation, bool writes) : allocation_(std::move(allocation)), writes_(writes) {
  ++(writes_ ? allocation_->writers : allocation_->readers);
}
Pin::~Pin() {
  if (allocation_) --(writes_ ? allocation_->writers : allocation_->readers);
}

Place place_of(const void* pointer) { return Arena::get().place_of(pointer); }

std::shared_ptr<Allocation> check_extent(const Extent& extent, int code) {
  Place place = place_of(extent.data);
  if (place.where == Where::kElsewhere) {
    throw Fault{code, text(extent.name, " is ", hex(extent.data),
                           ", which is not device memory; accepted: memory from aclrtMalloc")};
  }
  if (place.where == Where::kFreed) {
    throw Fault{code, text(extent.name, " is ", hex(extent.data),
                           ", device memory that was freed or never allocated; accepted: memory from aclrtMalloc that "
                           "is not freed yet")};
  }
  const size_t room =
      static_cast<size_t>(place.allocation->base + place.allocation->size - static_cast<const char*>(extent.data));
  if (extent.bytes > room) {
    throw Fault{code, text(extent.name, " takes ", extent.bytes, " bytes from ", hex(extent.data), ", ",
                           extent.bytes - room, " more than its allocation of ", place.allocation->size,
                           " bytes has from there; accepted: up to ", room)};
  }
  return place.allocation;
}

std::string describe_leaks() {
  const auto live = Arena::get().live();
  std::string leaks;
  if (!live.empty()) {
    size_t bytes = 0;
    for (const auto& allocation : live) bytes += allocation->size;
    leaks = text(live.size(), " allocation(s) of device memory, ", bytes, " bytes, the first ", live[0]->size,
                 " bytes at ", hex(live[0]->base));
  }
  if (const size_t blocks = host_blocks()) {
    leaks += text(leaks.empty() ? "" : " and ", blocks, " of host memory from aclrtMallocHost");
  }
  return leaks;
}

size_t device_memory() { return Arena::total(); }

}  // namespace groupnorm::host

using namespace groupnorm::host;

aclError aclrtMalloc(void** devPtr, size_t size, aclrtMemMallocPolicy policy) {
  return malloc_device(__func__, devPtr, size, policy);
}

aclError aclrtMallocAlign32(void** devPtr, size_t size, aclrtMemMallocPolicy policy) {
  return malloc_device(__func__, devPtr, size, policy);
}

aclError aclrtMallocCached(void** devPtr, size_t size, aclrtMemMallocPolicy policy) {
  return malloc_device(__func__, devPtr, size, policy);
}

aclError aclrtMallocWithCfg(void** devPtr, size_t size, aclrtMemMallocPolicy policy, aclrtMallocConfig* cfg) {
  return entry(__func__, [&] {
    if (cfg && cfg->numAttrs > 0) {
      require(cfg->attrs, "cfg->attrs");
      for (size_t i = 0; i < cfg->numAttrs; ++i) {
        const int attr = cfg->attrs[i].attr;
        if (attr < ACL_RT_MEM_ATTR_RSV || attr > ACL_RT_MEM_ATTR_VA_FLAG) {
          throw Fault{ACL_ERROR_INVALID_PARAM,
                      text("cfg->attrs[", i, "].attr is ", attr, "; accepted: a value of aclrtMallocAttrType")};
        }
      }
    }
    *devPtr = allocate_device(devPtr, size, policy);
  });
}

aclError aclrtFree(void* devPtr) {
  return entry(__func__, [&] {
    require(devPtr, "devPtr");
    current_context();
    const Place place = place_of(devPtr);
    size_t room;
    if (place.where == Where::kElsewhere) {
      throw Fault{ACL_ERROR_RT_PARAM_INVALID,
                  text("devPtr is ", hex(devPtr), ", which is not device memory; accepted: memory from aclrtMalloc",
                       host_room(devPtr, &room) ? " (aclrtFreeHost frees this one)" : "")};
    }
    if (place.where == Where::kFreed) {
      throw Fault{ACL_ERROR_RT_PARAM_INVALID,
                  text("devPtr is ", hex(devPtr), ", device memory that was freed already or never allocated")};
    }
    if (devPtr != place.allocation->base) {
      throw Fault{ACL_ERROR_RT_PARAM_INVALID,
                  text("devPtr is ", hex(devPtr), ", ", static_cast<char*>(devPtr) - place.allocation->base,
                       " bytes into an allocation; accepted: its begin, ", hex(place.allocation->base))};
    }
    if (place.allocation->readers + place.allocation->writers > 0) {
      warn_or_throw("aclrtFree", ACL_ERROR_RT_MEMORY_FREE,
                    text(hex(devPtr), ", ", place.allocation->size,
                         " bytes, is freed while queued work still uses it: synchronise the stream first"));
    }
    Arena::get().forget(place.allocation);
  });
}

aclError aclrtMemFlush(void* devPtr, size_t size) {
  return entry(__func__, [&] {
    require(devPtr, "devPtr");
    current_context();
    check_extent({"devPtr", devPtr, size, false}, ACL_ERROR_RT_PARAM_INVALID);
  });
}

aclError aclrtMemInvalidate(void* devPtr, size_t size) {
  return entry(__func__, [&] {
    require(devPtr, "devPtr");
    current_context();
    check_extent({"devPtr", devPtr, size, false}, ACL_ERROR_RT_PARAM_INVALID);
  });
}

aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t* free, size_t* total) {
  return entry(__func__, [&] {
    require(free, "free");
    require(total, "total");
    if (attr < ACL_DDR_MEM || attr > ACL_MEM_P2P_HUGE1G) {
      throw Fault{ACL_ERROR_INVALID_PARAM,
                  text("attr is ", static_cast<int>(attr), "; accepted: a value of aclrtMemAttr")};
    }
    current_context();
    *total = Arena::total();
    *free = Arena::total() - std::min(Arena::total(), Arena::get().allocated());
  });
}

aclError aclrtPointerGetAttributes(const void* ptr, aclrtPtrAttributes* attributes) {
  return entry(__func__, [&] {
    require(ptr, "ptr");
    require(attributes, "attributes");
    *attributes = {};
    attributes->pageSize = static_cast<uint32_t>(page_size());
    const Place place = place_of(ptr);
    size_t room;
    if (place.where == Where::kLive) {
      attributes->location.type = ACL_MEM_LOCATION_TYPE_DEVICE;
      attributes->location.id = static_cast<uint32_t>(place.allocation->device);
    } else if (host_room(ptr, &room)) {
      attributes->location.type = ACL_MEM_LOCATION_TYPE_HOST;
    } else {
      attributes->location.type = ACL_MEM_LOCATION_TYPE_UNREGISTERED;
    }
  });
}
