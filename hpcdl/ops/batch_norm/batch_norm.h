#pragma once
// Batch normalisation over all dims but the last: y = relu?((x - mean) / sqrt(var + eps) * weight + bias + residual?),
// with the mean and the variance of each channel over the batch (training) or with running statistics (inference).
//
// x, residual, y: (..., C), f32, bf16 or f16; weight, bias: (C), any of these types, may be absent; statistics and
// arithmetic in f32. The variance that normalises is divided by the number of rows n, the one that goes into the
// running statistics by n - 1, as in torch:
//
//   running = (1 - momentum) * running + momentum * batch
//
// The caller owns the running statistics. A separate record without a gradient updates them: a forward pass that
// backward records again (Graph::checkpoint) does not update them a second time, and a program that runs once per
// micro-batch updates them each time. Sources: Ioffe & Szegedy, "Batch normalization", 2015; sums of squares about a
// moving origin, merged as in Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983.

#include <array>
#include <limits>

#include "hpcdl/ops/batch_norm/passes.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/emit.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

namespace detail {

struct BatchNormArgs {
  float eps = 1e-5f, momentum = 0.1f;
  bool relu = false;
};

inline void require_batch_norm(std::string_view op, const Spec& x, const Spec& weight, const Spec& bias, float eps) {
  require_float(op, x);
  require(x.shape.rank() >= 2 && x[-1] > 0, op, "needs (..., C), got {}", to_string(x));
  for (const auto& p : {weight, bias}) {
    if (!p) continue;
    require_float(op, p, "weight and bias");
    require_shape(op, "weight and bias", p, {x[-1]});
  }
  require(eps >= 0, op, "eps must not be negative, got {}", eps);
}
inline void require_batch(std::string_view op, const Spec& x) {
  require(x.shape.size() / x[-1] > 1, op, "training needs more than one value per channel, got {}", to_string(x));
}
/// `again`: tensors as large as x that are read a second time, because the first pass ends before the second begins.
inline Cost batch_norm_cost(const Spec& x, double operations, int again) {
  return {.operations = operations * static_cast<double>(x.size()), .reads = again * static_cast<double>(x.bytes())};
}
inline Spec batch_norm_statistics(const Spec& x) { return {{3, x[-1]}, DType::f32}; }
template <class T> T statistic(const T& statistics, int i) {
  const auto c = statistics[-1];
  return T(const_cast<float*>(statistics.template ptr<float>()) + i * c, Spec{{c}, DType::f32}, statistics.device());
}

}  // namespace detail

/// y, and the statistics (3, C) f32 of this batch: mean, variance / n, variance / (n - 1).
struct BatchNorm {
  static constexpr std::string_view name = "batch_norm";
  static constexpr OpClass kClass = OpClass::norm;
  static constexpr unsigned kCasts = 0b1;
  using Args = detail::BatchNormArgs;
  static std::array<Spec, 2> infer(const Spec& x, const Spec& weight, const Spec& bias, const Args& a) {
    detail::require_batch_norm(name, x, weight, bias, a.eps);
    detail::require_batch(name, x);
    return {x, detail::batch_norm_statistics(x)};
  }
  static Cost cost(const Spec& x, const Spec&, const Spec&, const Args&) { return detail::batch_norm_cost(x, 8, 1); }
  static Cost backward_cost(const Spec& x, const Spec&, const Spec&, const Args&) {
    return detail::batch_norm_cost(x, 12, 2);
  }
  static std::array<Spec, 1> scratch(const Spec& x, const Spec&, const Spec&, const Args&) {
    return {batch_partial(x)};
  }
  static std::array<Spec, 2> backward_scratch(const Spec& x, const Spec&, const Spec&, const Args&) {
    return {batch_partial(x), Spec{{2, x[-1]}, DType::f32}};
  }
  static void forward(Stream& s, Tensor y, Tensor statistics, View x, View weight, View bias, Tensor partial,
                      const Args& a);
  static void backward(Stream& s, Grad dx, Grad dweight, Grad dbias, View x, View weight, View bias, View statistics,
                       View dy, Tensor partial, Tensor sums, const Args& a);
  using Backward = Operands<dIn<0>, dIn<1>, dIn<2>, In<0>, In<1>, In<2>, Out<1>, dOut<0>, Scratch<0>, Scratch<1>>;
};

