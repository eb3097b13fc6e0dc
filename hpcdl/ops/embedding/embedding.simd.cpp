#include "hpcdl/ops/embedding/embedding.h"

#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/loop.h"

namespace hpcdl::cpu {
namespace {

/// Writes one output row. A null `row` is an id that does not exist.
template <class Isa, class Y, class T, class P> void copy_row(Y* y, const T* row, const P* add, std::int64_t n) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  if (!row) return loop<Isa>(n, [&](std::int64_t i, auto k) { store(y + i, V(__builtin_nanf("")), k); });
  if (!add) return loop<Isa>(n, [&](std::int64_t i, auto k) { store(y + i, load<V>(row + i, k), k); });
  loop<Isa>(n, [&](std::int64_t i, auto k) { store(y + i, load<V>(row + i, k) + load<V>(add + i, k), k); });
}

/// Tokens by id: order[starts[v] .. starts[v + 1]) are those of row v, ascending. Unknown ids are skipped.
void sort_tokens(std::int32_t* starts, std::int32_t* order, const std::int32_t* ids, std::int64_t tokens,
                 std::int64_t vocab) {
  const auto known = [&](std::int64_t t) { return ids[t] >= 0 && ids[t] < vocab; };
  for (std::int64_t v = 0; v <= vocab; ++v) starts[v] = 0;
  for (std::int64_t t = 0; t < tokens; ++t)
    if (known(t)) ++starts[ids[t] + 1];
  for (std::int64_t v = 0; v < vocab; ++v) starts[v + 1] += starts[v];
  // Filling from the end leaves in starts[v + 1] the start of row v; the loop after it shifts the entries.
  for (std::int64_t t = tokens; t-- > 0;)
    if (known(t)) order[--starts[ids[t] + 1]] = static_cast<std::int32_t>(t);
  std::int32_t end = 0;
  for (std::int64_t t = 0; t < tokens; ++t) end += known(t) ? 1 : 0;
  for (std::int64_t v = 0; v < vocab; ++v) starts[v] = starts[v + 1];
  starts[vocab] = end;
}

/// out (+)= sum of dy[token(j)] over j in [begin, end), in register-wide columns.
template <class Isa, class G, class Y, class F>
void sum_rows(G* out, bool accumulate, bool past_cache, const Y* dy, std::int64_t stride, std::int64_t n,
              std::int64_t begin, std::int64_t end, F&& token) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  if (begin == end && accumulate) return;
  loop<Isa>(n, [&](std::int64_t i, auto k) {
    V sum = accumulate ? load<V>(out + i, k) : V(0.0f);
    for (auto j = begin; j < end; ++j) sum = sum + load<V>(dy + token(j) * stride + i, k);
    if (past_cache) stream(out + i, sum, k);
    else store(out + i, sum, k);
  });
}

}  // namespace

template <class Isa> void embedding(Isa, Pool& pool, Tensor y, View table, View ids, View positions, View places) {
  const auto n = y.cols(), per = ids[-1], vocab = table[0];
  const auto* id = ids.ptr<std::int32_t>();
  visit_dtype(y.dtype(), [&]<class Y>() {
    visit_dtype(table.dtype(), [&]<class T>() {
      visit_dtype(positions ? positions.dtype() : DType::f32, [&]<class P>() {
        for_rows(pool, y.rows(), n, [&](std::int64_t begin, std::int64_t end) {
          for (auto t = begin; t < end; ++t) {
            const T* row = id[t] >= 0 && id[t] < vocab ? table.ptr<T>() + id[t] * table.row_stride() : nullptr;
            const P* add = nullptr;
            if (positions) {
              const std::int64_t p = places ? places.ptr<std::int32_t>()[t] : t % per;
              if (p >= 0 && p < positions[0]) add = positions.ptr<P>() + p * positions.row_stride();
              else row = nullptr;
            }
            copy_row<Isa>(y.ptr<Y>() + t * y.row_stride(), row, add, n);
          }
        });
      });
    });
  });
}

template <class Isa>
void embedding_backward(Isa, Pool& pool, Grad dtable, Grad dpositions, View ids, View dy, Tensor starts, Tensor order) {
  const auto n = dy.cols(), tokens = dy.rows(), per = ids[-1];
  const bool past_cache = dtable && !dtable.accumulate() && goes_past_cache(dtable);
  if (dtable)
    sort_tokens(starts.ptr<std::int32_t>(), order.ptr<std::int32_t>(), ids.ptr<std::int32_t>(), tokens, dtable[0]);
  visit_dtype(dy.dtype(), [&]<class Y>() {
    const Y* g = dy.ptr<Y>();
    const auto stride = dy.row_stride();
    if (dtable)
      visit_dtype(dtable.dtype(), [&]<class T>() {
        const auto *start = starts.ptr<std::int32_t>(), *token = order.ptr<std::int32_t>();
        for_rows(pool, dtable[0], n, [&](std::int64_t begin, std::int64_t end) {
          for (auto v = begin; v < end; ++v)
            sum_rows<Isa>(dtable.ptr<T>() + v * dtable.row_stride(), dtable.accumulate(), past_cache, g, stride, n,
                          start[v], start[v + 1], [&](std::int64_t j) { return token[j]; });
          if (past_cache) simd::stream_fence<Isa>();
        });
      });
    if (dpositions)
      visit_dtype(dpositions.dtype(), [&]<class P>() {
        for_rows(pool, dpositions[0], n, [&](std::int64_t begin, std::int64_t end) {
          for (auto p = begin; p < end; ++p) {
            sum_rows<Isa>(dpositions.ptr<P>() + p * dpositions.row_stride(), dpositions.accumulate(), false, g, stride,
                          n, 0, p < per ? tokens / per : 0,  // once per sequence
                          [&](std::int64_t j) { return j * per + p; });
          }
        });
      });
  });
}

template void embedding(simd::Isa, Pool&, Tensor, View, View, View, View);
template void embedding_backward(simd::Isa, Pool&, Grad, Grad, View, View, Tensor, Tensor);

}  // namespace hpcdl::cpu
