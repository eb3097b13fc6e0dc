#include "hpcdl/quant/rounder.h"

#include <algorithm>
#include <iterator>

#include "hpcdl/quant/compensations.h"

namespace hpcdl::quant {

const Compensation* compensation_of(const nn::Codec& codec) {
  static constexpr const Compensation* kAll[] = {&int4_compensation, &nf4_compensation,        &fp4_compensation,
                                                 &int8_compensation, &fp8_compensation,        &mxfp4_compensation,
                                                 &rot3_compensation, &rot_ternary_compensation};
  const auto found = std::ranges::find(kAll, &codec, &Compensation::codec);
  return found == std::end(kAll) ? nullptr : *found;
}

}  // namespace hpcdl::quant
