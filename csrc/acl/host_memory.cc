// Host memory: blocks from aclrtMallocHost, and what the process has of any other, as the system tells it.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "context.h"
#include "error.h"
#include "fork.h"
#include "memory.h"

namespace groupnorm::host {
namespace {

constexpr size_t kAlignment = 64;

struct HostBlocks {
  std::mutex mutex;
  struct Block {
    size_t size;
    std::shared_ptr<void> memory;  // queued copies hold it too
  };
  std::map<const char*, Block> all;

  HostBlocks() { keep_over_forks(LockRank::kMemory, mutex); }
  static HostBlocks& get() {
    static HostBlocks* const blocks = new HostBlocks;
    return *blocks;
  }
  // The block that `pointer` is in, and the bytes from there to its end; null when it is in none.
  std::shared_ptr<void> room(const void* pointer, size_t* bytes) {
    const std::lock_guard<std::mutex> lock(mutex);
    const char* at = static_cast<const char*>(pointer);
    auto next = all.upper_bound(at);
    if (next == all.begin()) return nullptr;
    const auto& [base, block] = *std::prev(next);
    if (at >= base + block.size) return nullptr;
    *bytes = static_cast<size_t>(base + block.size - at);
    return block.memory;
  }
};

[[maybe_unused]] const auto& g_host_blocks = HostBlocks::get();

}  // namespace

size_t host_blocks() {
  HostBlocks& blocks = HostBlocks::get();
  const std::lock_guard<std::mutex> lock(blocks.mutex);
  return blocks.all.size();
}

std::shared_ptr<void> host_room(const void* pointer, size_t* bytes) { return HostBlocks::get().room(pointer, bytes); }

bool host_has(const void* pointer, size_t bytes, bool written) {
  uintptr_t at = reinterpret_cast<uintptr_t>(pointer);
  if (bytes > UINTPTR_MAX - at) return false;
  const uintptr_t end = at + bytes;
  std::FILE* const maps = std::fopen("/proc/self/maps", "r");
  if (!maps) return true;  // nobody can say
  // Lines come in the order of addresses: "begin-end rwxp ...".
  char line[512];
  while (at < end && std::fgets(line, sizeof line, maps)) {
    unsigned long from;
    unsigned long to;
    char allowed[5];
    if (std::sscanf(line, "%lx-%lx %4s", &from, &to, allowed) != 3 || to <= at) continue;
    if (from > at || allowed[0] != 'r' || (written && allowed[1] != 'w')) break;
    at = to;
  }
  std::fclose(maps);
  return at >= end;
}

}  // namespace groupnorm::host

using namespace groupnorm::host;

aclError aclrtMallocHost(void** hostPtr, size_t size) {
  return entry(__func__, [&] {
    require(hostPtr, "hostPtr");
    if (size == 0) throw Fault{ACL_ERROR_INVALID_PARAM, "size is 0; accepted: 1 or more"};
    current_context();
    void* block = nullptr;
    if (size > SIZE_MAX - kAlignment) {
      throw Fault{ACL_ERROR_RT_MEMORY_ALLOCATION, text("size is ", size, ", more than the host has")};
    }
    if (posix_memalign(&block, kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment) != 0) {
      throw Fault{ACL_ERROR_RT_MEMORY_ALLOCATION, text("size is ", size, ", more than the host has")};
    }
    std::shared_ptr<void> memory(block, std::free);
    HostBlocks& blocks = HostBlocks::get();
    const std::lock_guard<std::mutex> lock(blocks.mutex);
    blocks.all.emplace(static_cast<char*>(block), HostBlocks::Block{size, std::move(memory)});
    *hostPtr = block;
  });
}

aclError aclrtFreeHost(void* hostPtr) {
  return entry(__func__, [&] {
    require(hostPtr, "hostPtr");
    HostBlocks& blocks = HostBlocks::get();
    std::shared_ptr<void> memory;  // goes without the lock, and after the last copy that is queued
    const std::lock_guard<std::mutex> lock(blocks.mutex);
    const auto found = blocks.all.find(static_cast<char*>(hostPtr));
    if (found == blocks.all.end()) {
      throw Fault{ACL_ERROR_RT_PARAM_INVALID,
                  text("hostPtr is ", hex(hostPtr), ", which is not from aclrtMallocHost or was freed already",
                       place_of(hostPtr).where == Where::kElsewhere ? "" : " (aclrtFree frees device memory)")};
    }
    if (found->second.memory.use_count() > 1) {
      warn_or_throw("aclrtFreeHost", ACL_ERROR_RT_MEMORY_FREE,
                    text(hex(hostPtr), ", ", found->second.size,
                         " bytes, is freed while queued work still uses it: synchronise the stream first"));
    }
    memory = std::move(found->second.memory);
    blocks.all.erase(found);
  });
}
