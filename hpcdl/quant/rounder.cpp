#include "hpcdl/quant/rounder.h"

#include <algorithm>
#include <iterator>

#include "hpcdl/quant/compensations.h"

namespace hpcdl::quant {

const Compensation* compensation_of(const nn::Codec& codec) {
  static constexpr const Compensation* kAll[] = {
#define HPCDL_ROW(name) &name##_compensation,
      HPCDL_CODECS(HPCDL_ROW)
#undef HPCDL_ROW
  };
  const auto found = std::ranges::find(kAll, &codec, &Compensation::codec);
  return found == std::end(kAll) ? nullptr : *found;
}

}  // namespace hpcdl::quant
