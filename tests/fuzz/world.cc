#include "world.h"

#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstring>

#include "acl/stream.h"

namespace groupnorm::fuzz {
namespace {

constexpr char kSlack = 0x5a;
constexpr size_t kRemembered = 16;  // dead handles of a kind

size_t slack_of(const Block& block) {
  static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (page - block.size % page) % page;
}

template <class T>
void remove(std::vector<T*>& from, const void* value) {
  from.erase(std::remove(from.begin(), from.end(), value), from.end());
}

void remember(std::vector<void*>& in, void* value) {
  if (in.size() == kRemembered) in.erase(in.begin());
  in.push_back(value);
}

}  // namespace

void broken(const char* function, const char* condition) { broken(function, condition, "%s", "is not so"); }

void broken(const char* function, const char* condition, const char* format, ...) {
  std::fprintf(stderr, "fuzz: %s: %s: ", function, condition);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "\n");
  std::abort();
}

World::World(Input& input) : in(input), scratch(static_cast<char*>(std::malloc(kScratch))) {
  std::memset(scratch, 0x11, kScratch);
  const uint8_t setup = in.byte();
  strict = (setup & 0xc0) == 0xc0;
  setenv("GROUPNORM_ACL_STRICT", strict ? "1" : "0", 1);
  static constexpr const char* kDevices[] = {"1", "2", "3", "1"};
  setenv("GROUPNORM_ACL_DEVICES", (setup & 0x30) == 0x30 ? "none" : kDevices[setup >> 2 & 3], 1);
  if ((setup & 3) == 3) return;  // a program that starts with something else
  status(aclInit(nullptr));
  if (status(aclrtSetDevice(0)) == 0 && (setup & 3) == 0) {
    aclrtStream stream;
    if (status(aclrtCreateStream(&stream)) == 0) add(kStream, stream);
  }
}

World::~World() {
  finish();
  std::free(scratch);
}

int World::status(int code) {
  if (code == 0) return 0;
  const char* sentence = aclGetRecentErrMsg();
  FUZZ_CHECK(sentence && *sentence, "after %d", code);
  said = sentence;
  FUZZ_CHECK(code > 0 && code != ACL_ERROR_INTERNAL_ERROR && code != ACL_ERROR_RT_INTERNAL_ERROR, "%s", sentence);
  return code;
}

void World::add(Kind kind, const void* handle) {
  FUZZ_CHECK(handle != nullptr);
  for (int other = 0; other < kKinds; ++other) {
    const auto& known = dead[other];
    FUZZ_CHECK(std::find(known.begin(), known.end(), handle) == known.end(), "handle %p came again", handle);
  }
  live[kind].push_back(const_cast<void*>(handle));
}

void World::drop(Kind kind, const void* handle) {
  auto& known = live[kind];
  if (std::find(known.begin(), known.end(), handle) == known.end()) return;
  remove(known, handle);
  remember(dead[kind], const_cast<void*>(handle));
}

void* World::handle(Kind kind) {
  const uint8_t choice = in.byte();
  if (choice >= 216) return wrong_handle(kind);
  return live[kind].empty() ? nullptr : live[kind][choice % live[kind].size()];
}

void* World::wrong_handle(Kind kind) {
  const auto any = [&](Kind of) -> void* { return live[of].empty() ? nullptr : live[of][in.below(live[of].size())]; };
  switch (in.below(8)) {
    case 0:
      return nullptr;
    case 1:
      return dead[kind].empty() ? nullptr : dead[kind][in.below(dead[kind].size())];
    case 2:
      return any(static_cast<Kind>(in.below(kKinds)));
    case 3: {
      const auto& other = dead[in.below(kKinds)];
      return other.empty() ? nullptr : other[in.below(other.size())];
    }
    case 4:  // a neighbour of a handle
      return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(any(kind)) ^ uintptr_t{1} << in.below(64));
    case 5:
      return scratch;
    case 6:
      return device.empty() ? nullptr : device[in.below(device.size())].data;
    default:
      return reinterpret_cast<void*>(in.word());
  }
}

void* World::allocate(size_t size) {
  void* data = nullptr;
  FUZZ_CHECK(status(aclrtMalloc(&data, size, ACL_MEM_MALLOC_HUGE_FIRST)) == 0, "of %zu bytes", size);
  track_device(data, size);
  return data;
}

