// What the operators have to compute, as plainly as it can be said. Each value comes with the sum of the magnitudes
// that went into it, which its error is measured by.
#include <algorithm>
#include <cmath>

#include "operators.h"

namespace groupnorm::fuzz {
namespace {

// One group of one sample: where its elements are, and which channel each belongs to.
struct Group {
  size_t index;  // into mean and rstd
  size_t begin, end;
  size_t first_channel;
};

template <class Visit>
void for_each_group(const Arguments& a, int64_t groups, Visit&& visit) {
  const int64_t channels = groups > 0 ? a.channels / groups : 0;
  const int64_t size = channels * a.length;
  for (int64_t i = 0; i < a.n * groups; ++i) {
    visit(Group{static_cast<size_t>(i), static_cast<size_t>(i * size), static_cast<size_t>((i + 1) * size),
                static_cast<size_t>(i % groups * channels)});
  }
}

}  // namespace

void expect_printed(Case& one) {
  const Arguments& a = one.arguments;
  const auto x = one.load(0), dy = one.load(1), gamma = one.load(2), mean = one.load(3), rstd = one.load(4);
  std::vector<double> dx(x.size()), scale(x.size());
  for_each_group(a, a.channels, [&](const Group& group) {
    const double m = static_cast<double>(group.end - group.begin);
    const double center = mean[group.index], r = rstd[group.index];
    double s1 = 0, s2 = 0, s1_scale = 0, s2_scale = 0;
    for (size_t i = group.begin; i < group.end; ++i) {
      s1 += dy[i] * gamma[i];
      s2 += dy[i] * gamma[i] * (x[i] - center) * r;
      s1_scale += std::fabs(dy[i] * gamma[i]);
      s2_scale += std::fabs(dy[i] * gamma[i] * r) * (std::fabs(x[i]) + std::fabs(center));
    }
    for (size_t i = group.begin; i < group.end; ++i) {
      dx[i] = r / m * gamma[i] * (m * dy[i] - s1 - (x[i] - center) * r * s2);
      scale[i] = std::fabs(r / m * gamma[i]) *
                 (m * std::fabs(dy[i]) + s1_scale + (std::fabs(x[i]) + std::fabs(center)) * std::fabs(r) * s2_scale);
    }
  });
  one.want(5, std::move(dx), std::move(scale));
}

namespace {

using Values = std::vector<double>;

// dx, dgamma and dbeta for the outputs from `first` on. `size` is what |dy| counts as in the bounds.
void expect_gradient(Case& one, const Values& dy, const Values& size, const Values& x, const Values& mean,
                     const Values& rstd, const Values& gamma, size_t first) {
  const Arguments& a = one.arguments;
  const auto channels = static_cast<size_t>(a.channels);
  const auto length = static_cast<size_t>(a.length);
  std::vector<double> dx(x.size()), dx_scale(x.size());
  std::vector<double> dgamma(channels), dgamma_scale(channels), dbeta(channels), dbeta_scale(channels);
  for_each_group(a, a.groups, [&](const Group& group) {
    const double m = static_cast<double>(group.end - group.begin);
    const double center = mean[group.index], r = rstd[group.index];
    const auto channel = [&](size_t i) { return group.first_channel + (i - group.begin) / length; };
    const auto xhat = [&](size_t i) { return (x[i] - center) * r; };
    const auto xhat_scale = [&](size_t i) { return (std::fabs(x[i]) + std::fabs(center)) * std::fabs(r); };
    double c1 = 0, c2 = 0, c1_scale = 0, c2_scale = 0;
    for (size_t i = group.begin; i < group.end; ++i) {
      const size_t c = channel(i);
      dbeta[c] += dy[i];
      dbeta_scale[c] += size[i];
      dgamma[c] += dy[i] * xhat(i);
      dgamma_scale[c] += size[i] * xhat_scale(i);
      c1 += gamma[c] * dy[i] / m;
      c2 += gamma[c] * dy[i] * xhat(i) / m;
      c1_scale += std::fabs(gamma[c]) * size[i] / m;
      c2_scale += std::fabs(gamma[c]) * size[i] * xhat_scale(i) / m;
    }
    for (size_t i = group.begin; i < group.end; ++i) {
      const double own = gamma[channel(i)] * dy[i];
      dx[i] = r * (own - c1 - xhat(i) * c2);
      dx_scale[i] = std::fabs(r) * (std::fabs(gamma[channel(i)]) * size[i] + c1_scale + xhat_scale(i) * c2_scale);
    }
  });
  one.want(first, std::move(dx), std::move(dx_scale));
  one.want(first + 1, std::move(dgamma), std::move(dgamma_scale));
  one.want(first + 2, std::move(dbeta), std::move(dbeta_scale));
}

}  // namespace

void expect_backward(Case& one) {
  const auto dy = one.load(0), x = one.load(1), mean = one.load(2), rstd = one.load(3);
  const auto gamma = one.operands[4].given ? one.load(4) : Values(static_cast<size_t>(one.arguments.channels), 1.0);
  Values size = dy;
  for (double& value : size) value = std::fabs(value);
  expect_gradient(one, dy, size, x, mean, rstd, gamma, 5);
}

void expect_forward(Case& one) {
  const Arguments& a = one.arguments;
  const auto x = one.load(0);
  const auto channels = static_cast<size_t>(a.channels);
  const auto length = static_cast<size_t>(a.length);
  const auto gamma = one.operands[1].given ? one.load(1) : std::vector<double>(channels, 1.0);
  const auto beta = one.operands[2].given ? one.load(2) : std::vector<double>(channels, 0.0);
  const auto stats = static_cast<size_t>(a.n * a.groups);
  std::vector<double> y(x.size()), y_scale(x.size()), mean(stats), mean_scale(stats), rstd(stats), rstd_scale(stats);
  for_each_group(a, a.groups, [&](const Group& group) {
    const double m = std::max(1.0, static_cast<double>(group.end - group.begin));
    double sum = 0, squares = 0, largest = 0;
    for (size_t i = group.begin; i < group.end; ++i) {
      sum += x[i];
      largest = std::max(largest, std::fabs(x[i]));
    }
    const double center = sum / m;
    for (size_t i = group.begin; i < group.end; ++i) squares += (x[i] - center) * (x[i] - center);
    const double r = 1 / std::sqrt(squares / m + a.eps);
    mean[group.index] = center;
    mean_scale[group.index] = largest;
    rstd[group.index] = r;
    // The variance is exact to a few roundings of the largest element's square.
    rstd_scale[group.index] = r + r * r * r * largest * largest * 0.1;
    for (size_t i = group.begin; i < group.end; ++i) {
      const size_t c = group.first_channel + (i - group.begin) / length;
      y[i] = (x[i] - center) * r * gamma[c] + beta[c];
      y_scale[i] = rstd_scale[group.index] * 2 * largest * std::fabs(gamma[c]) + std::fabs(beta[c]);
    }
  });
  one.want(3, std::move(y), std::move(y_scale));
  one.want(4, std::move(mean), std::move(mean_scale));
  one.want(5, std::move(rstd), std::move(rstd_scale));
}

namespace {

double sigmoid(double t) { return 1 / (1 + std::exp(-t)); }

}  // namespace

void expect_swish(Case& one) {
  expect_forward(one);
  if (!one.arguments.activate) return;
  const double scale = one.arguments.swish_scale;
  Operand& y = one.operands[3];
  for (size_t i = 0; i < y.expect.size(); ++i) {
    const double gn = y.expect[i];
    y.expect[i] = gn * sigmoid(scale * gn);
    y.bound[i] = y.bound[i] * 1.5 + std::fabs(y.expect[i]) * y.bound[i];  // swish has a slope of at most 1.1
  }
}

// The true gradient on dy * swish', in the order of the operands of aclnnGroupNormBackward.
void expect_swish_gradient(Case& one) {
  const Arguments& a = one.arguments;
  auto dy = one.load(0);
  const auto mean = one.load(1), rstd = one.load(2), x = one.load(3), gamma = one.load(4), beta = one.load(5);
  const auto length = static_cast<size_t>(a.length);
  Values size(dy.size());
  for_each_group(a, a.groups, [&](const Group& group) {
    for (size_t i = group.begin; i < group.end; ++i) {
      const size_t c = group.first_channel + (i - group.begin) / length;
      const double reach = std::fabs(gamma[c] * rstd[group.index]) * (std::fabs(x[i]) + std::fabs(mean[group.index]));
      // The slope is at most 1.1, and as uncertain as what goes into t.
      size[i] = std::fabs(dy[i]) * (1.1 + std::fabs(a.swish_scale) * (reach + std::fabs(beta[c])));
      const double t = a.swish_scale * (gamma[c] * (x[i] - mean[group.index]) * rstd[group.index] + beta[c]);
      dy[i] *= sigmoid(t) * (1 + t * (1 - sigmoid(t)));
    }
  });
  expect_gradient(one, dy, size, x, mean, rstd, gamma, 6);
}

}  // namespace groupnorm::fuzz
