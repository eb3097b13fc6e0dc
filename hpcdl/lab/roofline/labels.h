#pragma once
// Finds places for labels beside points: inside the frame, never over each other, close to their point.

#include <string>
#include <vector>

namespace hpcdl::lab::roofline {

struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;
  bool overlaps(const Box& o) const { return left < o.right && o.left < right && top < o.bottom && o.top < bottom; }
  bool contains(const Box& o) const { return left <= o.left && o.right <= right && top <= o.top && o.bottom <= bottom; }
};

struct Point {
  double x = 0, y = 0;
};

struct PlacedLabel {
  std::size_t point = 0;  // index of the point it belongs to
  Box box;                // of the text
  Point tip;              // where a line to the point starts; at the point itself when none is needed
  bool leader = false;
};

struct LabelSpace {
  Box frame;
  std::vector<Box> taken;      // never covered
  std::vector<Point> markers;  // covered only where there is no other place
  double marker_radius = 5;
  std::vector<std::vector<Point>> lines;  // better not covered
};

/// Greedy, in the order given: `sizes[i]` (width, height) belongs to `points[i]`. A label for which there is no place
/// at all is left out.
std::vector<PlacedLabel> place_labels(const LabelSpace& space, const std::vector<Point>& points,
                                      const std::vector<Point>& sizes);

}  // namespace hpcdl::lab::roofline
