// Boxes against a loop over single elements.

#include "hpcdl/box.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "hpcdl/buffer.h"
#include "hpcdl/core/error.h"
#include "hpcdl/rng.h"

namespace hpcdl {
namespace {

/// Random draws in sequence.
struct Draws {
  Rng rng;
  std::uint64_t next = 0;
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(rng.below(next++, static_cast<std::uint64_t>(n)));
  }
};

Shape random_shape(Draws& d, int rank) {
  Shape s;
  for (int i = 0; i < rank; ++i) s.push_back(d.below(20) == 0 ? 0 : 1 + d.below(6));
  return s;
}

/// n intervals that divide [0, size), some of which may be empty.
std::vector<Interval> cuts(Draws& d, std::int64_t size, int n) {
  std::vector<std::int64_t> at{0, size};
  for (int i = 1; i < n; ++i) at.push_back(d.below(size + 1));
  std::sort(at.begin(), at.end());
  std::vector<Interval> list;
  for (int i = 0; i < n; ++i) list.push_back({at[static_cast<std::size_t>(i)], at[static_cast<std::size_t>(i) + 1]});
  return list;
}

/// For each element of the holder's tensor in row-major order, its index in the whole one; -1: in no box.
std::vector<std::int64_t> places(const Shape& whole, const Part& part) {
  const Shape strides = contiguous_strides(whole);
  std::vector<std::int64_t> place(static_cast<std::size_t>(part.all() ? whole.size() : part.local.size()), -1);
  if (part.all()) std::iota(place.begin(), place.end(), std::int64_t{0});
  for (const Box& box : part.boxes)
    for (std::int64_t n = 0; n < box.size(); ++n) {
      std::int64_t rest = n, at = box.at, global = 0;
      for (int d = whole.rank() - 1; d >= 0; --d) {
        const auto i = rest % box.extent[d];
        rest /= box.extent[d];
        at += i * part.strides[d], global += (box.begin[d] + i) * strides[d];
      }
      EXPECT_EQ(place.at(static_cast<std::size_t>(at)), -1) << "two elements have the same position";
      place[static_cast<std::size_t>(at)] = global;
    }
  return place;
}

/// All holders of one tensor: columns or rows of up to three sections over `tp` of them, and the elements of each in
/// flat ranges over `flat`.
std::vector<Part> divided(Draws& d, const Shape& whole, int tp, int flat) {
  std::vector<Part> parts(static_cast<std::size_t>(tp));
  if (whole.rank() > 0 && tp > 1) {
    const auto dim = static_cast<int>(d.below(whole.rank()));
    std::vector<std::vector<Interval>> mine(static_cast<std::size_t>(tp));
    for (const auto& section : cuts(d, whole[dim], 1 + static_cast<int>(d.below(3)))) {
      const auto shares = cuts(d, section.count(), tp);
      for (std::size_t r = 0; r < shares.size(); ++r)
        mine[r].push_back({section.begin + shares[r].begin, section.begin + shares[r].end});
    }
    for (std::size_t r = 0; r < parts.size(); ++r) parts[r] = Part::along(whole, dim, mine[r]);
  } else {
    parts.resize(1);
  }
  if (flat == 1) return parts;
  std::vector<Part> list;
  for (const auto& part : parts)
    for (const auto& range : cuts(d, part.all() ? whole.size() : part.local.size(), flat))
      list.push_back(Part::flat(whole, range, part));
  return list;
}

TEST(box, holders_of_a_tensor_have_every_element_once_wherever_it_is_divided) {
  Draws d{{1, 1}};
  for (int trial = 0; trial < 2000; ++trial) {
    const Shape whole = random_shape(d, static_cast<int>(d.below(5)));
    const auto parts = divided(d, whole, 1 + static_cast<int>(d.below(4)), 1 + static_cast<int>(d.below(4)));
    std::vector<int> times(static_cast<std::size_t>(whole.size()));
    std::vector<Box> boxes;
    for (const auto& part : parts) {
      const auto place = places(whole, part);
      const Spec local{part.all() ? whole : part.local, DType::u8};
      EXPECT_EQ(whole_spec(local, part, "x"), (Spec{whole, DType::u8}));
      for (const auto p : place) ++times.at(static_cast<std::size_t>(p));
      for (const auto& b : boxes_of(whole, part)) boxes.push_back(b);
      if (part.all()) continue;
      std::vector<std::int64_t> by_runs(place.size(), -1);
      for_each_run(part, [&](std::int64_t at, std::int64_t in_whole, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) by_runs.at(static_cast<std::size_t>(at + i)) = in_whole + i;
      });
      EXPECT_EQ(by_runs, place);
    }
    EXPECT_EQ(std::count(times.begin(), times.end(), 1), std::ssize(times));
    EXPECT_FALSE(find_flaw(whole, boxes));
  }
}

