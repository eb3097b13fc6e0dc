#pragma once

#include "hpcdl/lab/profile/report.h"

namespace hpcdl::lab {

struct TextOptions {
  std::size_t rows = 20;   // 0: all
  bool by_record = false;  // every record by itself instead of the same of all layers together
  bool advice = false;     // what to try
};

/// Where a step's time goes, the ranked records, gaps, memory, and what looking cost.
std::string report_text(const Report& report, const TextOptions& options = {});

}  // namespace hpcdl::lab