/// The same with a residual. Backward reads the signs of y.
struct AddBatchNorm {
  static constexpr std::string_view name = "add_batch_norm";
  static constexpr OpClass kClass = OpClass::norm;
  static constexpr unsigned kCasts = 0b11;
  using Args = detail::BatchNormArgs;
  static std::array<Spec, 2> infer(const Spec& x, const Spec& residual, const Spec& weight, const Spec& bias,
                                   const Args& a) {
    detail::require_batch_norm(name, x, weight, bias, a.eps);
    detail::require_batch(name, x);
    require_spec(name, "residual", residual, x);
    return {x, detail::batch_norm_statistics(x)};
  }
  static Cost cost(const Spec& x, const Spec&, const Spec&, const Spec&, const Args&) {
    return detail::batch_norm_cost(x, 9, 1);
  }
  static Cost backward_cost(const Spec& x, const Spec&, const Spec&, const Spec&, const Args& a) {
    return detail::batch_norm_cost(x, 13, a.relu ? 2 : 1);  // y is read only for relu
  }
  static std::array<Spec, 1> scratch(const Spec& x, const Spec&, const Spec&, const Spec&, const Args&) {
    return {batch_partial(x)};
  }
  static std::array<Spec, 2> backward_scratch(const Spec& x, const Spec&, const Spec&, const Spec&, const Args&) {
    return {batch_partial(x), Spec{{2, x[-1]}, DType::f32}};
  }
  static void forward(Stream& s, Tensor y, Tensor statistics, View x, View residual, View weight, View bias,
                      Tensor partial, const Args& a);
  static void backward(Stream& s, Grad dx, Grad dresidual, Grad dweight, Grad dbias, View x, View weight,
                       View statistics, View y, View dy, Tensor partial, Tensor sums, const Args& a);
  using Backward =
      Operands<dIn<0>, dIn<1>, dIn<2>, dIn<3>, In<0>, In<2>, Out<1>, Out<0>, dOut<0>, Scratch<0>, Scratch<1>>;
};

/// Normalises with given statistics (C) f32, which have no gradient. The residual may be absent.
struct BatchNormInference {
  static constexpr std::string_view name = "batch_norm_inference";
  static constexpr OpClass kClass = OpClass::norm;
  static constexpr unsigned kCasts = 0b11;
  static constexpr bool kInPlace = true;
  using Args = detail::BatchNormArgs;
  static Spec infer(const Spec& x, const Spec& residual, const Spec& weight, const Spec& bias, const Spec& mean,
                    const Spec& var, const Args& a) {
    detail::require_batch_norm(name, x, weight, bias, a.eps);
    if (residual) require_spec(name, "residual", residual, x);
    require_spec(name, "running_mean", mean, {{x[-1]}, DType::f32});
    require_spec(name, "running_var", var, {{x[-1]}, DType::f32});
    return x;
  }
  static Cost cost(const Spec& x, const Spec&, const Spec&, const Spec&, const Spec&, const Spec&, const Args&) {
    return detail::batch_norm_cost(x, 4, 0);
  }
  static Cost backward_cost(const Spec& x, const Spec&, const Spec&, const Spec&, const Spec&, const Spec&,
                            const Args& a) {
    return detail::batch_norm_cost(x, 8, a.relu ? 0 : -1);  // y is read only for relu
  }
  static std::array<Spec, 2> backward_scratch(const Spec& x, const Spec&, const Spec&, const Spec&, const Spec&,
                                              const Spec&, const Args&) {
    return {batch_partial(x), Spec{{2, x[-1]}, DType::f32}};
  }
  static void forward(Stream& s, Tensor y, View x, View residual, View weight, View bias, View mean, View var,
                      const Args& a);
  static void backward(Stream& s, Grad dx, Grad dresidual, Grad dweight, Grad dbias, View x, View weight, View mean,
                       View var, View y, View dy, Tensor partial, Tensor sums, const Args& a);
  using Backward =
      Operands<dIn<0>, dIn<1>, dIn<2>, dIn<3>, In<0>, In<2>, In<4>, In<5>, Out<0>, dOut<0>, Scratch<0>, Scratch<1>>;
};

/// The update of running statistics as a record. Operands: running mean and variance, statistics of the batch.
struct RunningStatistics {
  static constexpr std::string_view name = "running_statistics";
  struct Args {
    float momentum = 0.1f;
  };
  using RecordArgs = Args;
  static void check_args(const Spec& mean, const Spec& var, const Spec& statistics, const Args& a) {
    require(statistics.shape.rank() == 2, name, "the statistics of a batch are (3, C), got {}", to_string(statistics));
    const Spec want{{statistics[-1]}, DType::f32};
    require_spec(name, "statistics", statistics, {{3, want[0]}, DType::f32});
    require_spec(name, "running_mean", mean, want), require_spec(name, "running_var", var, want);
    require(a.momentum >= 0 && a.momentum <= 1, name, "momentum must be in [0, 1], got {}", a.momentum);
  }
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void* args) {
    const float momentum = static_cast<const Args*>(args)->momentum;
    const View batch = t[2], mean = detail::statistic(batch, 0), var = detail::statistic(batch, 2);
    on(
        s, [&](auto isa, Pool&) { cpu::running_statistics(isa, t[0], t[1], mean, var, momentum); },
        [&](auto& q) { cuda::running_statistics(q, t[0], t[1], mean, var, momentum); });
  }
};

