#pragma once

#include "hpcdl/quant/rounder.h"

namespace hpcdl::quant {

extern const Compensation int4_compensation, nf4_compensation, fp4_compensation, int8_compensation, fp8_compensation,
    mxfp4_compensation, rot3_compensation, rot_ternary_compensation;

}  // namespace hpcdl::quant