void World::track_device(void* data, size_t size) {
  FUZZ_CHECK(data && reinterpret_cast<uintptr_t>(data) % 64 == 0);
  const Block block{static_cast<char*>(data), size};
  for (const Block& other : device) {
    FUZZ_CHECK(block.data + size <= other.data || other.data + other.size <= block.data, "allocations overlap");
  }
  device.push_back(block);
  if (size <= kWatched) std::memset(block.data + size, kSlack, slack_of(block));
}

void World::check_slack(const Block& block) {
  if (block.size > kWatched) return;
  const size_t slack = slack_of(block);
  for (size_t i = 0; i < slack; ++i) {
    FUZZ_CHECK(block.data[block.size + i] == kSlack, "byte %zu behind an allocation of %zu", i, block.size);
  }
}

void World::free_device(void* data) {
  const auto found = std::find_if(device.begin(), device.end(), [&](const Block& block) { return block.data == data; });
  if (found != device.end()) check_slack(*found);
  if (status(aclrtFree(data)) != 0 || found == device.end()) return;
  remember(freed, data);
  device.erase(found);
}

void World::track_host(void* data, size_t size) {
  FUZZ_CHECK(data && reinterpret_cast<uintptr_t>(data) % 64 == 0);
  host.push_back({static_cast<char*>(data), size});
}

void World::free_host(void* data) {
  if (status(aclrtFreeHost(data)) != 0) return;
  host.erase(std::find_if(host.begin(), host.end(), [&](const Block& block) { return block.data == data; }));
}

void* World::random_pointer() { return reinterpret_cast<void*>(in.word()); }

void* World::wild_pointer() {
  const uint64_t value = in.word();  // not of the lower half of addresses, the program's, or else of its first page
  return reinterpret_cast<void*>(value & 1 ? value & 0xff8 : value | uint64_t{1} << 62);
}

void* World::device_pointer() {
  const uint8_t choice = in.byte();
  const Block* block = device.empty() ? nullptr : &device[choice % device.size()];
  if (choice < 192) return block ? block->data : nullptr;
  switch (choice % 10) {
    case 0:
      return block ? block->data + in.byte() : nullptr;
    case 1:
      return block ? block->data + block->size : nullptr;
    case 2:
      return block ? block->data - 1 : nullptr;
    case 3:
      return freed.empty() ? nullptr : freed[in.below(freed.size())];
    case 4:
      return nullptr;
    case 5:
      return scratch;
    case 6:
      return host.empty() ? nullptr : host[in.below(host.size())].data;
    case 7:
      return handle(static_cast<Kind>(in.below(kKinds)));
    case 8:
      return reinterpret_cast<void*>(-static_cast<intptr_t>(in.byte()));
    default:
      return random_pointer();
  }
}

Side World::device_side() {
  const uint8_t choice = in.byte();
  const Block* block = device.empty() ? nullptr : &device[choice % device.size()];
  if (choice < 160) return {block ? block->data : nullptr, SIZE_MAX};
  if (choice < 176) return {block ? block->data + in.byte() : nullptr, SIZE_MAX};
  if (choice < 184) return {block ? block->data + block->size - 1 : nullptr, SIZE_MAX};
  if (choice < 192) return {freed.empty() ? nullptr : freed[choice % freed.size()], SIZE_MAX};
  if (choice < 208) return {wild_pointer(), SIZE_MAX};
  if (choice < 216) return {live[kTensor].empty() ? nullptr : live[kTensor][0], SIZE_MAX};
  return host_side();
}

Side World::host_side() {
  const uint8_t choice = in.byte();
  if (choice >= 252) return {nullptr, SIZE_MAX};
  if (choice >= 160 && !host.empty()) {
    const Block& block = host[choice % host.size()];
    const size_t at = in.chance(64) ? in.byte() % block.size : 0;
    return {block.data + at, SIZE_MAX};
  }
  const size_t at = in.chance(64) ? in.byte() : 0;
  return {scratch + at, kScratch - at};
}

int32_t World::timeout() {
  static constexpr int32_t kTimeouts[] = {0, 0, 0, 0, 0, 0, 0, 1, -2, INT32_MIN};
  return in.pick(kTimeouts);
}

