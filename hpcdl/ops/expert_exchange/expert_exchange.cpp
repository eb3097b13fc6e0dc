#include "hpcdl/ops/expert_exchange/expert_exchange.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/row_at.h"
#include "hpcdl/ops/rows.h"
#include "hpcdl/program/check.h"

namespace hpcdl {
namespace {

std::int64_t token_count(const Spec& x) { return x[-1] > 0 ? x.size() / x[-1] : 0; }

/// c of ExpertDispatch.
std::int64_t choices_of_rank(std::int64_t count, const ExpertDispatch::Args& a) {
  return std::min(count, a.experts / a.ranks);
}

std::byte* row_memory(const View& v, std::int64_t r) {
  return const_cast<std::byte*>(v.ptr<std::byte>()) + r * v.row_stride() * dtype_bytes(v.dtype());
}

std::size_t bytes_in_row(const View& v) { return static_cast<std::size_t>(v.cols() * dtype_bytes(v.dtype())); }

/// Writes which row of each part every token has, and which token each row has (-1: none).
std::vector<std::int32_t> assign_places(const Tensor& places, const View& experts, const ExpertDispatch::Args& a) {
  const auto tokens = token_count(experts.spec()), of_rank = a.experts / a.ranks;
  std::vector<std::int32_t> token_of(static_cast<std::size_t>(a.ranks * a.room), -1);
  std::vector<std::int64_t> used(static_cast<std::size_t>(a.ranks));
  for (std::int64_t n = 0; n < tokens; ++n) {
    auto* place = places.ptr<std::int32_t>() + n * a.ranks;
    std::fill_n(place, a.ranks, ExpertDispatch::kElsewhere);
    const auto* chosen = row_at<std::int32_t>(experts, n);
    for (std::int64_t i = 0; i < experts.cols(); ++i) {
      const auto r = chosen[i] / of_rank;
      if (place[r] != ExpertDispatch::kElsewhere) continue;
      auto& next = used[static_cast<std::size_t>(r)];
      if (next == a.room) {
        place[r] = ExpertDispatch::kDropped;
        continue;
      }
      token_of[static_cast<std::size_t>(r * a.room + next)] = static_cast<std::int32_t>(n);
      place[r] = static_cast<std::int32_t>(next++);
    }
  }
  return token_of;
}

/// f(which of the token's choices, which of those that belong to rank r).
template <class F>
void for_choices(const std::int32_t* chosen, std::int64_t count, std::int64_t r, std::int64_t of_rank, F&& f) {
  std::int64_t mine = 0;
  for (std::int64_t i = 0; i < count && mine < of_rank; ++i)
    if (chosen[i] / of_rank == r) f(i, mine++);
}

/// to = first + the token's rows in the parts; first may be null. `rows` is memory for pointers.
template <class T>
void add_rows(T* to, const T* first, const View& parts, const std::int32_t* places, std::vector<const T*>& rows) {
  const auto ranks = parts.shape()[0], room = parts.shape()[1], width = parts.cols();
  rows.clear();
  for (std::int64_t r = 0; r < ranks; ++r)
    if (places[r] >= 0) rows.push_back(parts.ptr<T>() + (r * room + places[r]) * width);
  for (std::int64_t k = 0; k < width; ++k) {
    float sum = first ? static_cast<float>(first[k]) : 0;
    for (const T* from : rows) sum += static_cast<float>(from[k]);
    to[k] = T(sum);
  }
}

}  // namespace

std::array<Spec, 4> ExpertDispatch::infer(const Spec& x, const Spec& weights, const Spec& experts, const Args& a) {
  require(is_float(x.dtype) && x.shape.rank() >= 1, name, "x must be floats (..., K), got {}", to_string(x));
  require(a.valid() && a.experts % a.ranks == 0, name, "{} ranks cannot divide {} experts with room for {} tokens",
          a.ranks, a.experts, a.room);
  require(weights.dtype == DType::f32 && weights.shape.rank() >= 1 && weights[-1] >= 1 && weights[-1] <= a.experts &&
              token_count(weights) == token_count(x),
          name, "weights must be F32 with at most {} for each of {} tokens, got {}", a.experts, token_count(x),
          to_string(weights));
  require_spec(name, "experts", experts, {weights.shape, DType::i32});
  const Shape chosen{a.ranks, a.room, choices_of_rank(weights[-1], a)};
  Shape places = weights.shape;
  places[-1] = a.ranks;
  return {Spec{{a.ranks, a.room, x[-1]}, x.dtype}, Spec{chosen, DType::f32}, Spec{chosen, DType::i32},
          Spec{places, DType::i32}};
}

void ExpertDispatch::forward(Stream& s, Tensor rows, Tensor row_weights, Tensor row_experts, Tensor places, View x,
                             View weights, View experts, const Args& a) {
#if HPCDL_CUDA
  if (s.device().is_cuda())
    return cuda::expert_dispatch(s, rows, row_weights, row_experts, places, x, weights, experts, a);
#endif
  const auto token_of = assign_places(places, experts, a);
  const auto of_rank = a.experts / a.ranks, width = row_weights.cols();
  for_rows(s.pool(), a.ranks * a.room, rows.cols(), [&](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) {
      const std::int64_t n = token_of[static_cast<std::size_t>(i)];
      auto* weight = row_weights.ptr<float>() + i * width;
      auto* expert = row_experts.ptr<std::int32_t>() + i * width;
      std::fill_n(weight, width, 0.0f), std::fill_n(expert, width, -1);
      if (n < 0) {
        std::memset(row_memory(rows, i), 0, bytes_in_row(rows));
        continue;
      }
      std::memcpy(row_memory(rows, i), row_memory(x, n), bytes_in_row(x));
      const auto* chosen = row_at<std::int32_t>(experts, n);
      for_choices(chosen, experts.cols(), i / a.room, of_rank, [&](std::int64_t choice, std::int64_t mine) {
        weight[mine] = row_at<float>(weights, n)[choice];
        expert[mine] = static_cast<std::int32_t>(chosen[choice] % of_rank);
      });
    }
  });
}

