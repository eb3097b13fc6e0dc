#pragma once

#include "hpcdl/lab/profile/report.h"

namespace hpcdl::lab {

struct TextOptions {
  std::size_t rows = 20;   // 0: all
  bool by_record = false;  // every record separately instead of equal records of all layers combined
  bool advice = false;     // suggestions
};

/// Where a step's time goes, the ranked records, gaps, memory, and the cost of recording.
std::string report_text(const Report& report, const TextOptions& options = {});

}  // namespace hpcdl::lab
