#pragma once
// A report for people: its contents are given once and printed in two forms, text for the terminal and one HTML page
// that needs nothing else.

#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace hpcdl::lab {

struct Fact {
  std::string name, value;
};

/// A bar in a table: a pale one, and the part of it that has the full colour, both in shares of the column.
struct Meter {
  double whole = 0, part = 0;
  int colour = 0;  // of that series
};

/// Rows may be shorter than the header.
struct Table {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
  std::string align = {};          // 'l' or 'r' for each column; empty: the first holds names, the others numbers
  std::vector<Meter> meters = {};  // on a page, one for each row
  std::size_t meters_before = 0;   // of this column
  std::string meters_name = {};
};

/// Drawn elsewhere.
struct Picture {
  std::string svg;
};

struct Series {
  enum class Form : unsigned char {
    line,  // with a dot at each point, if the points are far enough apart
    dots,
    smooth,  // faint, with a moving average over it
  };
  std::string name;
  std::vector<std::pair<double, double>> points;  // ascending x; points that are not finite are left out
  Form form = Form::line;
  int colour = -1;  // of which series it has the colour; -1: its own
  bool dashed = false;
  std::string note = {};               // in a chart of sizes, below its name
  std::vector<std::string> tips = {};  // what a pointer over each of its points shows; empty: the numbers
};

/// A named range of x.
struct Band {
  double from = 0, to = 0;
  std::string name, note;
  bool fades = false;  // to the right
};

/// Words at a point, in the colour of a series.
struct Mark {
  double x = 0, y = 0;
  std::string words;
  int colour = 0;
};

struct LineChart {
  std::string x, y;  // labels of the axes, with units
  std::vector<Series> series;
  bool from_zero = false;  // y starts at 0
  bool log_x = false;      // x in powers of two: each point has its own tick
  /// x is in bytes: a large picture with logarithmic axes. The last series of each name has its name at its end.
  bool sizes = false;
  std::string title = {};
  std::vector<std::string> subtitles = {};
  std::vector<Band> bands = {};
  std::vector<Mark> marks = {};
};

/// Horizontal bars, each of one or several consecutive parts.
struct BarChart {
  struct Bar {
    std::string name;
    std::vector<double> parts;
    std::string label;  // text after the bar
  };
  std::vector<std::string> parts = {};  // the names of the parts; empty: bars have one
  std::vector<Bar> bars = {};
  double mark = 0;  // a dashed line across all bars; 0: none
  std::string title = {}, subtitle = {}, footer = {};
};

/// Texts next to each other, for example two answers to the same prompt.
struct Pair {
  std::string first_name, second_name, lead, first, second;
};

struct Card {
  std::string title;
  std::variant<std::vector<Fact>, Table, LineChart, BarChart, Picture, std::vector<Pair>> content;
  std::string note = {};  // one sentence below it
  bool half = false;      // half as wide as the page
};

struct Page {
  std::string title, subtitle;
  std::vector<Fact> tiles;  // the few most important numbers
  std::vector<Card> cards;
  std::string footer;
  std::string caveat = {};  // why its numbers must not be quoted; shown first
  bool broad = false;       // for tables of many columns
};

/// A separate picture, or a part of a page; "" for a chart without points.
std::string svg(const LineChart& chart);
std::string svg(const BarChart& chart);

std::string page_html(const Page& page);
/// Without charts: their numbers should also be in a table.
std::string page_text(const Page& page);
/// Aligned columns, indented by two spaces.
std::string table_text(const Table& table);

}  // namespace hpcdl::lab
