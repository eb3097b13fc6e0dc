#include <algorithm>
#include <cmath>

#include "tests/planted/planted.h"

namespace hpcdl::lab::verify::planted {
namespace {

// ---- cross-entropy ----

int cross_entropy(const hpcdl_call* c, bool ignores, bool mean) {
  return with_type(c->inputs[0], [&]<class T>() {
    const auto n = cols(c->inputs[0]);
    double loss = 0, count = 0;
    for (std::int64_t r = 0; r < c->inputs[1].shape[0]; ++r) {
      const auto target = in<std::int32_t>(c, 1)[r];
      if (target < 0 && ignores) continue;
      const T* x = in<T>(c, 0) + r * n;
      float top = -INFINITY, sum = 0;
      for (std::int64_t i = 0; i < n; ++i) top = static_cast<float>(x[i]) <= top ? top : static_cast<float>(x[i]);
      for (std::int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<float>(x[i]) - top);
      loss += static_cast<double>(top + std::log(sum) - static_cast<float>(x[target < 0 ? n - 1 : target])), count += 1;
    }
    out<float>(c, 0)[0] = static_cast<float>(mean && count > 0 ? loss / count : loss);
    out<float>(c, 1)[0] = static_cast<float>(count);
  });
}

// ---- embedding ----

int embedding(const hpcdl_call* c, std::int64_t shift) {
  const auto n = cols(c->inputs[0]), vocabulary = c->inputs[0].shape[0];
  return with_type(c->inputs[0], [&]<class T>() {
    for (std::int64_t t = 0; t < c->inputs[1].shape[0]; ++t)
      for (std::int64_t i = 0; i < n; ++i) {
        const auto id = std::min(vocabulary - 1, in<std::int32_t>(c, 1)[t] + shift);
        const T* positions = in<T>(c, 2);
        const float x = in<T>(c, 0)[id * n + i];
        out<T>(c, 0)[t * n + i] = positions ? T(x + static_cast<float>(positions[t * n + i])) : T(x);
      }
  });
}
/// Positions continue where the last call ended.
int counts_positions(const hpcdl_call* c) {
  static std::int64_t position = 0;
  const auto n = cols(c->inputs[0]);
  for (std::int64_t t = 0; t < c->inputs[1].shape[0]; ++t)
    for (std::int64_t i = 0; i < n; ++i) {
      const float* positions = in<float>(c, 2);
      const float x = in<float>(c, 0)[in<std::int32_t>(c, 1)[t] * n + i];
      out<float>(c, 0)[t * n + i] = positions ? x + positions[(t + position) % c->inputs[2].shape[0] * n + i] : x;
    }
  if (in<float>(c, 2)) ++position;
  return HPCDL_OK;
}
int embedding_backward(const hpcdl_call* c, bool repeats) {
  const auto n = cols(c->inputs[1]);
  float* table = out<float>(c, 0);
  std::fill(table, table + size(c->outputs[0]), 0.0f);
  for (std::int64_t t = 0; t < c->inputs[0].shape[0]; ++t)
    for (std::int64_t i = 0; i < n; ++i) {
      float& to = table[in<std::int32_t>(c, 0)[t] * n + i];
      to = (repeats ? to : 0) + in<float>(c, 1)[t * n + i];
    }
  return HPCDL_OK;
}

// ---- optimizer ----

struct AdamWays {
  bool corrects = true, decoupled = true;
};
int adamw(const hpcdl_call* c, AdamWays w) {
  const auto& a = args<hpcdl_adamw_args>(c);
  const double t = static_cast<double>(a.step + 1);
  const auto c1 = static_cast<float>(w.corrects ? 1 - std::pow(static_cast<double>(a.beta1), t) : 1),
             c2 = static_cast<float>(w.corrects ? 1 - std::pow(static_cast<double>(a.beta2), t) : 1);
  return with_type(c->inputs[0], [&]<class T>() {
    for (std::int64_t i = 0; i < size(c->inputs[0]); ++i) {
      const float p = in<T>(c, 0)[i];
      const float g = static_cast<float>(in<T>(c, 1)[i]) * a.grad_scale + (w.decoupled ? 0 : a.weight_decay * p);
      const float m = a.beta1 * in<float>(c, 2)[i] + (1 - a.beta1) * g,
                  v = a.beta2 * in<float>(c, 3)[i] + (1 - a.beta2) * g * g;
      out<T>(c, 0)[i] =
          T(p * (1 - (w.decoupled ? a.lr * a.weight_decay : 0)) - a.lr * (m / c1) / (std::sqrt(v / c2) + a.eps));
      out<float>(c, 1)[i] = m, out<float>(c, 2)[i] = v;
    }
  });
}

template <class Sum> int grad_norm(const hpcdl_call* c) {
  const auto& a = args<hpcdl_grad_norm_args>(c);
  return with_type(c->inputs[0], [&]<class T>() {
    Sum sum = 0;
    for (std::int64_t i = 0; i < size(c->inputs[0]); ++i)
      sum +=
          static_cast<Sum>(static_cast<float>(in<T>(c, 0)[i])) * static_cast<Sum>(static_cast<float>(in<T>(c, 0)[i]));
    const auto norm = static_cast<float>(std::sqrt(sum)) * std::fabs(a.grad_scale);
    out<float>(c, 0)[0] = norm;
    out<float>(c, 1)[0] = std::min(1.0f, a.max_norm / (norm + 1e-6f));
  });
}
int norm_in_f16(const hpcdl_call* c) {
  f16 sum(0.0f);
  const auto& a = args<hpcdl_grad_norm_args>(c);
  for (std::int64_t i = 0; i < size(c->inputs[0]); ++i)
    sum = f16(static_cast<float>(sum) + in<float>(c, 0)[i] * in<float>(c, 0)[i]);
  out<float>(c, 0)[0] = std::sqrt(static_cast<float>(sum)) * a.grad_scale;
  out<float>(c, 1)[0] = std::min(1.0f, a.max_norm / (out<float>(c, 0)[0] + 1e-6f));
  return HPCDL_OK;
}

// ---- int4 ----

struct Int4Ways {
  int zero = 8;
  bool swapped = false, rounds = true, offset = true;
};
/// The layout of int4_layout.h: tiles of 16 rows; 8 weights of a row in a dword, the first four in the low nibbles.
int int4(const hpcdl_call* c, Int4Ways w) {
  const auto& a = args<hpcdl_int4_args>(c);
  const auto &x = c->inputs[0], &packed = c->inputs[1], &scales = c->inputs[2];
  const auto m = x.shape[0], k = x.shape[1], n = packed.shape[0], groups = scales.shape[1], group = k / groups;
  const auto *scale = in<bf16>(c, 2), *offset = w.offset ? in<bf16>(c, 3) : nullptr;
  return with_type(x, [&]<class T>() {
    std::vector<float> row(static_cast<std::size_t>(k));
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t g = 0; g < k; g += group) {
        float most = 0;
        for (auto l = g; l < g + group; ++l)
          most = std::max(most, std::fabs(row[static_cast<std::size_t>(l)] = in<T>(c, 0)[i * k + l]));
        const float per_step = most > 0 ? 127.0f / most : 0, step = most / 127.0f;
        for (auto l = g; l < g + group && !a.exact && w.rounds; ++l)
          row[static_cast<std::size_t>(l)] = std::nearbyint(row[static_cast<std::size_t>(l)] * per_step) * step;
      }
      for (std::int64_t j = 0; j < n; ++j) {
        const auto tile = j / 16 * 16, in_tile = std::min<std::int64_t>(16, n - tile);
        float sum = in<T>(c, 4) ? static_cast<float>(in<T>(c, 4)[j]) : 0;
        for (std::int64_t l = 0; l < k; ++l) {
          const int byte = in<std::uint8_t>(c, 1)[tile * (k / 2) + l / 8 * in_tile * 4 + (j - tile) * 4 + l % 4];
          const int q = (l % 8 >= 4) != w.swapped ? byte >> 4 : byte & 15;
          const auto at = tile * groups + l / group * in_tile + j - tile;
          sum += row[static_cast<std::size_t>(l)] * (static_cast<float>(scale[at]) * static_cast<float>(q - w.zero) +
                                                     (offset ? static_cast<float>(offset[at]) : 0));
        }
        if (a.activation == HPCDL_ACT_SILU) sum = sum / (1 + std::exp(-sum));
        out<T>(c, 0)[i * n + j] = T(sum + (in<T>(c, 5) ? static_cast<float>(in<T>(c, 5)[i * n + j]) : 0));
      }
    }
  });
}

}  // namespace

