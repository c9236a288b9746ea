// aclnnGroupNormalizationGrad, operator A: the formula as CANN prints it.
#include "aclnn_group_normalization_grad.h"

#include "operation.h"

using namespace groupnorm;
using namespace groupnorm::host;

aclnnStatus aclnnGroupNormalizationGradGetWorkspaceSize(const aclTensor* x, const aclTensor* dy, const aclTensor* gamma,
                                                        const aclTensor* mean, const aclTensor* rstd,
                                                        const aclTensor* dxOut, uint64_t* workspaceSize,
                                                        aclOpExecutor** executor) {
  return phase1(__func__, workspaceSize, executor, [&] {
    const Argument x_ = input("x", x);
    const Argument dy_ = input("dy", dy);
    const Argument gamma_ = input("gamma", gamma);
    const Argument mean_ = input("mean", mean);
    const Argument rstd_ = input("rstd", rstd);
    const Argument dx_ = output("dx", dxOut);
    const DType dtype = dtype_of(x_);
    for (const Argument* other : {&dy_, &gamma_, &mean_, &rstd_, &dx_}) check_dtype(*other, x_);
    for (const Argument* one : {&x_, &dy_, &gamma_, &mean_, &rstd_, &dx_}) {
      check_format(*one, {ACL_FORMAT_ND, ACL_FORMAT_NCHW, ACL_FORMAT_NHWC, ACL_FORMAT_NCDHW, ACL_FORMAT_NCL});
    }
    check_rank(x_, 3, 8);
    elements(x_);
    for (const Argument* other : {&dy_, &dx_}) check_shape(*other, x_.shape(), "the shape of x");
    check_shape(gamma_, x_.shape(), "the shape of x, to which gamma is broadcast already");
    const int64_t n = x_.shape()[0];
    const int64_t groups = x_.shape()[1];
    for (const Argument* stat : {&mean_, &rstd_}) check_shape(*stat, {n, groups}, "the first two dimensions of x");
    for (const Argument* one : {&x_, &dy_, &gamma_, &mean_, &rstd_, &dx_}) check_contiguous(*one);

    Problem problem{};
    problem.op = Operator::kGroupNormalizationGrad;
    problem.dtype = problem.gamma_dtype = problem.beta_dtype = problem.stats_dtype = dtype;
    problem.n = n;
    problem.channels = problem.groups = groups;
    problem.length = 1;
    for (size_t i = 2; i < x_.shape().size(); ++i) problem.length *= x_.shape()[i];
    return make_operation("aclnnGroupNormalizationGrad", problem,
                          {{Role::kX, x_},
                           {Role::kDy, dy_},
                           {Role::kGamma, gamma_},
                           {Role::kMean, mean_},
                           {Role::kRstd, rstd_},
                           {Role::kDx, dx_}});
  });
}

aclnnStatus aclnnGroupNormalizationGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                        aclrtStream stream) {
  return phase2(__func__, workspace, workspaceSize, executor, stream);
}
