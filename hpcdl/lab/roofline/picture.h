#pragma once
// The log-log picture: arithmetic intensity against achieved operations per second, under the measured roofs.

#include <string>
#include <vector>

#include "hpcdl/lab/roofline/report.h"

namespace hpcdl::lab::roofline {

/// A whole SVG file, light or dark as the viewer asks for. Rows without arithmetic have no place in it; rows that were
/// not measured stand at their roof.
std::string to_svg(const Report& report);
/// A page with the picture and all rows: sorts, filters, shows details; loads nothing from elsewhere.
std::string to_html(const Report& report);

/// With less than so many rows all of them get a label; else one for each op, the largest.
inline constexpr std::size_t kLabelAll = 28;
/// Rows that get a label, most important first.
std::vector<const Row*> labelled(const std::vector<const Row*>& rows);

/// The rules of the picture's classes behind `prefix`, e.g. "html[data-theme=dark] ".
std::string picture_rules(const std::string& prefix, bool dark);
/// "f32", "bf16" or "i8": the colour of a row, and the roof that it stands under. f16 has that of bf16.
std::string colour_class(const Row& row);

}  // namespace hpcdl::lab::roofline
