#include "hpcdl/ops/expert_mlp/expert_mlp.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "hpcdl/core/convert.h"
#include "hpcdl/program/check.h"

namespace hpcdl {
namespace {

using Mlps = std::span<const ExpertMatrices<Spec>>;

std::int64_t rows_of(const Spec& x) { return x[-1] > 0 ? x.size() / x[-1] : 0; }

/// The rows that chose an expert, and the weights that they give it.
struct Chosen {
  std::vector<std::int64_t> rows;
  std::vector<float> weights;

  Chosen(const View& list, const View& of, int expert) {
    const auto count = list.cols();
    for (std::int64_t i = 0; i < list.size(); ++i)
      if (list.ptr<std::int32_t>()[i] == expert) rows.push_back(i / count), weights.push_back(of.ptr<float>()[i]);
  }
  std::int64_t size() const { return std::ssize(rows); }
};

Tensor first_rows(const Tensor& t, std::int64_t rows) { return {t.data(), {{rows, t.cols()}, t.dtype()}, t.device()}; }

/// multiply() with as much of the scratch as these rows need.
void product(Stream& s, const Tensor& y, const View& x, const Matrix<View>& m, const Tensor& values,
             const Tensor& groups, bool constant) {
  int4::Scratch scratch{};
  if (m.quantized()) {
    const Spec half{{x.rows(), m.scale[1]}, DType::f32}, sums{half.shape, DType::i32};
    scratch = {Tensor(values.data(), {{x.rows(), x.cols()}, DType::i8}, values.device()),
               Tensor(groups.data(), half, groups.device()),
               Tensor(groups.ptr<float>() + half.size(), sums, groups.device())};
  }
  multiply(s, y, x, m, scratch, constant);
}

std::byte* row_of(const View& v, std::int64_t r) {
  return const_cast<std::byte*>(v.ptr<std::byte>()) + r * v.row_stride() * dtype_bytes(v.dtype());
}

/// The operands of a record on a CPU.
struct OnCpu {
  Tensor y;
  View x, weights, experts;
  Tensor rows, hidden, values, groups;
  ExpertMlp::Args args;

  /// Adds what one expert gives to the rows that chose it.
  void add(Stream& s, const ExpertMatrices<View>& mlp, int expert) const {
    const Chosen chosen(experts, weights, expert);
    const auto n = chosen.size();
    if (n == 0) return;
    const auto bytes = static_cast<std::size_t>(x.cols() * dtype_bytes(x.dtype()));
    const Tensor in = first_rows(rows, n), h = first_rows(hidden, n),
                 u(hidden.ptr<std::byte>() + h.bytes(), h.spec(), h.device());
    for (std::int64_t i = 0; i < n; ++i)
      std::memcpy(row_of(in, i), row_of(x, chosen.rows[static_cast<std::size_t>(i)]), bytes);
    product(s, h, in, mlp.gate, values, groups, args.constant_weights);
    product(s, u, in, mlp.up, values, groups, args.constant_weights);
    Swiglu::forward(s, h, h, u, {args.gate});
    product(s, in, h, mlp.down, values, groups, args.constant_weights);
    visit_dtype(x.dtype(), [&]<class T>() {
      for (std::int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<std::size_t>(i);
        auto* to = reinterpret_cast<T*>(row_of(y, chosen.rows[at]));
        const auto* from = reinterpret_cast<const T*>(row_of(in, i));
        for (std::int64_t c = 0; c < x.cols(); ++c)
          to[c] = T(static_cast<float>(to[c]) + chosen.weights[at] * static_cast<float>(from[c]));
      }
    });
  }
};

template <class T, class At> std::vector<ExpertMatrices<T>> matrices(std::int64_t experts, At&& at) {
  std::vector<ExpertMatrices<T>> all;
  const auto matrix = [&](std::int64_t first) {
    const auto part = [&](std::int64_t i) { return at(static_cast<std::size_t>(first + i)); };
    return Matrix<T>{part(0), part(1), part(2), part(3)};
  };
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t first = ExpertMlp::kFixed + e * ExpertMlp::kOfExpert;
    all.push_back({matrix(first), matrix(first + 4), matrix(first + 8)});
  }
  return all;
}

}  // namespace

void ExpertMlp::require_operands(const Spec& base, const Spec& x, const Spec& weights, const Spec& experts, Mlps mlps) {
  require(!mlps.empty() && std::ssize(mlps) <= kMostExperts, name, "expected 1 to {} experts, got {}", kMostExperts,
          mlps.size());
  const Spec hidden = matrix_spec(name, x, mlps[0].gate);
  for (const auto& m : mlps) {
    require_spec(name, "gate", matrix_spec(name, x, m.gate), hidden);
    require_spec(name, "up", matrix_spec(name, x, m.up), hidden);
    require_spec(name, "down", matrix_spec(name, hidden, m.down), x);
  }
  if (base) require_spec(name, "base", base, x);
  require(weights.dtype == DType::f32 && weights[-1] > 0 && weights.size() / weights[-1] == rows_of(x), name,
          "weights must be F32 of {} rows, got {}", rows_of(x), to_string(weights));
  require_spec(name, "experts", experts, {weights.shape, DType::i32});
}

