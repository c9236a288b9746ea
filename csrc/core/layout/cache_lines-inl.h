// Elements from `at` to the next cache line.
template <class T>
int64_t elements_to_line(const T* at) {
  const uintptr_t past = reinterpret_cast<uintptr_t>(at) % 64;
  return past == 0 ? 0 : static_cast<int64_t>((64 - past) / sizeof(T));
}

// Writes elements past the caches, one after the other and in whole lines: where a row ends within a line, the next
// row completes it.
template <class V, class T>
class Lines {
 public:
  explicit Lines(T* to) { start(to); }

  // Elements from `to` on: whole(i) is a vector of them, part(i, n) their next n.
  template <class Whole, class Part>
  void write(T* to, int64_t length, Whole&& whole, Part&& part) {
    if (to != line_ + end_) {
      finish();
      start(to);
    }
    int64_t i = 0;
    while (i < length && end_ > 0) i += add(i, length, part);
    for (; i + kWhole <= length; i += kWhole, line_ += kWhole) {
      for (int64_t at = 0; at < kWhole; at += kLanes) whole(i + at).stream(line_ + at);
    }
    while (i < length) i += add(i, length, part);
  }

  // After the last element. A line that is not whole goes through the caches: nothing beside it is touched.
  void finish() {
    if (begin_ == 0 && end_ == kLineElements) {
      V::stream_line(staged_, line_);
    } else if (begin_ < end_) {
      __builtin_memcpy(line_ + begin_, staged_ + begin_, static_cast<size_t>(end_ - begin_) * sizeof(T));
    }
  }

 private:
  static constexpr int64_t kLineElements = 64 / static_cast<int64_t>(sizeof(T));
  static constexpr int64_t kWhole = kLineElements > kLanes ? kLineElements : kLanes;  // whole lines and vectors

  void start(T* to) {
    begin_ = (kLineElements - elements_to_line(to)) % kLineElements;
    end_ = begin_;
    line_ = to - begin_;
  }

  // To the line, at most what it misses; how many elements.
  template <class Part>
  int64_t add(int64_t i, int64_t length, Part&& part) {
    int64_t count = length - i;
    if (count > kLineElements - end_) count = kLineElements - end_;
    if (count > kLanes) count = kLanes;
    part(i, static_cast<int>(count)).store(staged_ + end_);  // lanes past the count are overwritten by what follows
    end_ += count;
    if (end_ == kLineElements) {
      finish();
      start(line_ + kLineElements);
    }
    return count;
  }

  alignas(64) T staged_[kLineElements + kLanes];
  T* line_;
  int64_t begin_;
  int64_t end_;
};
