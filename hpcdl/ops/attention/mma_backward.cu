#include "hpcdl/ops/attention/mma_backward.cuh"
#include "hpcdl/ops/attention/mma_host.cuh"

namespace hpcdl::cuda {
namespace {

using namespace mma;

/// f.template operator()<shape of the kernel of dq, of that of dk and dv>() for the kind of product and width of the
/// call. H200, 4 x 12 x 1024 x 64 f32 causal, us: dk and dv with 64 queries at a time 243, 32 283.
template <class F> void with_shapes(const Stream& s, const AttendBackward& c, F&& f) {
  with_kind(s, c, [&]<class Kind>() {
    using Narrow = BackwardMma<Kind, 64, 1, 32, 2, 3>;
    using Wide = BackwardMma<Kind, 128, 1, 32, kF32<Kind> ? 1 : 2, 2>;
    if constexpr (kF32<Kind>) {
      using Wider = BackwardMma<Kind, 192, 1, 16, 1, 1>;
      using Widest = BackwardMma<Kind, 256, 1, 16, 1, 1>;
      if (c.width() > 192) return f.template operator()<Widest, Widest>();
      if (c.width() > 128) return f.template operator()<Wider, Wider>();
    } else {
      using Wider = BackwardMma<Kind, 192, 1, 32, 1, 2>;
      using Widest = BackwardMma<Kind, 256, 1, 32, 1, 2>;
      if (c.width() > 192) return f.template operator()<Widest, Widest>();
      if (c.width() > 128) return f.template operator()<Wider, Wider>();
    }
    if (c.width() > 64) return f.template operator()<Wide, Wide>();
    if constexpr (kF32<Kind>) {
      using Long = BackwardMma<Kind, 64, 1, 64, 2, 2>;
      if (has_room(s, Long::kBytes)) return f.template operator()<Narrow, Long>();
    }
    f.template operator()<Narrow, Narrow>();
  });
}

}  // namespace

bool mma_fits(const Stream& s, const AttendBackward& c) {
  if (!mma_fits(s, static_cast<const Attend&>(c))) return false;
  bool fits = false;
  with_shapes(s, c, [&]<class Query, class Key>() { fits = has_room(s, std::max(Query::kBytes, Key::kBytes)); });
  return fits;
}

namespace {

void backward_part(Stream& s, const AttendBackward& c, const RowStatistics& rows) {
  const int heads = c.args.heads, kv_heads = c.kv_heads();
  with_shapes(s, c, [&]<class Query, class Key>() {
    auto p = mma_problem(s, c, c.q[1], heads, Query::kRows);
    p.rows = rows;
    if (c.dq)
      with_documents(c, p, [&]<class Problem>(const Problem& of) {
        start<Query>(s, attention_query_gradient_mma<Query, Problem>, of, heads, "attention_backward");
      });
    if (!c.dk && !c.dv) return;
    p = mma_problem(s, c, c.k[1], kv_heads, Key::kRows);
    p.rows = rows;
    with_documents(c, p, [&]<class Problem>(const Problem& of) {
      const auto sum = [&](auto* kernel) { start<Key>(s, kernel, of, kv_heads, "attention_backward"); };
      if constexpr (Key::kWidth > 128) {
        if (c.dk) sum(attention_key_gradient_mma<Key, Problem, KeyGradients::keys>);
        if (c.dv) sum(attention_key_gradient_mma<Key, Problem, KeyGradients::values>);
      } else {
        sum(attention_key_gradient_mma<Key, Problem>);
      }
    });
  });
}

}  // namespace

void attend_backward_mma(Stream& s, const AttendBackward& c) {
  with_statistics(s, c, true,
                  [&](const AttendBackward& part, const RowStatistics& rows) { backward_part(s, part, rows); });
}

}  // namespace hpcdl::cuda