ExpertMlp::Scratch ExpertMlp::scratch(const Spec& x, const Spec& experts, Mlps mlps) {
  const auto rows = rows_of(x), count = experts[-1], K = x[-1], N = matrix_spec(name, x, mlps[0].gate)[-1];
  std::int64_t groups = 0;
  for (const auto& m : mlps)
    for (const auto* matrix : {&m.gate, &m.up, &m.down})
      if (matrix->quantized()) groups = std::max(groups, matrix->scale[1]);
  return {.rows = {{rows * count, K}, x.dtype},
          .hidden = {{rows * std::max<std::int64_t>(2, count), N}, x.dtype},
          .values = {{groups > 0 ? rows : 0, std::max(K, N)}, DType::i8},
          .groups = {{2, groups > 0 ? rows : 0, groups}, DType::f32},
          .places = {{std::ssize(mlps), 1 + rows * count}, DType::i32}};
}

Cost ExpertMlp::cost(const Spec& x, const Spec& experts, Mlps mlps) {
  Spec chosen = x;  // the rows of all choices
  chosen.shape = {rows_of(x) * experts[-1], x[-1]};
  const auto& m = mlps[0];
  Cost c = matrix_cost(chosen, m.gate);
  c += matrix_cost(chosen, m.up);
  c += matrix_cost(matrix_spec(name, chosen, m.gate), m.down);
  const double share = std::min(1.0, static_cast<double>(chosen.shape[0]) / static_cast<double>(mlps.size()));
  for (const auto& of : mlps)
    for (const auto* matrix : {&of.gate, &of.up, &of.down})
      for (const Spec* part : {&matrix->w, &matrix->scale, &matrix->offset, &matrix->bias})
        if (*part) c.reads -= (1 - share) * static_cast<double>(part->bytes());
  const auto s = scratch(x, experts, mlps);
  for (const Spec* spec : {&s.rows, &s.hidden, &s.values, &s.groups, &s.places})
    c.writes -= static_cast<double>(spec->bytes());
  return c;
}

void ExpertMlp::run(Stream& s, const Grad* o, const void* args) {
  const auto& a = *static_cast<const Args*>(args);
  const auto mlps = matrices<View>(a.experts, [&](std::size_t i) { return o[i] ? View(o[i]) : View(); });
  const Tensor& y = o[0];
  const View base = o[1] ? View(o[1]) : View(), x = o[2], weights = o[3], experts = o[4];
#if HPCDL_CUDA
  if (s.device().is_cuda()) return cuda::expert_mlp(s, y, base, x, weights, experts, mlps, o[5], o[6], o[9], a);
#endif
  const auto bytes = static_cast<std::size_t>(x.cols() * dtype_bytes(x.dtype()));
  for (std::int64_t r = 0; r < y.rows(); ++r) {
    if (base) std::memcpy(row_of(y, r), row_of(base, r), bytes);
    else std::memset(row_of(y, r), 0, bytes);
  }
  const OnCpu operands{y, x, weights, experts, o[5], o[6], o[7], o[8], a};
  for (int e = 0; e < a.experts; ++e) operands.add(s, mlps[static_cast<std::size_t>(e)], e);
}

void ExpertMlp::check_record(const RawRecord& r) {
  const auto& a = r.args<Args>();
  require(a.experts >= 1 && a.experts <= kMostExperts, name, "expected 1 to {} experts, got {}", kMostExperts,
          a.experts);
  require(a.gate == Swiglu::Gate::silu || a.gate == Swiglu::Gate::gelu_tanh, name, "the gate is unknown");
  r.require_count(kFixed + std::int64_t{a.experts} * kOfExpert);
  const auto mlps = matrices<Spec>(a.experts, [&](std::size_t i) { return r.spec(i); });
  const Spec x = r.spec(2), experts = r.spec(4);
  require_spec(name, "y", r.spec(0), x);
  require_operands(r.spec(1), x, r.contiguous(3), r.contiguous(4), mlps);
  const auto s = scratch(x, experts, mlps);
  std::size_t at = 5;
  for (const Spec& spec : {s.rows, s.hidden, s.values, s.groups, s.places})
    require_spec(name, "scratch", r.contiguous(at++), spec);
}

}  // namespace hpcdl
