// What a worker writes down about the groups and channels of a span: coefficients for the kernels, and their sums.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "kernels.h"

namespace groupnorm {

template <class Acc>
struct Scratch {
  // Coefficients of a group, as a Span takes them.
  Acc* pivot;
  Acc* minus_pivot;  // times scale
  Acc* scale;        // a power of two near rstd; for the activation of the forward its own
  Acc* rstd;
  Acc* mean_high;  // of x in the forward, else minus that of dxhat
  Acc* mean_low;
  Acc* slope;  // the mean of dxhat * xhat
  // Of a channel.
  Acc* swish_a;
  Acc* swish_b;
  double* sums[kMaxSums];
  // Of a group: what xhat is too large by when the pivot is subtracted, and what the scale leaves of rstd.
  double* shifts;
  double* ratios;
  // In the forward the means of d = x - pivot and of d * d, else the sums of dxhat and dxhat * xhat.
  double* folded[2];

  // In bytes(width) bytes at `at`; width: the channels of a span, padded for whole vectors.
  Scratch(char* at, int64_t width) {
    for_each([&](auto*& array) {
      array = reinterpret_cast<decltype(+array)>(at);
      at += width * static_cast<int64_t>(sizeof(*array));
    });
  }
  static int64_t bytes(int64_t width) {
    int64_t total = 0;
    Scratch().for_each([&](auto*& array) { total += width * static_cast<int64_t>(sizeof(*array)); });
    return total;
  }

  // A span for the sums of the gradients: centred by a multiply-add with the power of two, and what swish needs beside
  // it.
  Span for_sums(Span span) const {
    set(span.group_coefs, {minus_pivot, scale, pivot});
    set(span.channel_coefs, {swish_a, swish_b});
    return span;
  }
  Span for_gradient(Span span, const Acc* gamma) const {
    set(span.group_coefs, {pivot, rstd, mean_high, mean_low, slope});
    set(span.channel_coefs, {gamma, swish_a, swish_b});
    return span;
  }
  Span for_moments(Span span) const {
    set(span.group_coefs, {pivot});
    return span;
  }
  Span for_forward(Span span, const Acc* gamma, const Acc* beta) const {
    set(span.group_coefs, {mean_high, mean_low, rstd, scale});
    set(span.channel_coefs, {gamma, beta});
    return span;
  }

 private:
  Scratch() = default;

  // All arrays, the wider elements first.
  template <class Fn>
  void for_each(Fn&& fn) {
    for (double*& channel_sums : sums) fn(channel_sums);
    for (double** array : {&shifts, &ratios, &folded[0], &folded[1]}) fn(*array);
    for (Acc** array : {&pivot, &minus_pivot, &scale, &rstd, &mean_high, &mean_low, &slope, &swish_a, &swish_b}) {
      fn(*array);
    }
  }

  template <size_t kSize>
  static void set(const void* (&coefs)[kSize], std::initializer_list<const Acc*> to) {
    std::copy(to.begin(), to.end(), coefs);
  }
};

}  // namespace groupnorm
