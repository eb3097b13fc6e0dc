#pragma once
// Characters that change their number when their case is folded: the German sharp s is "ss", the ligature of f and i is
// "fi". Oniguruma matches one for the other where case is ignored, PCRE2 does not.

#include <string_view>

namespace hpcdl::io {

/// Some character from `low` to `high` folds to several.
bool any_folds_to_several(char32_t low, char32_t high);
/// The case-folded text ends in what some character folds to.
bool ends_in_fold_of_one(std::u32string_view folded);
/// A character that folds to one; others stay as they are.
char32_t fold_case(char32_t point);

}  // namespace hpcdl::io
