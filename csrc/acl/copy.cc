// aclrtMemcpy, aclrtMemset and their kind.
#include <cstring>

#include "context.h"
#include "error.h"

namespace groupnorm::host {
namespace {

// One end of a copy.
struct End {
  const char* name;
  const void* data;
  size_t bytes;
  bool written;
};

enum class Side { kAny, kHost, kDevice };

void check_kind(int kind) {
  if (kind < ACL_MEMCPY_HOST_TO_HOST || kind > ACL_MEMCPY_INTER_DEVICE_TO_DEVICE) {
    throw Fault{ACL_ERROR_INVALID_PARAM, text("kind is ", kind, "; accepted: a value of aclrtMemcpyKind")};
  }
}

Side source_side(int kind) {
  switch (kind) {
    case ACL_MEMCPY_DEFAULT:
      return Side::kAny;
    case ACL_MEMCPY_HOST_TO_HOST:
    case ACL_MEMCPY_HOST_TO_DEVICE:
    case ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE:
      return Side::kHost;
    default:
      return Side::kDevice;
  }
}

Side target_side(int kind) {
  switch (kind) {
    case ACL_MEMCPY_DEFAULT:
      return Side::kAny;
    case ACL_MEMCPY_HOST_TO_HOST:
    case ACL_MEMCPY_DEVICE_TO_HOST:
      return Side::kHost;
    default:
      return Side::kDevice;
  }
}

// The direction follows from the pointers, as in newer versions of CANN; what the kind says is only checked when
// strict. Returns the device memory of this end, null for host memory.
std::shared_ptr<Allocation> resolve(const End& end, Side side) {
  const Place place = place_of(end.data);
  if (place.where == Where::kElsewhere) {
    size_t room;
    if (side == Side::kDevice && strict()) {
      throw Fault{ACL_ERROR_RT_PARAM_INVALID,
                  text(end.name, " is ", hex(end.data), ", which is not device memory as kind says")};
    }
    if (host_room(end.data, &room)) {
      if (end.bytes <= room) return nullptr;
      throw Fault{ACL_ERROR_RT_PARAM_INVALID, text(end.name, " takes ", end.bytes, " bytes, ", end.bytes - room,
                                                   " more than its block from aclrtMallocHost has from there")};
    }
    // The caller vouches for a pointer of the host. Where one of the device may be meant, it may be any value.
    if (side != Side::kHost && !host_has(end.data, end.bytes, end.written)) {
      throw Fault{ACL_ERROR_RT_PARAM_INVALID,
                  text(end.name, " is ", hex(end.data), ", which is neither device memory nor ", end.bytes,
                       " bytes of memory that the host can ", end.written ? "write" : "read")};
    }
    return nullptr;
  }
  std::shared_ptr<Allocation> allocation =
      check_extent({end.name, end.data, end.bytes, end.written}, ACL_ERROR_RT_PARAM_INVALID);
  if (side == Side::kHost && strict()) {
    throw Fault{ACL_ERROR_RT_PARAM_INVALID,
                text(end.name, " is ", hex(end.data), ", which is device memory and not host memory as kind says")};
  }
  return allocation;
}

// A copy that does not wait for the streams, on memory that they are at work on.
void check_idle(const char* function, const End& end, const std::shared_ptr<Allocation>& allocation) {
  if (!allocation) return;
  if (allocation->writers > 0 || (end.written && allocation->readers > 0)) {
    warn_or_throw(function, ACL_ERROR_RT_STREAM_NOT_COMPLETE,
                  text(end.name, ", ", hex(end.data), ", is still ", allocation->writers > 0 ? "written" : "read",
                       " by queued work: synchronise the stream first"));
  }
}

void check_count(const char* limit_name, size_t limit, size_t count) {
  if (count > limit) {
    throw Fault{ACL_ERROR_RT_PARAM_INVALID, text("count is ", count, "; accepted: up to ", limit_name, ", ", limit)};
  }
}

std::vector<Pin> pins_of(const std::shared_ptr<Allocation>& read, const std::shared_ptr<Allocation>& written) {
  std::vector<Pin> pins;
  if (read) pins.emplace_back(read, false);
  if (written) pins.emplace_back(written, true);
  return pins;
}

}  // namespace
}  // namespace groupnorm::host

