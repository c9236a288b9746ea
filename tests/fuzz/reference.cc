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

// Where the operands of a gradient are. No beta: no activation.
struct Places {
  size_t dy, x, mean, rstd, gamma, beta, dx;
};

double sigmoid(double t) { return 1 / (1 + std::exp(-t)); }

void expect_gradient(Case& one, const Places& at, bool swish) {
  const Arguments& a = one.arguments;
  const auto x = one.load(at.x), mean = one.load(at.mean), rstd = one.load(at.rstd);
  auto dy = one.load(at.dy);
  const auto channels = static_cast<size_t>(a.channels);
  const auto length = static_cast<size_t>(a.length);
  const auto gamma = one.operands[at.gamma].given ? one.load(at.gamma) : std::vector<double>(channels, 1.0);
  const auto beta = swish ? one.load(at.beta) : std::vector<double>();
  std::vector<double> dy_scale(dy.size()), dx(x.size()), dx_scale(x.size());
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
      dy_scale[i] = std::fabs(dy[i]);
      if (swish) {
        const double t = a.swish_scale * (gamma[c] * xhat(i) + beta[c]);
        const double s = sigmoid(t);
        const double t_scale = std::fabs(a.swish_scale) * (std::fabs(gamma[c]) * xhat_scale(i) + std::fabs(beta[c]));
        dy_scale[i] *= 1.1 + 0.5 * t_scale;  // the first and second derivative are no larger
        dy[i] *= s + t * s * (1 - s);
      }
      dbeta[c] += dy[i];
      dbeta_scale[c] += dy_scale[i];
      dgamma[c] += dy[i] * xhat(i);
      dgamma_scale[c] += dy_scale[i] * xhat_scale(i);
      c1 += gamma[c] * dy[i] / m;
      c2 += gamma[c] * dy[i] * xhat(i) / m;
      c1_scale += std::fabs(gamma[c]) * dy_scale[i] / m;
      c2_scale += std::fabs(gamma[c]) * dy_scale[i] * xhat_scale(i) / m;
    }
    for (size_t i = group.begin; i < group.end; ++i) {
      const size_t c = channel(i);
      dx[i] = r * (gamma[c] * dy[i] - c1 - xhat(i) * c2);
      dx_scale[i] = std::fabs(r) * (std::fabs(gamma[c]) * dy_scale[i] + c1_scale + xhat_scale(i) * c2_scale);
    }
  });
  one.want(at.dx, std::move(dx), std::move(dx_scale));
  one.want(at.dx + 1, std::move(dgamma), std::move(dgamma_scale));
  one.want(at.dx + 2, std::move(dbeta), std::move(dbeta_scale));
}

}  // namespace

void expect_backward(Case& one) { expect_gradient(one, {0, 1, 2, 3, 4, 0, 5}, false); }
void expect_swish_grad(Case& one) { expect_gradient(one, {0, 3, 1, 2, 4, 5, 6}, true); }

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
      if (a.activate) y[i] *= sigmoid(a.swish_scale * y[i]);
      y_scale[i] = rstd_scale[group.index] * 2 * largest * std::fabs(gamma[c]) + std::fabs(beta[c]);
      if (a.activate) y_scale[i] *= 1.2;  // its derivative is no larger
    }
  });
  one.want(3, std::move(y), std::move(y_scale));
  one.want(4, std::move(mean), std::move(mean_scale));
  one.want(5, std::move(rstd), std::move(rstd_scale));
}

}  // namespace groupnorm::fuzz
