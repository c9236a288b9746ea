// How channels-last spans are cut for their sums: into slabs of channels, and slabs into pieces.

// The lanes of the vector at `channel`: all, but for the last before `channels`.
inline int lanes_at(int64_t channel, int64_t channels) {
  return static_cast<int>(channels - channel < kLanes ? channels - channel : kLanes);
}

// Cut so that the lines of x are read by one slab and one vector each. Where rows begin anywhere in a line, no cut does
// that.
struct Slabs {
  int64_t first;  // channels of the first; the others have kSlab
  int64_t head;   // of its first vector, where that is not a whole one

  template <class T>
  static Slabs of(const Span& span, const T* x) {
    constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
    const bool alike = span.stride * static_cast<int64_t>(sizeof(T)) % 64 == 0;
    const int64_t to_line = alike ? elements_to_line(x) : 0;
    return {to_line + (kSlab - to_line) / kLine * kLine, to_line % kLanes};
  }
};

// Some channels of some positions, which the core's own cache is to keep, and the piece that is read meanwhile: the
// next positions of the same channels, up to the end of a chunk, then the next channels. None behind the last.
struct Piece {
  int64_t begin, end;  // positions
  int64_t channel, channels;
  bool starts_chunk, ends_chunk;

  static Piece at(const Span& span, const Slabs& slabs, int64_t begin, int64_t channel) {
    if (begin >= span.length) return {};
    const int64_t chunk_end = least(begin / kChunk * kChunk + kChunk, span.length);
    const int64_t end = least(begin + kPiece, chunk_end);
    const int64_t channels = least(channel == 0 ? slabs.first : kSlab, span.channels - channel);
    return {begin, end, channel, channels, begin % kChunk == 0, end == chunk_end};
  }
  static Piece first(const Span& span, const Slabs& slabs) { return at(span, slabs, 0, 0); }
  Piece next(const Span& span, const Slabs& slabs) const {
    if (!ends_chunk) return at(span, slabs, end, channel);
    if (channel + channels < span.channels) return at(span, slabs, begin / kChunk * kChunk, channel + channels);
    return at(span, slabs, end, 0);
  }

  // The channels of the vector at `c`, counted from the first of the piece.
  int lanes(const Slabs& slabs, int64_t c) const {
    const bool headed = c == 0 && channel == 0 && slabs.head > 0;
    return lanes_at(c, headed ? least(slabs.head, channels) : channels);
  }

 private:
  static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
};
