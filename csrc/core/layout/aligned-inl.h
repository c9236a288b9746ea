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
  static constexpr int64_t kLineElements = 64 / static_cast<int64_t>(sizeof(T));
  static constexpr int64_t kWhole = kLineElements > kLanes ? kLineElements : kLanes;  // whole lines and vectors

  explicit Lines(T* to) { start(to); }

  // What comes next goes elsewhere, if it does.
  void move_to(T* to) {
    if (to == line_ + end_) return;
    flush();
    start(to);
  }
  // After the last element.
  void finish() { flush(); }

  bool within_line() const { return end_ != 0; }
  int64_t missing() const { return kLineElements - end_; }

  // At most what is missing from the line.
  void add(const V& value, int count) {
    value.store(staged_ + end_, count);
    end_ += count;
    if (end_ < kLineElements) return;
    flush();
    start(line_ + kLineElements);
  }
  // Where vectors of a whole go that starts a line.
  T* whole() {
    T* const to = line_;
    line_ += kWhole;
    return to;
  }

 private:
  void start(T* to) {
    begin_ = (kLineElements - elements_to_line(to)) % kLineElements;
    end_ = begin_;
    line_ = to - begin_;
  }
  // Part of a line, at the ends, goes through the caches: it touches nothing else.
  void flush() {
    if (begin_ == 0 && end_ == kLineElements) {
      V::stream_line(staged_, line_);
    } else if (begin_ < end_) {
      __builtin_memcpy(line_ + begin_, staged_ + begin_, static_cast<size_t>(end_ - begin_) * sizeof(T));
    }
  }

  alignas(64) T staged_[kLineElements];
  T* line_;
  int64_t begin_;
  int64_t end_;
};
