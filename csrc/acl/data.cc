// Data types, float16 and data buffers: what needs no device.
#include <cmath>
#include <cstring>

#include "handles.h"

namespace groupnorm::host {
namespace {

constexpr uint16_t kLargestHalf = 0x7bff;

struct DataBuffer {
  void* data;
  size_t size;
};

Handles<DataBuffer>& buffers() { return handles_of<DataBuffer>(Kind::kDataBuffer); }
[[maybe_unused]] const auto& g_buffers = buffers();

}  // namespace
}  // namespace groupnorm::host

using namespace groupnorm::host;

size_t aclDataTypeSize(aclDataType dataType) {
  switch (static_cast<int>(dataType)) {
    case ACL_DT_UNDEFINED:
    case ACL_STRING:
      return 0;
    case ACL_UINT1:
    case ACL_INT4:
    case ACL_BOOL:
    case ACL_INT8:
    case ACL_UINT8:
    case ACL_HIFLOAT8:
    case ACL_FLOAT8_E5M2:
    case ACL_FLOAT8_E4M3FN:
    case ACL_FLOAT8_E8M0:
      return 1;
    case ACL_FLOAT16:
    case ACL_BF16:
    case ACL_INT16:
    case ACL_UINT16:
      return 2;
    case ACL_FLOAT:
    case ACL_INT32:
    case ACL_UINT32:
    case ACL_COMPLEX32:
      return 4;
    case ACL_COMPLEX128:
      return 16;
    default:
      return 8;
  }
}

float aclFloat16ToFloat(aclFloat16 value) {
  const int exponent = value >> 10 & 0x1f;
  const int mantissa = value & 0x3ff;
  float magnitude;
  if (exponent == 0x1f) {
    magnitude = mantissa ? NAN : INFINITY;
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(mantissa + 0x400), exponent - 25);
  }
  return value & 0x8000 ? -magnitude : magnitude;
}

aclFloat16 aclFloatToFloat16(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (!(magnitude < 65520.0)) return sign | kLargestHalf;
  // The distance of float16 numbers here; nearbyint rounds ties to even.
  const int exponent = magnitude < 0x1p-14 ? -14 : std::ilogb(magnitude);
  const double steps = std::nearbyint(std::ldexp(magnitude, 10 - exponent));
  const int bits = (exponent + 14) * 0x400 + static_cast<int>(steps);
  return static_cast<aclFloat16>(sign | (bits > kLargestHalf ? kLargestHalf : bits));
}

aclDataBuffer* aclCreateDataBuffer(void* data, size_t size) {
  return entry_handle(__func__, [&] {
    auto buffer = std::make_shared<DataBuffer>();
    *buffer = {data, size};
    return static_cast<aclDataBuffer*>(buffers().add(std::move(buffer)));
  });
}

aclError aclDestroyDataBuffer(const aclDataBuffer* dataBuffer) {
  return entry(__func__, [&] {
    require(dataBuffer, "dataBuffer");
    if (!buffers().take(dataBuffer)) {
      throw Fault{ACL_ERROR_INVALID_PARAM, buffers().refusal("dataBuffer", dataBuffer)};
    }
  });
}

void* aclGetDataBufferAddr(const aclDataBuffer* dataBuffer) {
  return entry_handle(__func__, [&] {
    require(dataBuffer, "dataBuffer");
    return find_or_throw(buffers(), "dataBuffer", dataBuffer, ACL_ERROR_INVALID_PARAM)->data;
  });
}

size_t aclGetDataBufferSizeV2(const aclDataBuffer* dataBuffer) {
  size_t size = 0;
  entry(__func__, [&] {
    require(dataBuffer, "dataBuffer");
    size = find_or_throw(buffers(), "dataBuffer", dataBuffer, ACL_ERROR_INVALID_PARAM)->size;
  });
  return size;
}
