#pragma once

#include <string>

#include "hpcdl/lab/profile/report.h"

namespace hpcdl::lab {

/// A self-contained page: ranked bars, one step as a timeline, planned memory over the same time, the table.
std::string report_html(const Report& report, const Profile& profile, const std::string& title);

/// The recorded step with the median time as SVG: stages, layers and records, and the memory below them.
std::string timeline_svg(const Profile& profile, const Roofs& roofs);

}  // namespace hpcdl::lab