TEST(box, flat_ranges_are_in_order_and_few_boxes) {
  Draws d{{2, 1}};
  for (int trial = 0; trial < 500; ++trial) {
    const Shape whole = random_shape(d, static_cast<int>(d.below(4)));
    const auto begin = d.below(whole.size() + 1), end = begin + d.below(whole.size() - begin + 1);
    const Part part = Part::flat(whole, {begin, end});
    EXPECT_LE(std::ssize(part.boxes), std::max(1, 2 * whole.rank() - 1));
    std::vector<std::int64_t> expected(static_cast<std::size_t>(end - begin));
    std::iota(expected.begin(), expected.end(), begin);
    EXPECT_EQ(places(whole, part), expected);
  }
  const Part middle = Part::flat({5, 4}, {3, 18});
  EXPECT_EQ(middle.boxes, (std::vector<Box>{{{0, 3}, {1, 1}, 0}, {{1, 0}, {3, 4}, 1}, {{4, 0}, {1, 2}, 13}}));
  EXPECT_EQ(Part::flat({5, 4}, {4, 12}).boxes, (std::vector<Box>{{{1, 0}, {2, 4}, 0}}));
  EXPECT_EQ(Part::flat({}, {0, 1}).boxes.size(), 1u) << "a scalar";
  EXPECT_TRUE(Part::flat({3}, {1, 1}).boxes.empty());
}

TEST(box, common_elements_of_two_holders_are_copied_between_any_layouts) {
  Draws d{{3, 1}};
  std::int64_t strided = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    const Shape whole = random_shape(d, static_cast<int>(d.below(5)));
    const auto one = [&](std::uint64_t seed) {
      Draws own{{seed, 7}};
      const auto parts = divided(own, whole, 1 + static_cast<int>(own.below(4)), 1 + static_cast<int>(own.below(3)));
      return parts[static_cast<std::size_t>(own.below(std::ssize(parts)))];
    };
    /// Memory whose rows or columns are dense, with gaps between them.
    struct Holder {
      Part part;
      Buffer memory{1 << 16};
      Tensor tensor;
      Holder(const Part& p, const Shape& all, bool turned) : part(p) {
        const Shape shape = p.all() ? all : p.local;
        Shape strides = contiguous_strides(shape);
        for (int i = 0; i < shape.rank(); ++i) strides[i] *= 2;
        if (turned && shape.rank() == 2) strides = {1, shape[0] + 1};
        tensor = Tensor(memory.data(), {shape, DType::i32}, strides, Device{});
        std::fill_n(reinterpret_cast<std::int32_t*>(memory.data()), memory.bytes() / 4, -1);
      }
      std::int32_t& operator[](std::size_t n) {
        auto rest = static_cast<std::int64_t>(n);
        std::int64_t at = 0;
        for (int i = tensor.rank() - 1; i >= 0; --i) {
          at += rest % tensor[i] * tensor.strides()[i];
          rest /= tensor[i];
        }
        return reinterpret_cast<std::int32_t*>(memory.data())[at];
      }
    };
    const bool turned = d.below(2) == 1;
    strided += turned;
    Holder from(one(static_cast<std::uint64_t>(2 * trial)), whole, turned),
        to(one(static_cast<std::uint64_t>(2 * trial + 1)), whole, d.below(2) == 1);
    const auto sources = places(whole, from.part), targets = places(whole, to.part);
    for (std::size_t i = 0; i < sources.size(); ++i) from[i] = static_cast<std::int32_t>(sources[i]);
    std::int64_t shared = 0;
    const auto copied = copy_common(to.tensor, to.part, from.tensor, from.part);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      const bool held = std::find(sources.begin(), sources.end(), targets[i]) != sources.end();
      shared += held;
      ASSERT_EQ(to[i], held ? static_cast<std::int32_t>(targets[i]) : -1) << trial;
    }
    EXPECT_EQ(copied, shared);
  }
  EXPECT_GT(strided, 1000);
}

