#include "hpcdl/quant/int4_part.h"

#include <cstring>

#include "hpcdl/core/error.h"

namespace hpcdl::quant {
namespace {

/// Where the pieces of a row lie in a tensor whose tiles have `columns` runs of one piece for each of their rows.
struct PiecesOfRow {
  std::int64_t first, apart;

  PiecesOfRow(std::int64_t row, std::int64_t rows, std::int64_t columns) {
    const auto tile = row / int4::kTileRows * int4::kTileRows;
    first = tile * columns + row - tile, apart = int4::tile_rows(tile, rows);
  }
};

/// Copies columns [begin, begin + to_columns) of a row. T: 8 values of 4 bits, or a scale.
template <class T>
void copy_row(const Tensor& to, std::int64_t to_row, std::int64_t to_columns, const View& from, std::int64_t row,
              std::int64_t columns, std::int64_t begin) {
  const PiecesOfRow there(to_row, to[0], to_columns), here(row, from[0], columns);
  for (std::int64_t c = 0; c < to_columns; ++c)
    std::memcpy(to.ptr<std::byte>() + (there.first + c * there.apart) * std::int64_t{sizeof(T)},
                from.ptr<std::byte>() + (here.first + (begin + c) * here.apart) * std::int64_t{sizeof(T)}, sizeof(T));
}

}  // namespace

Int4Matrix take_int4(const int4::Weight& w, const nn::MatrixPart& part, std::string_view name) {
  const auto k = w.k(), groups = w.groups(), group = w.group(), inputs = part.inputs.count();
  require(part.inputs.begin % group == 0 && inputs % group == 0 && inputs > 0, "shard",
          "{}: a rank would have inputs {} to {}, which are not whole groups of {}: choose another number of ranks, or "
          "quantise the model in smaller groups",
          name, part.inputs.begin, part.inputs.end, group);
  std::int64_t outputs = 0;
  for (const auto& i : part.outputs) outputs += i.count();
  Int4Matrix taken(outputs, inputs, {.group = group, .symmetric = !w.offset});
  std::int64_t to = 0;
  for (const auto& i : part.outputs)
    for (auto row = i.begin; row < i.end; ++row, ++to) {
      copy_row<std::uint32_t>(taken.packed.tensor, to, inputs / 8, w.packed, row, k / 8, part.inputs.begin / 8);
      copy_row<bf16>(taken.scale.tensor, to, inputs / group, w.scale, row, groups, part.inputs.begin / group);
      if (w.offset)
        copy_row<bf16>(taken.offset.tensor, to, inputs / group, w.offset, row, groups, part.inputs.begin / group);
    }
  return taken;
}

}  // namespace hpcdl::quant
