#pragma once
// Characters whose case folding has another length: the German sharp s is "ss", the ligature of f and i is
// "fi". Oniguruma matches them with each other if case is ignored, PCRE2 does not.

#include <string_view>

namespace hpcdl::io {

/// Whether some character from `low` to `high` folds to several.
bool any_folds_to_several(char32_t low, char32_t high);
/// Whether the case-folded text ends with the folding of such a character.
bool ends_in_fold_of_one(std::u32string_view folded);
/// Folds a character that folds to one; others stay unchanged.
char32_t fold_case(char32_t point);

}  // namespace hpcdl::io
