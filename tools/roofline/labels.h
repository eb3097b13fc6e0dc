#pragma once
// Finds positions for labels next to points: inside the frame, never overlapping, close to their point.

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
  Point tip;              // where a line to the point starts; at the point itself if no line is needed
  bool leader = false;
};

struct LabelSpace {
  Box frame;
  std::vector<Box> taken;      // never covered
  std::vector<Point> markers;  // covered only if there is no other position
  double marker_radius = 5;
  std::vector<std::vector<Point>> lines;  // preferably not covered
};

/// Greedy, in the given order: `sizes[i]` (width, height) belongs to `points[i]`. A label without any possible position
/// is omitted.
std::vector<PlacedLabel> place_labels(const LabelSpace& space, const std::vector<Point>& points,
                                      const std::vector<Point>& sizes);

}  // namespace hpcdl::lab::roofline
