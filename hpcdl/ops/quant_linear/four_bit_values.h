#pragma once

#include "hpcdl/ops/quant_linear/quant_format.h"

namespace hpcdl {

/// The values of NF4: quantiles of a normal distribution whose largest is 1 (Dettmers et al., "QLoRA", 2023, appendix E).
constexpr float kNf4Values[16] = {-1.0f,
                                  -0.6961928009986877f,
                                  -0.5250730514526367f,
                                  -0.39491748809814453f,
                                  -0.28444138169288635f,
                                  -0.18477343022823334f,
                                  -0.09105003625154495f,
                                  0.0f,
                                  0.07958029955625534f,
                                  0.16093020141124725f,
                                  0.24611230194568634f,
                                  0.33791524171829224f,
                                  0.44070982933044434f,
                                  0.5626170039176941f,
                                  0.7229568362236023f,
                                  1.0f};

/// The values of FP4 by code: a sign, two bits of exponent, one of fraction; parts of the largest, 12.
constexpr float kFp4Values[16] = {0, 0.0625f / 12,  8.0f / 12,  1,  4.0f / 12,  6.0f / 12,  2.0f / 12,  3.0f / 12,
                                  0, -0.0625f / 12, -8.0f / 12, -1, -4.0f / 12, -6.0f / 12, -2.0f / 12, -3.0f / 12};

/// Those of a format with a table. Internal, like the tables: kernel files must not put names that carry no instruction
/// set into an object (tests/symbols.test.cpp).
[[maybe_unused]] static constexpr const float (&four_bit_values(QuantFormat f))[16] {
  return f == QuantFormat::fp4 || f == QuantFormat::fp4_double ? kFp4Values : kNf4Values;
}

}  // namespace hpcdl
