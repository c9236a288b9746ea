// What a SIMD level does without instructions for it.

// A partial vector goes through a whole one on the stack: it never touches elements that are not there.
template <class V, class T>
V load_padded(const T* from, int n) {
  T whole[kLanes] = {};
  std::memcpy(whole, from, static_cast<size_t>(n) * sizeof(T));
  return V::load(whole);
}
template <class V, class T>
void store_padded(const V& value, T* to, int n) {
  T whole[kLanes];
  value.store(whole);
  std::memcpy(to, whole, static_cast<size_t>(n) * sizeof(T));
}

inline void copy_line(const void* line, void* to) { std::memcpy(to, line, 64); }

// The sums of some rows of lanes, one after the other.
template <class V>
void sum_each(const V* rows, int count, double* to) {
  for (int r = 0; r < count; ++r) to[r] = rows[r].sum();
}