/// A box that is moved, enlarged, missing or duplicated is detected, with its position.
TEST(box, the_first_region_that_is_not_held_once_is_named) {
  Draws d{{4, 1}};
  int found = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const Shape whole = random_shape(d, 1 + static_cast<int>(d.below(4)));
    std::vector<Box> boxes;
    for (const auto& part : divided(d, whole, 3, 2))
      for (const auto& b : boxes_of(whole, part)) boxes.push_back(b);
    if (boxes.empty()) continue;
    auto& box = boxes[static_cast<std::size_t>(d.below(std::ssize(boxes)))];
    const auto dim = static_cast<int>(d.below(whole.rank()));
    switch (d.below(4)) {
      case 0: box.begin[dim] = d.below(whole[dim] - box.extent[dim] + 1); break;
      case 1: box.extent[dim] = d.below(whole[dim] - box.begin[dim] + 1); break;
      case 2: box.extent[dim] = 0; break;
      default: boxes.push_back(Box(box)); break;
    }
    std::vector<int> times(static_cast<std::size_t>(whole.size()));
    const auto count = [&](const Box& b, auto&& f) {
      for (const auto p : places(whole, {whole, b.extent, contiguous_strides(b.extent), {b}}))
        f(static_cast<std::size_t>(p));
    };
    for (Box b : boxes) b.at = 0, count(b, [&](std::size_t p) { ++times[p]; });
    const auto flaw = find_flaw(whole, boxes);
    ASSERT_EQ(flaw.has_value(), std::count(times.begin(), times.end(), 1) != std::ssize(times));
    if (!flaw) continue;
    ++found;
    EXPECT_GT(flaw->region.size(), 0);
    EXPECT_NE(flaw->times, 1);
    count(flaw->region, [&](std::size_t p) { EXPECT_EQ(times[p], flaw->times); });
  }
  EXPECT_GT(found, 500);
  EXPECT_EQ(to_string(Box{{4, 0, 2}, {4, 3, 1}, 0}, {8, 3, 5}), "dim 0 [4, 8) x dim 2 [2, 3)");
  EXPECT_EQ(to_string(Box{{0}, {8}, 0}, {8}), "");
}

TEST(box, many_holders_are_checked_in_little_time) {
  std::vector<Box> boxes;
  const Shape whole{50257, 1024};
  const auto n = whole.size(), ranks = std::int64_t{4096};
  for (std::int64_t r = 0; r < ranks; ++r)
    for (const auto& b : Part::flat(whole, {n * r / ranks, n * (r + 1) / ranks}).boxes) boxes.push_back(b);
  EXPECT_FALSE(find_flaw(whole, boxes));
  boxes.erase(boxes.begin() + 5000);
  EXPECT_TRUE(find_flaw(whole, boxes));
}