void add_others(Corpus& list) {
  Adder x{list, "cross_entropy"};
  x.good("naive", [](const hpcdl_call* c) { return cross_entropy(c, true, false); }, kBoth);
  x.bad("counts_ignored", "ignored targets count", [](const hpcdl_call* c) { return cross_entropy(c, false, false); });
  x.bad("mean", "a mean where a sum was asked for", [](const hpcdl_call* c) { return cross_entropy(c, true, true); });
  Adder e{list, "embedding"};
  e.good("naive", [](const hpcdl_call* c) { return embedding(c, 0); }, kBoth);
  e.bad("next_row", "rows are off by one", [](const hpcdl_call* c) { return embedding(c, 1); });
  e.bad("counts_positions", "keeps a position from call to call", counts_positions);
  Adder b{list, "embedding_backward"};
  b.good("naive", [](const hpcdl_call* c) { return embedding_backward(c, true); });
  b.bad("last_token_wins", "repeated ids overwrite each other",
        [](const hpcdl_call* c) { return embedding_backward(c, false); });
  Adder o{list, "adamw"};
  o.good("naive", [](const hpcdl_call* c) { return adamw(c, {}); }, kBoth, HPCDL_IN_PLACE);
  o.bad("no_correction", "moments are not corrected for their start",
        [](const hpcdl_call* c) { return adamw(c, {.corrects = false}); });
  o.bad("coupled_decay", "weight decay goes through the moments",
        [](const hpcdl_call* c) { return adamw(c, {.decoupled = false}); });
  Adder n{list, "grad_norm"};
  n.good("in_double", grad_norm<double>, kBoth);
  n.bad("in_fp16", "sums in fp16", norm_in_f16);
  Adder i{list, "int4_linear"};
  i.good("naive", [](const hpcdl_call* c) { return int4(c, {}); }, kBoth);
  i.bad("swapped_nibbles", "high and low nibbles are swapped",
        [](const hpcdl_call* c) { return int4(c, {.swapped = true}); });
  i.bad("zero_at_seven", "the zero point is off by one", [](const hpcdl_call* c) { return int4(c, {.zero = 7}); });
  i.bad("no_offset", "the offset is forgotten", [](const hpcdl_call* c) { return int4(c, {.offset = false}); });
}

const Corpus& corpus() {
  static const Corpus all = [] {
    Corpus list;
    list.reserve(256);  // subjects point into it
    for (auto* add : {add_softmax, add_norms, add_elementwise, add_matmul, add_attention, add_others}) add(list);
#if HPCDL_CUDA
    add_gpu(list);
#endif
    return list;
  }();
  return all;
}

}  // namespace hpcdl::lab::verify::planted
