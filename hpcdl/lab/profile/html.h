#pragma once

#include <string>

#include "hpcdl/lab/profile/report.h"

namespace hpcdl::lab {

/// One page that needs nothing else: ranked bars, one step as a timeline, planned memory over the same time, the table.
std::string report_html(const Report& report, const Profile& profile, const std::string& title);

/// The step in the middle of all recorded ones by time as SVG: stages, layers and records, and below them the memory.
std::string timeline_svg(const Profile& profile, const Roofs& roofs);

}  // namespace hpcdl::lab