void ExpertDispatch::backward(Stream& s, Grad dx, Grad dweights, View experts, View places, View drows,
                              View drow_weights, const Args& a) {
#if HPCDL_CUDA
  if (s.device().is_cuda())
    return cuda::expert_dispatch_backward(s, dx, dweights, experts, places, drows, drow_weights, a);
#endif
  const auto tokens = token_count(experts.spec()), count = experts.cols(), of_rank = a.experts / a.ranks;
  if (dx)
    visit_dtype(dx.dtype(), [&]<class T>() {
      for_rows(s.pool(), tokens, dx.cols(), [&](std::int64_t begin, std::int64_t end) {
        std::vector<const T*> from;
        for (auto n = begin; n < end; ++n) {
          T* to = row_at<T>(dx, n);
          add_rows(to, dx.accumulate() ? to : nullptr, drows, places.ptr<std::int32_t>() + n * a.ranks, from);
        }
      });
    });
  if (!dweights) return;
  for (std::int64_t n = 0; n < tokens; ++n) {
    float* to = row_at<float>(dweights, n);
    if (!dweights.accumulate()) std::fill_n(to, count, 0.0f);
    for (std::int64_t r = 0; drow_weights && r < a.ranks; ++r) {
      const auto at = places.ptr<std::int32_t>()[n * a.ranks + r];
      if (at < 0) continue;
      const auto* from = drow_weights.ptr<float>() + (r * a.room + at) * drow_weights.cols();
      for_choices(row_at<std::int32_t>(experts, n), count, r, of_rank,
                  [&](std::int64_t choice, std::int64_t mine) { to[choice] += from[mine]; });
    }
  }
}