using namespace groupnorm::host;

aclError aclrtMemcpy(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind) {
  return entry(__func__, [&] {
    require(dst, "dst");
    require(src, "src");
    check_kind(kind);
    current_context();
    if (count == 0) return;
    check_count("destMax", destMax, count);
    const End to{"dst", dst, count, true};
    const End from{"src", src, count, false};
    const auto target = resolve(to, target_side(kind));
    const auto source = resolve(from, source_side(kind));
    if (dst == src) return;
    check_idle("aclrtMemcpy", to, target);
    check_idle("aclrtMemcpy", from, source);
    std::memmove(dst, src, count);
  });
}

aclError aclrtMemcpyAsync(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream) {
  return entry(__func__, [&] {
    require(dst, "dst");
    require(src, "src");
    check_kind(kind);
    const std::shared_ptr<Stream> on = stream_of(stream);
    if (count == 0) return;
    check_count("destMax", destMax, count);
    const auto target = resolve({"dst", dst, count, true}, target_side(kind));
    const auto source = resolve({"src", src, count, false}, source_side(kind));
    if (dst == src) return;
    size_t room;
    const std::shared_ptr<void> blocks[] = {host_room(dst, &room), host_room(src, &room)};  // kept until it is done
    on->push(make_work([=](const std::atomic<bool>&) {
               (void)blocks;
               std::memmove(dst, src, count);
             }),
             pins_of(source, target));
  });
}

aclError aclrtMemcpy2d(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width, size_t height,
                       aclrtMemcpyKind kind) {
  return entry(__func__, [&] {
    require(dst, "dst");
    require(src, "src");
    check_kind(kind);
    current_context();
    if (width > dpitch || width > spitch) {
      throw Fault{ACL_ERROR_RT_PARAM_INVALID,
                  text("width is ", width, "; accepted: up to dpitch, ", dpitch, ", and spitch, ", spitch)};
    }
    if (width == 0 || height == 0) return;
    size_t to_bytes;
    size_t from_bytes;
    if (__builtin_mul_overflow(height - 1, dpitch, &to_bytes) || __builtin_add_overflow(to_bytes, width, &to_bytes) ||
        __builtin_mul_overflow(height - 1, spitch, &from_bytes) ||
        __builtin_add_overflow(from_bytes, width, &from_bytes)) {
      throw Fault{ACL_ERROR_RT_PARAM_INVALID, text("height is ", height, ", which no memory has room for")};
    }
    const End to{"dst", dst, to_bytes, true};
    const End from{"src", src, from_bytes, false};
    check_idle("aclrtMemcpy2d", to, resolve(to, target_side(kind)));
    check_idle("aclrtMemcpy2d", from, resolve(from, source_side(kind)));
    for (size_t row = 0; row < height; ++row) {
      std::memmove(static_cast<char*>(dst) + row * dpitch, static_cast<const char*>(src) + row * spitch, width);
    }
  });
}

aclError aclrtMemset(void* devPtr, size_t maxCount, int32_t value, size_t count) {
  return entry(__func__, [&] {
    require(devPtr, "devPtr");
    current_context();
    if (count == 0) return;
    check_count("maxCount", maxCount, count);
    const End to{"devPtr", devPtr, count, true};
    check_idle("aclrtMemset", to, resolve(to, Side::kDevice));
    std::memset(devPtr, value, count);
  });
}

aclError aclrtMemsetAsync(void* devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream) {
  return entry(__func__, [&] {
    require(devPtr, "devPtr");
    const std::shared_ptr<Stream> on = stream_of(stream);
    if (count == 0) return;
    check_count("maxCount", maxCount, count);
    const auto target = resolve({"devPtr", devPtr, count, true}, Side::kDevice);
    on->push(make_work([=](const std::atomic<bool>&) { std::memset(devPtr, value, count); }), pins_of(nullptr, target));
  });
}
