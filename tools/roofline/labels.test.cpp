#include "tools/roofline/labels.h"

#include <gtest/gtest.h>

#include <cmath>

namespace hpcdl::lab::roofline {
namespace {

void expect_good(const LabelSpace& space, const std::vector<PlacedLabel>& placed) {
  for (std::size_t i = 0; i < placed.size(); ++i) {
    EXPECT_TRUE(space.frame.contains(placed[i].box));
    for (const auto& b : space.taken) EXPECT_FALSE(placed[i].box.overlaps(b));
    for (std::size_t k = 0; k < i; ++k) EXPECT_FALSE(placed[i].box.overlaps(placed[k].box)) << i << " covers " << k;
  }
}

TEST(labels, one_point_gets_a_label_beside_it) {
  const LabelSpace space{.frame = {0, 0, 1000, 600}, .taken = {}, .markers = {{500, 300}}, .lines = {}};
  const auto placed = place_labels(space, {{500, 300}}, {{120, 15}});
  ASSERT_EQ(placed.size(), 1u);
  expect_good(space, placed);
  EXPECT_FALSE(placed[0].leader);
  EXPECT_FALSE(placed[0].box.overlaps({496, 296, 504, 304})) << "not over its own point";
}

TEST(labels, a_crowd_finds_room) {
  LabelSpace space{
      .frame = {0, 0, 1200, 640}, .taken = {{0, 600, 300, 640}}, .markers = {}, .lines = {{{0, 600}, {600, 100}}}};
  std::vector<Point> points, sizes;
  for (int i = 0; i < 36; ++i) {
    points.push_back({400 + 3.0 * i, 300 - 2.0 * i + std::fmod(7.0 * i, 11)});
    sizes.push_back({130.0 + i % 7 * 12, 15.5});
  }
  space.markers = points;
  const auto placed = place_labels(space, points, sizes);
  EXPECT_EQ(placed.size(), points.size());
  expect_good(space, placed);
}

double side_of(const Point& a, const Point& b, const Point& c) {
  return (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x);
}
bool cross(const Point& a, const Point& b, const Point& c, const Point& d) {
  return (side_of(a, b, c) > 0) != (side_of(a, b, d) > 0) && (side_of(c, d, a) > 0) != (side_of(c, d, b) > 0);
}
bool cross(const Point& a, const Point& b, const Box& box) {
  return cross(a, b, {box.left, box.top}, {box.right, box.bottom}) ||
         cross(a, b, {box.right, box.top}, {box.left, box.bottom});
}

/// Below a roof many points are close together, like the bf16 kernels of a GPU.
TEST(labels, no_line_to_a_point_crosses_another_or_a_label) {
  for (const double slope : {0.0, 0.4, 1.0, 2.5}) {
    LabelSpace space{.frame = {0, 0, 1200, 640}, .taken = {}, .markers = {}, .lines = {{{0, 200}, {1200, 200}}}};
    std::vector<Point> points, sizes;
    for (int i = 0; i < 12; ++i) {
      points.push_back({560 + std::fmod(53.0 * i, 90), 230 + std::fmod(31.0 * i, 60) + slope * i});
      sizes.push_back({150.0 + i % 5 * 20, 15.5});
    }
    space.markers = points;
    const auto placed = place_labels(space, points, sizes);
    EXPECT_EQ(placed.size(), points.size());
    expect_good(space, placed);
    for (const auto& a : placed)
      for (const auto& b : placed) {
        if (!a.leader || a.point == b.point) continue;
        EXPECT_FALSE(cross(a.tip, points[a.point], b.box)) << a.point << " through the label of " << b.point;
        EXPECT_FALSE(b.leader && cross(a.tip, points[a.point], b.tip, points[b.point])) << a.point << ", " << b.point;
      }
  }
}

TEST(labels, without_room_there_is_none) {
  const LabelSpace space{.frame = {0, 0, 100, 20}, .taken = {}, .markers = {}, .lines = {}};
  EXPECT_TRUE(place_labels(space, {{50, 10}}, {{120, 15}}).empty());
}

}  // namespace
}  // namespace hpcdl::lab::roofline