void World::require_device() {
  aclrtContext context;
  if (aclrtGetCurrentContext(&context) == 0) return;
  if (aclrtSetDevice(0) == 0) return;
  setenv("GROUPNORM_ACL_DEVICES", "1", 1);
  setenv("GROUPNORM_ACL_STRICT", "0", 1);
  strict = false;
  FUZZ_CHECK(aclrtSetDevice(0) == 0);
}

void World::for_each_context(void (*call)(World& world)) {
  aclrtContext current = nullptr;
  aclrtGetCurrentContext(&current);
  for (aclrtContext context : std::vector<void*>(live[kContext])) {
    if (aclrtSetCurrentContext(context) == 0) call(*this);
  }
  if (current && aclrtSetCurrentContext(current) == 0) call(*this);
}

void World::settle() {
  if (!blocked) return;
  blocked = false;
  for (int i = 0; i < 4 && aclrtProcessReport(0) == 0; ++i) {
  }
  for_each_context([](World& world) {
    aclrtStream stream;
    if (aclrtCtxGetCurrentDefaultStream(&stream) == 0) aclrtStreamAbort(stream);
    for (aclrtStream one : world.live[kStream]) aclrtStreamAbort(one);
  });
}

void World::quiesce() {
  settle();
  for_each_context([](World&) { aclrtSynchronizeDevice(); });
}

// The program's end: everything goes, and nothing may be left.
void World::finish() {
  setenv("GROUPNORM_ACL_STRICT", "0", 1);
  setenv("GROUPNORM_ACL_DEVICES", "3", 1);
  blocked = true;
  for_each_context([](World& world) {
    world.settle();
    world.blocked = true;
    for (aclrtStream stream : std::vector<void*>(world.live[kStream])) {
      if (aclrtDestroyStreamForce(stream) == 0) world.drop(kStream, stream);
    }
  });
  for (aclrtContext context : live[kContext]) aclrtDestroyContext(context);
  for (int32_t id = 0; id < 3; ++id) aclrtResetDeviceForce(id);
  FUZZ_CHECK(host::streams().all().empty(), "streams are left");
  for (void* event : live[kEvent]) aclrtDestroyEvent(event);
  for (void* buffer : live[kBuffer]) aclDestroyDataBuffer(static_cast<aclDataBuffer*>(buffer));
  for (void* list : live[kTensors]) aclDestroyTensorList(static_cast<aclTensorList*>(list));
  for (void* list : live[kScalars]) aclDestroyScalarList(static_cast<aclScalarList*>(list));
  for (void* tensor : live[kTensor]) aclDestroyTensor(static_cast<aclTensor*>(tensor));
  for (void* scalar : live[kScalar]) aclDestroyScalar(static_cast<aclScalar*>(scalar));
  for (void* array : live[kInts]) aclDestroyIntArray(static_cast<aclIntArray*>(array));
  for (void* array : live[kFloats]) aclDestroyFloatArray(static_cast<aclFloatArray*>(array));
  for (void* array : live[kBools]) aclDestroyBoolArray(static_cast<aclBoolArray*>(array));
  for (void* executor : live[kExecutor]) aclDestroyAclOpExecutor(static_cast<aclOpExecutor*>(executor));
  FUZZ_CHECK(aclrtProcessReport(0) == ACL_ERROR_RT_THREAD_SUBSCRIBE, "no stream is left to be subscribed to");

  aclrtSetDevice(0);
  for (const Block& block : device) {
    check_slack(block);
    FUZZ_CHECK(aclrtFree(block.data) == 0, "of %zu bytes", block.size);
  }
  for (const Block& block : host) FUZZ_CHECK(aclrtFreeHost(block.data) == 0);
  FUZZ_CHECK(aclrtResetDevice(0) == 0);
  aclInit(nullptr);
  setenv("GROUPNORM_ACL_STRICT", "1", 1);
  FUZZ_CHECK(aclFinalize() == 0, "%s", aclGetRecentErrMsg());
  aclrtGetLastError(ACL_RT_THREAD_LEVEL);
  aclGetRecentErrMsg();
}

}  // namespace groupnorm::fuzz
