#include "hpcdl/parallel/unit.h"

#include <algorithm>

#include "hpcdl/core/error.h"
#include "hpcdl/ops/many_tensors.h"

namespace hpcdl::parallel {
namespace {

constexpr std::int64_t kTensorAlign = 256 / sizeof(float);   // more than any kernel needs
constexpr std::int64_t kBucketAlign = 4096 / sizeof(float);  // a page: ranks with shared memory do not share pages

std::int64_t padded(std::int64_t n, std::int64_t align) { return (n + align - 1) / align * align; }

void end_unit(UnitPlan& plan, std::int64_t align) {
  if (plan.units.empty()) return;
  auto& unit = plan.units.back();
  unit.elements = padded(plan.elements - unit.offset, align);
  plan.elements = unit.offset + unit.elements;
}

void begin_unit(UnitPlan& plan, std::string name, std::string owner = {}) {
  const int at = static_cast<int>(plan.offset.size());
  plan.units.push_back(
      {.name = std::move(name), .owner = std::move(owner), .offset = plan.elements, .begin = at, .end = at});
}

void add_tensor(UnitPlan& plan, std::int64_t elements, std::int64_t align) {
  plan.offset.push_back(plan.elements);
  plan.elements += padded(elements, align);
  ++plan.units.back().end;
}

}  // namespace

const Unit& UnitPlan::unit_of(std::size_t tensor) const {
  const auto after = std::upper_bound(units.begin(), units.end(), static_cast<int>(tensor),
                                      [](int t, const Unit& u) { return t < u.begin; });
  return *std::prev(after);
}

Interval UnitPlan::piece(std::size_t tensor, std::int64_t size, int rank) const {
  const auto mine = share(unit_of(tensor), rank);
  const auto inside = [&](std::int64_t at) { return std::clamp<std::int64_t>(at - offset[tensor], 0, size); };
  return {inside(mine.begin), inside(mine.end)};
}

std::int64_t UnitPlan::piece_offset(std::size_t tensor, std::int64_t size, int rank) const {
  const Unit& unit = unit_of(tensor);
  const auto first = offset[tensor] + piece(tensor, size, rank).begin;
  const auto n = unit.elements / ranks;
  return unit.offset / ranks + std::clamp<std::int64_t>(first - share(unit, rank).begin, 0, n);
}

UnitPlan plan_buckets(std::span<const std::int64_t> elements, const BucketOptions& options) {
  require(options.cap >= 0 && options.first >= 0, "parallel",
          "expected bucket sizes of at least 0 bytes, found {}, and {} for the first", options.cap, options.first);
  constexpr std::int64_t kBytes = sizeof(float);
  UnitPlan plan;
  std::int64_t left = 0, limit = 0;
  for (const auto n : elements) {
    require(n >= 0, "parallel", "expected a gradient of at least 0 elements, found {}", n);
    left += padded(n, kTensorAlign);
  }
  for (const auto n : elements) {
    const auto size = padded(n, kTensorAlign);
    if (plan.units.empty() || plan.elements + size - plan.units.back().offset > limit) {
      end_unit(plan, kBucketAlign);
      const auto grown = plan.units.empty() ? 0 : 2 * plan.units.back().elements;
      limit = std::min(options.cap / kBytes, std::max(options.first / kBytes, std::min(grown, left / 2)));
      begin_unit(plan, "gradients." + std::to_string(plan.units.size()));
    }
    add_tensor(plan, n, kTensorAlign);
    left -= size;
  }
  end_unit(plan, kBucketAlign);
  return plan;
}

UnitPlan plan_units(std::span<const UnitTensor> tensors, int ranks) {
  require(ranks >= 1, "parallel", "expected at least one rank, found {}", ranks);
  UnitPlan plan;
  plan.ranks = ranks;
  for (const auto& t : tensors) {
    require(t.elements >= 0, "parallel", "expected a tensor of at least 0 elements, found {}", t.elements);
    if (plan.units.empty() || plan.units.back().name != t.unit) {
      end_unit(plan, ranks * kTensorBlock);
      begin_unit(plan, t.unit, t.owner);
    }
    add_tensor(plan, t.elements, kTensorBlock);
  }
  end_unit(plan, ranks * kTensorBlock);
  return plan;
}

UnitPlan plan_of_shares(const UnitPlan& plan) {
  UnitPlan shares{.offset = {}, .units = plan.units, .elements = plan.share_elements(), .ranks = 1};
  for (auto& unit : shares.units) {
    unit.name += ".share", unit.offset /= plan.ranks, unit.elements /= plan.ranks;
    unit.begin = unit.end = 0;
  }
  return shares;
}

std::string_view unit_name(std::string_view parameter) {
  for (std::size_t begin = 0; begin < parameter.size();) {
    const auto end = std::min(parameter.find('.', begin), parameter.size());
    const auto word = parameter.substr(begin, end - begin);
    if (!word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos)
      return parameter.substr(0, end);
    begin = end + 1;
  }
  const auto dot = parameter.rfind('.');
  return dot == std::string_view::npos ? parameter : parameter.substr(0, dot);
}

}  // namespace hpcdl::parallel
