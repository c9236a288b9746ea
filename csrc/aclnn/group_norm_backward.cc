// aclnnGroupNormBackward, operator B: the true gradient.
#include "aclnnop/aclnn_group_norm_backward.h"

#include "operation.h"

using namespace groupnorm;
using namespace groupnorm::host;

namespace {

// Limits of the device's operator on Atlas A2, where a program has to run in the end.
constexpr int64_t kMaxChannelsPerGroup = 8000;
constexpr int64_t kMaxChannels = 240000;

Argument wanted_output(const char* name, const aclTensor* handle, bool wanted) {
  return wanted ? output(name, handle) : Argument{name, nullptr, true};
}

}  // namespace

aclnnStatus aclnnGroupNormBackwardGetWorkspaceSize(const aclTensor* gradOut, const aclTensor* input_tensor,
                                                   const aclTensor* mean, const aclTensor* rstd, const aclTensor* gamma,
                                                   int64_t N, int64_t C, int64_t HxW, int64_t group,
                                                   const aclBoolArray* outputMask, aclTensor* gradInput,
                                                   aclTensor* gradGammaOut, aclTensor* gradBetaOut,
                                                   uint64_t* workspaceSize, aclOpExecutor** executor) {
  return phase1(__func__, workspaceSize, executor, [&] {
    const Argument dy = input("gradOut", gradOut);
    const Argument x = input("input", input_tensor);
    const Argument mean_ = input("mean", mean);
    const Argument rstd_ = input("rstd", rstd);
    const Argument gamma_ = optional_input("gamma", gamma);
    require(outputMask, "outputMask", kParamNullptr);
    const std::vector<bool> mask = meta().bools("outputMask", outputMask);
    if (mask.size() != 3) {
      throw Fault{kParamInvalid, text("outputMask has ", mask.size(), " values; accepted: 3")};
    }
    const Argument dx = wanted_output("gradInput", gradInput, mask[0]);
    const Argument dgamma = wanted_output("gradGammaOut", gradGammaOut, mask[1]);
    const Argument dbeta = wanted_output("gradBetaOut", gradBetaOut, mask[2]);

    const DType dtype = dtype_of(dy);
    check_dtype(x, dy);
    check_dtype_or_float(mean_, dy);
    check_dtype(rstd_, mean_);
    check_dtype(gamma_, mean_);
    check_dtype(dx, dy);
    check_dtype(dgamma, mean_);
    check_dtype(dbeta, mean_);
    for (const Argument* one : {&dy, &x, &mean_, &rstd_, &gamma_, &dx, &dgamma, &dbeta}) {
      if (*one) check_rank(*one, 0, 8);
    }

    check_at_least("N", N, 0);
    check_at_least("C", C, 0);
    check_at_least("HxW", HxW, 0);
    check_group("group", group, C);
    if (C > kMaxChannels) throw Fault{kParamInvalid, text("C is ", C, "; accepted: up to ", kMaxChannels)};
    if (C / group > kMaxChannelsPerGroup) {
      throw Fault{kParamInvalid, text("C / group is ", C / group, "; accepted: up to ", kMaxChannelsPerGroup)};
    }
    int64_t total;
    int64_t groups;
    if (__builtin_mul_overflow(N, group, &groups)) {
      throw Fault{kParamInvalid, text("group is ", group, "; accepted: as many groups of N = ", N, " as memory holds")};
    }
    if (__builtin_mul_overflow(N, C, &total) || __builtin_mul_overflow(total, HxW, &total)) {
      throw Fault{kParamInvalid, text("N, C and HxW are ", N, ", ", C, " and ", HxW, "; accepted: what memory holds")};
    }
    const std::string sizes = text("N * C * HxW of N = ", N, ", C = ", C, ", HxW = ", HxW);
    check_elements(dy, total, sizes);
    check_elements(x, total, sizes);
    const std::string stats = text("N * group of N = ", N, ", group = ", group);
    check_elements(mean_, groups, stats);
    check_elements(rstd_, groups, stats);
    check_elements(gamma_, C, "C");
    if (dx) check_shape(dx, x.shape(), "the shape of input");
    const std::vector<int64_t> affine = gamma_ ? gamma_.shape() : std::vector<int64_t>{C};
    check_shape(dgamma, affine, gamma_ ? "the shape of gamma" : "[C]");
    check_shape(dbeta, affine, gamma_ ? "the shape of gamma" : "[C]");

    Problem problem{};
    problem.op = Operator::kGroupNormBackward;
    problem.dtype = dtype;
    problem.gamma_dtype = problem.beta_dtype = problem.stats_dtype = dtype_of(mean_);
    problem.n = N;
    problem.channels = C;
    problem.length = HxW;
    problem.groups = group;
    return make_operation("aclnnGroupNormBackward", problem,
                          {{Role::kDy, dy},
                           {Role::kX, x},
                           {Role::kMean, mean_},
                           {Role::kRstd, rstd_},
                           {Role::kGamma, gamma_},
                           {Role::kDx, dx},
                           {Role::kDgamma, dgamma},
                           {Role::kDbeta, dbeta}});
  });
}

aclnnStatus aclnnGroupNormBackward(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                   aclrtStream stream) {
  return phase2(__func__, workspace, workspaceSize, executor, stream);
}
