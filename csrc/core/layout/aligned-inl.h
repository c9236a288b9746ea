// Elements from `at` to the next cache line.
template <class T>
int64_t elements_to_line(const T* at) {
  const uintptr_t past = reinterpret_cast<uintptr_t>(at) % 64;
  return past == 0 ? 0 : static_cast<int64_t>((64 - past) / sizeof(T));
}