TEST(box, an_impossible_part_is_a_clear_error) {
  const auto said = [](const Part& part, const Shape& local) -> std::string {
    try {
      whole_spec({local, DType::f32}, part, "\"w\"");
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const auto columns = Part::along({4, 6}, 1, std::array{Interval{0, 2}, Interval{4, 5}});
  EXPECT_EQ(said(columns, {4, 3}), "");
  constexpr auto kMost = INT64_MAX;
  const auto with = [&](auto change) {
    Part p = columns;
    change(p);
    return p;
  };
  const std::pair<Part, const char*> cases[] = {
      {with([](Part& p) { p.local = {3, 4}; }), "its shape is (4, 3)"},
      {with([](Part& p) { p.whole = {4, 4}; }), "does not lie in (4, 4)"},
      {with([](Part& p) { p.whole = {-4, 6}; }), "cannot be the shape of a whole tensor"},
      {with([](Part& p) { p.whole = {kMost, 6}; }), "cannot be the shape of a whole tensor"},
      {with([](Part& p) { p.whole = {4, 6, 1}; }), "cannot be one of a tensor (4, 6, 1)"},
      {with([](Part& p) { p.strides = {1, 4}; }), "cannot be the strides"},
      {with([](Part& p) { p.strides = {3}; }), "cannot be the strides"},
      {with([](Part& p) { p.boxes[0].begin[0] = -1; }), "does not lie in (4, 6)"},
      {with([](Part& p) { p.boxes[0].begin[1] = kMost; }), "does not lie in (4, 6)"},
      {with([](Part& p) { p.boxes[0].extent[1] = kMost; }), "does not lie in (4, 6)"},
      {with([](Part& p) { p.boxes[0].extent = {4}; }), "does not lie in (4, 6)"},
      {with([](Part& p) { p.boxes[0].at = kMost; }), "does not lie in the holder's (4, 3)"},
      {with([](Part& p) { p.boxes[0].at = -1; }), "does not lie in the holder's (4, 3)"},
      {with([](Part& p) { p.boxes[0].at = 2; }), "does not lie in the holder's (4, 3)"},
      {with([](Part& p) { p.boxes.pop_back(); }), "its boxes have 8 elements"},
      {with([](Part& p) { p.boxes.push_back(p.boxes[0]); }), "more elements than its shape"},
  };
  for (const auto& [part, words] : cases) {
    const auto message = said(part, {4, 3});
    EXPECT_NE(message.find(words), std::string::npos) << words << ": " << message;
    EXPECT_NE(message.find("tensor \"w\""), std::string::npos) << message;
  }
  auto flat = Part::flat({4, 6}, {5, 20});
  EXPECT_EQ(said(flat, {15}), "");
  flat.strides = {kMost, kMost};
  EXPECT_NE(said(flat, {15}).find("does not lie in the holder's (15)"), std::string::npos) << said(flat, {15});
  flat.strides = {-1, 1};
  EXPECT_NE(said(flat, {15}).find("cannot be the strides"), std::string::npos);
}

TEST(box, outside_of_others_have_every_other_element_once) {
  Draws d{{21, 7}};
  for (int round = 0; round < 2000; ++round) {
    const Shape whole = random_shape(d, static_cast<int>(d.below(4)));
    const auto random_box = [&] {
      Box b{whole, whole};
      for (int k = 0; k < whole.rank(); ++k) {
        b.begin[k] = d.below(whole[k] + 1);
        b.extent[k] = d.below(whole[k] - b.begin[k] + 1);
      }
      return b;
    };
    const auto has = [&](const Box& b, std::int64_t element) {
      for (int k = whole.rank() - 1; k >= 0; --k) {
        const auto at = element % whole[k];
        element /= whole[k];
        if (at < b.begin[k] || at >= b.begin[k] + b.extent[k]) return false;
      }
      return true;
    };
    const Box box = random_box();
    std::vector<Box> others;
    for (auto n = d.below(4); n > 0; --n) others.push_back(random_box());
    const auto rest = outside(box, others);
    for (std::int64_t e = 0; e < whole.size(); ++e) {
      const auto holds = [&](const Box& b) { return has(b, e); };
      const bool wanted = has(box, e) && std::none_of(others.begin(), others.end(), holds);
      ASSERT_EQ(std::count_if(rest.begin(), rest.end(), holds), wanted ? 1 : 0) << round;
    }
  }
}

}  // namespace
}  // namespace hpcdl
