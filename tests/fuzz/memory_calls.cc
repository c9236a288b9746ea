// Memory of the device and of the host, copies, sets.
#include <cstring>

#include "world.h"

namespace groupnorm::fuzz {
namespace {

// Small, or more than any machine has.
size_t bytes(Input& in) {
  const size_t size = in.size();
  return size > kLargest && size < size_t{1} << 47 ? size % kLargest : size;
}

aclrtMemMallocPolicy policy(Input& in) {
  static constexpr int kPolicies[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 0xff, 0x100, 0x1000, 0x100001, 0x10000, -1, INT32_MIN};
  return static_cast<aclrtMemMallocPolicy>(in.pick(kPolicies));
}

void allocate(World& world, Input& in, aclError (*call)(void**, size_t, aclrtMemMallocPolicy)) {
  void* data;
  const size_t size = bytes(in);
  if (world.status(call(static_cast<void**>(world.maybe_null(&data)), size, policy(in))) == 0) {
    FUZZ_CHECK(size > 0 && size <= kLargest, "%zu", size);
    world.track_device(data, size);
  }
}

aclrtMemcpyKind kind(Input& in) {
  static constexpr int kKinds[] = {1, 2, 3, 0, 4, 5, 6, 7, -1, 8, INT32_MAX};
  return static_cast<aclrtMemcpyKind>(in.pick(kKinds));
}

// Whether the device's memory may be meant, so that any value may come.
bool from_device(int kind) {
  return kind != ACL_MEMCPY_HOST_TO_HOST && kind != ACL_MEMCPY_HOST_TO_DEVICE &&
         kind != ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE;
}

bool to_device(int kind) { return kind != ACL_MEMCPY_HOST_TO_HOST && kind != ACL_MEMCPY_DEVICE_TO_HOST; }

// A pointer that has to be memory, be it the device's.
Side valid_side(World& world, Input& in) {
  if (in.chance(96) && !world.device.empty()) return {world.device[in.below(world.device.size())].data, SIZE_MAX};
  return world.host_side();
}

struct Copy {
  aclrtMemcpyKind kind;
  Side to;
  Side from;

  Copy(World& world, Input& in) : kind(fuzz::kind(in)) {
    to = to_device(kind) ? world.device_side() : valid_side(world, in);
    from = from_device(kind) ? world.device_side() : valid_side(world, in);
  }
  // Whether a copy of `touched` bytes stays in the program's own memory.
  bool fits(unsigned __int128 touched) const { return touched <= to.room && touched <= from.room; }
};

void copy(World& world, Input& in, bool async) {
  const Copy copy(world, in);
  size_t count = in.size();
  if (!copy.fits(count)) count %= 64;
  const size_t limit = in.chance(32) ? in.size() : count;
  if (async) {
    world.status(aclrtMemcpyAsync(copy.to.data, limit, copy.from.data, count, copy.kind, world.handle(kStream)));
  } else {
    world.status(aclrtMemcpy(copy.to.data, limit, copy.from.data, count, copy.kind));
  }
}

void copy_2d(World& world, Input& in) {
  const Copy copy(world, in);
  const size_t width = in.size();
  const size_t height = in.size();
  const size_t to_pitch = in.chance(96) ? in.size() : width;
  const size_t from_pitch = in.chance(96) ? in.size() : width;
  if (width > 0 && height > 0) {
    const unsigned __int128 rows = height - 1;
    if (rows * to_pitch + width > copy.to.room || rows * from_pitch + width > copy.from.room) return;
  }
  world.status(aclrtMemcpy2d(copy.to.data, to_pitch, copy.from.data, from_pitch, width, height, copy.kind));
}

void set(World& world, Input& in, bool async) {
  const Side to = world.device_side();
  size_t count = in.size();
  if (count > to.room) count %= 64;
  const size_t limit = in.chance(32) ? in.size() : count;
  if (async) {
    world.status(aclrtMemsetAsync(to.data, limit, in.byte(), count, world.handle(kStream)));
  } else {
    world.status(aclrtMemset(to.data, limit, in.byte(), count));
  }
}

const Call kCalls[] = {
    {"aclrtMalloc", [](World& w, Input& in) { allocate(w, in, aclrtMalloc); }},
    {"aclrtMallocAlign32", [](World& w, Input& in) { allocate(w, in, aclrtMallocAlign32); }},
    {"aclrtMallocCached", [](World& w, Input& in) { allocate(w, in, aclrtMallocCached); }},
    {"aclrtMallocWithCfg",
     [](World& w, Input& in) {
       aclrtMallocAttribute attributes[3] = {};
       for (auto& attribute : attributes) {
         attribute.attr = static_cast<aclrtMallocAttrType>(in.chance(16) ? in.byte() - 1 : in.below(4));
       }
       aclrtMallocConfig config{static_cast<aclrtMallocAttribute*>(w.maybe_null(attributes)), in.below(4)};
       void* data;
       const size_t size = bytes(in);
       auto* to = static_cast<void**>(w.maybe_null(&data));
       auto* with = static_cast<aclrtMallocConfig*>(w.maybe_null(&config));
       if (w.status(aclrtMallocWithCfg(to, size, policy(in), with)) == 0) w.track_device(data, size);
     }},
    {"aclrtFree", [](World& w, Input&) { w.free_device(w.device_pointer()); }},
    {"aclrtMallocHost",
     [](World& w, Input& in) {
       void* data;
       const size_t size = bytes(in);
       if (w.status(aclrtMallocHost(static_cast<void**>(w.maybe_null(&data)), size)) == 0) w.track_host(data, size);
     }},
    {"aclrtFreeHost",
     [](World& w, Input& in) {
       w.quiesce();  // host memory of a queued copy has to live as long as it
       const bool mine = !w.host.empty() && !in.chance(96);
       w.free_host(mine ? w.host[in.below(w.host.size())].data : w.device_pointer());
     }},
    {"aclrtMemcpy", [](World& w, Input& in) { copy(w, in, false); }},
    {"aclrtMemcpyAsync", [](World& w, Input& in) { copy(w, in, true); }},
    {"aclrtMemcpy2d", [](World& w, Input& in) { copy_2d(w, in); }},
    {"aclrtMemset", [](World& w, Input& in) { set(w, in, false); }},
    {"aclrtMemsetAsync", [](World& w, Input& in) { set(w, in, true); }},
    {"aclrtMemFlush", [](World& w, Input& in) { w.status(aclrtMemFlush(w.device_pointer(), in.size())); }},
    {"aclrtMemInvalidate", [](World& w, Input& in) { w.status(aclrtMemInvalidate(w.device_pointer(), in.size())); }},
    {"aclrtGetMemInfo",
     [](World& w, Input& in) {
       size_t free = 0;
       size_t total = 0;
       const auto attribute = static_cast<aclrtMemAttr>(static_cast<int>(in.below(20)) - 1);
       auto* free_to = static_cast<size_t*>(w.maybe_null(&free));
       auto* total_to = static_cast<size_t*>(w.maybe_null(&total));
       if (w.status(aclrtGetMemInfo(attribute, free_to, total_to)) == 0) FUZZ_CHECK(free <= total);
     }},
    {"aclrtPointerGetAttributes",
     [](World& w, Input&) {
       aclrtPtrAttributes attributes;
       auto* to = static_cast<aclrtPtrAttributes*>(w.maybe_null(&attributes));
       w.status(aclrtPointerGetAttributes(w.device_pointer(), to));
     }},
};

}  // namespace

Calls memory_calls() { return {kCalls, sizeof kCalls / sizeof *kCalls}; }

}  // namespace groupnorm::fuzz
