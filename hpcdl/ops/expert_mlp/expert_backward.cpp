// The gradient on a CPU.

#include <algorithm>
#include <cstring>

#include "hpcdl/ops/expert_mlp/expert_mlp.h"
#include "hpcdl/ops/expert_mlp/expert_rows.h"
#include "hpcdl/program/on.h"

namespace hpcdl::cpu {
namespace {

Tensor section(const Tensor& t, std::int64_t begin, std::int64_t rows) {
  return {t.ptr<std::byte>() + begin * t.cols() * dtype_bytes(t.dtype()), {{rows, t.cols()}, t.dtype()}, t.device()};
}

/// Part `i` of a tensor (parts, rows, columns).
Tensor part(const Tensor& t, std::int64_t i) {
  return section(Tensor(t.data(), {{t.shape()[0] * t.shape()[1], t.cols()}, t.dtype()}, t.device()), i * t.shape()[1],
                 t.shape()[1]);
}

const std::byte* row_of(const View& v, std::int64_t r) {
  return v.ptr<std::byte>() + r * v.row_stride() * dtype_bytes(v.dtype());
}

/// Choices sorted by their expert, in their order. A negative expert is no choice, and has no row.
struct SortedChoices {
  std::int32_t *begins, *choices, *row_of;  // of each expert and their end; of each row; of each choice, or -1

  SortedChoices(const Tensor& places, const View& experts, int mlps)
      : begins(places.ptr<std::int32_t>()), choices(begins + mlps + 1), row_of(choices + experts.size()) {
    const auto* of = experts.ptr<std::int32_t>();
    std::fill_n(begins, mlps + 1, 0);
    for (std::int64_t c = 0; c < experts.size(); ++c)
      if (of[c] >= 0) ++begins[of[c] + 1];
    for (int e = 0; e < mlps; ++e) begins[e + 1] += begins[e];
    for (std::int64_t c = 0; c < experts.size(); ++c) {
      row_of[c] = -1;
      if (of[c] < 0) continue;
      const auto row = begins[of[c]]++;
      choices[row] = static_cast<std::int32_t>(c), row_of[c] = row;
    }
    for (int e = mlps; e > 0; --e) begins[e] = begins[e - 1];
    begins[0] = 0;
  }
};

Grad overwrites(const Tensor& t) { return {t, Write::overwrite}; }

void copy_choices(Pool& pool, const Tensor& to, const View& from, const std::int32_t* choices, std::int64_t of_token) {
  const auto bytes = static_cast<std::size_t>(to.cols() * dtype_bytes(to.dtype()));
  parallel_for(pool, to.rows(), 16, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r)
      std::memcpy(to.ptr<std::byte>() + r * static_cast<std::int64_t>(bytes), row_of(from, choices[r] / of_token),
                  bytes);
  });
}

void clear_unless_added(const Grad& g) {
  if (g && !g.accumulate()) std::memset(g.data(), 0, static_cast<std::size_t>(g.bytes()));
}

/// Of the weights of negative experts.
void clear_gradients_of_none(const ExpertGradients& g) {
  if (!g.dweights || g.dweights.accumulate()) return;
  for (std::int64_t c = 0; c < g.experts.size(); ++c)
    if (g.experts.ptr<std::int32_t>()[c] < 0) g.dweights.ptr<float>()[c] = 0;
}

}  // namespace

void expert_mlp_backward(Stream& s, const ExpertGradients& g, const ExpertMlp::Args& a) {
  const std::int64_t count = g.experts.cols();
  const SortedChoices sorted(g.places, g.experts, a.experts);
  const Tensor xs = part(g.rows, 0), dys = part(g.rows, 1), hiddens = part(g.hidden, 0), dgates = part(g.hidden, 1),
               dups = part(g.hidden, 2);
  clear_gradients_of_none(g);
  const LinearArgs linear{.constant_weights = a.constant_weights};
  for (int e = 0; e < a.experts; ++e) {
    const auto& [dgate_w, dup_w, ddown_w] = g.dmlps[static_cast<std::size_t>(e)];
    const auto& mlp = g.mlps[static_cast<std::size_t>(e)];
    const std::int64_t begin = sorted.begins[e], n = sorted.begins[e + 1] - begin;
    if (n == 0) {
      for (const auto* d : {&dgate_w, &dup_w, &ddown_w}) clear_unless_added(d->w);
      continue;
    }
    const Tensor x = section(xs, begin, n), dy = section(dys, begin, n), hidden = section(hiddens, begin, n),
                 dgate = section(dgates, begin, n), dup = section(dups, begin, n);
    const std::int32_t* choices = sorted.choices + begin;
    copy_choices(s.pool(), dy, g.dy, choices, count);
    Linear::backward(s, overwrites(dup), {}, {}, {}, hidden, mlp.down.w, dy, linear);
    const ExpertSlopes slopes{.gate = g.gate,
                              .up = g.up,
                              .choices = choices,
                              .weights = g.weights.ptr<float>(),
                              .dweights = g.dweights ? g.dweights.ptr<float>() : nullptr,
                              .accumulate = g.dweights.accumulate(),
                              .dz = dup,
                              .hidden = hidden,
                              .dgate = dgate,
                              .dup = dup};
    simd::with_isa([&](auto isa) { expert_slopes(isa, s.pool(), slopes, a.gate); });
    if (ddown_w.w) Linear::backward(s, {}, ddown_w.w, {}, {}, hidden, mlp.down.w, dy, linear);
    if (dgate_w.w || dup_w.w) copy_choices(s.pool(), x, g.x, choices, count);
    Linear::backward(s, g.dx ? overwrites(dy) : Grad(), dgate_w.w, {}, {}, x, mlp.gate.w, dgate, linear);
    Linear::backward(s, g.dx ? Grad(dy, Write::accumulate) : Grad(), dup_w.w, {}, {}, x, mlp.up.w, dup, linear);
  }
  if (g.dx)
    simd::with_isa([&](auto isa) { sum_of_choices(isa, s.pool(), g.dx, dys, sorted.row_of, static_cast<int>(count)); });
}

}  // namespace hpcdl::cpu