inline void BatchNorm::forward(Stream& s, Tensor y, Tensor statistics, View x, View weight, View bias, Tensor partial,
                               const Args& a) {
  const Tensor mean = detail::statistic(statistics, 0), var = detail::statistic(statistics, 1);
  batch_statistics(s, mean, var, detail::statistic(statistics, 2), x, partial);
  batch_normalise(
      s, {.y = y, .x = x, .weight = weight, .bias = bias, .mean = mean, .var = var, .eps = a.eps, .relu = a.relu});
}
inline void BatchNorm::backward(Stream& s, Grad dx, Grad dweight, Grad dbias, View x, View weight, View bias,
                                View statistics, View dy, Tensor partial, Tensor sums, const Args& a) {
  const BatchNormBackward o{.dx = dx,
                            .dweight = dweight,
                            .dbias = dbias,
                            .x = x,
                            .weight = weight,
                            .bias = bias,
                            .mean = detail::statistic(statistics, 0),
                            .var = detail::statistic(statistics, 1),
                            .dy = dy,
                            .sums = sums,
                            .partial = partial,
                            .eps = a.eps,
                            .relu = a.relu};
  batch_norm_sums(s, o);
  batch_norm_gradient(s, o, static_cast<float>(x.rows()));
}
inline void AddBatchNorm::forward(Stream& s, Tensor y, Tensor statistics, View x, View residual, View weight, View bias,
                                  Tensor partial, const Args& a) {
  const Tensor mean = detail::statistic(statistics, 0), var = detail::statistic(statistics, 1);
  batch_statistics(s, mean, var, detail::statistic(statistics, 2), x, partial);
  batch_normalise(s, {.y = y,
                      .x = x,
                      .residual = residual,
                      .weight = weight,
                      .bias = bias,
                      .mean = mean,
                      .var = var,
                      .eps = a.eps,
                      .relu = a.relu});
}
inline void AddBatchNorm::backward(Stream& s, Grad dx, Grad dresidual, Grad dweight, Grad dbias, View x, View weight,
                                   View statistics, View y, View dy, Tensor partial, Tensor sums, const Args& a) {
  const BatchNormBackward o{.dx = dx,
                            .dresidual = dresidual,
                            .dweight = dweight,
                            .dbias = dbias,
                            .x = x,
                            .y = y,
                            .weight = weight,
                            .mean = detail::statistic(statistics, 0),
                            .var = detail::statistic(statistics, 1),
                            .dy = dy,
                            .sums = sums,
                            .partial = partial,
                            .eps = a.eps,
                            .relu = a.relu};
  batch_norm_sums(s, o);
  batch_norm_gradient(s, o, static_cast<float>(x.rows()));
}
inline void BatchNormInference::forward(Stream& s, Tensor y, View x, View residual, View weight, View bias, View mean,
                                        View var, const Args& a) {
  batch_normalise(s, {.y = y,
                      .x = x,
                      .residual = residual,
                      .weight = weight,
                      .bias = bias,
                      .mean = mean,
                      .var = var,
                      .eps = a.eps,
                      .relu = a.relu});
}
inline void BatchNormInference::backward(Stream& s, Grad dx, Grad dresidual, Grad dweight, Grad dbias, View x,
                                         View weight, View mean, View var, View y, View dy, Tensor partial, Tensor sums,
                                         const Args& a) {
  const BatchNormBackward o{.dx = dx,
                            .dresidual = dresidual,
                            .dweight = dweight,
                            .dbias = dbias,
                            .x = x,
                            .y = y,
                            .weight = weight,
                            .mean = mean,
                            .var = var,
                            .dy = dy,
                            .sums = sums,
                            .partial = partial,
                            .eps = a.eps,
                            .relu = a.relu};
  if (dweight || dbias || o.keeps_dz()) batch_norm_sums(s, o);
  batch_norm_gradient(s, o, std::numeric_limits<float>::infinity());
}

/// Records the update of the running statistics (C) f32, owned by the caller, with those of a batch (3, C).
template <Symbolic V>
void update_running_statistics(const V& running_mean, const V& running_var, const V& statistics, float momentum) {
  const RunningStatistics::Args args{momentum};
  RunningStatistics::check_args(running_mean.spec(), running_var.spec(), statistics.spec(), args);
  const decltype(read_operand(V())) operands[] = {update_operand(running_mean), update_operand(running_var),
                                                  read_operand(statistics)};
  const double operations = 6.0 * static_cast<double>(running_mean.spec().size());
  statistics.graph().template emit<RunningStatistics>(operands, &args, sizeof args, {.operations = operations});
}

/// Training. The running statistics (both) and the residual may be absent.
template <Symbolic V>
V batch_norm(const V& x, const V& weight, const V& bias, const V& running_mean, const V& running_var,
             BatchNorm::Args a = {}, const V& residual = {}) {
  const auto [y, statistics] =
      residual ? record<AddBatchNorm>(a, x, residual, weight, bias) : record<BatchNorm>(a, x, weight, bias);
  if (running_mean) update_running_statistics(running_mean, running_var, statistics, a.momentum);
  return y;
}
template <Symbolic V>
V batch_norm_inference(const V& x, const V& weight, const V& bias, const V& running_mean, const V& running_var,
                       BatchNormInference::Args a = {}, const V& residual = {}) {
  return record<BatchNormInference>(a, x, residual, weight, bias, running_mean, running_var);
}

}  // namespace hpcdl
