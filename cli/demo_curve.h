#pragma once

#include "cli/demo_report.h"

namespace hpcdl::cli {

/// Training loss, raw and smoothed, with dots for the held-out loss. Styled by the page's classes. "" without points.
std::string curve_svg(const std::vector<CurvePoint>& curve, const std::vector<CurvePoint>& evaluation);

}  // namespace hpcdl::cli
