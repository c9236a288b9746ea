// aclnnGroupNormSwish and its gradient, aclnnGroupNormSwishGrad.
#include <cmath>

#include "aclnnop/aclnn_group_norm_swish.h"
#include "aclnnop/aclnn_group_norm_swish_grad.h"
#include "forward.h"

using namespace groupnorm;
using namespace groupnorm::host;

namespace {

constexpr int64_t kMaxChannelsPerGroup = 4000;  // of the device's operator

void check_scale(double scale) {
  if (!std::isfinite(scale)) throw Fault{kParamInvalid, text("swishScale is ", scale, "; accepted: a finite number")};
}

}  // namespace

aclnnStatus aclnnGroupNormSwishGetWorkspaceSize(const aclTensor* x, const aclTensor* gamma, const aclTensor* beta,
                                                int64_t numGroups, char* dataFormatOptional, double eps,
                                                bool activateSwish, double swishScale, const aclTensor* yOut,
                                                const aclTensor* meanOut, const aclTensor* rstdOut,
                                                uint64_t* workspaceSize, aclOpExecutor** executor) {
  return phase1(__func__, workspaceSize, executor, [&] {
    const Forward forward{input("x", x),
                          input("gamma", gamma),
                          input("beta", beta),
                          output("yOut", yOut),
                          output("meanOut", meanOut),
                          output("rstdOut", rstdOut),
                          numGroups,
                          eps};
    dtype_of(forward.x);
    check_dtype_or_float(forward.gamma, forward.x);
    check_dtype(forward.beta, forward.gamma);
    check_dtype(forward.y, forward.x);
    for (const Argument* stat : {&forward.mean, &forward.rstd}) check_dtype(*stat, forward.gamma);
    check_rank(forward.x, 2, 8);
    check_not_empty(forward.x);
    check_forward(forward, "numGroups");
    check_data_format(dataFormatOptional);
    check_scale(swishScale);
    for (const Argument* one : {&forward.y, &forward.mean, &forward.rstd}) check_contiguous(*one);
    Problem problem = forward_problem(forward);
    if (activateSwish) {
      problem.activation = Activation::kSwish;
      problem.swish_scale = swishScale;
    }
    return make_forward("aclnnGroupNormSwish", problem, forward);
  });
}

aclnnStatus aclnnGroupNormSwish(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return phase2(__func__, workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnGroupNormSwishGradGetWorkspaceSize(const aclTensor* dy, const aclTensor* mean, const aclTensor* rstd,
                                                    const aclTensor* x, const aclTensor* gamma, const aclTensor* beta,
                                                    int64_t numGroups, char* dataFormatOptional, double swishScale,
                                                    bool dgammaIsRequire, bool dbetaIsRequire, const aclTensor* dxOut,
                                                    const aclTensor* dgammaOut, const aclTensor* dbetaOut,
                                                    uint64_t* workspaceSize, aclOpExecutor** executor) {
  return phase1(__func__, workspaceSize, executor, [&] {
    const Argument dy_ = input("dy", dy);
    const Argument mean_ = input("mean", mean);
    const Argument rstd_ = input("rstd", rstd);
    const Argument x_ = input("x", x);
    const Argument gamma_ = input("gamma", gamma);
    const Argument beta_ = input("beta", beta);
    const Argument dx = output("dxOut", dxOut);
    const Argument dgamma = output("dgammaOut", dgammaOut);
    const Argument dbeta = output("dbetaOut", dbetaOut);
    const DType dtype = dtype_of(dy_);
    for (const Argument* other : {&mean_, &rstd_, &x_, &gamma_, &beta_, &dx, &dgamma, &dbeta}) check_dtype(*other, dy_);
    check_rank(dy_, 2, 8);
    check_not_empty(dy_);
    check_shape(x_, dy_.shape(), "the shape of dy");
    const int64_t n = dy_.shape()[0];
    const int64_t channels = dy_.shape()[1];
    check_group("numGroups", numGroups, channels);
    if (channels / numGroups > kMaxChannelsPerGroup) {
      throw Fault{kParamInvalid,
                  text("C / numGroups is ", channels / numGroups, "; accepted: up to ", kMaxChannelsPerGroup)};
    }
    check_data_format(dataFormatOptional);
    check_scale(swishScale);
    for (const Argument* stat : {&mean_, &rstd_}) check_shape(*stat, {n, numGroups}, "[N, numGroups]");
    for (const Argument* affine : {&gamma_, &beta_, &dgamma, &dbeta}) check_shape(*affine, {channels}, "the channels");
    check_shape(dx, x_.shape(), "the shape of x");
    for (const Argument* one : {&dx, &dgamma, &dbeta}) check_contiguous(*one);

    Problem problem{};
    problem.op = Operator::kGroupNormBackward;
    problem.dtype = problem.gamma_dtype = problem.beta_dtype = problem.stats_dtype = dtype;
    problem.n = n;
    problem.channels = channels;
    problem.length = elements(dy_) / (n * channels);
    problem.groups = numGroups;
    problem.activation = Activation::kSwish;
    problem.swish_scale = swishScale;
    return make_operation("aclnnGroupNormSwishGrad", problem,
                          {{Role::kDy, dy_},
                           {Role::kMean, mean_},
                           {Role::kRstd, rstd_},
                           {Role::kX, x_},
                           {Role::kGamma, gamma_},
                           {Role::kBeta, beta_},
                           {Role::kDx, dx},
                           {Role::kDgamma, dgammaIsRequire ? dgamma : Argument{}},
                           {Role::kDbeta, dbetaIsRequire ? dbeta : Argument{}}});
  });
}

aclnnStatus aclnnGroupNormSwishGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                    aclrtStream stream) {
  return phase2(__func__, workspace, workspaceSize, executor, stream);
}
