#pragma once
// Common parts of all pictures.

#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::lab {

constexpr double kChartWidth = 860;

/// Escapes text for use between tags and in attributes.
std::string escaped(std::string_view text);

/// 1, 2 or 5 times a power of ten, so that about `count` steps cover `span`, which is above 0.
double tick_step(double span, double count);
/// "1.5 MiB": at most four digits.
std::string size_text(double bytes);

struct Table;
/// Whether a column stands on the right.
bool is_number(const Table& t, std::size_t column);

/// The colours of all pages, light or dark as the viewer asks for, as variables of the selected elements.
std::string palette(std::string_view selector);
/// The name of the colour of series number i: "a" of the variable --a, and of the classes fill-a, stroke-a and stop-a
/// of pictures.
std::string_view series_colour(std::size_t i);

/// Opens a picture of `width` x `height` units with the style of all charts, light or dark as the viewer asks for; `label`
/// describes it.
std::string svg_begin(double width, double height, std::string_view label);
/// `more`: further attributes.
std::string svg_text(double x, double y, std::string_view anchor, std::string_view words,
                     std::string_view classes = "tick", std::string_view more = "");
std::string svg_line(double x1, double y1, double x2, double y2, std::string_view attributes);
/// Coloured squares with names in a row from x on.
std::string svg_legend(double x, double y, const std::vector<std::string>& names);

}  // namespace hpcdl::lab
