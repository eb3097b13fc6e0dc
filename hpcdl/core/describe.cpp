#include "hpcdl/core/describe.h"

#include <charconv>

namespace hpcdl {

// Written by hand: infer() functions describe operands for messages that are hardly ever thrown, so this is on the path
// of every call from outside a program. Short texts stay in the string's own memory.

std::string to_string(const Shape& s) {
  std::string text = "(";
  for (int i = 0; i < s.rank(); ++i) {
    char digits[20];
    char* end = std::to_chars(digits, digits + sizeof digits, s[i]).ptr;
    if (i > 0) text += ", ";
    text.append(+digits, end);
  }
  return text += ')';
}

std::string to_string(const Spec& s) {
  if (!s) return "absent";
  std::string text(dtype_name(s.dtype));
  text += ' ';
  return text += to_string(s.shape);
}

}  // namespace hpcdl
