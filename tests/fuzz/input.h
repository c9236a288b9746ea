// The bytes of one execution, read as decisions. Beyond their end every byte is 0, and 0 is always the valid choice, so
// a short input is a correct program.
#pragma once

#include <cstddef>
#include <cstdint>

namespace groupnorm::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}

  bool done() const { return at_ == end_; }
  uint8_t byte() { return done() ? 0 : *at_++; }
  size_t below(size_t count) { return byte() % count; }
  // One of `count` that may become more, up to `slots`: then the choices there are keep their bytes.
  size_t slot(size_t count, size_t slots) {
    const size_t choice = byte() % slots;
    return choice < count ? choice : choice % count;
  }
  // True for `of_256` of the 256 values of a byte.
  bool chance(int of_256) { return byte() >= 256 - of_256; }
  uint64_t word() {
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return value;
  }
  template <class T, size_t N>
  T pick(const T (&values)[N]) {
    return values[below(N)];
  }

  // Sizes and dimensions at the borders of something, or any.
  int64_t edge() {
    static constexpr int64_t kEdges[] = {1,
                                         2,
                                         3,
                                         4,
                                         0,
                                         -1,
                                         -2,
                                         5,
                                         6,
                                         7,
                                         8,
                                         16,
                                         31,
                                         32,
                                         33,
                                         63,
                                         64,
                                         65,
                                         255,
                                         256,
                                         1000,
                                         4096,
                                         8000,
                                         8001,
                                         65535,
                                         65536,
                                         240000,
                                         240001,
                                         1ll << 24,
                                         1ll << 31,
                                         1ll << 32,
                                         1ll << 40,
                                         1ll << 45,
                                         1ll << 46,
                                         1ll << 47,
                                         1ll << 48,
                                         1ll << 59,
                                         1ll << 60,
                                         1ll << 61,
                                         1ll << 62,
                                         INT64_MAX,
                                         INT64_MIN,
                                         INT32_MAX,
                                         INT32_MIN,
                                         INT64_MAX - 1,
                                         INT64_MAX / 8,
                                         INT64_MAX / 4};
    const uint8_t choice = byte();
    if (choice >= 250) return static_cast<int64_t>(word());
    return kEdges[choice % (sizeof(kEdges) / sizeof(*kEdges))];
  }
  uint64_t size() { return static_cast<uint64_t>(edge()); }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

}  // namespace groupnorm::fuzz
