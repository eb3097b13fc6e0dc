#include "tools/cases.h"

#include <algorithm>
#include <span>

#include "hpcdl/core/error.h"
#include "hpcdl/rng.h"

namespace hpcdl::lab {
namespace {

/// The meaning of a number of a shape, which determines its distribution.
enum class Dim : unsigned char {
  rows,
  width,
  vocabulary,
  batch,
  heads,
  tokens,
  pages,
  head_width,
  images,
  side,
  channels
};

constexpr std::int64_t kRowCounts[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384},
                       kWidths[] = {256,  512,  768,  1024, 1280, 1536, 1600, 2048,  2304,
                                    2560, 3072, 4096, 5120, 5632, 6144, 8192, 11008, 14336},
                       kVocabularies[] = {1000, 10000, 32000, 32064, 50257, 50304, 100277, 128256, 151936},
                       kBatches[] = {1, 2, 4, 8, 16}, kHeads[] = {1, 2, 4, 6, 8, 12, 14, 16, 25, 32},
                       kTokens[] = {64, 128, 256, 512, 1024, 2048, 4096, 8192},
                       kPages[] = {1, 2, 4, 8, 16, 32, 64, 128},
                       kHeadWidths[] = {32, 40, 64, 72, 80, 96, 112, 128, 144, 160, 192, 256},
                       kImages[] = {1, 8, 16, 32, 64, 128, 256}, kSides[] = {4, 7, 8, 14, 16, 28, 32, 56, 112, 224},
                       kChannels[] = {3, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048};

std::span<const std::int64_t> of_models(Dim d) {
  switch (d) {
    case Dim::rows: return kRowCounts;
    case Dim::width: return kWidths;
    case Dim::vocabulary: return kVocabularies;
    case Dim::batch: return kBatches;
    case Dim::heads: return kHeads;
    case Dim::tokens: return kTokens;
    case Dim::pages: return kPages;
    case Dim::images: return kImages;
    case Dim::side: return kSides;
    case Dim::channels: return kChannels;
    default: return kHeadWidths;
  }
}

std::vector<Dim> dims_of(const CaseFamily& f) {
  if (f.dims == "RxC") return {Dim::rows, Dim::width};
  if (f.dims == "MxNxK") return {Dim::rows, Dim::width, Dim::width};
  if (f.dims == "TxV") return {Dim::rows, Dim::vocabulary};
  if (f.dims == "BxHxWxD") return {Dim::batch, Dim::heads, Dim::pages, Dim::head_width};
  if (f.dims == "BxHxTxD") return {Dim::batch, Dim::heads, Dim::tokens, Dim::head_width};
  if (f.dims == "NxSxIxO") return {Dim::images, Dim::side, Dim::channels, Dim::channels};
  return {};
}

/// Random numbers one after the other.
class Draw {
 public:
  Draw(std::uint64_t seed, const std::string& op) : rng_{seed, 0} {
    for (const char c : op) rng_.stream = rng_.stream * 131 + static_cast<unsigned char>(c);
  }
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(rng_.below(at_++, static_cast<std::uint64_t>(n)));
  }

  /// Half of the numbers are those of models; of the others, half lie next to one of them, and half anywhere up
  /// to the largest.
  std::int64_t dim(Dim d) {
    const auto list = of_models(d);
    const std::int64_t known = list[static_cast<std::size_t>(below(std::ssize(list)))], way = below(4);
    if (way < 2 || d == Dim::batch || d == Dim::heads) return known;
    constexpr std::int64_t kBeside[] = {-8, -1, 1, 3, 8};
    if (way == 2) return std::max<std::int64_t>(1, known + kBeside[below(std::ssize(kBeside))]);
    return 1 + below(list.back());
  }

 private:
  Rng rng_;
  std::uint64_t at_ = 0;
};

/// The work of an op at this shape: multiplications, or elements.
double work(const CaseFamily& f, const Shape& s) {
  double product = 1;
  for (int i = 0; i < s.rank(); ++i) product *= static_cast<double>(s[i]);
  if (f.dims == "NxSxIxO") return product * static_cast<double>(s[1]) * 9 / 512;
  if (f.dims == "BxHxWxD") return product * 64;  // tokens of a page
  return f.dims == "BxHxTxD" ? product * static_cast<double>(s[2]) / 64 : f.dims == "MxNxK" ? product / 512 : product;
}

/// Of images, which are large in the first layers; the operands of other ops are small next to their work.
double elements(const CaseFamily& f, const Shape& s) {
  return f.dims == "NxSxIxO" ? static_cast<double>(s[0] * s[1] * s[1] * (s[2] + s[3])) : 0;
}

Shape drawn(const CaseFamily& f, const std::vector<Dim>& dims, Draw& draw, double most) {
  while (true) {
    Shape s;
    for (const Dim d : dims) s.push_back(draw.dim(d));
    if (f.nearest_supported) s = f.nearest_supported(s);
    if (work(f, s) <= most && elements(f, s) <= most) return s;
  }
}

}  // namespace

std::vector<Case> swept_cases(const std::vector<std::string>& names, const SweepOptions& o) {
  const double most = o.large ? 0x1p28 : 0x1p21;
  const auto named = find_cases(names);
  const auto wanted = [&](const CaseFamily& f) {
    return std::any_of(named.begin(), named.end(), [&](const Case& c) { return c.op == f.op; });
  };
  std::vector<Case> found;
  for (const auto& f : case_families()) {
    const auto dims = dims_of(f);
    if (!wanted(f) || dims.empty()) continue;
    Draw draw(o.seed, f.op);
    for (int i = 0; i < o.shapes; ++i) {
      const Shape s = drawn(f, dims, draw, most);
      const DType any = draw.below(2) == 0 ? DType::f32 : DType::bf16;
      const bool backward = draw.below(2) == 0;
      if (f.training_only && o.forward) continue;
      found.push_back(case_at(f, s, o.dtype == DType::none ? any : o.dtype,
                              f.training_only || (backward && f.gradient && !o.forward)));
    }
  }
  if (found.empty() && !named.empty())
    fail_usage("cases", "shapes of {} cannot be drawn: expected an op on rows, a product, attention or conv2d",
               named.front().op);
  return found;
}

}  // namespace hpcdl::lab
