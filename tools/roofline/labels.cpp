#include "tools/roofline/labels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

namespace hpcdl::lab::roofline {

namespace {

double cross(const Point& a, const Point& b, const Point& c) {
  return (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x);
}

bool segments_cross(const Point& a, const Point& b, const Point& c, const Point& d) {
  return (cross(a, b, c) > 0) != (cross(a, b, d) > 0) && (cross(c, d, a) > 0) != (cross(c, d, b) > 0);
}

bool segment_meets(const Point& a, const Point& b, const Box& box) {
  const auto inside = [&](const Point& p) {
    return p.x > box.left && p.x < box.right && p.y > box.top && p.y < box.bottom;
  };
  if (inside(a) || inside(b)) return true;
  const Point c[] = {{box.left, box.top}, {box.right, box.top}, {box.right, box.bottom}, {box.left, box.bottom}};
  for (int i = 0; i < 4; ++i)
    if (segments_cross(a, b, c[i], c[(i + 1) % 4])) return true;
  return false;
}

Box grown(const Box& b, double by) { return {b.left - by, b.top - by, b.right + by, b.bottom + by}; }
Box around(const Point& p, double radius) { return {p.x - radius, p.y - radius, p.x + radius, p.y + radius}; }

/// The point of the box nearest to p.
Point nearest(const Box& b, const Point& p) {
  return {std::clamp(p.x, b.left, b.right), std::clamp(p.y, b.top, b.bottom)};
}

constexpr double kCrossing = 1000;  // any position is better than a line through another label

class Placer {
 public:
  /// `gap`: minimum distance between labels in pixels, so that lines can pass.
  Placer(const LabelSpace& space, const std::vector<Point>& points, double gap)
      : space_(space), points_(points), gap_(gap) {}

  std::optional<PlacedLabel> best(std::size_t i, const Point& size) const {
    const Point at = points_[i];
    std::optional<PlacedLabel> found;
    double least = std::numeric_limits<double>::infinity();
    for (const double radius :
         {10.0, 14.0, 20.0, 28.0, 38.0, 50.0, 64.0, 80.0, 100.0, 124.0, 150.0, 180.0, 215.0, 255.0, 300.0, 350.0}) {
      if (0.8 * radius > least) break;
      for (int k = 0; k < 32; ++k) {
        const double angle = 2 * M_PI * k / 32, dx = std::cos(angle), dy = std::sin(angle);
        // The box is beyond the point on that side: its nearest edge is `radius` away.
        const Point centre{at.x + dx * (radius + size.x / 2), at.y + dy * (radius + size.y / 2)};
        const PlacedLabel label = at_centre(i, centre, size);
        const double cost = 0.8 * radius + price(label);
        if (cost < least) least = cost, found = label;
      }
    }
    return found;
  }
  void add(const PlacedLabel& label) { placed_.push_back(label); }
  /// Labels were placed one after the other; each may find a better position now that all others are placed.
  void settle(const std::vector<Point>& sizes) {
    constexpr int kRounds = 4;
    for (int round = 0; round < kRounds && crossings() > 0; ++round) {
      for (std::size_t k = 0; k < placed_.size(); ++k) {
        const auto before = placed_[0];
        placed_.erase(placed_.begin());
        placed_.push_back(best(before.point, sizes[before.point]).value_or(before));
      }
      for (std::size_t a = 0; a < placed_.size(); ++a)
        for (std::size_t b = 0; b < a; ++b) exchange(a, b, sizes);
    }
  }
  const std::vector<PlacedLabel>& placed() const { return placed_; }
  std::int64_t crossings() const {
    std::int64_t n = 0;
    for (std::size_t k = 0; k < placed_.size(); ++k) n += price_of(k) >= kCrossing;
    return n;
  }

 private:
  /// The cost of a label at its position, among all others.
  double price_of(std::size_t k) const {
    Placer others(space_, points_, gap_);
    for (std::size_t i = 0; i < placed_.size(); ++i)
      if (i != k) others.add(placed_[i]);
    return others.price(placed_[k]);
  }
  /// Exchanges two labels if that is better.
  void exchange(std::size_t a, std::size_t b, const std::vector<Point>& sizes) {
    const double before = price_of(a) + price_of(b);
    if (before < kCrossing) return;
    const auto was_a = placed_[a], was_b = placed_[b];
    const auto centre = [](const Box& box) { return Point{(box.left + box.right) / 2, (box.top + box.bottom) / 2}; };
    placed_[a] = at_centre(was_a.point, centre(was_b.box), sizes[was_a.point]);
    placed_[b] = at_centre(was_b.point, centre(was_a.box), sizes[was_b.point]);
    if (price_of(a) + price_of(b) >= before) placed_[a] = was_a, placed_[b] = was_b;
  }
  PlacedLabel at_centre(std::size_t i, const Point& c, const Point& size) const {
    PlacedLabel label{i, {c.x - size.x / 2, c.y - size.y / 2, c.x + size.x / 2, c.y + size.y / 2}, points_[i], false};
    const Point tip = nearest(label.box, points_[i]);
    if (std::hypot(tip.x - points_[i].x, tip.y - points_[i].y) > space_.marker_radius + 9)
      label.tip = tip, label.leader = true;
    return label;
  }

  /// Infinite where a label is not allowed.
  double price(const PlacedLabel& label) const {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    if (!space_.frame.contains(label.box)) return kNever;
    const Box wide = grown(label.box, gap_);
    for (const auto& b : space_.taken)
      if (wide.overlaps(b)) return kNever;
    double cost = 0;
    const Point at = points_[label.point];
    for (const auto& o : placed_) {
      if (wide.overlaps(o.box)) return kNever;
      if (o.leader && segment_meets(o.tip, points_[o.point], grown(label.box, 1))) cost += kCrossing;
      if (!label.leader) continue;
      if (segment_meets(label.tip, at, grown(o.box, 1))) cost += kCrossing;
      if (o.leader && segments_cross(label.tip, at, o.tip, points_[o.point])) cost += kCrossing;
    }
    for (const auto& m : space_.markers) {
      if (wide.overlaps(around(m, space_.marker_radius))) cost += 45;
      else if (label.leader && std::hypot(m.x - at.x, m.y - at.y) > 1 && segment_meets(label.tip, at, around(m, 2)))
        cost += 5;
    }
    for (const auto& line : space_.lines)
      for (std::size_t k = 0; k + 1 < line.size(); ++k)
        if (segment_meets(line[k], line[k + 1], wide)) cost += 25;
    return cost;
  }

  const LabelSpace& space_;
  const std::vector<Point>& points_;
  double gap_;
  std::vector<PlacedLabel> placed_;
};

}  // namespace

std::vector<PlacedLabel> place_labels(const LabelSpace& space, const std::vector<Point>& points,
                                      const std::vector<Point>& sizes) {
  std::vector<PlacedLabel> placed;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const double gap : {2.0, 6.0, 10.0}) {
    Placer placer(space, points, gap);
    for (std::size_t i = 0; i < points.size(); ++i)
      if (const auto label = placer.best(i, sizes[i])) placer.add(*label);
    if (placer.placed().size() < placed.size()) break;  // wider, and no room for all of them
    placer.settle(sizes);
    if (placer.crossings() < least) least = placer.crossings(), placed = placer.placed();
    if (least == 0) break;
  }
  std::sort(placed.begin(), placed.end(), [](const auto& a, const auto& b) { return a.point < b.point; });
  return placed;
}

}  // namespace hpcdl::lab::roofline
