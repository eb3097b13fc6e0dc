#pragma once

#include "hpcdl/quant/codecs.h"
#include "hpcdl/quant/rounder.h"

namespace hpcdl::quant {

#define HPCDL_ROW(name) extern const Compensation name##_compensation;
HPCDL_CODECS(HPCDL_ROW)
#undef HPCDL_ROW

}  // namespace hpcdl::quant
