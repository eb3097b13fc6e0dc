#pragma once
// The log-log picture: arithmetic intensity against achieved operations per second, under the measured roofs.

#include <string>
#include <vector>

#include "tools/roofline/report.h"

namespace hpcdl::lab::roofline {

/// A whole SVG file, light or dark according to the viewer. Rows without arithmetic are not shown; rows that were not
/// measured are shown at their roof.
std::string to_svg(const Report& report);
/// A page with the picture and all rows: sorts, filters, shows details; loads no other files.
std::string to_html(const Report& report);

/// With fewer rows than this all of them get a label; otherwise one per op, the largest.
inline constexpr std::size_t kLabelAll = 28;
/// Rows that get a label, most important first.
std::vector<const Row*> labelled(const std::vector<const Row*>& rows);

/// The CSS rules of the picture's classes with `prefix` before each, e.g. "html[data-theme=dark] ".
std::string picture_rules(const std::string& prefix, bool dark);
/// "f32", "bf16" or "i8": the colour of a row, and the roof that it belongs to. f16 is treated as bf16.
std::string colour_class(const Row& row);

}  // namespace hpcdl::lab::roofline
