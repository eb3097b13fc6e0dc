#include <fmt/format.h>

#include "hpcdl/core/ways.h"
#include "hpcdl/ops/int4_linear/int4_ways.h"

namespace hpcdl::cuda {

std::array<std::int64_t, 5> fields_of(const Int4Shape& s) {
  return {bucket(s.rows), bucket(s.n), bucket(s.k), s.group, s.exact};
}

std::string words_of(const Int4Shape& s) {
  return fmt::format("{}x{}x{} group {}{}", s.rows, s.n, s.k, s.group, s.exact ? " exact" : "");
}

}  // namespace hpcdl::cuda
