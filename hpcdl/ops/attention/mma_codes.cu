#include "hpcdl/ops/attention/mma_forward.cuh"
#include "hpcdl/ops/attention/mma_host.cuh"

// Prompts over pools of codes: tiles in shared memory hold the codes as 16-bit floats, which is exact; scores are
// multiplied by the scales of keys, weights by those of values.

namespace hpcdl::cuda::mma {
namespace {

struct CodesInPages : InPages<MmaProblem> {
  static constexpr bool kCodes = true;
  using InPages::InPages;
};

/// With the scales of each stage behind its tiles.
template <class Kind, int kWidth, int kM, int kKeys> struct CodesMma : ForwardMma<Kind, kWidth, kM, kKeys, 2> {
  using Base = ForwardMma<Kind, kWidth, kM, kKeys, 2>;
  static constexpr int kBytes = Base::kBytes + Base::kStages * 2 * kKeys * static_cast<int>(sizeof(float));
};

template <class F> void with_shape(const PagedAttend& c, F&& f) {
  const auto width = c.packed().width();
  const auto of = [&]<class T>() {
    using Kind = Bits16<T>;
    if (width <= 64) f.template operator()<CodesMma<Kind, 64, 2, 64>>();
    else if (width <= 128) f.template operator()<CodesMma<Kind, 128, 1, 64>>();
    else if (width <= 192) f.template operator()<CodesMma<Kind, 192, 1, 32>>();
    else f.template operator()<CodesMma<Kind, 256, 1, 32>>();
  };
  if (c.q.dtype() == DType::bf16) of.template operator()<bf16>();
  else of.template operator()<f16>();
}

bool whole_pieces(const View& pool, const View& pages) { return PagedHeads(pool, pages).whole_pieces(); }

}  // namespace

bool codes_fit(const Stream& s, const PagedAttend& c) {
  const auto one = c.packed();
  if (!has_scales(c.k.dtype()) || (c.q.dtype() != DType::bf16 && c.q.dtype() != DType::f16)) return false;
  if (one.width() % 16 != 0 || one.width() > 256 || one.scale() < 0 || c.lengths[0] * c.args.heads > 1 << 20 ||
      c.pages[1] > 1 << 18 || !whole_pieces(c.k, c.pages) || !whole_pieces(c.v, c.pages))
    return false;
  bool fits = false;
  with_shape(c, [&]<class Shape>() { fits = has_room(s, Shape::kBytes); });
  return fits;
}

void attend_codes(Stream& s, const PagedAttend& c) {
  const auto one = c.packed();
  with_shape(c, [&]<class Shape>() {
    static_assert(kPageTokens % Shape::kKeys == 0);
    CodesInPages p(mma_problem(s, one, c.most_queries(), c.args.heads, Shape::kRows), c);
    p.copies = plain_pieces(p.q, c.q.dtype()), p.vectors = plain_pieces(p.out, c.q.dtype());
    p.section = section_of(s, p.tiles, std::int64_t{p.batch} * p.heads);
    start<Shape>(s, attention_forward_mma<Shape, CodesInPages>, p, p.heads, "paged_attention");
  });
}

}  // namespace hpcdl::cuda::mma
