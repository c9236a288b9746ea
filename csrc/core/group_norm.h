// The door to the core: three operators of Group Normalization on the memory of a CPU.
//
// A  kGroupNormalizationGrad: the formula that CANN prints, gamma of x's shape.
//    x, dy, gamma, mean, rstd -> dx
// B  kGroupNormBackward: the true gradient, gamma [C] or none.
//    x, dy, gamma, mean, rstd -> dx, dgamma, dbeta
//    with an activation also beta, and dy is that of its result
// C  kGroupNorm: the forward.
//    x, gamma, beta -> y, mean, rstd
//    with an activation y is its result
//
// The core throws nothing and allocates nothing but its worker threads' pool. Every result depends on values,
// shape and dtype alone (kernels.h has the order of additions).
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtype.h"
#include "kernels.h"

namespace groupnorm {

enum class Operator : int { kGroupNormalizationGrad = 0, kGroupNormBackward = 1, kGroupNorm = 2 };

// What follows the normalization, B and C: gn * sigmoid(swish_scale * gn) for gn = gamma * xhat + beta.
enum class Activation : int { kNone = 0, kSwish = 1 };

struct Problem {
  Operator op;
  DType dtype;        // x, dy, dx, y; for A also gamma
  DType gamma_dtype;  // gamma, dgamma, dbeta
  DType beta_dtype;   // beta
  DType stats_dtype;  // mean, rstd
  Layout layout;      // x, dy, dx, y; for A contiguous
  int64_t n;
  int64_t channels;  // for A the groups: its x is [N, G, *]
  int64_t length;    // positions of a channel: HxW, for A the elements of a group
  int64_t groups;
  bool recenter;  // B: subtract the mean of xhat; not with an activation
  double eps;     // C
  Activation activation = Activation::kNone;
  double swish_scale = 1;    // finite
  int64_t total_length = 0;  // B, C: positions of a channel in all parts, where x is one of them; 0: x is whole
};

struct Inputs {
  const void* x;
  const void* dy;                // A, B
  const void* gamma;             // A: x's shape; B, C: [C], null counts as ones
  const void* beta;              // C, B with an activation: [C], null counts as zeros
  const void* mean;              // A, B: [N, G]
  const void* rstd;              // A, B: [N, G]
  const double* sums = nullptr;  // of all parts, see below
};

// A null output of B is not computed; the others are not optional. dx may be x or dy itself.
struct Outputs {
  void* dx;
  void* dgamma;  // [C]
  void* dbeta;   // [C]
  void* y;
  void* mean;  // C: [N, G]
  void* rstd;  // C: [N, G]
  double* sums = nullptr;
};

// Where the positions of x lie in several places, each has a part of it, and what lies between reduce and apply goes
// from place to place: outputs.sums are those of a part, inputs.sums those of all, and given them run() does not
// reduce.
//   B  [2][N][C]: the sums of dy and of dy * xhat over positions, dy being that of gn where an activation follows.
//      Parts add. Not with recenter. Given sums and no dx, dgamma and dbeta are all there is to do: x, dy, mean and
//      rstd may be null, and N may be that of the batches of all places.
//   C  out [2][N][G]: the mean of the group's part, the sum of squares around it; in: the mean and the variance of the
//      whole. y, mean and rstd may be null where sums go out; they are not computed then.

enum class Status : int {
  kOk = 0,
  kInvalidProblem,     // sizes negative or too large, groups that do not divide the channels, an activation that
                       // the operator does not have or not with recenter, a swish_scale that is not finite
  kNullPointer,        // an operand that the operator needs
  kWorkspaceTooSmall,  // see workspace_bytes
  kUnsupportedIsa,     // GROUPNORM_ISA names a level that this build or CPU does not have
};

// Scratch that run() needs for this problem and these outputs on up to `threads` threads.
size_t workspace_bytes(const Problem& problem, const Outputs& outputs, int threads);

Status run(const Problem& problem, const Inputs& inputs, const Outputs& outputs, void* workspace, size_t workspace_size,
           int threads);

}  // namespace groupnorm
