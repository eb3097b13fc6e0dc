#include "hpcdl/io/regex_folds.h"

#include <utf8proc.h>

#include <algorithm>
#include <string>
#include <vector>

namespace hpcdl::io {
namespace {

std::u32string fold_of(char32_t point) {
  utf8proc_int32_t out[8];
  const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(point), out, 8, UTF8PROC_CASEFOLD, nullptr);
  return {out, out + std::clamp<utf8proc_ssize_t>(n, 0, 8)};
}

struct Fold {
  char32_t point;
  std::u32string to;
};

/// By character.
const std::vector<Fold>& long_folds() {
  static const std::vector<Fold> list = [] {
    std::vector<Fold> out;
    // CaseFolding.txt of Unicode lists these with status F in Latin, Greek and Armenian, and among the presentation
    // forms.
    for (const auto& [low, high] : {std::pair<char32_t, char32_t>{0xDF, 0x1FFF}, {0xFB00, 0xFB1F}})
      for (char32_t c = low; c <= high; ++c)
        if (auto to = fold_of(c); to.size() > 1) out.push_back({c, std::move(to)});
    return out;
  }();
  return list;
}

}  // namespace

bool any_folds_to_several(char32_t low, char32_t high) {
  const auto& list = long_folds();
  const auto at =
      std::lower_bound(list.begin(), list.end(), low, [](const Fold& f, char32_t c) { return f.point < c; });
  return at != list.end() && at->point <= high;
}

bool ends_in_fold_of_one(std::u32string_view folded) {
  const auto& list = long_folds();
  return std::any_of(list.begin(), list.end(), [&](const Fold& f) { return folded.ends_with(f.to); });
}

char32_t fold_case(char32_t point) {
  const auto to = fold_of(point);
  return to.size() == 1 ? to[0] : point;
}

}  // namespace hpcdl::io
