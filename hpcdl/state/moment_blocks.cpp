#include "hpcdl/state/moment_blocks.h"

#include <iterator>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/ops/adamw8/adamw8.h"

namespace hpcdl {
namespace {

constexpr std::int64_t kBlock = AdamW8::kBlock;

bool rows_are_blocks(const Shape& whole) { return whole.rank() > 0 && whole[-1] > 0 && whole[-1] % kBlock == 0; }

[[noreturn]] void fail_cut(const Part& part, std::string_view name, std::string_view where) {
  fail_usage(
      "train",
      "train.moments = \"8bit\": \"{}\" {} is divided among ranks inside of a block of {} elements: {}; its rows of {} "
      "elements, and the parts of them that ranks have, must be multiples of {}: choose another width or fewer ranks "
      "(parallel.tp), or set train.moments = \"f32\"",
      name, to_string(part.whole), kBlock, where, part.whole[-1], kBlock);
}

/// Boxes of a tensor whose rows are blocks.
Part in_rows(const Part& part, std::string_view name) {
  const int last = part.whole.rank() - 1;
  Part blocks{shape_of_blocks(part.whole), part.local, part.strides, part.boxes};
  const auto divide = [&](std::int64_t& n, const Box& box) {
    if (n % kBlock != 0) fail_cut(part, name, to_string(box, part.whole));
    n /= kBlock;
  };
  for (Box& box : blocks.boxes) {
    const Box before = box;
    divide(box.begin[last], before), divide(box.extent[last], before), divide(box.at, before);
  }
  blocks.local[-1] /= kBlock;
  for (int d = 0; d < last; ++d) blocks.strides[d] /= kBlock;
  if (blocks.local.rank() == blocks.whole.rank()) blocks.strides = contiguous_strides(blocks.local);
  return blocks;
}

/// Elements that follow each other in the whole tensor and in the holder's memory.
struct Run {
  std::int64_t at, in_whole, count;
};

std::vector<Run> longest_runs(const Part& part) {
  std::vector<Run> runs;
  for_each_run(part, [&](std::int64_t at, std::int64_t in_whole, std::int64_t count) {
    if (!runs.empty()) {
      auto& last = runs.back();
      if (last.at + last.count == at && last.in_whole + last.count == in_whole) {
        last.count += count;
        return;
      }
    }
    runs.push_back({at, in_whole, count});
  });
  return runs;
}

/// Boxes of any other tensor, as intervals of its blocks.
Part in_runs(const Part& part, std::string_view name) {
  const auto end = part.whole.size();
  Part blocks{shape_of_blocks(part.whole), {AdamW8::blocks(part.local.size())}, {1}, {}};
  for (const auto& [at, in_whole, count] : longest_runs(part)) {
    if (at % kBlock != 0 || in_whole % kBlock != 0 || (count % kBlock != 0 && in_whole + count != end))
      fail_cut(part, name, fmt::format("elements [{}, {})", in_whole, in_whole + count));
    blocks.boxes.push_back({{in_whole / kBlock}, {AdamW8::blocks(count)}, at / kBlock});
  }
  return blocks;
}

}  // namespace

Shape shape_of_blocks(const Shape& whole) {
  if (!rows_are_blocks(whole)) return {AdamW8::blocks(whole.size())};
  Shape blocks = whole;
  blocks[-1] /= kBlock;
  return blocks;
}

Part part_of_blocks(const Part& part, std::string_view name) {
  if (part.all()) return {};
  return rows_are_blocks(part.whole) ? in_rows(part, name) : in_runs(part, name);
}

void add_new_moments(std::vector<NewMoment>& to, nn::Param& param, const UpdatedPart& updated,
                     std::span<const std::string_view> names, bool coded) {
  constexpr DType kCodes[] = {DType::i8, DType::u8};
  require(!coded || names.size() == std::size(kCodes), "state", "expected two coded moments, got {}", names.size());
  const auto& [shape, part] = updated;
  const bool codes = coded && param.whole().size() >= kLeastCoded;
  for (std::size_t n = 0; n < names.size(); ++n) {
    const auto ending = fmt::format(".{}", names[n]);
    to.push_back({&param, ending, {shape, codes ? kCodes[n] : DType::f32}, part});
    if (!codes) continue;
    const auto blocks = part_of_blocks(part, param.name);
    to.push_back(
        {&param, ending + ".scale", {blocks.all() ? shape_of_blocks(shape) : blocks.local, DType::f32}, blocks});
  }
}

}  // namespace hpcdl