Spec ExpertCombine::infer(const Spec& base, const Spec& parts, const Spec& places, const Args&) {
  require(is_float(base.dtype) && base.shape.rank() >= 1, name, "base must be floats (..., K), got {}",
          to_string(base));
  require(parts.dtype == base.dtype && parts.shape.rank() == 3 && parts[-1] == base[-1], name,
          "parts must be {} (ranks, room, {}), got {}", dtype_name(base.dtype), base[-1], to_string(parts));
  require(places.dtype == DType::i32 && places.shape.rank() >= 1 && places[-1] == parts[0] &&
              token_count(places) == token_count(base),
          name, "places must be I32 with {} for each of {} tokens, got {}", parts[0], token_count(base),
          to_string(places));
  return base;
}

void ExpertCombine::forward(Stream& s, Tensor y, View base, View parts, View places, const Args& a) {
#if HPCDL_CUDA
  if (s.device().is_cuda()) return cuda::expert_combine(s, y, a.addend ? View() : base, parts, places);
#endif
  visit_dtype(y.dtype(), [&]<class T>() {
    for_rows(s.pool(), token_count(y.spec()), y.cols(), [&](std::int64_t begin, std::int64_t end) {
      std::vector<const T*> from;
      for (auto n = begin; n < end; ++n)
        add_rows(row_at<T>(y, n), a.addend ? nullptr : row_at<T>(base, n), parts,
                 places.ptr<std::int32_t>() + n * places.cols(), from);
    });
  });
}

void ExpertCombine::backward(Stream& s, Grad dbase, Grad dparts, View places, View dy, const Args&) {
  if (dbase) Add::backward(s, dbase, {}, dy, {});
  if (!dparts) return;
#if HPCDL_CUDA
  if (s.device().is_cuda()) return cuda::expert_combine_backward(s, dparts, places, dy);
#endif
  const auto ranks = places.cols(), room = dparts.shape()[1], width = dparts.cols();
  if (!dparts.accumulate()) std::memset(dparts.data(), 0, static_cast<std::size_t>(dparts.bytes()));
  visit_dtype(dy.dtype(), [&]<class T>() {
    for_rows(s.pool(), token_count(dy.spec()), width, [&](std::int64_t begin, std::int64_t end) {
      for (auto n = begin; n < end; ++n)
        for (std::int64_t r = 0; r < ranks; ++r) {
          const auto at = places.ptr<std::int32_t>()[n * ranks + r];
          if (at < 0) continue;
          T* to = dparts.ptr<T>() + (r * room + at) * width;
          for (std::int64_t k = 0; k < width; ++k)
            to[k] = T(static_cast<float>(to[k]) + static_cast<float>(row_at<T>(dy, n)[k]));
        }
    });
  });
}

Spec ExpertDropped::infer(const Spec& places, const Spec& before, const Args&) {
  require(places.dtype == DType::i32, name, "places must be I32, got {}", to_string(places));
  if (before) require_spec(name, "the number of earlier layers", before, kSum);
  return kSum;
}

void ExpertDropped::forward([[maybe_unused]] Stream& s, Tensor sum, View places, View before, const Args&) {
#if HPCDL_CUDA
  if (s.device().is_cuda()) return cuda::expert_dropped(s, sum, places, before);
#endif
  const auto* at = places.ptr<std::int32_t>();
  const auto count = std::count(at, at + places.size(), ExpertDispatch::kDropped);
  *sum.ptr<float>() = (before ? *before.ptr<float>() : 0) + static_cast<float>(count);
}

void SkipIfDropped::check_record(const RawRecord& r) {
  r.require_count(1);
  require_spec(name, "the number of dropped tokens", r.contiguous(0), ExpertDropped::kSum);
}

void SkipIfDropped::run(Stream& s, const Grad* operands, const void*) {
#if HPCDL_CUDA
  if (s.device().is_cuda()) return cuda::skip_if_dropped(s, operands[0]);
#endif
  if (*operands[0].ptr<float>() > 0) s.params().skip = 1;
}

}  // namespace hpcdl
