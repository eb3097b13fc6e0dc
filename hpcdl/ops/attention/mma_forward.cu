#include "hpcdl/ops/attention/mma_forward.cuh"
#include "hpcdl/ops/attention/mma_host.cuh"

namespace hpcdl::cuda {
namespace {

using namespace mma;

/// f.template operator()<Shape>() for the kind of product and width of the call. H200, 4 x 12 x 1024 x 64 f32, us (kM x
/// keys): 2 x 64 218, 2 x 32 225, 1 x 64 254.
template <class F> void with_shape(const Stream& s, const Attend& c, F&& f) {
  with_kind(s, c, [&]<class Kind>() {
    using Narrow = ForwardMma<Kind, 64, 2, 64, 2>;
    if constexpr (kF32<Kind>) {
      if (c.width() > 192) return f.template operator()<ForwardMma<Kind, 256, 1, 16, 2, 1>>();
      // One stage of 32 keys spills registers if operands have two parts. H200, 1 x 14 x 2040 x 184, us (two of 16 | one
      // of 32): exact 1111 | 1132, TF32 576 | 482; the kernel for 256 in two stages takes 2381.
      constexpr bool kLong = std::is_same_v<Kind, Tf32>;
      if (c.width() > 128) return f.template operator()<ForwardMma<Kind, 192, 1, kLong ? 32 : 16, 2, kLong ? 1 : 2>>();
    } else {
      if (c.width() > 192) return f.template operator()<ForwardMma<Kind, 256, 1, 32, 2>>();
      if (c.width() > 128) return f.template operator()<ForwardMma<Kind, 192, 1, 32, 2>>();
    }
    if (c.width() > 64) return f.template operator()<ForwardMma<Kind, 128, 1, kF32<Kind> ? 32 : 64, 2>>();
    if constexpr (kF32<Kind>)
      if (!has_room(s, Narrow::kBytes)) return f.template operator()<ForwardMma<Kind, 64, 2, 32, 2>>();
    f.template operator()<Narrow>();
  });
}

}  // namespace

bool mma_fits(const Stream& s, const Attend& c) {
  if (c.q[1] == 1 || c.width() > 256 || c.scale() < 0 || c.q[0] * c.args.heads > 1 << 20 || c.q[1] > 1 << 24 ||
      c.k[1] > 1 << 24)
    return false;
  bool fits = false;
  with_shape(s, c, [&]<class Shape>() { fits = has_room(s, Shape::kBytes); });
  return fits;
}

void attend_mma(Stream& s, const Attend& c) {
  with_shape(s, c, [&]<class Shape>() {
    with_documents(c, mma_problem(s, c, c.q[1], c.args.heads, Shape::kRows), [&]<class Problem>(const Problem& p) {
      start<Shape>(s, attention_forward_mma<Shape, Problem>, p, p.heads, "attention");
    });
  });
}

bool mma_fits(const Stream& s, const PagedAttend& c) {
  if (codes_fit(s, c)) return true;
  const auto one = c.packed();
  if (one.scale() < 0 || c.lengths[0] * c.args.heads > 1 << 20 || c.pages[1] > 1 << 18) return false;
  bool fits = false;
  with_shape(s, one, [&]<class Shape>() { fits = has_room(s, Shape::kBytes); });
  return fits;
}

void attend_mma(Stream& s, const PagedAttend& c) {
  if (codes_fit(s, c)) return attend_codes(s, c);
  using Problem = InPages<MmaProblem>;
  const auto one = c.packed();
  with_shape(s, one, [&]<class Shape>() {
    static_assert(kPageTokens % Shape::kKeys == 0);
    Problem p(mma_problem(s, one, c.most_queries(), c.args.heads, Shape::kRows), c);
    p.section = section_of(s, p.tiles, std::int64_t{p.batch} * p.heads);
    start<Shape>(s, attention_forward_mma<Shape, Problem>, p, p.heads, "paged_attention");
  });
}

bool mma_fits(const Stream& s, const PackedAttend& c) {
  const auto one = c.whole();
  if (one.scale() < 0 || c.sequences() * c.args.heads > 1 << 20 || c.q[1] > 1 << 24) return false;
  bool fits = false;
  with_shape(s, one, [&]<class Shape>() { fits = has_room(s, Shape::kBytes); });
  return fits;
}

void attend_mma(Stream& s, const PackedAttend& c) {
  using Problem = InRows<MmaProblem>;
  const auto one = c.whole();
  with_shape(s, one, [&]<class Shape>() {
    Problem p(mma_problem(s, one, c.longest(), c.args.heads, Shape::kRows), c);
    p.section = section_of(s, p.tiles, std::int64_t{p.batch} * p.heads);
    start<Shape>(s, attention_forward_mma<Shape, Problem>, p, p.heads, "packed_attention");
  });
}

}  // namespace hpcdl::cuda
